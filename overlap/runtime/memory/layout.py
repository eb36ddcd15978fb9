"""Where the parts of a communicated tensor lie in a rank's symmetric memory. Pure; every rank computes every rank's.

    gathered input       | window: the whole tensor; the own shard and what arrives                          |
    all-to-all input     | window: what the kernel sees | source: the own shard, for peers to take | relay ... |
    produced output      | window: the kernel's partial | slot of an op | slot ... | kept sum | kept sum ...  |

Offsets are in elements of the tensor's dtype, each region on a boundary of `ALIGNMENT` elements. The window is dense in
the tensor's memory order, everything else dense and row-major. A slot takes what one operation brings; no two
operations share one, so nothing that lands waits for anything else to be read. Without a kernel that holds for what is
added; what replaces lands in its place, as the plan's order allows. A relay takes what one operation brings to a rank whose
kernel does not see it, for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box, bounding, overlap_of
from overlap.errors import UnsupportedError

NOTHING: Mapping[OpId, Box] = {}
MARGIN = 256
"""Rows beside a chunk that tiles on its edge may write as well, into its slot: blocks are no larger."""
ALIGNED_ROWS = 16
ALIGNMENT = 128
"""In elements: bulk copies and TMA descriptors want 16 bytes, one-byte elements want most."""


@dataclass(frozen=True)
class Region:
    """A dense box of a tensor in memory.

    ``box`` names elements of the global tensor, ``offset`` the place of the first, ``order`` its dimensions in memory,
    outermost first.
    """

    name: str
    offset: int
    box: Box
    order: tuple[int, ...]

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """In elements, one a dimension."""
        return dense_strides(self.box.shape, self.order)

    @property
    def end(self) -> int:
        return self.offset + self.box.size

    def dense(self, box: Box) -> bool:
        """Whether the elements of ``box``, a part of this region's, lie one behind the other."""
        strides = dense_strides(box.shape, self.order)
        return all(n == 1 or a == b for n, a, b in zip(box.shape, strides, self.strides, strict=True))

    def at(self, box: Box) -> int:
        """Offset of the first element of ``box``, a part of this region's."""
        if box.empty:
            return self.offset
        return self.offset + sum((b - a) * s for b, a, s in zip(box.lo, self.box.lo, self.strides, strict=True))


@dataclass(frozen=True)
class RankLayout:
    """One rank's memory of one tensor. ``size`` in elements; keys of ``kept`` are the operations that send the sum on.

    ``places``: of a plan without a kernel, whose window is empty: what the rank holds, and what lands where it belongs.
    ``relays``: of an input, what lands here for other ranks, and the kernel does not see.
    """

    window: Region
    source: Region | None = None
    slots: dict[OpId, Region] = field(default_factory=dict)
    kept: dict[tuple[OpId, ...], Region] = field(default_factory=dict)
    places: tuple[Region, ...] = ()
    relays: dict[OpId, Region] = field(default_factory=dict)

    def regions(self) -> Iterator[Region]:
        """All regions in the order of their offsets."""
        yield self.window
        if self.source is not None:
            yield self.source
        yield from self.places
        yield from (slot for slot in self.slots.values() if slot not in self.places)
        yield from self.kept.values()
        yield from self.relays.values()

    def own(self, box: Box) -> Region:
        """Where the rank's own value of ``box`` is: in one of its places, else in the window."""
        return next((place for place in self.places if place.box.contains(box)), self.window)

    @cached_property
    def size(self) -> int:
        return max(region.end for region in self.regions())


def dense_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in memory in ``order``, outermost first."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(1, shape[d])
    return tuple(strides)


def input_layout(plan: CommPlan, tensor: str, rank: int, window: Box, order: tuple[int, ...]) -> RankLayout:
    """Memory of an input on ``rank``: what arrives lands in the window, where the kernel reads it.

    A rank that holds parts outside its window (all-to-all) has a region of its own for them, and so has each operation
    that brings what the rank passes on.

    Raises:
        UnsupportedError: an operation brings elements of which the kernel of this rank sees a part.
    """
    seen = Region(tensor, 0, window, order)
    end = _aligned(seen.end)
    rows = tuple(range(window.ndim))
    held = bounding(chunk.box for chunk in plan.before[rank] if chunk.tensor == tensor)
    source = None
    if held is not None and not window.contains(held):
        source = Region(f"{tensor} before", end, held, rows)
        end = _aligned(source.end)
    relays: dict[OpId, Region] = {}
    for op_id, op in landings(plan, tensor, rank):
        if window.contains(op.dst.box):
            continue
        if window.overlaps(op.dst.box):
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)} brings {op.dst} to rank {rank}, whose kernel sees {tensor}{window}",
                where=plan.where(op_id),
                help="bring what the kernel sees and what is passed on by operations of their own",
            )
        relays[op_id] = Region(f"relay of {op.dst}", end, op.dst.box, rows)
        end = _aligned(relays[op_id].end)
    layout = RankLayout(seen, source, relays=relays)
    for op_id, sent in plan.items() if relays else ():
        if isinstance(sent, P2P) and (sent.src_rank, sent.src.tensor) == (rank, tensor):
            if not source_region(layout, op_id, sent.src.box).box.contains(sent.src.box):
                raise UnsupportedError(
                    f"plan {plan.name}, {name_op(plan, op_id)} passes {sent.src} on, which came to rank {rank} in pieces",
                    where=plan.where(op_id),
                    help="pass on each piece as it came",
                )
    return layout


def output_layout(
    plan: CommPlan,
    tensor: str,
    rank: int,
    window: Box,
    order: tuple[int, ...],
    kept: Iterable[tuple[tuple[OpId, ...], Box]] = (),
    stored: Mapping[OpId, Box] = NOTHING,
) -> RankLayout:
    """Memory of an output on ``rank``.

    Args:
        kept: sums that this rank sends on: the operations that take each, and its box.
        stored: operations whose slot here takes tiles as the kernel of their source stores them, with the window of
            that kernel: such a slot has the strides of the kernel's result, and room for what tiles on its edge write.
    """
    partial = Region(f"partial {tensor}", 0, window, order)
    end = _aligned(partial.end)
    rows = tuple(range(window.ndim))
    slots: dict[OpId, Region] = {}
    for op_id, op in landings(plan, tensor, rank):
        name = f"slot of rank {op.src_rank}'s part of {op.dst}"
        if op_id in stored:
            slots[op_id] = Region(name, end, _with_margin(op.dst.box, stored[op_id], order[0]), order)
        else:
            slots[op_id] = Region(name, end, op.dst.box, rows)
        end = _aligned(slots[op_id].end)
    sums: dict[tuple[OpId, ...], Region] = {}
    for ops, box in kept:
        sums[ops] = Region(f"kept sum of {tensor}{box}", end, box, rows)
        end = _aligned(sums[ops].end)
    return RankLayout(partial, None, slots, sums)


def transfer_layout(
    plan: CommPlan, tensor: str, rank: int, own: Iterable[Box], kept: Iterable[tuple[tuple[OpId, ...], Box]] = ()
) -> RankLayout:
    """Memory of a tensor on ``rank`` where no kernel works on it.

    Args:
        own: what the rank is given, sends from its place, and ends with without adding; each box lies in one place.
        kept: sums that this rank sends on: the operations that take each, and its box.
    """
    ndim = len(plan.tensor(tensor).shape)
    rows = tuple(range(ndim))
    found = list(landings(plan, tensor, rank))
    placed = separated([*own, *(op.dst.box for _, op in found if op.reduce is None)])
    end = 0
    places: list[Region] = []
    for box in placed:
        places.append(Region(tensor, end, box, rows))
        end = _aligned(places[-1].end)
    nothing = Region(f"nothing of {tensor}", 0, Box((0,) * ndim, (0,) * ndim), rows)
    slots: dict[OpId, Region] = {}
    for op_id, op in found:
        if op.reduce is None:
            slots[op_id] = next((place for place in places if place.box.contains(op.dst.box)), nothing)
            continue
        slots[op_id] = Region(f"slot of rank {op.src_rank}'s part of {op.dst}", end, op.dst.box, rows)
        end = _aligned(slots[op_id].end)
    sums: dict[tuple[OpId, ...], Region] = {}
    for ops, box in kept:
        sums[ops] = Region(f"kept sum of {tensor}{box}", end, box, rows)
        end = _aligned(sums[ops].end)
    return RankLayout(nothing, None, slots, sums, tuple(places))


def separated(boxes: Iterable[Box]) -> list[Box]:
    """Boxes that share no element and hold every one of ``boxes`` whole, grown no further than that takes."""
    left = list(dict.fromkeys(box for box in boxes if not box.empty))
    while True:
        pairs = overlap_of(left)
        if not pairs:
            return sorted(left, key=lambda box: box.lo)
        first = list(range(len(left)))

        def root(i: int, first: list[int] = first) -> int:
            while first[i] != i:
                i = first[i]
            return i

        for i, j, _ in pairs:
            low, high = sorted((root(i), root(j)))
            first[high] = low
        groups: dict[int, list[Box]] = {}
        for i, box in enumerate(left):
            groups.setdefault(root(i), []).append(box)
        left = [grown for group in groups.values() if (grown := bounding(group)) is not None]


def _with_margin(box: Box, window: Box, outermost: int) -> Box:
    """The rows of ``window`` that tiles touching ``box`` may write, along the dimension outermost in memory.

    It begins a multiple of `ALIGNED_ROWS` rows into the window, so that vectors keep their alignment.
    """
    lo, hi = list(window.lo), list(window.hi)
    before = max(0, box.lo[outermost] - MARGIN - window.lo[outermost])
    lo[outermost] = window.lo[outermost] + before // ALIGNED_ROWS * ALIGNED_ROWS
    hi[outermost] = min(window.hi[outermost], box.hi[outermost] + MARGIN)
    return Box(tuple(lo), tuple(hi))


def landings(plan: CommPlan, tensor: str, rank: int) -> Iterator[tuple[OpId, P2P]]:
    """The operations that write ``rank``'s memory of ``tensor``, in the order of their ids."""
    for op_id in sorted(plan.arriving(rank)):
        op = plan.op(op_id)
        if isinstance(op, P2P) and op.dst.tensor == tensor:
            yield op_id, op


def source_region(layout: RankLayout, op_id: OpId, box: Box) -> Region:
    """Where the source of an operation lies on its source rank.

    A sum made for it; else what the rank held before; else what has arrived: to be passed on, in its place or in the window.
    """
    for ops, region in layout.kept.items():
        if op_id in ops and region.box.contains(box):
            return region
    if layout.source is not None and layout.source.box.contains(box):
        return layout.source
    for relay in layout.relays.values():
        if relay.box.contains(box) and not layout.window.box.contains(box):
            return relay
    return layout.own(box)


def destination_region(layout: RankLayout, op_id: OpId) -> Region:
    """Where an operation lands on its destination rank."""
    return layout.slots.get(op_id) or layout.relays.get(op_id, layout.window)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
