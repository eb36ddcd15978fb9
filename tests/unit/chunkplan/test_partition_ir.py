"""Placements before and after, as a plan: verified, and carried out with data against the rule of redistribute."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from overlap.chunkplan.build import load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.importers.moves import Moves
from overlap.chunkplan.importers.partition_ir import PartitionIR, Reshard, lower_partition_ir
from overlap.chunkplan.importers.placement import Partial, Replicate, Shard, alpa_placements, parse_placement
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError

from .values import execute, local_part, parts_in

ONE = [
    ("S(0)", "R"),
    ("S(1)", "R"),
    ("R", "S(0)"),
    ("R", "S(1)"),
    ("S(0)", "S(1)"),
    ("S(1)", "S(0)"),
    ("P", "R"),
    ("P", "S(0)"),
    ("P", "S(1)"),
    ("P", "P"),
    ("R", "R"),
]
TWO = [
    ("S(0) S(0)", "R R"),
    ("S(0) S(0)", "R S(0)"),
    ("S(0) R", "R S(0)"),
    ("S(0) S(1)", "S(1) S(0)"),
    ("S(0) S(0)", "S(1) S(1)"),
    ("R R", "S(1) S(0)"),
    ("S(0) P", "S(0) R"),
    ("S(0) P", "S(0) S(0)"),
    ("S(0) P", "S(0) S(1)"),
    ("S(0) P", "S(1) S(0)"),
    ("S(0) P", "R R"),
    ("P P", "R R"),
    ("P P", "S(0) S(0)"),
    ("P P", "S(1) R"),
    ("P P", "R S(0)"),
    ("P P", "P S(0)"),
    ("P S(0)", "P R"),
    ("P R", "S(1) S(0)"),
    ("R P", "R R"),
]
CASES = [(mesh, pair) for mesh, pairs in (("4", ONE), ("3", ONE), ("2x2", TWO), ("2x3", TWO)) for pair in pairs]


def lowered(mesh: str, shape: tuple[int, ...], before: str, after: str, **options):
    ir = PartitionIR(parse_mesh(mesh), (Reshard("x", shape, tuple(before.split()), tuple(after.split())),))
    return lower_partition_ir(ir, **options)


def check(plan, mesh: str, shape: tuple[int, ...], before: str, after: str, seed: int = 0) -> None:
    """The plan is sound, and leaves on each rank what redistribute does, bit for bit (the parts are integers)."""
    verify_plan(plan)
    assert load_plan(dump_plan(plan)) == plan
    old, new = before.split(), after.split()
    start = parts_in(parse_mesh(mesh).sizes, shape, old, seed)
    memory = execute(plan, {"x": start}, seed)
    for rank, at in enumerate(np.ndindex(*parse_mesh(mesh).sizes)):
        want, box = local_part(parse_mesh(mesh).sizes, start, old, new, at)
        assert [(c.box.lo, c.box.hi) for c in plan.after[rank]] == [box]
        np.testing.assert_array_equal(memory[rank]["x"], want)


@pytest.mark.parametrize(("mesh", "pair"), CASES)
def test_a_pair_of_placements(mesh, pair):
    for number, (shape, direction) in enumerate([((7, 5), "pull"), ((2, 9), "push"), ((8, 0), "pull")]):
        plan = lowered(mesh, shape, *pair, direction=direction)
        check(plan, mesh, shape, *pair, seed=number)


def test_three_axes_and_other_ranks_of_tensor():
    pair = ("S(0) P S(1)", "R S(2) S(0)")
    check(lowered("2x2x2", (3, 5, 4), *pair), "2x2x2", (3, 5, 4), *pair)
    check(lowered("2x2", (), "P R", "R R"), "2x2", (), "P R", "R R")
    check(lowered("1x4", (9,), "P S(0)", "R R"), "1x4", (9,), "P S(0)", "R R")
    check(lowered("1", (9, 2), "P", "R"), "1", (9, 2), "P", "R")


@pytest.mark.parametrize("seed", range(40))
def test_any_placements_on_any_mesh(seed):
    dice = random.Random(seed)
    mesh = "x".join(str(dice.choice((1, 2, 2, 3))) for _ in range(dice.choice((1, 2, 2, 3))))
    shape = tuple(dice.choice((0, 1, 2, 5, 6, 7)) for _ in range(dice.choice((1, 2, 3))))
    cuts = [f"S({dim})" for dim in range(len(shape))]
    before = [dice.choice([*cuts, "R", "P", "P"]) for _ in mesh.split("x")]
    after = [dice.choice([*cuts, "R", *(["P"] if old == "P" else [])]) for old in before]
    pair = (" ".join(before), " ".join(after))
    check(
        lowered(mesh, shape, *pair, direction=dice.choice(("pull", "push")), split=dice.choice((1, 2))),
        mesh,
        shape,
        *pair,
    )


def test_split_transfers_do_the_same():
    plan = lowered("2x2", (7, 5), "S(0) P", "R R", split=3)
    assert sum(map(len, plan.ops)) == 3 * sum(map(len, lowered("2x2", (7, 5), "S(0) P", "R R").ops))
    check(plan, "2x2", (7, 5), "S(0) P", "R R")


def test_the_plans_are_the_kinds_they_are_known_as():
    for before, after, kind, dims in [
        ("S(0)", "R", "gather", (0, None)),
        ("P", "S(1)", "reduce_scatter", (1, None)),
        ("P", "R", "all_reduce", (0, None)),
        ("S(0)", "S(1)", "all_to_all", (0, 1)),
    ]:
        verify_kind(lowered("4", (10, 6), before, after), "x", kind, dim=dims[0], to_dim=dims[1])


def test_a_sum_over_one_axis_is_no_all_reduce_of_all_ranks():
    plan = lowered("2x2", (6, 4), "R P", "R R")
    verify_plan(plan)
    with pytest.raises(PlanError, match="no all-reduce: its sums count one of ranks 0 and 2 only"):
        verify_kind(plan, "x", "all_reduce", dim=0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{y: [0, 1]}", "6:9.*`y`"),
        ("{x: [0, -1]}", "6:16.*`parts` is -1 on rank 1"),
        ("{x: 0 - rank}", "6:12.*`parts` is -1 on rank 1"),
        ("{x: [0]}", "6:12.*`parts` has 1 numbers in a world of 2"),
        ("{x: {0: 1}}", "6:12.*`parts` of `x` is one value"),
    ],
)
def test_parts_in_a_plan_file_that_cannot_be_meant(line, said):
    text = "plan: p\nworld: 2\ntensors: {x: [4]}\nbefore: whole\nafter: whole\nparts: " + line
    with pytest.raises(PlanError, match=said):
        load_plan(text, "p.yaml")


def elements(plan) -> int:
    return sum(op.dst.box.size for _, op in plan.items())


def test_volumes_are_those_of_the_best_known_collectives():
    n, size = 4, 8 * 12
    assert elements(lowered("4", (8, 12), "S(0)", "R")) == (n - 1) * size
    assert elements(lowered("4", (8, 12), "P", "S(0)")) == (n - 1) * size
    assert elements(lowered("4", (8, 12), "P", "R")) == 2 * (n - 1) * size
    assert elements(lowered("4", (8, 12), "S(0)", "S(1)")) == (n - 1) * size // n
    assert elements(lowered("4", (8, 12), "R", "S(0)")) == 0
    assert elements(lowered("2x2", (8, 12), "S(0) P", "S(0) R")) == 2 * 2 * (2 - 1) * size // 2
    # A cut over one axis moved to the other: half of the ranks have it already.
    assert elements(lowered("2x2", (8, 12), "S(0) R", "R S(0)")) == 4 * size // 2 - 2 * size // 2


def test_copies_come_from_the_nearest_rank():
    """What stands inside the node is not taken from another one."""
    plan = lowered("2x4", (16, 4), "R S(0)", "R R")
    assert all(op.src_rank // 4 == op.dst_rank // 4 for _, op in plan.items())
    far = lowered("2x4", (16, 4), "S(0) R", "R R")
    assert {(op.src_rank, op.dst_rank) for _, op in far.items()} == {(r, (r + 4) % 8) for r in range(8)}


def test_several_tensors_are_one_plan():
    mesh = parse_mesh("2x2")
    x = Reshard("x", (7, 5), (Shard(0), Partial()), (Shard(0), Replicate()))
    w = Reshard("w", (6,), (Replicate(), Shard(-1)), (Replicate(), Replicate()))
    plan = lower_partition_ir(PartitionIR(mesh, (x, w)), name="both")
    verify_plan(plan)
    assert plan.name == "both"
    assert [spec.parts for spec in plan.tensors] == [(0, 1, 0, 1), ()]


def test_the_verifier_finds_a_sum_over_part_of_the_ranks_that_lacks_one():
    """Parts are counted along the summed axis: a transfer less, or one from a replica twice, is found."""
    plan = lowered("2x3", (6, 5), "R P", "R R")
    for rank, index in [(0, 0), (4, 1)]:
        ops = tuple(op for i, op in enumerate(plan.ops[rank]) if i != index)
        broken = replace(plan, ops=(*plan.ops[:rank], ops, *plan.ops[rank + 1 :]))
        with pytest.raises(PlanError, match="without the part of rank"):
            verify_plan(broken)
    plan = lowered("2x3", (6, 5), "R P", "R S(0)")
    twin = replace(plan.ops[0][0], src_rank=plan.ops[0][0].src_rank + 3)
    with pytest.raises(PlanError, match="rank 1 is counted twice in .* on rank 0: by .* from rank 1.* from rank 4"):
        verify_plan(replace(plan, ops=((*plan.ops[0], twin), *plan.ops[1:])))
    gap = replace(plan, tensors=(replace(plan.tensors[0], parts=(0, 2, 0, 2, 0, 2)),))
    with pytest.raises(PlanError, match="`parts` of x"):
        verify_plan(gap)


def test_a_move_comes_after_what_it_needs_and_what_it_replaces():
    moves = Moves(TensorSpec("x", (8,)), 3, "push")
    moves.move(0, 1, Box((0,), (4,)))
    moves.move(1, 2, Box((2,), (6,)))  # rank 1 has a part of it by the first move
    moves.move(1, 2, Box((6,), (8,)))
    moves.move(2, 1, Box((4,), (5,)))  # replaces what the second one read, and needs what that brought
    moves.move(0, 1, Box((7,), (8,)))  # replaces what the third one read
    moves.move(0, 1, Box((3,), (3,)))  # nothing
    assert [[op.depends for op in ops] for ops in moves.ops] == [[(), ((1, 1),)], [((0, 0),), ()], [((1, 0),)]]


def test_alpa_and_text():
    mesh = parse_mesh("2x4")
    assert alpa_placements("S0R", mesh) == (Shard(0), Replicate())
    assert alpa_placements("RS1", mesh) == (Replicate(), Shard(1))
    assert alpa_placements("S01R", mesh) == (Shard(0), Shard(0))
    assert alpa_placements("S1S0", mesh) == (Shard(1), Shard(0))
    for placement in (Shard(-2), Replicate(), Partial()):
        assert parse_placement(str(placement)) == placement


@pytest.mark.parametrize(
    ("make", "said", "help"),
    [
        (
            lambda: lowered("4", (8, 8), "R", "P"),
            r"no transfer makes parts of a whole",
            "keep it replicate along axis0",
        ),
        (lambda: lowered("4", (8, 8), "S(0)", "P"), r"from shard\(0\) to partial", "let the kernel that makes it"),
        (lambda: lowered("4", (8, -1), "S(0)", "R"), r"tensor x has a negative size, -1", "0 or more"),
        (lambda: lowered("4", (8, 8), "S(2)", "R"), r"it has 2 dimensions", "dimensions are 0 to 1"),
        (lambda: lowered("4", (), "S(0)", "R"), r"it has 0 dimensions", "replicated or partial"),
        (lambda: lowered("2x2", (8, 8), "S(0)", "R R"), r"`before` is 1 for mesh 2x2", "one an axis"),
        (lambda: lowered("4", (8, 8), "P(avg)", "R"), r"no plan carries out", r"write `partial\(sum\)`"),
        (lambda: lowered("4", (8, 8), "P(som)", "R"), r"no reduction `som`", "sum"),
        (lambda: lowered("4", (8, 8), "shart(0)", "R"), r"unknown placement", "shard"),
        (lambda: lowered("4", (8, 8), "S", "R"), r"along which dimension", r"shard\(0\)"),
        (lambda: lowered("4", (8, 8), "R(1)", "R"), r"no argument", "replicate"),
        (lambda: lowered("4", (8, 8), "0", "R"), r"`0` is no placement", "shard"),
        (lambda: lowered("4", (8, 8), "R", "R", direction="sideways"), r"unknown direction", "pull, push"),
        (lambda: lowered("4", (8, 8), "P", "R", accumulate="fp8"), r"not carried out in `fp8`", "fp32"),
        (lambda: lowered("4", (8, 8), "R", "R", split=0), r"into 0 parts", "1"),
        (lambda: lower_partition_ir(PartitionIR(parse_mesh("4"), ())), r"without tensors", "Reshard"),
        (lambda: lower_partition_ir(PartitionIR(parse_mesh("4"), (Reshard("x", (4,), "R", "R"),))), "text", "list"),
        (lambda: lower_partition_ir(PartitionIR(parse_mesh("4"), (Reshard("x", (4,), (1,), ("R",)),))), "no pl", "Sha"),
        (lambda: alpa_placements("S2R", parse_mesh("2x2")), "names mesh axis 2", "0 to 1"),
        (lambda: alpa_placements("S0S0", parse_mesh("2x2")), "axis 0 twice", "one dimension"),
        (lambda: alpa_placements("S10", parse_mesh("2x2")), "axis 1 before axis 0", "S01"),
        (lambda: alpa_placements("X", parse_mesh("2x2")), "no sharding", "S0R"),
    ],
)
def test_what_cannot_be_lowered_says_why_and_what_to_write(make, said, help):
    with pytest.raises(PlanError, match=said) as caught:
        make()
    assert re.search(help, caught.value.help), caught.value.help
