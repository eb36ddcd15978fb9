"""The registry of settings: precedence, refusals, and the page generated from it."""

import re

import pytest

from overlap import settings
from overlap.errors import UsageError


def test_keyword_beats_environment_beats_default(monkeypatch):
    monkeypatch.delenv("OVERLAP_SIM_SMS", raising=False)
    assert settings.get("sim_sms") == settings.SETTINGS["sim_sms"].default
    monkeypatch.setenv("OVERLAP_SIM_SMS", "7")
    assert settings.get("sim_sms") == 7
    assert settings.get("sim_sms", keyword=9) == 9


def test_false_and_zero_are_keywords(monkeypatch):
    monkeypatch.setenv("OVERLAP_PROGRESS", "1")
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "12.5")
    assert settings.get("progress", keyword=False) is False
    assert settings.get("deadline_s", keyword=0) == 0.0


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_no_value(monkeypatch, text):
    monkeypatch.setenv("OVERLAP_DUMP_DIR", text)
    assert settings.get("dump_dir") is None


@pytest.mark.parametrize("name", settings.SETTINGS)
def test_values_have_the_kind_that_is_declared(monkeypatch, name):
    setting = settings.SETTINGS[name]
    text = {bool: "on", int: "3", float: "2.5"}.get(setting.kind, (setting.choices or ("some/where",))[0])
    monkeypatch.setenv(setting.variable, text)
    assert type(settings.get(name)) is setting.kind or isinstance(settings.get(name), setting.kind)
    assert setting.default is None or isinstance(setting.default, setting.kind)


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("OVERLAP_SIM_SMS", "0", "at least 1"),
        ("OVERLAP_SIM_SMS", "four", "an integer"),
        ("OVERLAP_DEADLINE_S", "-1", "at least 0"),
        ("OVERLAP_DEADLINE_S", "nan", "a number"),
        ("OVERLAP_PROGRESS", "maybe", "1 or 0"),
        ("OVERLAP_LOG_LEVEL", "loud", "debug, info, warning or error"),
    ],
)
def test_a_bad_variable_is_refused_by_name(monkeypatch, variable, text, allowed):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError) as refusal:
        settings.get(variable.removeprefix("OVERLAP_").lower())
    assert f"{variable}={text!r}" in refusal.value.message
    assert allowed in refusal.value.help


@pytest.mark.parametrize(("name", "value"), [("sim_sms", True), ("sim_sms", 2.0), ("progress", 1), ("log_level", "LOUD")])
def test_a_bad_keyword_is_refused_by_name(name, value):
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        settings.get(name, keyword=value)


def test_an_unknown_setting_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="no setting 'deadline'") as refusal:
        settings.get("deadline")
    assert "did you mean 'deadline_s'?" in refusal.value.help


def test_a_misspelt_variable_is_found(monkeypatch):
    monkeypatch.setenv("OVERLAP_SIM_SM", "4")
    assert "OVERLAP_SIM_SM (did you mean OVERLAP_SIM_SMS?)" in settings.unknown_variables()


def test_the_page_is_the_table(repo):
    page = (repo / "docs" / "settings.md").read_text()
    assert page.endswith("\n\n" + settings.table()), "docs/settings.md must end with overlap.settings.table()"


def test_every_setting_is_read_somewhere(repo):
    sources = [path.read_text() for path in (repo / "overlap").rglob("*.py") if path.name != "settings.py"]
    read = {name for text in sources for name in re.findall(r"""settings\.get\(\s*["'](\w+)["']""", text)}
    assert read == set(settings.SETTINGS)
