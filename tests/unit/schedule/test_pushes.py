"""Where the tiles of each run are stored, and whom the last tile of a chunk tells, against one tile and element at a time."""

from __future__ import annotations

import pytest

from overlap.chunkplan.plan import OpId
from overlap.errors import ScheduleError, UnsupportedError
from overlap.schedule.model import AxisTiles, TensorWrite
from overlap.schedule.pushes import pushes, stored_ops
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import Copy, Hold, Kernel, Raise, Sum, launch_steps
from overlap.schedule.sync import assign_slots
from overlap.schedule.table import (
    R_RAISE_BEGIN,
    R_RAISE_END,
    R_WAY,
    RAISE_WORDS,
    RUN_WORDS,
    W_STATES,
    to_words,
    way_base,
)
from overlap.schedule.verify_steps import verify_steps

from .oracle import tiles_of
from .plans import exchange, gemm_axes, one_shot, reduce_scatter, two_shot, windows_of, writes_c

ROWS = (0, 1, 3, 130, 136)
PLANS = {
    "scatter": lambda shape, world: reduce_scatter(shape, 0, world),
    "scatter columns": lambda shape, world: reduce_scatter(shape, 1, world),
    "one shot": one_shot,
    "two shots": lambda shape, world: two_shot(shape, 0, world),
    "exchange": exchange,
}


def everything(plan, block=32):
    """Each rank's schedule and pushes."""
    windows = windows_of(plan)
    sizes = [tuple(hi - lo for lo, hi in zip(w["c"].lo, w["c"].hi, strict=True)) for w in windows]
    axes = [gemm_axes(m, n, block, block) for m, n in sizes]
    made = schedule_all(plan, (), axes, writes=writes_c(), windows=windows)
    return [(s, pushes(s, plan, writes_c(), windows[r]["c"]), windows[r]["c"]) for r, s in enumerate(made)]


def written(schedule, window, tile):
    """The elements of the global tensor that a tile writes."""
    spans = []
    for d, (axis, at) in enumerate(zip(schedule.axes, tile, strict=True)):
        low = window.lo[d] + at * axis.block
        spans.append(range(low, min(window.hi[d], low + axis.block)))
    return {(i, j) for i in spans[0] for j in spans[1]}


def elements(box):
    return {(i, j) for i in range(box.lo[0], box.hi[0]) for j in range(box.lo[1], box.hi[1])}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", ROWS)
def test_every_tile_goes_wherever_a_part_of_it_belongs(name, world, rows):
    plan = PLANS[name]((rows, 40), world)
    for rank, (schedule, pushed, window) in enumerate(everything(plan)):
        sent = {op: elements(plan.op(op).src.box) for op in stored_ops(plan, rank, "c")}
        counted: dict[OpId, int] = dict.fromkeys(sent, 0)
        # What the rank adds its own part to: of two shots, the shard that it sums.
        own = elements(plan.ops[rank][-1].src.box if name == "two shots" and world > 1 else plan.after[rank][0].box)
        # Counters of operations stand behind those of chunks.
        first = len(schedule.counters)
        for run, ways, tells in zip(schedule.runs, pushed.ways, pushed.tells, strict=True):
            assert len(set(ways)) == len(ways) >= 1
            numbers = {sorted(sent).index(op) for op in ways if op is not None}
            assert {tell.counter - first for tell in tells} == numbers
            for tile in tiles_of(run):
                part = written(schedule, window, tile)
                assert {op for op, box in sent.items() if part & box} == {op for op in ways if op is not None}
                assert None in ways or not part & own
                for op in sent:
                    counted[op] += bool(part & sent[op])
        for op, tell in {sorted(sent)[t.counter - first]: t for run in pushed.tells for t in run}.items():
            target = plan.op(op)
            assert tell.target == counted[op] > 0
            assert tell.peer == target.dst_rank and tell.flag == assign_slots(plan, target.dst_rank)[op]


def test_the_table_holds_ways_and_tells():
    plan = reduce_scatter((136, 40), 0, 4)
    schedule, pushed, _ = everything(plan)[1]
    words = to_words(schedule, 7, pushed)
    base = 9
    for i, (ways, tells) in enumerate(zip(pushed.ways, pushed.tells, strict=True)):
        record = words[base + i * RUN_WORDS : base + (i + 1) * RUN_WORDS]
        following = words[base + (i + 1) * RUN_WORDS : base + (i + 2) * RUN_WORDS]
        assert following[R_WAY] - record[R_WAY] == len(ways)
        entries = words[record[R_RAISE_BEGIN] : record[R_RAISE_END]]
        told = [tuple(entries[j : j + RAISE_WORDS]) for j in range(0, len(entries), RAISE_WORDS)]
        assert told == [(t.counter, t.target, t.peer, t.flag) for t in tells]
    assert words[base + R_WAY] == way_base(4) == W_STATES + 4, (
        "behind the header and the addresses of four ranks' state words"
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_kernel_carries_out_what_it_makes_and_lanes_the_rest(name, world):
    plan = PLANS[name]((10, 8), world)
    steps = [launch_steps(plan, rank, produced=["c"], stores=True) for rank in range(world)]
    verify_steps(steps, plan, ["c"])
    verify_steps(steps, plan, ["c"], blocking=True)
    for rank, own in enumerate(steps):
        (kernel,) = (step for step in own if isinstance(step, Kernel))
        copied = [step.op for step in own if isinstance(step, Copy)]
        assert sorted([*kernel.stores, *copied]) == [(rank, i) for i in range(len(plan.ops[rank]))]
        assert not any(isinstance(step, Hold | Raise) and step.op in kernel.stores for step in own)
        assert any(isinstance(step, Sum) for step in own)


def test_an_empty_chunk_is_raised_by_a_lane():
    """No tile touches it, and somebody may wait for its flag."""
    plan = reduce_scatter((2, 8), 0, 4)
    (kernel,) = (s for s in launch_steps(plan, 0, produced=["c"], stores=True) if isinstance(s, Kernel))
    left = [s.op for s in launch_steps(plan, 0, produced=["c"], stores=True) if isinstance(s, Raise)]
    assert kernel.stores == stored_ops(plan, 0, "c")
    assert {plan.op(op).src.box.empty for op in kernel.stores} == {False}
    assert {plan.op(op).src.box.empty for op in left} == {True}


def test_a_kernel_that_stores_what_it_does_not_make_is_refused():
    plan = two_shot((10, 8), 0, 2)
    steps = [list(launch_steps(plan, rank, produced=["c"], stores=True)) for rank in range(2)]
    at = next(i for i, s in enumerate(steps[0]) if isinstance(s, Kernel))
    kept = next(s.op for s in steps[0] if isinstance(s, Copy))
    steps[0][at] = Kernel((*steps[0][at].stores, kept))
    with pytest.raises(ScheduleError, match="the kernel stores rank 0 operation|copies rank 0 operation"):
        verify_steps(steps, plan, ["c"])


def test_split_k_and_several_results_are_refused():
    plan = reduce_scatter((64, 64), 0, 2)
    axes = (*gemm_axes(64, 64, 32, 32), AxisTiles("S", 4, 1))
    (schedule, _) = schedule_all(plan, (), axes, writes=writes_c())
    window = plan.before[0][0].box
    with pytest.raises(UnsupportedError, match="tiles along S add to the same elements of c"):
        pushes(schedule, plan, writes_c(), window)
    with pytest.raises(UnsupportedError, match="2 communicated results"):
        pushes(schedule, plan, (*writes_c(), TensorWrite("d", ("M", "N"))), window)
