"""What a rank's kernel sees or makes of a communicated tensor."""

from __future__ import annotations

from itertools import product

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import Chunk, CommPlan, TensorSpec
from overlap.chunkplan.region import Box, shard_interval
from overlap.chunkplan.window import KINDS, kernel_window


def make(name: str, world: int, shape, dim: int = 0, to_dim: int | None = None) -> CommPlan:
    path, text = find_template(name)
    return build_plan(text, world=world, tensor=TensorSpec("a", shape), dim=dim, to_dim=to_dim, path=path)


def test_a_gather_and_a_reduction_work_on_everything():
    for name, kind in (("all_gather_1d", "gather"), ("reduce_scatter_1d", "reduce_scatter")):
        plan = make(name, 3, (7, 4))
        for rank, produced in product(range(3), (False, True)):
            assert kernel_window(plan, "a", kind, produced, rank) == Box.whole((7, 4))
    assert kernel_window(make("all_reduce_two_shot", 3, (7, 4)), "a", "all_reduce", True, 1) == Box.whole((7, 4))


@pytest.mark.parametrize("world", range(1, 6))
@pytest.mark.parametrize("shape", [(7, 5), (3, 8), (0, 4), (4, 0), (1, 1)])
def test_an_exchange_works_on_the_ranks_own_side(world, shape):
    plan = make("all_to_all_1d", world, shape, 0, 1)
    for rank in range(world):
        rows, columns = shard_interval(shape[0], world, rank), shard_interval(shape[1], world, rank)
        assert kernel_window(plan, "a", "all_to_all", False, rank) == Box((0, columns[0]), (shape[0], columns[1]))
        assert kernel_window(plan, "a", "all_to_all", True, rank) == Box((rows[0], 0), (rows[1], shape[1]))


def test_a_window_is_the_bounding_box_of_several_chunks():
    plan = make("all_to_all_1d", 2, (8, 4), 0, 1)
    parts = tuple(Chunk("a", box) for box in plan.after[1][0].box.split(0, 3))
    split = CommPlan("p", 2, plan.tensors, plan.before, (plan.after[0], (parts[2], parts[0], parts[1])), plan.ops)
    assert kernel_window(split, "a", "all_to_all", False, 1) == Box((0, 2), (8, 4))


def test_nothing_is_an_empty_window():
    plan = CommPlan(
        "p", 1, (TensorSpec("a", (8, 4)), TensorSpec("b", (2,))), ((),), ((Chunk("b", Box((0,), (2,))),),), ((),)
    )
    assert kernel_window(plan, "a", "all_to_all", False, 0).size == 0
    assert kernel_window(plan, "b", "all_to_all", False, 0) == Box((0,), (2,))
    with pytest.raises(KeyError):
        kernel_window(plan, "x", "gather", False, 0)
    with pytest.raises(ValueError, match="unknown kind `broadcast`"):
        kernel_window(plan, "a", "broadcast", False, 0)
    assert set(KINDS) == {"gather", "reduce_scatter", "all_reduce", "all_to_all"}
