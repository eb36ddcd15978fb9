"""Commands that tests on GPUs start, and what is left of them when their time is over."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.support.limited import run_limited

APART = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_what_ends_in_time_says_so():
    ended = run_limited(
        [sys.executable, "-c", "import sys; print('so'); print('too', file=sys.stderr); sys.exit(3)"], 30
    )
    assert ended.status == 3 and sorted(ended.text.split()) == ["so", "too"] and ended.seconds < 30


def test_what_it_started_in_sessions_of_their_own_ends_with_it():
    """As ranks of torch.distributed.run: they hold the pipe, so a launcher that is killed alone is waited for."""
    ended = run_limited([sys.executable, "-c", APART], 3)
    assert ended.status is None and ended.seconds < 20
    for _ in range(50):
        try:
            os.kill(int(ended.text), 0)
        except ProcessLookupError:
            return
        with open(f"/proc/{int(ended.text)}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                return  # nobody here collects what has ended
        time.sleep(0.1)
    pytest.fail("it is still there")
