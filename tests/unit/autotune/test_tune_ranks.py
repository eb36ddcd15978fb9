"""Tunings on real ranks: two processes over gloo."""

import os
import subprocess
import sys
from pathlib import Path


def test_two_ranks_over_gloo(repo, tmp_path):
    script = Path(__file__).with_name("tune_ranks.py")
    env = {
        **os.environ,
        "PYTHONPATH": str(repo),
        "OMP_NUM_THREADS": "1",
        "OVERLAP_CACHE_DIR": str(tmp_path / "cache"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "2", str(tmp_path / "store")],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=180)[0] for process in ranks]
    for rank, process in enumerate(ranks):
        assert process.returncode == 0 and f"rank {rank}: ok" in outputs[rank], "\n\n".join(outputs)
    print("\n".join(outputs))
