"""`overlap simulate --plan`: a plan on its own from the command line."""

from __future__ import annotations

import pytest

from overlap.cli.main import main

STALE = """
plan: stale
tensors: {x: tensor}
before: {chunk: whole, when: rank == 0}
after: whole
ops:
  - {when: rank < 2, label: hop, push: whole, to: rank + 1, depends: [{on: hop, rank: rank - 1, when: rank > 0}]}
"""


def run(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--plan all_gather_2d --mesh 2x2 --shape M=10,K=3 --seeds 2", "x[10, 3], fp16, 12 operations"),
        ("--plan all_to_all_1d --world 3 --shape M=4,K=5 --on a[M:K] --split 2 --seed 3 --dtype bf16", "a[4, 5], bf16"),
        ("--plan kv_ring --world 2 --shape M=5,K=2 --seeds 1", "k[5, 2], v[5, 2]"),
        ("--plan all_reduce --path template --world 2 --shape M=5 --seeds 1", "all_reduce"),
        ("--plan all_to_all_v --world 2 --shape M=6 --counts sent=[[0,3],[2,1]] --seeds 1", "x[6], y[6]"),
    ],
)
def test_a_plan_from_the_command_line(capsys, words, said):
    code, out, _ = run(capsys, *words.split())
    assert code == 0 and said in out.splitlines()[0] and out.endswith("\nok\n"), out
    assert "what ranks end with is what the plan promises" in out


def test_a_plan_that_is_refused_is_not_run(capsys, tmp_path):
    path = tmp_path / "stale.yaml"
    path.write_text(STALE)
    assert run(capsys, "--plan", str(path), "--world", "3", "--shape", "M=4", "--seeds", "1")[0] == 0
    path.write_text(STALE.replace(", depends: [{on: hop, rank: rank - 1, when: rank > 0}]", ""))
    code, out, err = run(capsys, "--plan", str(path), "--world", "3", "--shape", "M=4", "--seeds", "1")
    assert code == 2 and not out and err.startswith(f"{path}:7:") and "does not hold it then" in err, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--world 2 --shape M=4", "neither a module nor --plan"),
        ("out.py --plan halo --world 2 --shape M=4", "both a module and --plan"),
        ("out.py --on x[M] --world 2 --shape M=4", "--on says what --plan is, and out.py has its plan"),
        ("--plan hallo --world 2 --shape M=4", "unknown plan `hallo`"),
        ("--plan halo --world 2 --shape M=4 --on x[K]", "not TENSOR[AXIS]"),
        ("--plan all_gather_2d --world 4 --shape M=4", "is for a mesh of 2 axes"),
        ("--plan all_gather --path direct --world 2 --shape M=4", "a copy engine cannot do a collective"),
    ],
)
def test_mistakes(capsys, words, said):
    code, out, err = run(capsys, *words.split())
    assert code == 2 and not out and said in err and "help:" in err, err
