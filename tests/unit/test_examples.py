"""The examples that need GPUs, as far as a CPU goes: through plain collectives, and what they say without any GPU."""

from __future__ import annotations

from tests.support.forked import run_alone, run_ranks

MLP = "examples/tp_mlp_forward.py"


def test_mlp_with_uneven_rows(repo):
    """10 rows on 4 ranks: 3, 3, 3 and 1."""
    sizes = ["--tokens", "10", "--width", "16", "--hidden", "48"]
    ranks = run_ranks(4, MLP, "--device", "cpu", *sizes, cwd=repo)
    assert [done.returncode for done in ranks] == [0] * 4, [done.stderr for done in ranks]
    (line,) = [line for done in ranks for line in done.stdout.splitlines()]
    assert line.startswith("ok: MLP of 10 x 16 x 48 on 4 ranks, relative error ")
    assert line.endswith("ag_gemm: serial, gathers 10x16 torch.float32 over 4 ranks: no peer copies for tensors on cpu")


def test_mlp_says_how_to_start_it(repo):
    done = run_alone(MLP, cwd=repo)
    assert done.returncode == 1
    assert done.stderr.strip() == f"start me with: python -m torch.distributed.run --nproc-per-node 4 {MLP}"


def test_mlp_says_that_there_are_no_gpus(repo):
    done = run_alone(MLP, cwd=repo, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert done.returncode == 1
    assert done.stderr.startswith("2 ranks need as many GPUs, torch sees 0; with --device cpu the same forward runs")
