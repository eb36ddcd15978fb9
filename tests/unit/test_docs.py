"""Docs show what the compiler prints today; every command they show parses."""

from __future__ import annotations

import re
import shlex
import sys

import click
import pytest

from overlap.cli.main import cli

PAGES = (*(f"docs/{name}.md" for name in ("architecture", "backends", "plans", "tracing", "tuning")), "README.md")


@pytest.fixture(scope="module")
def prints(repo):
    sys.path.insert(0, str(repo / "tests" / "support"))
    import prints

    return prints


def test_prints_are_todays(repo, prints):
    made = prints.prints()
    text = (repo / "docs" / "architecture.md").read_text()
    assert set(m["name"] for m in prints.BLOCK.finditer(text)) == set(made)
    assert prints.with_prints(text, made) == text, "run python tests/support/prints.py --write"


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(repo, page):
    text = (repo / page).read_text()
    commands = re.findall(r"^(?:[A-Z_]+=\S+ )*overlap +(\S.*)$", text, re.M)
    assert commands, page
    for line in commands:
        name, *words = shlex.split(line, comments=True)
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, line
        while isinstance(command, click.Group):
            name, *words = words
            command = command.get_command(click.Context(command), name)
            assert command is not None, line
        known = {o for p in command.params for o in p.opts}
        assert {w for w in words if w.startswith("-")} <= known, line
    if page == "README.md":
        assert len(commands) >= 7


def test_the_table_of_pragmas_has_each(repo):
    from overlap.annotate.pragmas import USAGE

    table = (repo / "docs" / "python.md").read_text().partition("<!-- pragmas -->\n")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    named = [re.match(r"\| `(\w+)", row).group(1) for row in rows]
    assert list(dict.fromkeys(named)) == list(USAGE)


def test_make_targets_exist(repo):
    makefile = (repo / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (repo / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
