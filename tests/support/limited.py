"""A command with a time limit that holds for everything it starts: `torch.distributed.run` gives each rank a session of its own,
so ranks outlive a launcher that is killed, and hold its pipes and its GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """``status``: None where it did not end in time; ``text``: what it and its ranks printed."""

    status: int | None
    text: str
    seconds: float


def run_limited(
    command: Sequence[str], seconds: float, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    """Runs a command and ends it, with all that it started, after so many seconds."""
    start = time.monotonic()
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            text, status = process.communicate(timeout=seconds)[0], process.returncode
        except BaseException as error:
            for pid in (*_descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            text, status = process.communicate()[0], None
    return Ended(status, text, time.monotonic() - start)


def _descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they did, as the kernel lists them."""
    started: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything in its brackets: state, parent.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            started.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        children = started.get(todo.pop(), [])
        found += children
        todo += children
    return found
