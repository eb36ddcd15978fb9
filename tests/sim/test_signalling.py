"""Hand-written kernels: the right one passes under every seed, each wrong one is caught under every seed."""

import pytest
import torch
from signalling import WORD, cycle, exchange, pairs, ping, tma_reader, tma_writer

from overlap.errors import DeadlockFault, RaceFault

SEEDS = range(10)
BLOCK = 32
RIGHT = {
    "WAIT": True,
    "EQUAL": False,
    "BARRIER": True,
    "CREDIT": True,
    "RAISE_SEM": "release",
    "RAISE_SCOPE": "sys",
    "POLL_SEM": "acquire",
    "POLL_SCOPE": "sys",
}


def addresses(runtime, tensor):
    return runtime.table([runtime.peer(tensor, p).data_ptr() for p in range(runtime.world)], bits=64)


def exchange_body(launches, **switches):
    """Host code that launches `exchange` some times in a row, each time with other numbers."""

    def body(runtime):
        world, rank = runtime.world, runtime.rank
        boxes = runtime.symmetric([world * BLOCK], torch.float32)
        flags = runtime.symmetric([world * WORD], torch.int64, zero=True)
        done = runtime.symmetric([world * WORD], torch.int64, zero=True)
        outs = []
        for epoch in range(1, launches + 1):
            src = torch.arange(BLOCK, dtype=torch.float32) * epoch + rank
            outs.append(torch.empty(BLOCK))
            args = (
                src,
                boxes,
                flags,
                done,
                addresses(runtime, boxes),
                addresses(runtime, flags),
                addresses(runtime, done),
            )
            options = {"BLOCK": BLOCK, "STRIDE": WORD, "num_warps": 4, **RIGHT, **switches}
            runtime.launch(exchange, (1,), (*args, outs[-1], epoch, rank, world), options, runtime.main_stream())
        runtime.synchronize()
        return outs

    return body


def wanted(world, epoch):
    return sum(torch.arange(BLOCK, dtype=torch.float32) * epoch + rank for rank in range(world))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_right_kernel_passes_and_gives_the_sum(on_ranks, world):
    for seed in SEEDS:
        for outs in on_ranks(world, exchange_body(3), seed=seed):
            for epoch, out in enumerate(outs, 1):
                assert torch.equal(out, wanted(world, epoch))


@pytest.mark.parametrize(
    ("launches", "switches", "hint"),
    [
        pytest.param(1, {"WAIT": False}, None, id="wait removed"),
        pytest.param(1, {"RAISE_SCOPE": "gpu"}, 'scope="sys"', id="raised at gpu scope"),
        pytest.param(1, {"POLL_SCOPE": "gpu"}, 'scope="sys"', id="polled at gpu scope"),
        pytest.param(1, {"RAISE_SEM": "relaxed"}, 'sem="release"', id="raised relaxed"),
        pytest.param(1, {"POLL_SEM": "relaxed"}, 'sem="acquire"', id="polled relaxed"),
        pytest.param(1, {"BARRIER": False}, "no barrier before release", id="no barrier before the release"),
        pytest.param(2, {"EQUAL": True, "CREDIT": False}, None, id="flag never reset, equality"),
        pytest.param(2, {"CREDIT": False}, None, id="epochs, nothing between launches"),
    ],
)
def test_a_missing_edge_is_a_race_under_every_seed(on_ranks, launches, switches, hint):
    for seed in SEEDS:
        with pytest.raises(RaceFault) as caught:
            on_ranks(3, exchange_body(launches, **switches), seed=seed)
        text = caught.value.render()
        assert "signalling.py:" in text and "boxes[" in text or "flag" in text
        assert caught.value.message.startswith("race: ")
        if hint is not None:
            assert hint in text


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_cycle_of_waits_is_a_deadlock_that_names_everybody(on_ranks, world):
    def body(runtime):
        flags = runtime.symmetric([WORD], torch.int64, zero=True)
        args = (flags, addresses(runtime, flags), runtime.rank, runtime.world)
        runtime.launch(cycle, (1,), args, {"STRIDE": WORD}, runtime.main_stream())
        runtime.synchronize()

    for seed in SEEDS:
        with pytest.raises(DeadlockFault) as caught:
            on_ranks(world, body, seed=seed)
        text = caught.value.render()
        for rank in range(world):
            assert f"rank {rank} program 0 of cycle waits for flags[0] of rank {rank}, saw 0 at " in text
        assert "signalling.py:" in text


def pairs_body(consumers_first, half=3):
    def body(runtime):
        values, out = torch.empty(half * BLOCK), torch.empty(half * BLOCK)
        flags = runtime.symmetric([half * WORD], torch.int64, zero=True)
        options = {"BLOCK": BLOCK, "STRIDE": WORD, "CONSUMERS_FIRST": consumers_first}
        runtime.launch(pairs, (2 * half,), (values, flags, out, half), options, runtime.main_stream())
        runtime.synchronize()
        return out

    return body


def test_consumers_in_front_of_their_producers_fill_the_slots(on_ranks):
    for seed in SEEDS:
        with pytest.raises(DeadlockFault) as caught:
            on_ranks(1, pairs_body(True), seed=seed, sms=3)
        assert "rank 0 has 3 programs that wait for one of 3 SMs" in caught.value.render()


@pytest.mark.parametrize(("consumers_first", "sms"), [(False, 3), (False, 1), (True, 6), (True, 4)])
def test_producers_in_front_or_room_for_all_pass(on_ranks, consumers_first, sms):
    for seed in SEEDS:
        (out,) = on_ranks(1, pairs_body(consumers_first), seed=seed, sms=sms)
        expected = torch.cat([torch.arange(BLOCK) + slot + 1 for slot in range(3)]).float()
        assert torch.equal(out, expected)


def ping_body(flatten):
    def body(runtime):
        flags = runtime.symmetric([WORD], torch.int64, zero=True)
        out = torch.empty(4, dtype=torch.int32)
        args = (flags, addresses(runtime, flags), out, runtime.rank, 4)
        runtime.launch(ping, (1,), args, {"STRIDE": WORD, "FLATTEN": flatten}, runtime.main_stream())
        runtime.synchronize()
        return out

    return body


@pytest.mark.parametrize(("flatten", "mode"), [(True, None), (False, True), (True, True)])
def test_a_wait_that_runs_before_this_tiles_raise_is_a_deadlock(on_ranks, flatten, mode):
    for seed in SEEDS:
        with pytest.raises(DeadlockFault, match="signalling.py:"):
            on_ranks(2, ping_body(flatten), seed=seed, flattened=mode)


@pytest.mark.parametrize(("flatten", "mode"), [(False, None), (True, False)])
def test_the_same_kernel_in_source_order_passes(on_ranks, flatten, mode):
    for seed in SEEDS:
        for out in on_ranks(2, ping_body(flatten), seed=seed, flattened=mode):
            assert out.tolist() == [0, 1, 2, 3]


SIDE = 16


def tma_read_body(fence):
    def body(runtime):
        boxes = runtime.symmetric([SIDE, SIDE], torch.float32)
        flags = runtime.symmetric([WORD], torch.int64, zero=True)
        epoch = runtime.symmetric([WORD], torch.int64, zero=True)
        out = torch.empty(SIDE, SIDE)
        if runtime.rank == 0:
            source = runtime.table(range(SIDE * SIDE)).view(SIDE, SIDE).view(torch.float32)
            one = runtime.table([1], bits=64)
            side = runtime.fork(0)
            runtime.copier(runtime.peer(boxes, 1), source)(side)
            runtime.copier(runtime.peer(flags, 1)[:1], one)(side)
            runtime.join(side)
        else:
            options = {"SIDE": SIDE, "FENCE": fence}
            runtime.launch(tma_reader, (1,), (epoch, boxes, flags, out, 1), options, runtime.main_stream())
        runtime.synchronize()
        return out

    return body


def test_a_tma_load_behind_an_acquire_needs_the_proxy_fence(on_ranks):
    for seed in SEEDS:
        assert on_ranks(2, tma_read_body(True), seed=seed)[1].view(torch.int32).flatten().tolist() == list(
            range(SIDE * SIDE)
        )
        with pytest.raises(RaceFault, match="by TMA load") as caught:
            on_ranks(2, tma_read_body(False), seed=seed)
        assert "proxy fence" in caught.value.help


def tma_write_body(landed):
    def body(runtime):
        boxes = runtime.symmetric([SIDE, SIDE], torch.float32)
        flags = runtime.symmetric([WORD], torch.int64, zero=True)
        out = torch.empty(SIDE, SIDE)
        if runtime.rank == 0:
            src = torch.ones(SIDE, SIDE)
            args = (src, addresses(runtime, boxes), addresses(runtime, flags), 1, 1)
            runtime.agree("tables", None)
            runtime.launch(tma_writer, (1,), args, {"SIDE": SIDE, "LANDED": landed}, runtime.main_stream())
        else:
            runtime.agree("tables", None)
            options = {"SIDE": SIDE, "FENCE": True}
            runtime.launch(tma_reader, (1,), (flags, boxes, flags, out, 1), options, runtime.main_stream())
        runtime.synchronize()
        return out

    return body


def test_a_flag_behind_a_tma_store_may_overtake_it(on_ranks):
    for seed in SEEDS:
        assert on_ranks(2, tma_write_body(True), seed=seed, late_tma_stores=True)[1].eq(1).all()
        assert on_ranks(2, tma_write_body(False), seed=seed, late_tma_stores=False)[1].eq(1).all()
        with pytest.raises(RaceFault, match="TMA store"):
            on_ranks(2, tma_write_body(False), seed=seed, late_tma_stores=True)
