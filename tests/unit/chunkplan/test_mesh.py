"""Meshes, the plans that name their axes, and global and local ranks kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.mesh import Mesh, mesh_of_ranks, parse_mesh
from overlap.chunkplan.pins import pin_mesh, pins_of
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.cli.check import command
from overlap.cli.compile import command as compile_command
from overlap.cli.simulate import command as simulate_command
from overlap.errors import PlanError, UsageError

HEAD = "plan: p\nmesh: [node, gpu]\nbefore: shard(rank)\nafter: shard(rank)\nops:\n"
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def build(text: str, mesh: str | None = "2x3", world: int = 6) -> CommPlan:
    grid = parse_mesh(mesh) if mesh else None
    return build_plan(text, world=world, tensor=TensorSpec("a", (12, 2)), dim=0, mesh=grid)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_coordinates_and_global_ranks_are_inverses(sizes):
    mesh = Mesh(tuple(sizes))
    seen = [mesh.coordinates(rank) for rank in range(mesh.world)]
    assert seen == sorted(set(seen)) and len(seen) == mesh.world
    for rank, at in enumerate(seen):
        assert mesh.global_rank(at) == rank
        for axis, local in zip(mesh.names, at, strict=True):
            assert mesh.local_rank(axis, rank) == local
            group = mesh.group(axis, rank)
            assert group[local] == rank and len(group) == sizes[mesh.axis(axis)]
    assert parse_mesh(str(mesh)) == mesh


@pytest.mark.parametrize(
    ("text", "sizes", "names"),
    [
        ("8", (8,), ("axis0",)),
        (" 2X4 ", (2, 4), ("axis0", "axis1")),
        ("2x1x3", (2, 1, 3), ("axis0", "axis1", "axis2")),
        ("node=2, gpu=4", (2, 4), ("node", "gpu")),
    ],
)
def test_meshes_from_text(text, sizes, names):
    mesh = parse_mesh(text)
    assert (mesh.sizes, mesh.names) == (sizes, names)
    assert parse_mesh(str(mesh)) == mesh


@pytest.mark.parametrize("text", ["", "x", "0x2", "2x-1", "2x2x2x2", "a=2,a=3", "a=2,3", "node=0", "2*4", "1.5"])
def test_text_that_is_no_mesh(text):
    with pytest.raises(PlanError) as caught:
        parse_mesh(text)
    assert caught.value.help


def test_errors_say_which_rank_is_meant():
    mesh = parse_mesh("node=2,gpu=4")
    with pytest.raises(PlanError, match="no global rank 8"):
        mesh.coordinates(8)
    with pytest.raises(PlanError, match="no local rank 4 along gpu"):
        mesh.global_rank((0, 4))
    with pytest.raises(PlanError, match="no axis `gpus`") as caught:
        mesh.local_rank("gpus", 0)
    assert "`gpu`" in caught.value.help
    with pytest.raises(PlanError, match="1 local ranks"):
        mesh.global_rank((3,))


def test_a_mesh_of_nested_ranks():
    assert mesh_of_ranks([[0, 1, 2], [3, 4, 5]], ("node", "gpu")) == parse_mesh("node=2,gpu=3")
    assert mesh_of_ranks([0, 1]) == parse_mesh("2")
    for ranks in ([[0, 2], [1, 3]], [4, 5], [[0, 1], [2]], [[0], [1, 2]], [], [[]], [[0, 1], 2]):
        with pytest.raises(PlanError):
            mesh_of_ranks(ranks)


@settings(max_examples=40, deadline=None)
@given(SIZES)
def test_a_plan_counts_as_its_mesh_does(sizes):
    """Every symbol and function of the language against `Mesh`, on meshes of one to three axes."""
    mesh = Mesh(tuple(sizes), ("i", "j", "k")[: len(sizes)])
    names = ", ".join(mesh.names)
    last = mesh.names[-1]
    text = (
        f"plan: p\nmesh: [{names}]\nbefore: whole\nafter: whole\nops:\n"
        f"  - let: {{there: 'global_rank({', '.join([*mesh.names[:-1], f'({last} + 1) % axis_size({last})'])})'}}\n"
        f"    when: there != rank\n"
        f"    local: x[0:1]\n    into: y[local_rank({last}, there):local_rank({last}, there) + 1]\n"
        f"    channel: there * 100 + axis_size({mesh.names[0]})\n"
        f"tensors: {{x: [1], y: [99]}}\n"
    )
    plan = build_plan(text, world=mesh.world, tensor=TensorSpec("x", (1,)), dim=0, mesh=Mesh(mesh.sizes))
    assert plan.mesh == mesh
    assert load_plan(dump_plan(plan)) == plan
    for rank in range(mesh.world):
        there = mesh.group(last, rank)[(mesh.local_rank(last, rank) + 1) % sizes[-1]]
        wanted = [] if there == rank else [(mesh.local_rank(last, there), there * 100 + sizes[0])]
        assert [(op.dst.box.lo[0], op.channel) for op in plan.ops[rank]] == wanted


@pytest.mark.parametrize(
    ("op", "said", "help"),
    [
        ("pull: shard(gpu)\n    from: rank", "is a global rank, and `gpu` is a local rank along `gpu`", "global_rank("),
        (
            "pull: shard(rank)\n    from: (gpu + 1) % axis_size(gpu)",
            "`from` is a global rank",
            "global_rank(node, gpu)",
        ),
        ("push: whole\n    to: node", "`to` is a global rank", "global_rank("),
        ("push: whole\n    to: rank + gpu", "mixes a global rank with a local rank along `gpu`", "local_rank("),
        (
            "push: whole\n    to: global_rank(rank, gpu)",
            "`rank` is a global rank, and here goes",
            "local_rank(node, r)",
        ),
        ("push: whole\n    to: global_rank(gpu, node)", "is a local rank along `gpu`, and here goes", "`node`"),
        ("push: whole\n    to: global_rank(node)", "global_rank() with 1", "global_rank(node, gpu)"),
        (
            "push: whole\n    to: global_rank(0, local_rank(gpu, gpu))",
            "a local rank along `gpu` already",
            "global rank r",
        ),
        ("push: whole\n    to: 0\n    when: rank == gpu", "mixes", "local_rank("),
        ("push: whole\n    to: 0\n    channel: axis_size(gpus)", "`axis_size(gpus)` names no axis", "axes: node, gpu"),
        ("push: whole\n    to: 0\n    channel: axis_size(rank)", "names no axis", "axes: node, gpu"),
        ("push: whole\n    to: global_rank(node, gpu + 1)", "no local rank 3 along `gpu` of 3", "% axis_size(gpu)"),
        ("let: {c: 'local_rank(gpu, rank + 1)'}\n    push: whole\n    to: 0", "no global rank 6", "0 to 5"),
        ("let: {mine: gpu}\n    push: whole\n    to: mine", "is a local rank along `gpu`", "global_rank("),
        ("push: whole\n    to: 0\n    depends: [[node, 0]]", "a rank is a global rank", "global_rank("),
        ("push: whole\n    to: 0\n    depends: [{rank: 'min(node, 0)', index: 0}]", "is a local rank", "global_rank("),
        ("push: whole\n    to: gpu if rank == 0 else rank", "mixes", "global_rank("),
        ("for: gpu in range(3)\n    push: whole\n    to: 0", "already means something", "another name"),
    ],
)
def test_local_and_global_ranks_never_mix(op, said, help):
    with pytest.raises(PlanError) as caught:
        build(f"{HEAD}  - {op}\n")
    assert said in caught.value.message and help in caught.value.help
    assert caught.value.where is not None and caught.value.where.line >= 6


@pytest.mark.parametrize(
    "to",
    [
        "(rank + 1) % world",
        "global_rank(1 - node, rank % axis_size(gpu))",
        "global_rank(1 - node, gpu)",
        "global_rank(0, 1 - min(gpu, 1))",
    ],
)
def test_what_is_no_mixing(to):
    assert build(f"{HEAD}  - when: rank < 2\n    push: whole\n    to: {to}\n").ops[0]


@pytest.mark.parametrize(
    ("mesh", "given", "world", "said"),
    [
        ("[node, gpu]", None, 6, "is for a mesh of 2 axes, node, gpu, and none is given"),
        ("[node, gpu]", "6", 6, "and 6 has 1"),
        ("[node, gpu]", "2x3", 7, "has 6 ranks, not 7"),
        ("2x3", "3x2", 6, "is for a mesh 2x3, not 3x2"),
        ("{node: 2, gpu: 4}", None, 6, "of 8 ranks, not for a world of 6"),
        ("{node: 2, gpu: x}", None, 6, "the size of `gpu` is x"),
        ("[a, b, c, d]", None, 6, "a mesh of 4 axes"),
        ("[]", None, 6, "a mesh of 0 axes"),
        ("[a, a]", None, 6, "already means something"),
        ("[rank]", None, 6, "already means something"),
        ("two", None, 6, "`two` is no mesh"),
    ],
)
def test_the_mesh_of_a_plan_and_the_one_given(mesh, given, world, said):
    with pytest.raises(PlanError) as caught:
        build(f"plan: p\nmesh: {mesh}\nbefore: whole\nafter: whole\n", given, world)
    assert said in caught.value.message and caught.value.help


@pytest.mark.parametrize(("mesh", "given"), [("{node: 2, gpu: 3}", None), ("2x3", "2x3"), ("[all]", None)])
def test_a_mesh_that_fits_needs_no_telling(mesh, given):
    plan = build(f"plan: p\nmesh: {mesh}\nbefore: whole\nafter: whole\n", given)
    assert plan.mesh is not None and plan.mesh.world == 6
    assert load_plan(dump_plan(plan)) == plan


def test_mesh_functions_need_a_mesh():
    with pytest.raises(PlanError, match="in a plan without a mesh") as caught:
        build("plan: p\nbefore: whole\nafter: whole\nops:\n  - {push: whole, to: axis_size(world)}\n", None)
    assert "mesh: [node, gpu]" in caught.value.help


def check(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_check_on_a_mesh():
    result = check("all_gather_2d", "--mesh", "2x4", "--shape", "M=1000,K=64", "--on", "x[M]")
    assert result.exit_code == 0 and result.output.splitlines()[-1] == "ok"
    assert result.output.startswith("plan all_gather_2d: 8 ranks, x[1000, 64], 56 operations")
    assert check("all_gather_1d", "--mesh", "node=2,gpu=2", "--world", "4", "--shape", "M=9").exit_code == 0


def test_check_says_what_is_wrong_with_a_mesh():
    shape = ("--shape", "M=10")
    assert "`2y4` is no mesh" in check("all_gather_2d", "--mesh", "2y4", *shape).output
    with pytest.raises(UsageError, match="has 8 ranks"):
        check("all_gather_2d", "--mesh", "2x4", "--world", "4", *shape)
    with pytest.raises(UsageError, match="no number of ranks"):
        check("all_gather_1d", *shape)
    with pytest.raises(PlanError, match="is for a mesh of 2 axes"):
        check("all_gather_2d", "--world", "8", *shape)


@pytest.mark.parametrize(
    ("mesh", "pinned"),
    [
        ("[node, gpu]", "{node: 2, gpu: 4}"),
        ("[ node,\n  gpu ]  # two levels", "{node: 2, gpu: 4}  # two levels"),
        ("\n  - node\n  - gpu", "\n  {node: 2, gpu: 4}"),
        ("{node: 2, gpu: 4}", "{node: 2, gpu: 4}"),
        ("2x4", "2x4"),
    ],
)
def test_a_plan_pinned_to_a_mesh(mesh, pinned):
    """Only the mesh changes, and the plan then needs no mesh given."""
    text = "plan: p\nmesh: {}\nbefore: whole\nafter: whole\n"
    found = pin_mesh(text.format(mesh), "p.yaml", parse_mesh("2x4"))
    assert found == text.format(pinned)
    assert build(found, None, 8) == build(text.format(mesh), "2x4", 8)
    assert pins_of(found, "p.yaml", "a").world == 8


def test_what_cannot_be_pinned():
    text = "plan: p\nbefore: whole\nafter: whole\n"
    assert pin_mesh(text, "p.yaml", parse_mesh("2x4")) == text
    with pytest.raises(PlanError, match="and 8 has 1"):
        pin_mesh(f"mesh: [a, b]\n{text}", "p.yaml", parse_mesh("8"))
    with pytest.raises(PlanError, match="not 2x4"):
        pin_mesh(f"mesh: 2x3\n{text}", "p.yaml", parse_mesh("2x4"))


KERNEL = str(Path(__file__).parents[3] / "templates" / "kernels" / "grouped_gemm.py")


def test_a_kernel_compiled_for_a_mesh_carries_it():
    arguments = [KERNEL, "--plan", "reduce_scatter_2d", "--on", "c[M]", "-o", "-"]
    result = CliRunner().invoke(compile_command, [*arguments, "--mesh", "2x3"], catch_exceptions=False)
    assert result.exit_code == 0 and "\nmesh: {node: 2, gpu: 3}\n" in result.output
    assert "--mesh 2x3" in result.output and "--world 6 --shape" in result.output
    with pytest.raises(PlanError, match="for a mesh of 2 axes"):
        CliRunner().invoke(compile_command, arguments, catch_exceptions=False)


def test_simulate_takes_a_mesh_in_place_of_a_world():
    for words, said in ((["--world", "3", "--mesh", "2x2"], "has 4 ranks"), ([], "no number of ranks")):
        with pytest.raises(UsageError, match=said):
            CliRunner().invoke(simulate_command, ["x.py", "--shape", "M=4", *words], catch_exceptions=False)
