"""Rules for every tier: the right process for the folder, and no test that does not test.

A skipped or expected failure counts as a failure: what a machine cannot run belongs into a folder of its own
(tests/gpu, tests/multigpu), which is then not collected at all. With OVERLAP_SHARD=2/8 the tests of that shard run, of whatever
was asked for (`tests.support.sweep.Shard`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.sweep import Shard

HERE = Path(__file__).parent
INTERPRETED = {"sim": True, "compile": False}
NOT_A_RESULT = ("skipped", "xfailed", "xpassed")


def shard() -> Shard | None:
    """The shard that is asked for; None: all tests run."""
    text = os.environ.get("OVERLAP_SHARD", "")
    try:
        return Shard.read(text) if text else None
    except ValueError as error:
        raise pytest.UsageError(f"OVERLAP_SHARD={error}") from None


def pytest_configure(config: pytest.Config) -> None:
    """Goldens of other shards are not unused; which are is seen where all tests run."""
    if shard() is not None and hasattr(config.option, "warn_unused_snapshots"):
        config.option.warn_unused_snapshots = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses a tier in the wrong kind of process, where it would test something else or nothing; leaves out other shards."""
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    for item in items:
        tier = item.path.relative_to(HERE).parts[0]
        if tier in INTERPRETED and INTERPRETED[tier] != interpreting:
            wanted = "TRITON_INTERPRET=1" if INTERPRETED[tier] else "TRITON_INTERPRET unset"
            raise pytest.UsageError(f"tests/{tier} needs a process of its own with {wanted}; `make test` starts it")
    part = shard()
    if part is not None:
        others = [item for item in items if not part.has(item.nodeid)]
        items[:] = [item for item in items if part.has(item.nodeid)]
        if others:
            config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    part, reports = shard(), terminalreporter.stats
    if part is not None:
        ran = sum(len(reports.get(word, ())) for word in ("passed", "failed"))
        terminalreporter.write_line(f"shard {part}: {ran} tests")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    counts = {word: len(reporter.stats.get(word, ())) for word in NOT_A_RESULT}
    if exitstatus == 0 and any(counts.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("", bold=True)
        reporter.write_line(
            f"not allowed here: {', '.join(f'{n} {word}' for word, n in counts.items() if n)}", red=True
        )


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return HERE.parent
