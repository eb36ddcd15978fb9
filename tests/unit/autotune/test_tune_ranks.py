"""Tunings on real ranks: three processes over gloo."""

from pathlib import Path

from tests.support.forked import run_ranks

SCRIPT = Path(__file__).with_name("tune_ranks.py")


def test_three_ranks_over_gloo(tmp_path):
    words, cache = ("{rank}", "3", str(tmp_path / "store")), str(tmp_path / "cache")
    ranks = run_ranks(3, SCRIPT, *words, cwd=tmp_path, timeout=180, OVERLAP_CACHE_DIR=cache)
    said = "\n\n".join(done.stdout + done.stderr for done in ranks)
    for rank, done in enumerate(ranks):
        assert done.returncode == 0 and f"rank {rank}: ok" in done.stdout, said
