"""The serial way on real ranks: three processes over gloo."""

from pathlib import Path

from tests.support.forked import run_ranks

SCRIPT = Path(__file__).with_name("serial_ranks.py")


def test_three_ranks_over_gloo(tmp_path):
    words, cache = ("{rank}", "3", str(tmp_path / "store")), str(tmp_path / "cache")
    for rank, done in enumerate(run_ranks(3, SCRIPT, *words, cwd=tmp_path, OVERLAP_CACHE_DIR=cache)):
        assert done.returncode == 0 and f"rank {rank}: ok" in done.stdout, done.stdout + done.stderr
