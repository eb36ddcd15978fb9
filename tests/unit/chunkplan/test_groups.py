"""Groups of ranks that do the same at once, each on a tensor of its own under one name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.collectives.lower import lower_collective
from overlap.chunkplan.collectives.step import PROMISES, CollectiveStep
from overlap.chunkplan.describe import describe
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.groups import groups_of, over_axis
from overlap.chunkplan.links import ring
from overlap.chunkplan.mesh import Mesh, parse_mesh
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.cli.check import command
from overlap.errors import PlanError, UsageError

from .values import execute

SHAPE = (7, 5)
ROWS = """\
plan: all_reduce_of_a_node
mesh: [node, gpu]
groups: {tensor: node}
before: whole
after: whole
ops:
  - for: step in range(1, axis_size(gpu))
    let: {other: (gpu + step) % axis_size(gpu)}
    label: part
    push: slice(other, axis_size(gpu))
    to: global_rank(node, other)
    reduce: sum
  - for: step in range(1, axis_size(gpu))
    push: slice(gpu, axis_size(gpu))
    to: global_rank(node, (gpu + step) % axis_size(gpu))
    depends:
      - for: back in range(1, axis_size(gpu))
        on: part
        rank: global_rank(node, (gpu - back) % axis_size(gpu))
        step: back
"""


def rows_plan(mesh: Mesh, shape=SHAPE, text: str = ROWS) -> CommPlan:
    return build_plan(text, world=mesh.world, mesh=mesh, tensor=TensorSpec("a", shape), dim=0, path="p.yaml")


def collective(kind: str, size: int, path: str = "template", shape=SHAPE) -> CommPlan:
    step = CollectiveStep(kind, TensorSpec("a", shape), world=size, to_dim=1 if kind == "all_to_all" else None)
    return lower_collective(step, path=path, links=ring(size) if path == "synth" else None)


def check_data(plan: CommPlan, kind: str, seed: int) -> None:
    """Every group ends with the collective of its own data."""
    spec = plan.tensors[0]
    start = np.random.default_rng(seed).integers(1, 10**6, (plan.world, *spec.shape)).astype(float)
    wanted = np.empty_like(start)
    for ranks in groups_of(spec, plan.world):
        if kind in ("all_reduce", "reduce_scatter"):
            wanted[list(ranks)] = start[list(ranks)].sum(axis=0)
        else:
            # One tensor a group, of which ranks hold pieces.
            start[list(ranks)] = wanted[list(ranks)] = start[ranks[0]]
    for rank, got in enumerate(execute(plan, {spec.name: start}, seed)):
        box = plan.after[rank][0].box
        assert np.array_equal(got[spec.name], wanted[(rank, *map(slice, box.lo, box.hi))])


@pytest.mark.parametrize("path", ["template", "synth"])
@pytest.mark.parametrize("kind", PROMISES)
@pytest.mark.parametrize("text", ["2x2", "node=2,gpu=3", "3x1", "1x3", "2x2x2"])
def test_a_collective_in_every_group_at_once(text, kind, path):
    mesh = parse_mesh(text)
    for axis, size in zip(mesh.names, mesh.sizes, strict=True):
        one = collective(kind, size, path)
        plan = over_axis(one, mesh, axis)
        verify_plan(plan)
        assert load_plan(dump_plan(plan)) == plan
        assert sum(map(len, plan.ops)) == sum(map(len, one.ops)) * mesh.world // size
        groups = groups_of(plan.tensors[0], plan.world)
        assert groups == sorted({mesh.group(axis, rank) for rank in range(mesh.world)})
        for ranks in groups:
            verify_kind(plan, "a", PROMISES[kind], dim=0, to_dim=1 if kind == "all_to_all" else None, ranks=ranks)
        if kind == "all_reduce":
            verify_contributions(plan, "a")
        check_data(plan, kind, seed=size)


def test_a_collective_operation_in_every_group():
    plan = over_axis(collective("all_gather", 2, "direct"), Mesh((2, 2)), "axis0")
    verify_plan(plan)
    assert [op.ranks for ops in plan.ops for op in ops if isinstance(op, Collective)] == [
        (0, 2),
        (1, 3),
        (0, 2),
        (1, 3),
    ]


@pytest.mark.parametrize("text", ["2x2", "2x3", "3x1", "1x4", "4x2"])
def test_groups_in_a_plan_file(text):
    mesh = parse_mesh(text)
    plan = rows_plan(mesh)
    assert plan.tensors[0].groups == tuple(mesh.coordinates(rank)[0] for rank in range(mesh.world))
    verify_plan(plan)
    for ranks in groups_of(plan.tensors[0], mesh.world):
        verify_kind(plan, "a", "all_reduce", dim=0, ranks=ranks)
    check_data(plan, "all_reduce", seed=1)
    assert load_plan(dump_plan(plan)) == plan


def test_without_groups_the_same_moves_are_no_sum():
    """What the key is for: the other node's part is missing, or counted as if it were the same."""
    with pytest.raises(PlanError, match="rank 0 ends with .* without the part of rank 2"):
        verify_plan(rows_plan(Mesh((2, 2)), text=ROWS.replace("groups: {tensor: node}\n", "")))
    with pytest.raises(PlanError, match="takes a from rank 0 of group 0 to rank 1 of group 1"):
        verify_plan(rows_plan(Mesh((2, 2)), text=ROWS.replace("groups: {tensor: node}", "groups: {tensor: gpu}")))


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (
            "push: slice(gpu, axis_size(gpu))",
            "push: slice(gpu, axis_size(gpu) + 1)",
            r"without the part of rank 0: rank 1 .* replaces",
        ),
        ("    reduce: sum\n", "", "written twice|overwrites|nothing says which|without the part"),
        (
            "global_rank(node, other)",
            "global_rank((node + 1) % axis_size(node), other)",
            "of group 0 to rank . of group 1",
        ),
    ],
)
def test_broken_sums_of_groups(good, bad, said):
    assert good in ROWS
    with pytest.raises(PlanError, match=said):
        verify_plan(rows_plan(Mesh((2, 3)), text=ROWS.replace(good, bad)))


def test_parts_are_counted_in_each_group():
    """Four ranks in two groups, each with one summand held twice."""
    spec = TensorSpec("a", (4,), parts=(0, 0, 0, 0), groups=(0, 0, 1, 1))
    whole = Chunk("a", Box.whole((4,)))
    plan = CommPlan("p", 4, (spec,), ((whole,),) * 4, ((whole,),) * 4, ((),) * 4)
    verify_plan(plan)
    verify_contributions(plan, "a")
    with pytest.raises(PlanError, match="rank 0 ends with a.* without the part of rank 1"):
        verify_contributions(replace(plan, tensors=(replace(spec, parts=(0, 1, 0, 0)),)), "a")
    with pytest.raises(PlanError, match=r"`parts` of a is \[1, 1\] among ranks 2, 3"):
        verify_plan(replace(plan, tensors=(replace(spec, parts=(0, 1, 1, 1)),)))


def two_tensors(groups_of_b: tuple[int, ...]) -> CommPlan:
    """Rank 0 takes the sum that ranks 1 and 2 hold parts of, through tensor b."""
    specs = (TensorSpec("a", (4,), groups=(0, 1, 1, 0)), TensorSpec("b", (4,), groups=groups_of_b))
    a, b = (Chunk(spec.name, Box.whole((4,))) for spec in specs)
    ops = ((), (P2P("push", 1, 2, a, a, reduce=Reduction()),), (P2P("push", 2, 0, a, b, depends=((1, 0),)),), ())
    return CommPlan("p", 4, specs, ((a,), (a,), (a,), (a,)), ((b,), (), (a,), ()), ops)


def test_between_tensors_a_value_may_leave_its_group():
    plan = two_tensors((0, 1, 1, 1))
    verify_plan(plan)
    with pytest.raises(PlanError, match=r"rank 0 ends with b\[0:4\] without the part of rank 0"):
        verify_contributions(plan, "b")


def test_a_sum_that_counts_another_group():
    """Rank 0's b has its own part, and that of rank 1's group besides."""
    plan = two_tensors((0, 1, 1, 1))
    a, b = Chunk("a", Box.whole((4,))), Chunk("b", Box.whole((4,)))
    added = replace(plan.ops[2][0], reduce=Reduction())
    plan = replace(plan, before=((a, b), *plan.before[1:]), ops=(plan.ops[0], plan.ops[1], (added,), ()))
    with pytest.raises(
        PlanError, match=r"rank 0 ends with b\[0:4\] that counts a of rank 1, which is in another group"
    ):
        verify_plan(plan)
    numbered = replace(plan, tensors=(replace(plan.tensors[0], parts=(0, 0, 1, 1)), plan.tensors[1]))
    with pytest.raises(PlanError, match="that counts a of rank 1, which is in another group"):
        verify_plan(numbered)
    again = replace(added, depends=((2, 0),))
    with pytest.raises(PlanError, match=r"rank 1 is counted twice in b\[0:4\] on rank 0"):
        verify_plan(replace(plan, ops=(plan.ops[0], plan.ops[1], (added, again), ())))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("[0, 0, 1]", "`groups` has 3 numbers in a world of 4"),
        ("[0, 0, 1, 0 - 1]", "`groups` is -1 on rank 3"),
        ("gpu + rank", "mixes a global rank with a local rank"),
        ("peer", "unknown symbol `peer`"),
        ("{0: 1}", "`groups` of `tensor` is one value, not a mapping"),
    ],
)
def test_groups_that_cannot_be_meant(row, said):
    with pytest.raises(PlanError, match=said) as caught:
        rows_plan(Mesh((2, 2)), text=ROWS.replace("{tensor: node}", "{tensor: " + row + "}"))
    assert caught.value.where is not None and caught.value.where.line == 3 and caught.value.help


def test_groups_of_a_tensor_that_is_not_there():
    with pytest.raises(PlanError, match="`groups` has no key `a`"):
        rows_plan(Mesh((2, 2)), text=ROWS.replace("{tensor: node}", "{a: node}"))
    spec = TensorSpec("a", SHAPE, groups=(0, 1))
    with pytest.raises(PlanError, match=r"`groups` of a is \[0, 1\] in a world of 4"):
        verify_plan(replace(rows_plan(Mesh((2, 2))), tensors=(spec,)))


def test_kinds_are_asked_of_one_group_at_a_time():
    plan = rows_plan(Mesh((2, 2)))
    with pytest.raises(PlanError, match="ranks 0 and 2 hold different tensors under the name a"):
        verify_kind(plan, "a", "all_reduce", dim=0)
    verify_kind(plan, "a", "all_reduce", dim=0, ranks=(2, 3))
    with pytest.raises(PlanError, match="rank 3 starts with .* and takes no part"):
        verify_kind(plan, "a", "all_reduce", dim=0, ranks=(2,))


def test_a_read_of_another_groups_data():
    """Rank 1 holds rows under the same name, which are of no use to rank 2."""
    mesh = Mesh((2, 2))
    one = collective("all_gather", 2)
    plan = over_axis(one, mesh, "axis1")
    lost = replace(plan, before=(*plan.before[:2], (), *plan.before[3:]))
    with pytest.raises(PlanError, match="rank 2, which does not hold it then") as caught:
        verify_plan(lost)
    assert "no rank owns it at the start" in caught.value.help


def test_an_axis_that_does_not_fit():
    with pytest.raises(PlanError, match="plan all_gather_1d is for 3 ranks, and gpu of mesh node=2,gpu=2 has 2"):
        over_axis(collective("all_gather", 3), parse_mesh("node=2,gpu=2"), "gpu")
    with pytest.raises(PlanError, match="has no axis `rack`"):
        over_axis(collective("all_gather", 2), parse_mesh("node=2,gpu=2"), "rack")


def test_groups_inside_groups_stay_apart():
    """Rows of a 2x2 grid, in each of two nodes."""
    plan = over_axis(over_axis(collective("all_reduce", 2), Mesh((2, 2)), "axis1"), parse_mesh("node=2,gpu=4"), "gpu")
    verify_plan(plan)
    assert groups_of(plan.tensors[0], 8) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    check_data(plan, "all_reduce", seed=2)


def test_check_over_an_axis():
    shape = ("--shape", "M=7,N=5")
    for axis, name in (("node", "all_reduce_ring"), ("gpu", "all_reduce_two_shot"), ("gpu", "all_gather_ring")):
        on = ("--on", "x[]") if "reduce" in name else ()
        result = CliRunner().invoke(
            command, [name, "--mesh", "node=2,gpu=3", "--over", axis, *shape, *on], catch_exceptions=False
        )
        assert result.exit_code == 0 and result.output.splitlines()[-1] == "ok"
        assert result.output.splitlines()[0].startswith(f"plan {name}: 6 ranks, x[7, 5], ")
    plan = over_axis(collective("all_gather", 2), Mesh((2, 2)), "axis1")
    assert describe(plan).splitlines()[1] == "  a is another tensor in each group: ranks 0, 1; 2, 3"
    for arguments, error, said in (
        (("--world", "4", "--over", "gpu"), UsageError, "an axis of what"),
        (("--mesh", "2x2", "--over", "gpu"), PlanError, "has no axis `gpu`"),
    ):
        with pytest.raises(error, match=said) as caught:
            CliRunner().invoke(command, ["all_gather_1d", *arguments, *shape], catch_exceptions=False)
        assert caught.value.help
