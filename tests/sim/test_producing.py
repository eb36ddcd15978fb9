"""Counters and held streams: tiles count themselves into a chunk, and a copy that a stream holds back takes it away."""

import pytest
import torch
import triton
import triton.language as tl

import overlap.language as ol
from overlap.chunkplan.plan import Chunk
from overlap.chunkplan.region import Box
from overlap.errors import DeadlockFault, RaceFault, RuntimeContractError, SimFault
from overlap.schedule.model import AxisTiles, Counter, CountIn, RankSchedule, Run
from overlap.schedule.table import R_RAISE_BEGIN, SLOT_WORDS, counter_base, state_words, to_words

SEEDS = range(8)
BEGIN: tl.constexpr = R_RAISE_BEGIN
TILES, BLOCK = 6, 16
FLAGS = 3


@triton.jit
def produce(out, value, table, state, BLOCK: tl.constexpr, WORD: tl.constexpr, BARRIER: tl.constexpr):
    """Every program stores one tile of ``out`` and counts it in, by one of the words or too early."""
    tile = tl.program_id(0)
    run = ol.find_run(table, tile)
    i = tile * BLOCK + tl.arange(0, BLOCK)
    if WORD == "early":
        ol.produced(table, run, state)
    tl.store(out + i, value + i.to(tl.float32))
    if WORD == "produced":
        if BARRIER:
            ol.produced(table, run, state)
        else:
            ol._count_in(table, run, state)
    if WORD == "produced_async":
        ol.produced_async(table, run, state)
    if WORD == "gpu" or WORD == "relaxed":
        tl.debug_barrier()
        begin, end = tl.load(table + run + BEGIN), tl.load(table + run + BEGIN + 1)
        entries = begin + 4 * tl.arange(0, 8)
        slots = tl.load(table + entries, mask=entries < end, other=0)
        counters = state + tl.load(table + 7) + slots * 4
        one = tl.full((8,), 1, tl.int64)
        if WORD == "gpu":
            tl.atomic_add(counters, one, mask=entries < end, sem="release", scope="gpu")
        else:
            tl.atomic_add(counters, one, mask=entries < end, sem="relaxed", scope="sys")


@triton.jit
def produce_tma(out, value, table, state, BLOCK: tl.constexpr, ASYNC: tl.constexpr):
    """As `produce`, by a TMA store."""
    tile = tl.program_id(0)
    rows = tl.make_tensor_descriptor(out, shape=[tl.num_programs(0), BLOCK], strides=[BLOCK, 1], block_shape=[1, BLOCK])
    run = ol.find_run(table, tile)
    made = value + (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
    rows.store([tile, 0], made[None, :])
    if ASYNC:
        ol.produced_async(table, run, state)
    else:
        ol.produced(table, run, state)


@triton.jit
def produce_walking(out, value, table, state, BLOCK: tl.constexpr, STEP: tl.constexpr, WHEN: tl.constexpr):
    """As `produce_tma`, by programs that walk over tiles and count once a run, behind their last tile of it or too early."""
    pid = tl.program_id(0)
    rows = tl.make_tensor_descriptor(out, shape=[tl.num_programs(0), BLOCK], strides=[BLOCK, 1], block_shape=[1, BLOCK])
    for tile in range(pid, tl.where(pid < STEP, tl.num_programs(0), 0), STEP):
        run = ol.find_run(table, tile)
        made = value + (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
        if WHEN == "ahead":
            ol.produced_once(table, run, state, tile, STEP)
        rows.store([tile, 0], made[None, :])
        if WHEN == "last":
            ol.produced_once(table, run, state, tile, STEP)
        if WHEN == "first":
            # What is to come in the run is counted by the first tile that this program has of it.
            if tile - STEP < tl.load(table + run):
                ol.produced_once(table, run, state, tile + STEP, STEP)


@triton.jit
def clear(words, COUNT: tl.constexpr, STRIDE: tl.constexpr):
    for i in range(COUNT):
        tl.store(words + i * STRIDE, tl.full((), 0, tl.int64))


def schedule(rank, world, targets=(4, 4)):
    """Six tiles, two chunks: tiles 0 and 1 count into the first, 2 and 3 into both, 4 and 5 into the second."""
    first, second, both = ((CountIn(0),), (CountIn(1),), (CountIn(0), CountIn(1)))
    runs = tuple(
        Run(first=2 * n, origin=(2 * n,), counts=(2,), raises=raises) for n, raises in enumerate((first, both, second))
    )
    counters = tuple(
        Counter(slot, Chunk("c", Box((0,), (64,))), target, ((rank, slot),)) for slot, target in enumerate(targets)
    )
    axes = (AxisTiles("M", TILES * BLOCK, BLOCK),)
    return RankSchedule(rank, world, axes, runs, {}, (), counters=counters)


CHUNKS = ((0, 4 * BLOCK), (2 * BLOCK, TILES * BLOCK))


def body(launches=2, *, kernel=produce, targets=(4, 4), hold=True, reset=True, **switches):
    """Host code: a kernel makes two chunks, each copied to the next rank as soon as it is whole."""

    def run(runtime):
        world, rank = runtime.world, runtime.rank
        state = runtime.symmetric([state_words(world, FLAGS, 2)], torch.int64, zero=True)
        part = runtime.symmetric([TILES * BLOCK], torch.float32)
        slots = runtime.symmetric([2, TILES * BLOCK], torch.float32)
        planned = schedule(rank, world, targets)
        table = runtime.table(to_words(planned, FLAGS))
        base = counter_base(world, FLAGS) * SLOT_WORDS
        counters = [state[base + n * SLOT_WORDS :][:1] for n in range(2)]
        peer = runtime.peer(slots, (rank + 1) % world)
        got = []
        for launch in range(launches):
            with runtime.in_order("call", runtime.main_stream()):
                main = runtime.main_stream()
                if reset:
                    clearing = {"COUNT": 2, "STRIDE": SLOT_WORDS, "num_warps": 1}
                    runtime.launch(clear, (1,), (state[base:],), clearing, main)
                arguments = (part, float(100 * launch + rank), table, state)
                # Forked first, held until the kernel behind it has made the chunk.
                side = runtime.fork(0)
                options = {"BLOCK": BLOCK, **switches}
                runtime.launch(kernel, (TILES,), arguments, options, main)
                for counter, (low, high), n in zip(counters, CHUNKS, range(2), strict=True):
                    if hold:
                        runtime.holder(counter, planned.counters[n].target)(side)
                    runtime.copier(peer[n, low:high], part[low:high])(side)
                runtime.join(side)
            runtime.synchronize()
            runtime.agree("copied", None)
            got.append([slots[n, low:high].clone() for n, (low, high) in enumerate(CHUNKS)])
            runtime.synchronize()
            runtime.agree("looked at", None)
        return got

    return run


RIGHT = {"WORD": "produced", "BARRIER": True}


def check(results, launches=2):
    world = len(results)
    for rank, got in enumerate(results):
        for launch in range(launches):
            whole = 100 * launch + (rank - 1) % world + torch.arange(TILES * BLOCK)
            for n, (low, high) in enumerate(CHUNKS):
                assert torch.equal(got[launch][n], whole[low:high].float())


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("word", ["produced", "produced_async"])
def test_chunks_leave_when_they_are_whole(on_ranks, world, word):
    for seed in SEEDS:
        check(on_ranks(world, body(WORD=word, BARRIER=True), seed=seed, sms=2))


def test_tma_stores_that_are_waited_for(on_ranks):
    for late in (True, False):
        for seed in SEEDS:
            check(on_ranks(2, body(kernel=produce_tma, ASYNC=True), seed=seed, late_tma_stores=late))


@pytest.mark.parametrize("step", [1, 2, 3, 4, 6])
def test_programs_that_walk_over_tiles_count_once_a_run(on_ranks, step):
    for late in (True, False):
        for seed in SEEDS:
            options = {"kernel": produce_walking, "STEP": step, "WHEN": "last"}
            check(on_ranks(2, body(**options), seed=seed, late_tma_stores=late))


@pytest.mark.parametrize(("when", "step"), [("ahead", 2), ("ahead", 1), ("first", 1)])
def test_a_run_that_is_counted_too_early_is_a_race(on_ranks, when, step):
    for seed in SEEDS:
        with pytest.raises(RaceFault):
            on_ranks(2, body(kernel=produce_walking, STEP=step, WHEN=when), seed=seed)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        pytest.param({**RIGHT, "targets": (3, 4)}, None, id="target one short"),
        pytest.param({**RIGHT, "targets": (4, 3)}, None, id="second target one short"),
        pytest.param({**RIGHT, "hold": False}, None, id="hold dropped"),
        pytest.param({**RIGHT, "reset": False}, None, id="counters not reset"),
        pytest.param({**RIGHT, "BARRIER": False}, "no barrier before release", id="no barrier"),
        pytest.param({**RIGHT, "WORD": "early"}, None, id="counted before the store"),
        pytest.param({**RIGHT, "WORD": "gpu"}, 'use sem="release", scope="sys"', id="counted at gpu scope"),
        pytest.param({**RIGHT, "WORD": "relaxed"}, 'use sem="release", scope="sys"', id="counted relaxed"),
    ],
)
def test_a_chunk_that_leaves_too_early_is_a_race(on_ranks, options, hint):
    for seed in SEEDS:
        with pytest.raises(RaceFault, match="rank . ") as caught:
            on_ranks(2, body(**options), seed=seed)
        if hint:
            assert hint in caught.value.render()


def test_a_tma_store_counted_without_wait(on_ranks):
    for seed in SEEDS:
        with pytest.raises(RaceFault, match="TMA store") as caught:
            on_ranks(2, body(kernel=produce_tma, ASYNC=False), seed=seed, late_tma_stores=True)
        assert "TMA stores land late" in caught.value.render()


def test_a_hold_that_nothing_ends_is_a_deadlock_with_its_numbers(on_ranks):
    for seed in SEEDS:
        with pytest.raises(DeadlockFault) as caught:
            on_ranks(2, body(WORD="none", BARRIER=True), seed=seed)
        assert "rank 0 lane 0 waits for" in caught.value.message and "to reach 4, saw 0" in caught.value.message
        assert "rank 1 lane 0 waits for" in caught.value.render()


def test_a_hold_of_nothing_passes(on_ranks):
    def run(runtime):
        word = runtime.symmetric([4], torch.int64, zero=True)[1:2]
        runtime.holder(word, 0)(runtime.main_stream())
        runtime.synchronize()
        return True

    assert on_ranks(1, run) == [True]


def test_the_low_half_is_compared_cyclically(on_ranks):
    def run(runtime):
        words = runtime.symmetric([4], torch.int64, zero=True)
        runtime.fill(words, torch.tensor([2**31, 7 * 2**32 + 3, 0, 0]))
        runtime.holder(words[0:1], 2**31 - 5)(runtime.main_stream())
        runtime.holder(words[1:2], 3)(runtime.main_stream())
        runtime.synchronize()
        return True

    assert on_ranks(1, run) == [True]


def test_only_own_words_can_be_held_on(on_ranks):
    def peers(runtime):
        words = runtime.symmetric([4], torch.int64, zero=True)
        runtime.holder(runtime.peer(words, 1 - runtime.rank)[:1], 1)

    def wide(runtime):
        runtime.holder(runtime.symmetric([4], torch.int64, zero=True), 1)

    with pytest.raises(RuntimeContractError, match="a stream of rank . holds on memory of rank ."):
        on_ranks(2, peers)
    with pytest.raises(RuntimeContractError, match="one int64 word"):
        on_ranks(1, wide)


def test_calls_in_order_and_a_call_that_raised(on_ranks):
    """The call that raised records nothing: the next is ordered behind the last that ended well."""

    def run(runtime):
        seen = []
        with runtime.in_order("call", runtime.main_stream()) as captured:
            seen.append(captured)
        with pytest.raises(ZeroDivisionError), runtime.in_order("call", runtime.main_stream()):
            raise ZeroDivisionError
        with runtime.on_stream("another"), runtime.in_order("call", runtime.main_stream()) as captured:
            seen.append(captured)
        runtime.synchronize()
        return seen

    assert on_ranks(2, run) == [[False, False]] * 2


@triton.jit
def ahead(out, flags, table, state, BLOCK: tl.constexpr):
    for tile in tl.range(0, 2, 1, flatten=True):
        run = ol.find_run(table, tile)
        seen = ol.wait_run(table, run, state, 1)
        i = ol.after(tile, seen) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, i.to(tl.float32))
        ol.produced(table, run, state)


@pytest.mark.parametrize("flattened", [True, False, None])
def test_in_flattened_loops_the_next_wait_runs_before_this_tile_counts(on_ranks, flattened):
    """Tile 1 waits for a flag that is raised when tile 0 has counted: in flattened order nobody gets on."""
    from overlap.schedule.model import Wait

    def run(runtime):
        state = runtime.symmetric([state_words(1, FLAGS, 1)], torch.int64, zero=True)
        runs = (
            Run(first=0, origin=(0,), counts=(1,), raises=(CountIn(0),)),
            Run(first=1, origin=(1,), counts=(1,), waits=(Wait((0, 0), 0),)),
        )
        counter = Counter(0, Chunk("c", Box((0,), (BLOCK,))), 1, ((0, 0),))
        axes = (AxisTiles("M", 2 * BLOCK, BLOCK),)
        planned = RankSchedule(0, 1, axes, runs, {(0, 0): 0}, (), counters=(counter,))
        table = runtime.table(to_words(planned, FLAGS))
        out = torch.empty(2 * BLOCK)
        base, flag = counter_base(1, FLAGS) * SLOT_WORDS, (counter_base(1, FLAGS) - FLAGS) * SLOT_WORDS
        side = runtime.fork(0)
        runtime.launch(ahead, (1,), (out, state, table, state), {"BLOCK": BLOCK}, runtime.main_stream())
        runtime.holder(state[base : base + 1], 1)(side)
        one = torch.ones(1, dtype=torch.int64)
        runtime.copier(state[flag : flag + 1], one)(side)
        runtime.join(side)
        runtime.synchronize()
        return out.tolist()

    if flattened is False:
        assert on_ranks(1, run, flattened=False) == [list(map(float, range(2 * BLOCK)))]
    else:
        with pytest.raises(SimFault) as caught:
            on_ranks(1, run, flattened=flattened)
        assert caught.value.kind == "deadlock" and "to reach 1, saw 0" in caught.value.message
