"""Which operations are left to those that read what they send."""

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import P2P, TensorSpec
from overlap.schedule.early import early_sums, in_rounds, rounds_of
from overlap.schedule.fetched import fetched


def made(name, world, split=1, rows=24):
    path, text = find_template(name)
    tensor = TensorSpec("c", (rows, 8))
    return build_plan(text, world=world, tensor=tensor, dim=0, split=split, direction="push", path=path)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("split", [1, 3])
def test_all_sums_of_two_shots(world, split):
    plan = made("all_reduce_two_shot", world, split, rows=60)
    assert fetched(plan, ["c"]) == {op_id for op_id, op in plan.items() if op.reduce is None}
    assert len(fetched(plan, ["c"])) == split * world * (world - 1)


def test_of_those_in_rounds_the_last():
    plan = in_rounds(made("all_reduce_two_shot", 3, 2), ["c"])
    found, rounds = fetched(plan, ["c"], early=True), rounds_of(plan)
    copied = {op for rank in range(3) for added in early_sums(plan, rank, ["c"]) for op in added.ops}
    assert found and {rounds[op] for op in found} == {1}
    assert copied == {op_id for op_id, op in plan.items() if op.reduce is None} - found


@pytest.mark.parametrize("name", ["all_reduce_one_shot", "reduce_scatter_1d", "reduce_scatter_ring"])
def test_what_is_added_where_it_comes_is_copied(name):
    assert fetched(made(name, 3), ["c"]) == frozenset()


def test_of_a_ring_the_last_hop():
    """What a rank sends on it reads in its own memory, where it must have been brought."""
    plan = made("all_reduce_ring", 4)
    found = fetched(plan, ["c"])
    hops = {op_id for op_id, op in plan.items() if isinstance(op, P2P) and op.reduce is None}
    assert 0 < len(found) < len(hops) and found < hops


def test_ranks_without_rows():
    plan = made("all_reduce_two_shot", 4, rows=2)
    assert {plan.op(op).src_rank for op in fetched(plan, ["c"])} == {0, 1}
