"""The registry of settings: precedence, refusals, and the page generated from it."""

import re

import pytest

from overlap import settings
from overlap.errors import UsageError
from overlap.settings import Setting

SAMPLES = (
    Setting("ratio", float, 2.5, "A number.", minimum=0),
    Setting("count", int, 4, "An integer.", minimum=1),
    Setting("eager", bool, True, "A switch."),
    Setting("level", str, "warning", "A word.", choices=("debug", "info", "warning")),
)


@pytest.fixture(autouse=True)
def samples(monkeypatch):
    """A setting of every kind, whatever the registry holds."""
    for setting in SAMPLES:
        monkeypatch.setitem(settings.SETTINGS, setting.name, setting)
    for setting in settings.SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)


def test_keyword_beats_environment_beats_default(monkeypatch):
    assert settings.get("count") == 4
    monkeypatch.setenv("OVERLAP_COUNT", "7")
    assert settings.get("count") == 7
    assert settings.get("count", keyword=9) == 9


def test_false_and_zero_are_keywords(monkeypatch):
    monkeypatch.setenv("OVERLAP_EAGER", "1")
    monkeypatch.setenv("OVERLAP_RATIO", "12.5")
    assert settings.get("eager", keyword=False) is False
    assert settings.get("ratio", keyword=0) == 0.0


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_no_value(monkeypatch, text):
    monkeypatch.setenv("OVERLAP_COUNT", text)
    assert settings.get("count") == 4


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ratio", "0", 0.0),
        ("ratio", "1e3", 1000.0),
        ("count", "12", 12),
        ("eager", "off", False),
        ("eager", "Yes", True),
        ("level", "debug", "debug"),
    ],
)
def test_text_becomes_the_kind_that_is_declared(monkeypatch, name, text, value):
    monkeypatch.setenv(f"OVERLAP_{name.upper()}", text)
    got = settings.get(name)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("OVERLAP_COUNT", "0", "an integer, at least 1"),
        ("OVERLAP_COUNT", "four", "an integer"),
        ("OVERLAP_RATIO", "-1", "a number, at least 0"),
        ("OVERLAP_RATIO", "nan", "a number"),
        ("OVERLAP_EAGER", "maybe", "1 or 0"),
        ("OVERLAP_LEVEL", "loud", "debug, info or warning"),
    ],
)
def test_a_bad_variable_is_refused_by_name(monkeypatch, variable, text, allowed):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError) as refusal:
        settings.get(variable.removeprefix("OVERLAP_").lower())
    assert f"{variable}={text!r}" in refusal.value.message
    assert allowed in refusal.value.help


@pytest.mark.parametrize(("name", "value"), [("count", True), ("count", 2.0), ("eager", 1), ("level", "LOUD")])
def test_a_bad_keyword_is_refused_by_name(name, value):
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        settings.get(name, keyword=value)


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="no setting 'counts'") as refusal:
        settings.get("counts")
    assert "did you mean 'count'?" in refusal.value.help


def test_the_table_has_a_row_for_each():
    rows = settings.table().splitlines()
    assert len(rows) == 2 + len(settings.SETTINGS)
    assert "| `level` | `OVERLAP_LEVEL` | debug, info or warning | warning | A word. |" in rows


def test_the_page_is_the_table(repo, monkeypatch):
    for setting in SAMPLES:
        monkeypatch.delitem(settings.SETTINGS, setting.name)
    page = (repo / "docs" / "settings.md").read_text()
    assert page.endswith("\n\n" + settings.table()), "docs/settings.md must end with overlap.settings.table()"


def test_every_setting_is_read_somewhere(repo):
    sources = [path.read_text() for path in (repo / "overlap").rglob("*.py") if path.name != "settings.py"]
    read = {name for text in sources for name in re.findall(r"""settings\.get\(\s*["'](\w+)["']""", text)}
    assert read == set(settings.SETTINGS) - {setting.name for setting in SAMPLES}


def test_texts_change_with_every_setting_and_with_nothing_else(monkeypatch):
    known = [setting for setting in settings.SETTINGS.values() if setting not in SAMPLES]
    for setting in known:
        monkeypatch.delenv(setting.variable, raising=False)
    nothing = settings.texts()
    monkeypatch.setenv("OVERLAP_NO_SETTING", "1")
    assert settings.texts() == nothing
    seen = {nothing}
    for setting in known:
        for text in ("1", "2"):
            monkeypatch.setenv(setting.variable, text)
            seen.add(settings.texts())
        monkeypatch.delenv(setting.variable)
        assert settings.texts() == nothing
    assert len(seen) == 1 + 2 * len(known)
