"""Memory of plans without a kernel: places that share nothing, slots for what is added, and no more than that takes."""

from __future__ import annotations

import random

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, Chunk, TensorSpec
from overlap.chunkplan.region import Box
from overlap.runtime.memory.layout import destination_region, separated, source_region
from overlap.runtime.transfer.memory import boxes_of, tensor_layout
from overlap.schedule.pieces import Values
from overlap.schedule.transfer import transfer_sums


def test_separated_boxes_hold_every_box_whole_and_share_nothing():
    dice = random.Random(3)
    for _ in range(200):
        boxes = []
        for _ in range(dice.randrange(8)):
            lo = [dice.randrange(6), dice.randrange(6)]
            boxes.append(Box(tuple(lo), tuple(low + dice.randrange(4) for low in lo)))
        found = separated(boxes)
        for i, one in enumerate(found):
            assert not any(one.overlaps(other) for other in found[:i]), (boxes, found)
        for box in boxes:
            assert box.empty or sum(one.contains(box) for one in found) == 1, (boxes, found)
        for one in found:
            # Grown from the given boxes: it has one on every side.
            inside = [box for box in boxes if not box.empty and one.contains(box)]
            assert one.lo == tuple(map(min, zip(*(box.lo for box in inside), strict=True)))
            assert one.hi == tuple(map(max, zip(*(box.hi for box in inside), strict=True)))


def made(name: str, mesh: tuple[int, ...], shape=(7, 9), direction="push"):
    path, text = find_template(name)
    grid = Mesh(mesh)
    to_dim = 1 if "all_to_all" in name else None
    tensor = TensorSpec("k" if name == "kv_ring" else "x", shape)
    options = dict(dim=0, to_dim=to_dim, split=2, direction=direction, path=path, mesh=grid)
    return build_plan(text, world=grid.world, tensor=tensor, **options)


def layouts(plan):
    values = Values(plan)
    for rank in range(plan.world):
        sums = transfer_sums(plan, rank, values)
        for spec in plan.tensors:
            yield rank, spec.name, tensor_layout(plan, spec.name, rank, values, sums)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("all_gather_2d", (2, 3)),
        ("all_to_all_2d", (2, 2)),
        ("all_reduce_ring", (1, 3)),
        ("all_reduce_2d", (2, 2)),
        ("halo", (1, 5)),
        ("broadcast", (1, 3)),
        ("kv_ring", (1, 3)),
    ],
)
def test_what_lands_and_what_is_sent_has_memory_of_its_own(name, mesh):
    plan = made(name, mesh)
    for rank, tensor, layout in layouts(plan):
        spans = sorted((region.offset, region.end) for region in layout.regions() if region.box.size)
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False)), layout
        slots = []
        for op_id, op in plan.items():
            assert isinstance(op, P2P)
            if (op.dst_rank, op.dst.tensor) == (rank, tensor) and not op.dst.box.empty:
                region = destination_region(layout, op_id)
                assert region.box.contains(op.dst.box)
                slots += [region] if op.reduce else []
                assert (region in layout.places) == (op.reduce is None)
            if (op.src_rank, op.src.tensor) == (rank, tensor) and not op.src.box.empty:
                assert source_region(layout, op_id, op.src.box).box.contains(op.src.box)
        assert len(slots) == len({slot.offset for slot in slots}), "two additions in one slot"


def test_an_exchange_takes_no_more_than_both_sides_of_it():
    plan = made("all_to_all_1d", (1, 4), (8, 12))
    for _, _, layout in layouts(plan):
        held = sum(place.box.size for place in layout.places)
        assert held == 2 * 12 + 8 * 3 - 2 * 3  # its rows, and its columns of the others' rows


def test_boxes_that_change_hands():
    def chunks(*bounds):
        return [Chunk("x", Box((lo,), (hi,))) for lo, hi in bounds]

    assert boxes_of(chunks((0, 2), (2, 5)), "x", 1) == (Box((0,), (5,)),)
    assert boxes_of(chunks((0, 2), (3, 5), (4, 4)), "x", 1) == (Box((0,), (2,)), Box((3,), (5,)))
    assert boxes_of(chunks((0, 2), (0, 2), (1, 3)), "x", 1) == (Box((0,), (3,)),)
    assert boxes_of(chunks((3, 3)), "x", 1) == (Box((3,), (3,)),)
    assert boxes_of(chunks((0, 2)), "y", 2) == (Box((0, 0), (0, 0)),)
    empty = [Chunk("x", Box((0, 0), (0, 2))), Chunk("x", Box((0, 0), (0, 3)))]
    assert boxes_of(empty, "x", 2) == (Box((0, 0), (0, 3)),)
