"""Ranks that are forked (tests/support/forked.py) are what the same script would be as processes of its own."""

from __future__ import annotations

import time

from tests.support.forked import run_alone, run_ranks

SCRIPT = """
import os, sys, time
from beside import NAME
print(__name__, NAME, sys.argv[1:], *(os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GIVEN")))
if sys.argv[1:] == ["1"]:
    raise ValueError("rank 1 fails")
if sys.argv[1:] == ["2"]:
    sys.exit("ends with a word")
if sys.argv[1:] == ["3"]:
    time.sleep(600)
print(os.getcwd(), file=sys.stderr)
"""


def test_place_words_output_and_end(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NAME = 'neighbour'\n")
    alone = run_alone(tmp_path / "script.py", cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (0, "__main__ neighbour [] None None None None\n")

    start = time.monotonic()
    ranks = run_ranks(4, "script.py", "{rank}", cwd=tmp_path, timeout=8, GIVEN="this")
    assert time.monotonic() - start < 120, "rank 3 is not waited for"
    assert [done.returncode for done in ranks] == [0, 1, 1, -9]
    for rank, done in enumerate(ranks[:3]):
        assert done.stdout == f"__main__ neighbour ['{rank}'] {rank} {rank} 4 this\n"
    assert ranks[0].stderr == f"{tmp_path}\n"
    assert ranks[1].stderr.endswith("ValueError: rank 1 fails\n")
    assert ranks[2].stderr == "ends with a word\n"
