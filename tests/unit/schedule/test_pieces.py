"""What is added to what, against the value rule carried out element by element."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.plan import P2P, Chunk
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.errors import PlanError, ScheduleError, UnsupportedError
from overlap.schedule.pieces import check_produced, partial_sources, pieces
from tests.support.sweep import examples

from .oracle import inside, past, points, value
from .plans import (
    SUM,
    chunk_of,
    exchange,
    gather,
    one_shot,
    reduce_scatter,
    reduced,
    ring_scatter,
    two_shot,
    whole_of,
)


def plans(world: int, m: int):
    yield reduce_scatter((m, 2), 0, world)
    yield reduce_scatter((3, m), 1, world, split=3)
    yield one_shot((m, 1), world)
    yield two_shot((m, 1), 0, world, split=2)
    yield two_shot((2, m), 1, world, channels=1)
    yield ring_scatter((m, 1), 0, world)
    yield exchange((m, 4), world)


def check(plan, *, complete=True) -> None:
    """Every part that the rule gives an element is in its summands, once, in rank order; boxes partition what is wanted."""
    before = past(plan)
    everything = set(before)

    def unfolded(rank, summands, element):
        found = []
        for op in summands:
            if op is None:
                found.append((rank, ()))
            else:
                src = plan.op(op).src_rank
                found += [(o, (*path, op)) for o, path in value(plan, src, "c", element, before[op], before)]
        return Counter(found)

    def check_pieces(rank, found, boxes, happened):
        for element in {e for piece in found for e in points(piece.chunk.box)} | {e for b in boxes for e in points(b)}:
            inside_of = [piece for piece in found if inside(piece.chunk.box, element)]
            assert len(inside_of) == (1 if any(inside(box, element) for box in boxes) else 0)
            for piece in inside_of:
                wanted = Counter(value(plan, rank, "c", element, happened, before))
                assert unfolded(rank, piece.summands, element) == wanted
        for piece in found:
            origins = [rank if op is None else plan.op(op).src_rank for op in piece.summands]
            assert origins == sorted(origins), "not in rank order"
            assert not piece.chunk.box.empty

    for rank in range(plan.world):
        sums, result = pieces(plan, rank, "c")
        assert all(piece.out for piece in result)
        check_pieces(rank, result, [chunk.box for chunk in plan.after[rank]], everything)
        if complete:
            for piece in result:
                for element in points(piece.chunk.box):
                    parts = [origin for origin, _ in unfolded(rank, piece.summands, element).elements()]
                    assert sorted(parts) == list(range(plan.world)), "a rank is missing or counted twice"
        partial = partial_sources(plan, rank, ("c",))
        assert len({chunk for chunk, _ in partial}) == len(partial)
        own = [op for ops in (*(ops for _, ops in partial), *sums) for op in ops]
        assert sorted(own) == [(rank, i) for i in range(len(plan.ops[rank]))], "an operation sends one thing"
        for chunk, ops in partial:
            for op in ops:
                assert plan.op(op).src == chunk
                for element in points(chunk.box):
                    assert value(plan, rank, "c", element, before[op], before) == ((rank, ()),)
        for ops, kept in sums.items():
            assert all(piece.keep and piece.ops == ops and (piece in result) == piece.out for piece in kept)
            for op in ops:
                check_pieces(rank, kept, [plan.op(op).src.box], before[op])


@pytest.mark.parametrize("world", range(1, 6))
def test_every_plan(world):
    for m in (0, 1, 3, 7, 10):
        for plan in plans(world, m):
            verify_plan(plan)
            if plan.name != "exchange":
                verify_contributions(plan, "c")
            check(plan, complete=plan.name != "exchange")


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_plan_of_additions(data):
    """Pushes of random boxes, in random channels, depending on earlier ones at random: whatever then adds up."""
    world, m = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6))
    ops: list[list[P2P]] = [[] for _ in range(world)]
    made: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 5)) if world > 1 else 0):
        src = data.draw(st.integers(0, world - 1))
        dst = data.draw(st.integers(0, world - 1).filter(lambda rank, src=src: rank != src))
        lo = data.draw(st.integers(0, m))
        chunk = chunk_of((m, 2), 0, lo, data.draw(st.integers(lo, m)), "c")
        depends = tuple(op for op in made if data.draw(st.booleans()))
        ops[src].append(P2P("push", src, dst, chunk, chunk, depends, data.draw(st.integers(0, 1)), SUM))
        made.append((src, len(ops[src]) - 1))
    after = [(chunk_of((m, 2), 0, 0, data.draw(st.integers(0, m)), "c"),) for _ in range(world)]
    check(reduced("any", world, (m, 2), after, ops), complete=False)


def test_a_sum_that_is_sent_on_and_kept_is_one_piece():
    plan = two_shot((6, 2), 0, 3)
    sums, result = pieces(plan, 1, "c")
    ((ops, (kept,)),) = sums.items()
    assert ops == ((1, 2), (1, 3)) and kept.keep and kept.out
    assert kept.summands == ((0, 0), None, (2, 1)) and kept.chunk == chunk_of((6, 2), 0, 2, 4, "c")
    others = [piece for piece in result if piece != kept]
    assert [(piece.chunk.box.lo[0], piece.summands, piece.keep) for piece in others] == [
        (0, ((0, 2),), False),
        (4, ((2, 3),), False),
    ]


def test_the_part_of_a_result_that_is_sent_on_is_added_once():
    """Rank 1 gets rows 0:4 from rank 0, sends rows 0:2 of the sum on and ends with all: rows 2:4 are added beside."""
    low, whole = chunk_of((4, 2), 0, 0, 2, "c"), whole_of((4, 2))
    ops = [[P2P("push", 0, 1, whole, whole, reduce=SUM)], [P2P("push", 1, 2, low, low, ((0, 0),), reduce=SUM)], []]
    plan = reduced("part", 3, (4, 2), [(), (whole,), ()], ops)
    check(plan, complete=False)
    ((kept,),) = pieces(plan, 1, "c")[0].values()
    assert [(p.chunk.box.lo[0], p.chunk.box.hi[0], p.keep) for p in pieces(plan, 1, "c")[1]] == [
        (0, 2, True),
        (2, 4, False),
    ]
    assert kept in pieces(plan, 1, "c")[1]


def test_a_hop_of_a_ring_is_kept_and_not_in_the_result():
    """What rank 1 of 3 sends on in the second step is no part of what it ends with."""
    sums, result = pieces(ring_scatter((6, 2), 0, 3), 1, "c")
    assert [(ops, [(p.summands, p.out) for p in kept]) for ops, kept in sums.items()] == [
        (((1, 1),), [(((0, 0), None), False)])
    ]
    assert [(piece.chunk.box.lo[0], piece.summands) for piece in result] == [(2, ((0, 1), None))]


def test_a_source_of_several_parts_is_kept_whole():
    """Rank 1 gets rows 0:2 from rank 0, then sends rows 0:4 to rank 2: a sum, and its own part beside it."""
    low, both = chunk_of((4, 2), 0, 0, 2, "c"), whole_of((4, 2))
    ops = [
        [P2P("push", 0, 1, low, low, reduce=SUM)],
        [P2P("push", 1, 2, both, both, ((0, 0),), reduce=SUM)],
        [],
    ]
    plan = reduced("mixed", 3, (4, 2), [(), (), (both,)], ops)
    check(plan, complete=False)
    sums, result = pieces(plan, 1, "c")
    assert result == () and partial_sources(plan, 1, ("c",)) == ()
    assert [[(p.chunk.box.lo[0], p.summands) for p in kept] for kept in sums.values()] == [
        [(0, ((0, 0), None)), (2, (None,))]
    ]


def test_what_is_overwritten_is_gone_and_what_comes_behind_is_added():
    whole = whole_of((4, 2))
    ops = [
        [P2P("push", 0, 2, whole, whole, reduce=SUM)],
        [P2P("push", 1, 2, whole, whole, ((0, 0),)), P2P("push", 1, 2, whole, whole, reduce=SUM)],
        [],
    ]
    _, (piece,) = pieces(reduced("over", 3, (4, 2), [(), (), (whole,)], ops), 2, "c")
    assert piece.summands == ((1, 0), (1, 1))


def test_the_accumulator_is_the_one_of_the_plan():
    plan = reduce_scatter((4, 2), 0, 2)
    wide = [[replace(op, reduce=Reduction("sum", "fp64")) for op in own] for own in plan.ops]
    _, (piece,) = pieces(replace(plan, ops=tuple(map(tuple, wide))), 0, "c")
    assert (piece.accumulate, piece.combine) == ("fp64", "sum")
    _, (piece,) = pieces(plan, 0, "c")
    assert piece.accumulate == "fp32"


def test_different_ways_of_adding_up_one_element_are_refused():
    plan = reduce_scatter((6, 2), 0, 3)
    odd = replace(plan.ops[1][1], reduce=Reduction("sum", "fp64"))
    plan = replace(plan, ops=(plan.ops[0], (plan.ops[1][0], odd), plan.ops[2]))
    with pytest.raises(
        UnsupportedError, match=r"c\[0:2, 0:2\] is combined by sum in fp64 .* and by sum in fp32"
    ) as raised:
        pieces(plan, 0, "c")
    assert "same `reduce`" in raised.value.help


def test_what_a_rank_never_has_is_refused():
    low, whole = chunk_of((4, 2), 0, 0, 2, "c"), whole_of((4, 2))
    plan = replace(reduce_scatter((4, 2), 0, 2), before=((low,), (whole,)), after=((whole,), ()))
    with pytest.raises(PlanError, match=r"rank 0 sends, as rank 0 operation 0 .* c\[2:4, 0:2\], which it never has"):
        partial_sources(plan, 0, ("c",))
    with pytest.raises(PlanError, match=r"rank 0 ends with c\[2:4, 0:2\], which it never has"):
        pieces(replace(plan, ops=((), plan.ops[1])), 0, "c")


A, C = chunk_of((4, 2), 0, 0, 2, "a"), chunk_of((4, 2), 0, 0, 2, "c")


@pytest.mark.parametrize(
    "op, message, help",
    [
        (P2P("pull", 1, 0, C, C), "rank 0 operation 0 .* c is made by tiles, and who reads it cannot know", "use push"),
        (P2P("push", 0, 1, C, A), "c is made by tiles, and its chunks move inside that tensor only", "into"),
        (P2P("push", 0, 1, A, C), "c is made by tiles, and its chunks move inside", "into"),
    ],
)
def test_what_cannot_be_done_with_a_produced_tensor_is_refused(op, message, help):
    plan = replace(gather((4, 2), 0, 2), ops=((op,), ()))
    plan = replace(plan, tensors=(*plan.tensors, replace(plan.tensors[0], name="c")))
    with pytest.raises(UnsupportedError, match=message) as raised:
        check_produced(plan, ("c",))
    assert help in raised.value.help
    with pytest.raises(ScheduleError, match="tiles write 'd', which plan"):
        check_produced(plan, ("d",))


def test_chunks_of_after_may_overlap():
    """Each element is in one piece."""
    plan = reduce_scatter((8, 2), 0, 2)
    halves = tuple(Chunk("c", Box((lo, 0), (hi, 2))) for lo, hi in ((0, 4), (2, 3), (0, 1)))
    plan = replace(plan, after=(halves, plan.after[1]))
    check(plan)
