"""The examples that need GPUs, as far as a CPU goes: through plain collectives, and what they say without any GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MLP = "examples/tp_mlp_forward.py"


@pytest.fixture
def run(repo):
    """Runs Python on this repository, with no GPU in sight."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        env = {**kept, "PYTHONPATH": str(repo), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment}
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=repo, env=env, timeout=120, check=False)

    return run


def test_mlp_with_uneven_rows(run):
    """10 rows on 4 ranks: 3, 3, 3 and 1."""
    sizes = ["--tokens", "10", "--width", "16", "--hidden", "48"]
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", MLP, "--device", "cpu", *sizes)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("ok: MLP of 10 x 16 x 48 on 4 ranks, relative error ")
    assert line.endswith("ag_gemm: serial, gathers 10x16 torch.float32 over 4 ranks: no peer copies for tensors on cpu")


def test_mlp_says_how_to_start_it(run):
    done = run(MLP)
    assert done.returncode == 1
    assert done.stderr.strip() == f"start me with: python -m torch.distributed.run --nproc-per-node 4 {MLP}"


def test_mlp_says_that_there_are_no_gpus(run):
    done = run(MLP, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert done.returncode == 1
    assert done.stderr.startswith("2 ranks need as many GPUs, torch sees 0; with --device cpu the same forward runs")
