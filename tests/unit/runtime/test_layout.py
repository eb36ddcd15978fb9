"""Where things lie in symmetric memory: apart, on boundaries, and the same for whoever computes it."""

import itertools
import math

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.runtime.calls.shapes import piece
from overlap.runtime.memory.layout import ALIGNMENT, dense_strides, destination_region, input_layout, source_region
from overlap.runtime.memory.part import part_layout
from overlap.runtime.operator import Comm
from overlap.schedule.pieces import pieces

SHAPES = [(8, 6), (7, 5), (1, 3), (0, 4), (130, 33)]
KINDS = {
    "reduce_scatter": "reduce_scatter_1d",
    "all_reduce": "all_reduce_two_shot",
    "all_to_all": "all_to_all_1d",
    "gather": "all_gather_1d",
}


def plan_of(kind, shape, world, produced=True, split=1):
    _, text = find_template(KINDS[kind])
    return build_plan(
        text,
        world=world,
        tensor=TensorSpec("c", shape),
        dim=0,
        to_dim=1 if kind == "all_to_all" else None,
        split=split,
        direction="push" if produced else "pull",
    )


def comm_of(kind, produced=True):
    axis = None if kind == "all_reduce" else "M"
    to, to_dim = ("N", 1) if kind == "all_to_all" else (None, None)
    return Comm("c", "c_ptr", kind, produced, ("M", "N"), axis, 0, to, to_dim, "")


CASES = [(kind, True) for kind in ("reduce_scatter", "all_reduce", "all_to_all")] + [
    (kind, False) for kind in ("gather", "all_to_all")
]


@pytest.mark.parametrize(("kind", "produced"), CASES)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_regions_are_apart_aligned_and_hold_what_lands(kind, produced, world, shape):
    plan = plan_of(kind, shape, world, produced, split=2)
    order = happens_before(plan)
    comm = comm_of(kind, produced)
    for rank in range(world):
        layout = part_layout(plan, comm, rank, (0, 1), order)
        regions = list(layout.regions())
        spans = sorted((r.offset, r.end) for r in regions if not r.box.empty)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert all(r.offset % ALIGNMENT == 0 for r in regions)
        assert layout.size == max(r.end for r in regions)
        assert layout.window.box.shape == piece(shape, comm.seen, world, rank).shape
        landed = [op_id for op_id in plan.arriving(rank)]
        if produced:
            assert list(layout.slots) == sorted(landed)
            assert all(layout.slots[op].box == plan.op(op).dst.box for op in landed)
            assert set(layout.kept) == set(pieces(plan, rank, "c", order)[0])
        else:
            assert all(destination_region(layout, op) is layout.window for op in landed)
        for op_id, op in plan.items():
            assert isinstance(op, P2P)
            if op.src_rank == rank:
                assert source_region(layout, op_id, op.src.box).box.contains(op.src.box)


def test_a_second_shot_sends_the_kept_sum_and_not_the_partial():
    plan = plan_of("all_reduce", (8, 6), 4)
    layout = part_layout(plan, comm_of("all_reduce"), 1, (0, 1))
    first, second = plan.ops[1][:3], plan.ops[1][3:]
    assert all(op.reduce for op in first) and not any(op.reduce for op in second)
    for index, op in enumerate(plan.ops[1]):
        region = source_region(layout, (1, index), op.src.box)
        assert (region is layout.window) == bool(op.reduce)
        assert region.box == (Box((0, 0), (8, 6)) if op.reduce else Box((2, 0), (4, 6)))


def test_an_exchange_sends_from_memory_of_its_own_and_lands_in_the_window():
    plan = plan_of("all_to_all", (9, 6), 3, produced=False)
    layout = part_layout(plan, comm_of("all_to_all", False), 1, (0, 1))
    assert layout.window.box == Box((0, 2), (9, 4))
    assert layout.source is not None and layout.source.box == Box((3, 0), (6, 6))
    assert layout.source.at(Box((4, 3), (5, 5))) == layout.source.offset + 1 * 6 + 3


@pytest.mark.parametrize("mesh", [(2, 2), (2, 3), (3, 2), (1, 4)])
@pytest.mark.parametrize("split", [1, 2])
def test_what_is_only_passed_on_has_memory_of_its_own(mesh, split):
    """Each relayed piece lands in a region of its own, outside the window, and is sent on from there."""
    _, text = find_template("all_to_all_2d")
    world, grid = math.prod(mesh), Mesh(mesh, ("node", "gpu"))
    given = {"tensor": TensorSpec("c", (13, 11)), "dim": 0, "to_dim": 1, "split": split, "mesh": grid}
    plan = build_plan(text, world=world, **given)
    relayed = 0
    for rank in range(world):
        layout = part_layout(plan, comm_of("all_to_all", False), rank, (0, 1))
        spans = sorted((r.offset, r.end) for r in layout.regions() if not r.box.empty)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert layout.size == max(end for _, end in spans)
        for op_id, op in plan.items():
            if op.dst_rank == rank:
                region = destination_region(layout, op_id)
                assert region.box.contains(op.dst.box) and (region is layout.window) == (op_id not in layout.relays)
            if op.src_rank == rank and not op.src.box.empty:
                region = source_region(layout, op_id, op.src.box)
                assert region.box.contains(op.src.box) and region is not layout.window
                relayed += region in layout.relays.values()
    assert (relayed > 0) == (min(mesh) > 1)


def test_what_came_in_pieces_cannot_be_passed_on_as_one():
    whole, rows = Chunk("c", Box((0, 0), (2, 4))), [Chunk("c", Box((i, 0), (i + 1, 4))) for i in range(2)]
    pulls = [P2P("pull", 0, 1, row, row) for row in rows]
    on = P2P("pull", 1, 2, whole, whole, depends=((1, 1),))
    plan = CommPlan("p", 3, (TensorSpec("c", (8, 4)),), ((whole,), (), ()), ((),) * 3, ((), tuple(pulls), (on,)))
    window = Box((4, 0), (8, 4))
    with pytest.raises(UnsupportedError, match=r"passes c\[0:2, 0:4\] on, which came to rank 1 in pieces"):
        input_layout(plan, "c", 1, window, (0, 1))
    assert not input_layout(plan, "c", 2, Box((0, 0), (8, 4)), (0, 1)).relays


def test_what_the_kernel_does_not_see_cannot_land():
    plan = plan_of("gather", (9, 6), 3, produced=False)
    with pytest.raises(UnsupportedError, match=r"brings c\[0:3, 0:6\] to rank 2, whose kernel sees c\[0:9, 0:2\]"):
        input_layout(plan, "c", 2, Box((0, 0), (9, 2)), (0, 1))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_dense_strides_number_every_element_once(order):
    shape = (3, 4, 2)
    strides = dense_strides(shape, order)
    places = {
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, shape))
    }
    assert places == set(range(math.prod(shape)))
    assert strides[order[-1]] == 1
