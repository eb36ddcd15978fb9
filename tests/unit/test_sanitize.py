"""The program that runs realizations under memcheck, where there is no GPU: what it says without the tool, and how it judges."""

from __future__ import annotations

import pytest

from tests.multigpu import sanitize
from tests.support.realizations import REALIZATIONS, missing

TOOL = """#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = "--launch" ]; then echo "right under the tool: $2"; fi
    shift
done
echo "========= ERROR SUMMARY: 0 errors"
"""


def test_without_the_tool(monkeypatch, capsys):
    monkeypatch.setattr(sanitize, "find_tool", lambda: None)
    assert sanitize.main([]) == 2
    assert capsys.readouterr().out.startswith("not run: compute-sanitizer is not on this machine")


def test_each_rank_is_watched(monkeypatch, capsys, tmp_path):
    """A tool that counts nothing and launches nothing, around two ranks."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert sanitize.find_tool() == str(path)
    assert sanitize.main(["--ranks", "2", "--only", "gather, copy_engine", "--seconds", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}, memcheck, 2 ranks, one launch each"
    assert lines[1].startswith("gather, copy_engine     clean       exit 0    errors by rank: [0, 0]")


def test_together_a_process_runs_all_that_can_share_one(monkeypatch, capsys, tmp_path):
    path = tmp_path / "compute-sanitizer"
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    asked = ["gather, copy_engine", "scatter, collective", "scatter, copy_engine"]
    words = [word for name in asked for word in ("--only", name)]
    assert sanitize.main(["--ranks", "1", "--together", "--seconds", "60", *words]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split("  ")[0] for line in lines[::2]] == ["2 together", "scatter, collective"] and len(lines) == 3
    assert all("clean       exit 0    errors by rank: [0]" in line for line in lines[::2])
    assert lines[1] == "  done: gather, copy_engine; scatter, copy_engine"


def test_far_peers_and_libraries_share_no_process_with_others():
    found = list(sanitize.groups(list(REALIZATIONS)))
    assert sorted(name for names in found for name in names) == sorted(REALIZATIONS)
    kinds = [{(REALIZATIONS[name].far, REALIZATIONS[name].library) for name in names} for names in found]
    assert kinds == [{(False, False)}, {(False, True)}, {(True, False)}]


@pytest.mark.parametrize(
    ("status", "summaries", "right"),
    [(0, (0,), 2), (1, (0, 3), 2), (0, (0, 3), 2), (None, (0, 0), 2), (0, (0, 0), 1)],
    ids=["alone", "bad", "odd", "late", "unseen"],
)
def test_what_is_not_clean(monkeypatch, capsys, status, summaries, right):
    """A rank that nobody watched, errors, ranks that did not end, and a rank whose result nobody saw."""
    output = f"{sanitize.DONE}gather, copy_engine\n" * right
    output += "".join(f"========= ERROR SUMMARY: {n} error{'s' * (n != 1)}\n" for n in summaries)
    outcome = sanitize.Outcome(("gather, copy_engine",), 2, status, 1.0, output)
    monkeypatch.setattr(sanitize, "find_tool", lambda: "tool")
    monkeypatch.setattr(sanitize, "run", lambda *args: outcome)
    assert sanitize.main(["--only", "gather, copy_engine"]) == 1
    said = capsys.readouterr().out
    assert "NOT CLEAN" in said and f"errors by rank: {list(summaries)}" in said and output in said


def test_realizations_are_those_of_the_table():
    found = {how.backend for how in REALIZATIONS.values()}
    assert found >= {
        "copy_engine",
        "ldst_inline",
        "ldst_reserved",
        "tma_inline",
        "tma_reserved",
        "nvshmem",
        "collective",
    }
    assert not found & {"serial", "auto"}
    assert not missing("gather, copy_engine")
