"""The training example as far as a CPU goes."""

from tests.support.forked import run_alone, run_ranks

EXAMPLE = "examples/tp_mlp_train.py"


def test_training_with_uneven_rows_and_checkpoints(repo):
    """7 rows on 3 ranks: 3, 3 and 1."""
    sizes = ("--tokens", "7", "--width", "16", "--hidden", "48")
    ranks = run_ranks(3, EXAMPLE, "--device", "cpu", *sizes, "--checkpoint", "--rate", "1", cwd=repo, timeout=200)
    assert [done.returncode for done in ranks] == [0] * 3, [done.stderr for done in ranks]
    (line,) = [line for done in ranks for line in done.stdout.splitlines()]
    assert line.startswith("ok: 20 steps of an MLP of 7 x 16 x 48 on 3 ranks, loss ")
    first, last = line.split("loss ")[1].split(",")[0].split(" to ")
    assert float(last) < 0.5 * float(first)


def test_how_to_start_it(repo):
    done = run_alone(EXAMPLE, cwd=repo)
    assert done.returncode == 1
    assert done.stderr.strip() == f"start me with: python -m torch.distributed.run --nproc-per-node 4 {EXAMPLE}"
