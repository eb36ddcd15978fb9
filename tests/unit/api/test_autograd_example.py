"""The training example as far as a CPU goes."""

import os
import subprocess
import sys

EXAMPLE = "examples/tp_mlp_train.py"


def run(repo, *words):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    env.update(PYTHONPATH=str(repo), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=repo, env=env, timeout=200, check=False
    )


def test_training_with_uneven_rows_and_checkpoints(repo):
    """7 rows on 3 ranks: 3, 3 and 1."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", EXAMPLE, "--device", "cpu"]
    done = run(repo, *launch, "--tokens", "7", "--width", "16", "--hidden", "48", "--checkpoint", "--rate", "1")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("ok: 20 steps of an MLP of 7 x 16 x 48 on 3 ranks, loss ")
    first, last = line.split("loss ")[1].split(",")[0].split(" to ")
    assert float(last) < 0.5 * float(first)


def test_how_to_start_it(repo):
    done = run(repo, EXAMPLE)
    assert done.returncode == 1
    assert done.stderr.strip() == f"start me with: python -m torch.distributed.run --nproc-per-node 4 {EXAMPLE}"
