"""Splitting transfers: every property is kept, and dependencies stay exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.cuts import parts_in, split_of, weights_at
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box, overlap_of
from overlap.chunkplan.split import split_plan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from tests.support.sweep import examples

from .oracle import execute, reduces

WHOLE = Chunk("a", Box.whole((6, 4)))


def make(name: str, world: int, shape, dim: int, direction: str) -> CommPlan:
    path, text = find_template(name)
    to_dim = 1 - dim if name.startswith("all_to_all") else None
    tensor = TensorSpec("a", shape)
    mesh = Mesh((2, world // 2) if world % 2 == 0 else (1, world))
    return build_plan(
        text, world=world, tensor=tensor, dim=dim, to_dim=to_dim, direction=direction, path=path, mesh=mesh
    )


def plan_of(*lists, world: int = 3) -> CommPlan:
    return CommPlan("p", world, (TensorSpec("a", (6, 4)),), ((WHOLE,),) * world, ((WHOLE,),) * world, lists)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.sampled_from([name for name in list_templates() if name not in ("all_to_all_v", "kv_ring")]),
    st.integers(1, 6),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.integers(0, 1),
    st.sampled_from(["pull", "push"]),
    st.one_of(st.integers(1, 5), st.lists(st.integers(1, 3), min_size=1, max_size=4).map(split_of)),
    st.integers(0, 2**32),
)
def test_parts_make_up_their_transfer_in_its_place(name, world, shape, dim, direction, split, seed):
    plan = make(name, world, shape, dim, direction)
    cut, parts = split_plan(plan, split, dim=dim), parts_in(split)
    verify_plan(cut)
    if not reduces(plan):
        execute(cut, {"a": np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)}, seed)
    for op_id, op in plan.items():
        rank, index = op_id
        pieces = cut.ops[rank][index * parts : (index + 1) * parts]
        assert [piece.src.box for piece in pieces] == op.src.box.split(dim, weights_at(split))
        assert overlap_of([piece.src.box for piece in pieces]) == []
        for number, piece in enumerate(pieces):
            assert replace(piece, src=op.src, dst=op.dst, depends=op.depends) == op
            assert piece.src == piece.dst
            assert piece.depends == tuple((r, i * parts + number) for r, i in op.depends)
            assert cut.where((rank, index * parts + number)) == plan.where(op_id)
    assert (cut.before, cut.after, cut.tensors, cut.name) == (plan.before, plan.after, plan.tensors, plan.name)


def test_every_property_of_a_transfer_is_kept():
    op = P2P(
        "push",
        0,
        1,
        WHOLE,
        Chunk("b", Box((10, 0), (16, 4))),
        channel=3,
        reduce=Reduction("sum", "fp64"),
        backend="tma",
    )
    plan = replace(plan_of((op,), (), ()), tensors=(TensorSpec("a", (6, 4)), TensorSpec("b", (20, 4))))
    first, second, third, fourth = split_plan(plan, 4).ops[0]
    for piece, lo, hi in ((first, 0, 2), (second, 2, 4), (third, 4, 6), (fourth, 6, 6)):
        assert (piece.direction, piece.src_rank, piece.dst_rank) == ("push", 0, 1)
        assert (piece.channel, piece.reduce, piece.backend) == (3, Reduction("sum", "fp64"), "tma")
        assert piece.src.box == Box((lo, 0), (hi, 4)) and piece.dst == Chunk("b", Box((lo + 10, 0), (hi + 10, 4)))
    assert fourth.src.box.empty


def test_a_relay_is_linked_part_by_part_and_anything_else_to_all_parts():
    first = P2P("pull", 0, 1, WHOLE, WHOLE)
    relay = P2P("pull", 1, 2, WHOLE, WHOLE, depends=((1, 0),))
    other = P2P("pull", 0, 2, WHOLE, WHOLE, depends=((1, 0),))
    half = Chunk("a", Box((0, 0), (3, 4)))
    partly = P2P("pull", 1, 2, half, half, depends=((1, 0), (2, 0)))
    cut = split_plan(plan_of((), (first,), (relay, other, partly)), 2)
    assert [op.depends for op in cut.ops[2]] == [
        ((1, 0),),
        ((1, 1),),
        ((1, 0), (1, 1)),
        ((1, 0), (1, 1)),
        ((1, 0), (1, 1), (2, 0), (2, 1)),
        ((1, 0), (1, 1), (2, 0), (2, 1)),
    ]


def test_collectives_stay_whole():
    gather = Collective("all_gather", (0, 1), WHOLE, WHOLE)
    move = P2P("pull", 0, 2, WHOLE, WHOLE, depends=((0, 1), (0, 2)))
    push = P2P("push", 0, 1, WHOLE, WHOLE)
    plan = plan_of((push, gather, push), (replace(gather, depends=((0, 0),)),), (move,))
    cut = split_plan(plan, 3)
    assert [len(row) for row in cut.ops] == [7, 1, 3]
    assert cut.ops[1][0].depends == ((0, 0), (0, 1), (0, 2))
    assert [op.depends for op in cut.ops[2]] == [((0, 3), (0, 4), (0, 5), (0, 6))] * 3


def test_without_a_dimension_the_sharded_one_is_cut():
    columns = make("all_gather_1d", 3, (6, 9), 1, "pull")
    assert split_plan(columns, 2) == split_plan(columns, 2, dim=1)
    rows = make("all_gather_1d", 3, (6, 9), 0, "pull")
    assert split_plan(rows, 2) == split_plan(rows, 2, dim=0) != split_plan(rows, 2, dim=1)


def test_one_part_is_the_plan_itself_and_none_is_refused():
    plan = make("all_gather_ring", 3, (6, 4), 0, "pull")
    assert split_plan(plan, 1) is plan
    with pytest.raises(PlanError, match="a split into 0 parts"):
        split_plan(plan, 0)
    with pytest.raises(PlanError, match="no dimension 2 to split along"):
        split_plan(plan, 2, dim=2)


def ops_of(depends=()) -> tuple[P2P, ...]:
    return tuple(
        P2P("pull", source, 0, Chunk("a", box), Chunk("a", box), depends=depends if source == 2 else ())
        for source, box in zip((1, 2), (Box((0, 0), (6, 2)), Box((0, 2), (6, 4))), strict=True)
    )


def test_parts_go_round_the_operations():
    plan = plan_of(ops_of(), (), ())
    cut = split_plan(plan, 2, dim=0, around=True)
    assert [(op.src_rank, op.dst.box.lo[0]) for op in cut.ops[0]] == [(1, 0), (2, 0), (1, 3), (2, 3)]


def test_parts_of_operations_that_depend_on_each_other_keep_their_order():
    plan = plan_of(ops_of(depends=((0, 0),)), (), ())
    cut = split_plan(plan, 2, dim=0, around=True)
    assert [op.src_rank for op in cut.ops[0]] == [1, 1, 2, 2]
    assert cut == split_plan(plan, 2, dim=0)
