"""The serial way on real ranks: three processes over gloo."""

import os
import subprocess
import sys
from pathlib import Path


def test_three_ranks_over_gloo(repo, tmp_path):
    script = Path(__file__).with_name("serial_ranks.py")
    env = {
        **os.environ,
        "PYTHONPATH": str(repo),
        "OMP_NUM_THREADS": "1",
        "OVERLAP_CACHE_DIR": str(tmp_path / "cache"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "3", str(tmp_path / "store")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and f"rank {rank}: ok" in output, output
