"""What a launch stages of a shard: all that tiles, lanes, programs and peers read in symmetric memory, and of what is copied
out of the caller's tensor instead nothing."""

import math
from types import SimpleNamespace

import pytest
import torch

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import P2P, TensorSpec
from overlap.chunkplan.region import Box
from overlap.runtime.memory import part as part_layer
from overlap.runtime.memory.layout import source_region
from overlap.runtime.memory.part import Given, Part
from overlap.runtime.operator import Comm
from overlap.schedule.givens import sent_as_given

TO = {0: ("N", 1), 1: ("M", 0)}


def staged_part(template, kind, shape, world, rank, *, dim=0, from_caller=(), mesh=None, split=1, direction="push"):
    """The part of a rank, its memory NaN but for what a launch stages of a tensor that numbers its elements."""
    _, text = find_template(template)
    to, to_dim = TO[dim] if kind == "all_to_all" else (None, None)
    names = ("M", "N", "L")[: len(shape)]
    grid = {} if mesh is None else {"mesh": Mesh(mesh, ("node", "gpu"))}
    tensor = TensorSpec("a", shape)
    plan = build_plan(
        text, world=world, tensor=tensor, dim=dim, to_dim=to_dim, split=split, direction=direction, **grid
    )
    comm = Comm("a", "a_ptr", kind, False, names, names[dim], dim, to, to_dim, "")
    runtime = SimpleNamespace(rank=rank, world=world, peer=lambda data, other: data)
    part = Part(comm, plan, runtime, Given(shape, torch.float32, None), happens_before(plan))
    part.bind(torch.full((part.size,), float("nan")))
    whole = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    held = whole[inside(part.held)].clone()
    ops = sent_as_given(plan, rank)
    copied = [op_id for number, op_id in enumerate(sorted(ops)) if from_caller == "all" or number in from_caller]
    assert ops or not copied
    boxes = []
    for name, box, to in part.staged({"a": held}, copied):
        assert name == "a"
        to.copy_(held[box])
        boxes.append(to.shape)
    return part, whole, copied, boxes


def inside(box: Box):
    return tuple(slice(a, b) for a, b in zip(box.lo, box.hi, strict=True))


def read_here(part, rank, copied):
    """(region, box) of what is read in this rank's memory of what it holds."""
    yield part.layout.window, part.held.intersect(part.window)
    for op_id, op in part.plan.items():
        if isinstance(op, P2P) and op.src_rank == rank and op_id not in copied:
            region = source_region(part.layout, op_id, op.src.box)
            if part.held.contains(op.src.box):
                yield region, op.src.box


def check_reads(part, whole, rank, copied):
    """Whether all that is read is there, and how many elements that are."""
    read = torch.zeros(part.size, dtype=torch.bool)
    for region, box in read_here(part, rank, copied):
        assert torch.equal(part.view(region, box=box), whole[inside(box)])
        read.as_strided(box.shape, region.strides, region.at(box)).fill_(True)
    return read


SHAPES = [(8, 6), (7, 5), (1, 3), (3, 1), (0, 4), (13, 11), (5, 6, 3)]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("split", [1, 2])
def test_of_an_exchange_that_is_pushed_as_it_is_only_what_the_rank_keeps(shape, world, dim, split):
    for rank in range(world):
        part, whole, copied, boxes = staged_part(
            "all_to_all_1d", "all_to_all", shape, world, rank, dim=dim, from_caller="all", split=split
        )
        there = check_reads(part, whole, rank, copied)
        assert torch.equal(~part.data.isnan(), there), "nothing else is"
        assert len(boxes) == 1
        kept = part.held.intersect(part.window)
        assert there.sum() == kept.size and boxes[0].numel() == kept.size


@pytest.mark.parametrize("direction", ["push", "pull"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("least", [0, 1])
def test_of_an_exchange_that_is_staged_first_all_but_a_large_piece_that_is_kept(
    monkeypatch, shape, world, direction, least
):
    """In one or two dense copies: along rows, not along columns; and not of a piece that is smaller than a launch is worth."""
    split = 1 + world % 2
    for rank in range(world):
        for dim in (0, 1):
            kept = staged_part("all_to_all_1d", "all_to_all", shape, world, rank, dim=dim)[0]
            kept = kept.held.intersect(kept.window)
            monkeypatch.setattr(part_layer, "WORTH_A_LAUNCH", 4 * kept.size + least)
            part, whole, _, boxes = staged_part(
                "all_to_all_1d", "all_to_all", shape, world, rank, dim=dim, direction=direction, split=split
            )
            there = check_reads(part, whole, rank, ())
            assert not (there & part.data.isnan()).any()
            rows = dim == 1 or part.held.shape[0] <= 1
            if least == 0 and rows:
                assert torch.equal(~part.data.isnan(), there) and len(boxes) <= 3
            elif part.layout.source is not None and there.sum() > kept.size:
                assert [box.numel() for box in boxes] == [part.held.size, kept.size]


@pytest.mark.parametrize("world", [3, 4, 5])
def test_of_an_exchange_of_which_some_is_pushed_as_it_is_the_box_of_the_rest(world):
    """The others are staged, and no row in front of the first or behind the last of them."""
    for rank in range(world):
        part, whole, copied, boxes = staged_part(
            "all_to_all_1d", "all_to_all", (20, 10), world, rank, dim=1, from_caller=(0,)
        )
        assert len(copied) == 1 and len(boxes) == 2
        there = check_reads(part, whole, rank, copied)
        assert not (there & part.data.isnan()).any()
        rows = [part.plan.op((rank, i)).src.box for i in range(1, world - 1)]
        low, high = min(box.lo[0] for box in rows), max(box.hi[0] for box in rows)
        assert boxes[0] == (high - low, part.held.shape[1])


@pytest.mark.parametrize("mesh", [(2, 2), (2, 3), (3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("from_caller", [(), (0,), "all"])
@pytest.mark.parametrize("shape", [(13, 11), (3, 3), (24, 16)])
def test_of_an_exchange_on_two_levels_what_is_sent_from_memory(mesh, from_caller, shape):
    world = math.prod(mesh)
    for rank in range(world):
        part, whole, copied, _ = staged_part(
            "all_to_all_2d", "all_to_all", shape, world, rank, dim=1, from_caller=from_caller, mesh=mesh
        )
        there = check_reads(part, whole, rank, copied)
        assert not (there & part.data.isnan()).any()
        if from_caller == "all":
            assert torch.equal(~part.data.isnan(), there)


@pytest.mark.parametrize("template", ["all_gather_1d", "all_gather_ring"])
@pytest.mark.parametrize("from_caller", [(), "all"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(8, 6), (7, 5), (1, 3)])
def test_of_a_gather_all_since_the_kernel_reads_it(template, from_caller, world, shape):
    for rank in range(world):
        part, whole, copied, boxes = staged_part(template, "gather", shape, world, rank, from_caller=from_caller)
        there = check_reads(part, whole, rank, copied)
        assert torch.equal(~part.data.isnan(), there) and there.sum() == part.held.size
        assert boxes == [part.held.shape]
