"""Who sends what to whom in words: every element of every result, from every rank that makes it, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from overlap.chunkplan.plan import P2P
from overlap.errors import UnsupportedError
from overlap.schedule.steps import Kernel
from overlap.schedule.words import DIMS, H_STRIDES, HEADER_WORDS, slots, summed, word_steps

from .plans import both, exchange, gather, one_shot, reduce_scatter, ring_scatter, two_shot

PLANS = {
    "scatter": lambda shape, world: reduce_scatter(shape, 0, world),
    "scatter columns": lambda shape, world: reduce_scatter(shape, 1, world),
    "one shot": one_shot,
    "exchange": exchange,
}


def elements(box):
    return set(itertools.product(*(range(a, b) for a, b in zip(box.lo, box.hi, strict=True))))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_every_summand_has_lines_of_its_own(name, world, rows):
    plan = PLANS[name]((rows, 6), world)
    for rank in range(world):
        found = slots(plan, rank, "c")
        assert [slot.source for slot in found] == sorted(slot.source for slot in found)
        assert not any(slot.box.empty for slot in found)
        assert all((slot.op is None) == (slot.source == rank) for slot in found)
        _, result = summed(plan, rank, "c")
        for piece in result:
            sources = {rank if op is None else plan.op(op).src_rank: op for op in piece.summands}
            if name != "exchange":
                assert sorted(sources) == list(range(world)), "every rank makes a summand"
            for source, op in sources.items():
                holding = [
                    slot
                    for slot in found
                    if (slot.source, slot.op) == (source, op) and slot.box.contains(piece.chunk.box)
                ]
                assert len(holding) == 1
        ended = set().union(*(elements(chunk.box) for chunk in plan.after[rank]))
        assert set().union(*(elements(piece.chunk.box) for piece in result)) == ended


@pytest.mark.parametrize("name", PLANS)
def test_what_a_rank_sends_lands_in_somebodys_slots(name):
    plan = PLANS[name]((7, 6), 3)
    sent = {op_id for op_id, op in plan.items() if isinstance(op, P2P) and not op.src.box.empty}
    assert {slot.op for rank in range(3) for slot in slots(plan, rank, "c")} - {None} == sent
    assert set().union(*(summed(plan, rank, "c")[0] for rank in range(3))) >= sent


def test_a_launch_is_its_kernel():
    plan = reduce_scatter((6, 2), 0, 3)
    assert word_steps(plan, 1, ["c"]) == (Kernel(stores=((1, 0), (1, 1))),)
    assert word_steps(reduce_scatter((6, 2), 0, 1), 0, ["c"]) == (Kernel(),)


@pytest.mark.parametrize("plan", [two_shot((6, 2), 0, 3), ring_scatter((6, 2), 0, 3)], ids=["two shots", "ring"])
def test_what_sends_sums_on_is_refused(plan):
    with pytest.raises(UnsupportedError, match="sends what others have sent") as caught:
        for rank in range(3):
            word_steps(plan, rank, ["c"])
    assert "all_reduce_one_shot" in caught.value.help and "copy_engine" in caught.value.help


def test_a_second_tensor_is_refused():
    plan = both(gather((6, 2), 0, 2, direction="push"), reduce_scatter((6, 2), 0, 2), channel=1)
    with pytest.raises(UnsupportedError, match="one result of a kernel and nothing else; this one communicates a, c"):
        word_steps(plan, 0, ["c"])


def test_the_header_has_room():
    assert H_STRIDES + DIMS <= HEADER_WORDS
