"""Shards of the tests: every test in exactly one, always the same one, and what runs where one is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import conftest, tiers
from tests.support.sweep import Shard

IDS = [f"tests/sim/test_{name}.py::test_{n}[world {n % 7}-é]" for name in ("one", "two") for n in range(2000)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64])
def test_every_test_is_in_exactly_one_shard(count, repo, monkeypatch):
    items = [SimpleNamespace(path=repo / "tests" / "unit" / "x.py", nodeid=each) for each in IDS]
    found, left = [], []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: left.append(len(items))))
    for number in range(1, count + 1):
        monkeypatch.setenv("OVERLAP_SHARD", f"{number}/{count}")
        some = list(items)
        conftest.pytest_collection_modifyitems(config, some)
        kept = {item.nodeid for item in some}
        assert [each for each in IDS if each in kept] == [item.nodeid for item in some], (
            "in the order in which they were"
        )
        assert 0.5 < len(some) * count / len(items) < 2, "and about as many as in any other"
        found += kept
    assert sorted(found) == sorted(IDS)
    assert sum(left) == (count - 1) * len(IDS)


def test_without_a_shard_all_run(repo, monkeypatch):
    monkeypatch.delenv("OVERLAP_SHARD", raising=False)
    items = [SimpleNamespace(path=repo / "tests" / "unit" / "x.py", nodeid=each) for each in IDS]
    conftest.pytest_collection_modifyitems(SimpleNamespace(), items)
    assert len(items) == len(IDS)


def test_a_test_stays_in_its_shard():
    """Whatever Python and machine: shards that ran on several are one sweep."""
    assert [Shard(number, 3).has(IDS[0]) for number in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize("text", ["", "0/8", "9/8", "1/0", "1", "1/8/2", "-1/8", "1/8x", "eight", "\u0661/8"])
def test_what_is_no_shard_is_refused(text, monkeypatch):
    with pytest.raises(ValueError, match="write 2/8 for the second of eight"):
        Shard.read(text)
    with pytest.raises(SystemExit):
        tiers.main(["--python", "3.6.0=python", "--shard", text])
    if text:
        monkeypatch.setenv("OVERLAP_SHARD", text)
        with pytest.raises(pytest.UsageError, match="OVERLAP_SHARD="):
            conftest.shard()


def test_tiers_ask_each_process_for_its_shard(monkeypatch, capsys):
    """A tier of which a shard has nothing is no failure; without a shard it is one, and a test that fails always is."""
    asked, ends = [], []

    def run(command, *, env, **rest):
        asked.append(env.get("OVERLAP_SHARD"))
        return SimpleNamespace(returncode=ends[-1])

    monkeypatch.setattr(tiers.subprocess, "run", run)
    monkeypatch.delenv("OVERLAP_SHARD", raising=False)
    arguments = ["--python", "3.6.0=python", "--tier", "unit + golden"]
    for options, status, code, said in (
        (["--shard", "2/8"], 0, 0, "SHARD=2/8: ok"),
        (["--shard", "2/8"], tiers.NO_TESTS, 0, "not run: nothing of shard 2/8"),
        (["--shard", "2/8"], 1, 1, "FAILED: unit + golden"),
        ([], tiers.NO_TESTS, 1, "FAILED: no tests"),
        ([], 0, 0, "make test: ok" if not tiers.SWEEP else "make sweep: ok"),
    ):
        ends.append(status)
        assert tiers.main([*arguments, *options]) == code
        assert said in capsys.readouterr().out
    assert asked == ["2/8", "2/8", "2/8", None, None]


def test_a_shard_of_a_file_runs(repo):
    """By pytest itself: those tests, a line that says how many, and no golden that is called unused for want of its test."""
    path = "tests/golden/test_generated.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path, "-k", "same_input or are_kept"]
    environment = {**os.environ, "OVERLAP_SHARD": "2/3", "PYTHONPATH": str(repo)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, cwd=repo, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    listed = subprocess.run(
        [*command, "--collect-only"],
        cwd=repo,
        env={**environment, "OVERLAP_SHARD": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    ids = [line for line in listed.stdout.splitlines() if line.startswith(path)]
    expected = sum(Shard(2, 3).has(each) for each in ids)
    assert 0 < expected < len(ids) and f"shard 2/3: {expected} tests" in done.stdout, done.stdout[-2000:]
