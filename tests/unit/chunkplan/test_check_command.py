"""``overlap check`` on plans of every kind."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.describe import describe
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.cli.check import command
from overlap.errors import OnError, PlanError

SHAPE = ("--world", "3", "--shape", "M=7,N=5")


def check(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments, *SHAPE], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("name", "on", "dims"),
    [
        ("all_gather_1d", "x[M]", (0, None)),
        ("reduce_scatter_1d", "c[N]", (1, None)),
        ("all_reduce_one_shot", "c[]", (0, None)),
        ("all_reduce_two_shot", " c [ ] ", (0, None)),
        ("all_to_all_1d", "a[N:M]", (1, 0)),
    ],
)
def test_plans_of_every_kind(name, on, dims):
    path, text = find_template(name)
    tensor = TensorSpec(on.strip()[0], (7, 5))
    direction = "push" if "reduce" in name else "pull"
    plan = build_plan(
        text, world=3, tensor=tensor, dim=dims[0], to_dim=dims[1], split=2, direction=direction, path=path
    )
    assert check(name, "--on", on, "--split", "2") == f"{describe(plan)}\nok\n"


def test_without_on_the_plan_itself_is_verified():
    assert check("reduce_scatter_1d").splitlines()[0] == "plan reduce_scatter_1d: 3 ranks, x[7, 5], 6 operations"


@pytest.mark.parametrize(
    ("name", "on", "error", "said"),
    [
        ("reduce_scatter_1d", "c[]", PlanError, "is no all-reduce"),
        ("all_reduce_one_shot", "c[M]", PlanError, "is no reduce-scatter"),
        ("all_gather_1d", "a[M:N]", PlanError, "is no all-to-all"),
        ("all_to_all_1d", "a[M]", PlanError, "cuts along a second dimension"),
        ("all_to_all_1d", "a[M:M]", OnError, "from an axis to itself"),
        ("all_to_all_1d", "a[:M]", OnError, "not TENSOR"),
        ("all_to_all_1d", "a[M:Q]", OnError, "not TENSOR"),
        ("all_gather_1d", "x", OnError, "not TENSOR"),
    ],
)
def test_a_plan_that_does_not_serve(name, on, error, said):
    with pytest.raises(error, match=said) as caught:
        CliRunner().invoke(command, [name, "--on", on, *SHAPE], catch_exceptions=False)
    assert caught.value.help


def test_a_gather_that_calls_itself_an_all_reduce(tmp_path):
    """It leaves everything on every rank, and nothing is added up."""
    file = tmp_path / "plan.yaml"
    file.write_text("plan: p\nbefore: whole\nafter: whole\n")
    with pytest.raises(PlanError, match="without the part of rank 1"):
        CliRunner().invoke(command, [str(file), "--on", "c[]", *SHAPE], catch_exceptions=False)
