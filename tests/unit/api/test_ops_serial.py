"""The serial ways of the operators on real ranks: processes over gloo."""

from pathlib import Path

import pytest

from tests.support.forked import run_ranks

SCRIPT = Path(__file__).with_name("serial_ops.py")


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_over_gloo(tmp_path, world):
    words = ("{rank}", str(world), str(tmp_path / "store"))
    ranks = run_ranks(world, SCRIPT, *words, cwd=tmp_path, timeout=300, OVERLAP_LOG_LEVEL="error")
    for rank, done in enumerate(ranks):
        assert done.returncode == 0 and f"rank {rank}: ok" in done.stdout, done.stdout + done.stderr
