"""Rules for every tier: the right process for the folder, and no test that does not test.

A skipped or expected failure counts as a failure: what a machine cannot run belongs into a folder of its own
(tests/gpu, tests/multigpu), which is then not collected at all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INTERPRETED = {"sim": True, "compile": False}
NOT_A_RESULT = ("skipped", "xfailed", "xpassed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses a tier in the wrong kind of process, where it would test something else or nothing."""
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    for item in items:
        tier = item.path.relative_to(HERE).parts[0]
        if tier in INTERPRETED and INTERPRETED[tier] != interpreting:
            wanted = "TRITON_INTERPRET=1" if INTERPRETED[tier] else "TRITON_INTERPRET unset"
            raise pytest.UsageError(f"tests/{tier} needs a process of its own with {wanted}; `make test` starts it")


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
