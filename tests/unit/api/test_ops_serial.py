"""The serial ways of the operators on real ranks: processes over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_over_gloo(repo, tmp_path, world):
    script = Path(__file__).with_name("serial_ops.py")
    env = {**os.environ, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1", "OVERLAP_LOG_LEVEL": "error"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(tmp_path / "store")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and f"rank {rank}: ok" in output, output
