"""Tunings on real ranks: two processes over gloo."""

from pathlib import Path

from tests.support.forked import run_ranks

SCRIPT = Path(__file__).with_name("tune_ranks.py")


def test_two_ranks_over_gloo(tmp_path):
    words, cache = ("{rank}", "2", str(tmp_path / "store")), str(tmp_path / "cache")
    ranks = run_ranks(2, SCRIPT, *words, cwd=tmp_path, timeout=180, OVERLAP_CACHE_DIR=cache)
    said = "\n\n".join(done.stdout + done.stderr for done in ranks)
    for rank, done in enumerate(ranks):
        assert done.returncode == 0 and f"rank {rank}: ok" in done.stdout, said
