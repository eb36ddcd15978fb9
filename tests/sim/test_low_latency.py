"""Low-latency collectives on simulated ranks: right to the bit, and free of races in every order."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch

from overlap.errors import OverlapError, RuntimeContractError
from overlap.language.packets import CLEAN_EVERY, MARKS
from overlap.runtime.faults.faults import LIMIT_WORD, RECORD_WORD, RECORD_WORDS
from overlap.runtime.group.collectives import add_in_order
from overlap.runtime.packets import limits
from overlap.runtime.packets.boxes import pieces, unit_of, whole
from overlap.runtime.packets.limits import in_two_steps
from overlap.runtime.packets.low_latency import low_latency_of
from overlap.runtime.packets.transport import SUMMED
from tests.support.small_calls import (
    carried_by,
    exchange,
    few_lines,
    gather,
    made,
    narrow,
    on_ranks,
    poisoned,
    reduce_all,
    same,
    scatter,
    summed,
    two_steps,
)
from tests.support.sweep import SWEEP, every

__all__ = ["carried_by", "few_lines", "two_steps"]
pytestmark = pytest.mark.one_triton

WORLDS = (1, 2, 3, 4, 5) if SWEEP else (1, 3)


@pytest.mark.parametrize(("dtype", "world"), every(2, itertools.product(SUMMED, WORLDS), start=1))
def test_sums_have_the_bits_of_one_order_and_one_rounding(carried_by, dtype, world):
    def body(runtime):
        for call, shape in enumerate([(1,), (37,), (5, 24), (2, 3, 7), (3, 1), (0, 4)]):
            reduce_all(runtime, shape, dtype, call)
            for dim in range(len(shape)):
                scatter(runtime, shape, dim, dtype, call)
        reduce_all(runtime, (129,), dtype, 9, torch.float32)

    on_ranks(world, body, seed=world)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "dtype", every(2, [torch.uint8, torch.float8_e4m3fn, torch.bfloat16, torch.int32, torch.float64])
)
def test_what_is_only_moved_arrives_bit_by_bit(carried_by, world, dtype):
    def body(runtime):
        for call, shape in enumerate([(1, 1), (11, 24), (2, 5, 7), (3, 2)]):
            dims = range(len(shape))
            for dim in dims:
                gather(runtime, shape, dim, dtype, call)
            for from_dim, to_dim in itertools.permutations(dims, 2):
                exchange(runtime, shape, from_dim, to_dim, dtype, call)

    on_ranks(world, body, seed=3)


SPECIAL = [-0.0, 0.0, 1e-40, -1e-40, 65504.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_zeros_subnormals_and_what_is_no_number_keep_their_bits(carried_by, two_steps, dtype):
    """Sums of zeros keep their signs; what is only moved keeps every bit, of a NaN too."""

    def body(runtime):
        calls, rank, world = low_latency_of(runtime), runtime.rank, runtime.world
        for call, chosen in enumerate([[-0.0], [-0.0, 0.0], [1e-40, -0.0], SPECIAL[:6], SPECIAL]):
            numbers = [
                [chosen[(rank * 7 + i * 3 + i // len(chosen)) % len(chosen)] for i in range(41)]
                for rank in range(world)
            ]
            summands = [torch.tensor(each, dtype=torch.float64).to(dtype) for each in numbers]
            out, wanted = poisoned((41,), dtype), add_in_order(summands).to(dtype)
            assert calls.all_reduce(summands[rank], out)
            runtime.synchronize()
            bad = wanted.isnan()
            assert torch.equal(out.isnan(), bad) and same(out[~bad], wanted[~bad]), (rank, call)
        bits = made((30, dtype.itemsize), torch.int32, 5).to(torch.uint8)
        bits[::3, -2:] = 0xFF  # NaNs of many kinds
        whole = bits.reshape(-1).view(dtype)
        out = poisoned((30,), dtype)
        assert calls.all_gather(narrow(whole, 0, world, rank), 0, out)
        runtime.synchronize()
        assert same(out, whole)

    on_ranks(3, body)


def kinds(runtime, call):
    """One call of each kind, of sizes that differ from call to call, so that programs and slots do."""
    size = (1, 40, 3, 131)[call % 4]
    (
        lambda: reduce_all(runtime, (size,), torch.bfloat16, call),
        lambda: scatter(runtime, (size, 6), 1, torch.float32, call),
        lambda: gather(runtime, (size, 3), 0, torch.uint8, call),
        lambda: exchange(runtime, (5, size), 0, 1, torch.float16, call),
    )[call % 3 if call % 2 else 3 - call % 4]()


@pytest.mark.parametrize("seed", range(20 if SWEEP else 2))
@pytest.mark.parametrize("world", [2, 3])
def test_calls_one_behind_the_other_in_many_orders(carried_by, world, seed):
    """The host waits for nobody between calls: results are looked at when all have been enqueued."""

    def body(runtime):
        words, pending = low_latency_of(runtime), []
        for call in range(10):
            size = (1, 40, 3, 131)[call % 4]
            out = poisoned((size,), torch.bfloat16)
            assert words.all_reduce(made((size,), torch.bfloat16, runtime.rank, call), out)
            pending.append((out, summed(world, (size,), torch.bfloat16, call).to(torch.bfloat16)))
            shape = (4, size)
            wanted = made(shape, torch.uint8, 7, call)
            out = poisoned(shape, torch.uint8)
            assert words.all_gather(narrow(wanted, 1, world, runtime.rank), 1, out)
            pending.append((out, wanted))
        runtime.synchronize()
        assert all(same(out, wanted) for out, wanted in pending)

    on_ranks(world, body, seed=seed)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_memory_at_any_address_and_of_any_strides(carried_by, offset):
    def body(runtime):
        words, world = low_latency_of(runtime), runtime.world
        summand = poisoned((60,), torch.bfloat16)[offset : offset + 45]
        summand.copy_(made((45,), torch.bfloat16, runtime.rank, 0))
        wide = poisoned((9, 10), torch.bfloat16)
        out = wide[:, :5]
        assert words.all_reduce(summand.view(9, 5), out)
        runtime.synchronize()
        assert same(out, summed(world, (45,), torch.bfloat16, 0).to(torch.bfloat16).view(9, 5))
        assert same(wide[:, 5:], poisoned((9, 5), torch.bfloat16))
        wanted = made((6, 7), torch.float32, 1)
        place = poisoned((7, 6), torch.float32).t()
        assert words.all_gather(narrow(wanted, 0, world, runtime.rank).t().contiguous().t(), 0, place)
        runtime.synchronize()
        assert same(place, wanted)

    on_ranks(2, body)


def test_a_sum_in_place(carried_by):
    def body(runtime):
        tensor = made((77,), torch.bfloat16, runtime.rank, 0)
        assert low_latency_of(runtime).all_reduce(tensor, tensor)
        runtime.synchronize()
        assert same(tensor, summed(3, (77,), torch.bfloat16, 0).to(torch.bfloat16))

    on_ranks(3, body)


def start_at(runtime, epoch):
    """Brings a group to the call behind ``epoch``, its slots as so many calls would have left them."""
    memory = low_latency_of(runtime).words.memory
    memory.calls.fill_(epoch)
    runtime.synchronize()
    runtime.agree("the epoch", epoch)


@pytest.mark.parametrize("epoch", [2**31 - 3, 2**32 - 4, 3 * MARKS - 2, 2**40 + 5])
def test_the_epoch_may_be_of_any_size(epoch):
    def body(runtime):
        reduce_all(runtime, (150,), torch.bfloat16, 0)
        start_at(runtime, epoch)
        for call in range(1, 8):
            kinds(runtime, call)

    on_ranks(2, body, seed=5)


def stale(clean=True):
    """A word that was sent 2^32 - 2 calls ago and never since bears the mark of today's. Calls between were small."""

    def body(runtime):
        start = CLEAN_EVERY - 4
        reduce_all(runtime, (4,), torch.float32, 0)
        start_at(runtime, start)
        reduce_all(runtime, (150,), torch.float32, 1)
        reduce_all(runtime, (150,), torch.float32, 2)
        if clean:
            for call in range(4):  # those that clear are among them
                reduce_all(runtime, (4,), torch.float32, call)
        start_at(runtime, start + MARKS)
        for call in (3, 4):
            reduce_all(runtime, (150,), torch.float32, call)

    return body


@pytest.mark.parametrize("seed", range(10 if SWEEP else 1))
def test_a_mark_that_comes_round_again_finds_its_lines_cleared(seed):
    on_ranks(2, stale(), seed=seed)


def test_without_the_calls_that_clear_an_old_word_is_taken_for_a_new_one():
    with pytest.raises((OverlapError, AssertionError)):
        for seed in range(6):
            on_ranks(2, stale(clean=False), seed=seed)


@pytest.mark.parametrize(("dtype", "world"), every(2, itertools.product(SUMMED, (3, 4) if SWEEP else (3,))))
def test_an_all_reduce_in_two_steps_has_the_same_bits(carried_by, two_steps, dtype, world):
    def body(runtime):
        for call, shape in enumerate([(1,), (137,), (5, 24), (2,), (0, 4), (11, 3)]):
            reduce_all(runtime, shape, dtype, call)
            exchange(runtime, (5, 1 + call), 0, 1, torch.float16, call)

    on_ranks(world, body, seed=world)


def test_more_peers_than_are_read_or_added_at_once(monkeypatch, two_steps):
    """Addresses of peers and their blocks come by fours: of seven ranks all but one are peers, in two groups."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", "0")

    def body(runtime):
        reduce_all(runtime, (90,), torch.bfloat16, 0)
        gather(runtime, (9, 5), 0, torch.uint8, 1)
        scatter(runtime, (90,), 0, torch.float32, 2)

    on_ranks(7, body)


def test_an_all_reduce_in_two_steps_in_place_and_at_any_address(carried_by, two_steps):
    def body(runtime):
        words = low_latency_of(runtime)
        tensor = made((277,), torch.bfloat16, runtime.rank, 0)
        assert words.all_reduce(tensor, tensor)
        apart = [poisoned((290,), torch.bfloat16) for _ in range(2)]
        # In one memory a program would store the result over what another one has not sent yet.
        both = [poisoned((400,), torch.bfloat16)] * 2
        found = [tensor]
        for call, places, skipped in ((1, apart, (1, 3)), (2, both, (1, 67))):
            summand, out = (place[start : start + 277] for place, start in zip(places, skipped, strict=True))
            summand.copy_(made((277,), torch.bfloat16, runtime.rank, call))
            assert words.all_reduce(summand, out)
            found.append(out)
        runtime.synchronize()
        for call, out in enumerate(found):
            assert same(out, summed(3, (277,), torch.bfloat16, call).to(torch.bfloat16))

    on_ranks(3, body)


@pytest.mark.parametrize("size", [1, 140])
def test_calls_in_two_steps_clear_no_line_that_they_look_at(two_steps, size):
    """The first two calls after 2^31 clear the lines of a side each, those that the second step came by among them."""

    def body(runtime):
        reduce_all(runtime, (280,), torch.bfloat16, 0)
        start_at(runtime, CLEAN_EVERY - 2)
        for call in range(1, 5):
            reduce_all(runtime, (size,), torch.bfloat16, call)

    for seed in range(2):
        on_ranks(3, body, seed=seed)


@pytest.mark.parametrize("seed", range(20 if SWEEP else 2))
def test_steps_of_calls_one_behind_the_other(carried_by, two_steps, seed):
    def body(runtime):
        words, pending = low_latency_of(runtime), []
        for call in range(8):
            size = (1, 140, 3, 40)[call % 4]
            out = poisoned((size,), torch.bfloat16)
            assert words.all_reduce(made((size,), torch.bfloat16, runtime.rank, call), out)
            pending.append((out, summed(3, (size,), torch.bfloat16, call).to(torch.bfloat16)))
        runtime.synchronize()
        assert all(same(out, wanted) for out, wanted in pending)

    on_ranks(3, body, seed=seed)


def test_a_second_step_is_taken_where_it_saves_enough():
    assert not in_two_steps(1 << 30, 2)
    assert in_two_steps(256 << 10, 4) and not in_two_steps(255 << 10, 4)


def test_a_message_that_is_too_long_is_left_to_others(monkeypatch, carried_by):
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")

    def body(runtime):
        words = low_latency_of(runtime)
        big, out = torch.ones(100), torch.empty(100)
        assert not words.all_reduce(big[:67], out[:67])  # 268 bytes from each of two
        assert words.all_reduce(big[:49], out[:49])
        assert words.all_gather(big[:40], 0, torch.empty(120))
        assert not words.all_reduce(torch.ones(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32))
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "4000")
        assert words.all_reduce(big, out), "memory grows"
        runtime.synchronize()
        assert torch.equal(out, torch.full((100,), 3.0))

    on_ranks(3, body)


def test_a_message_that_32_bits_cannot_number_is_left_to_others(monkeypatch):
    monkeypatch.setattr(limits, "LONGEST", 400)

    def body(runtime):
        words, big = low_latency_of(runtime), torch.ones(100)
        assert not words.all_reduce(big[:50], big[50:]) and not words.copies_in_place(400)
        assert words.all_reduce(big[:49], big[50:99])
        monkeypatch.setattr(limits, "LONGEST", 300)
        assert not words.all_reduce(big[:49], big[50:99]), "nor once more"

    on_ranks(3, body)


def test_ranks_with_shorter_pieces_answer_as_the_others(monkeypatch, carried_by):
    """5 x 5 over 3 ranks: pieces of 2 x 2, and the last rank gets 2 x 1 and less."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "60")  # 2 x 2 x 8 bytes from each of two are more

    def body(runtime):
        tensor, rank = made((5, 5), torch.float64, 1), runtime.rank
        held, out = narrow(tensor, 0, 3, rank), narrow(tensor, 1, 3, rank).clone()
        return low_latency_of(runtime).all_to_all(held, 0, 1, out)

    assert on_ranks(3, body) == [""] * 3


def test_ranks_that_call_differently_are_told():
    def body(runtime):
        low_latency_of(runtime).all_reduce(torch.ones(4 + runtime.rank), torch.empty(4 + runtime.rank))

    with pytest.raises(RuntimeContractError, match="differently"):
        on_ranks(2, body)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "two steps"])
def test_a_wait_in_vain_is_recorded_by_the_rank_that_does_not_send(monkeypatch, carried_by, kind):
    """The simulator lets a look sleep until a word changes, so the limit is negative: used up before the first repeat."""
    if kind == "two steps":
        monkeypatch.setattr(limits, "SAVED_BYTES", 0)

    def body(runtime):
        def call(number):
            if kind == "all_gather":
                gather(runtime, (9, 40), 0, torch.uint8, number)
            else:
                reduce_all(runtime, (100,), torch.float32, number)

        call(0)
        memory = getattr(low_latency_of(runtime), carried_by).memory
        record = runtime.table([0] * RECORD_WORDS, bits=64)
        memory.state[LIMIT_WORD], memory.state[RECORD_WORD] = -1, record.data_ptr()
        runtime.agree("armed", None)
        if runtime.rank != 2:
            # Which of the others is missed first is open: the one that comes may not have sent yet.
            with contextlib.suppress(AssertionError):
                call(1)
        runtime.synchronize()
        taken, address, wanted, *_ = record.tolist()
        return taken, taken and memory.sender(address, 3, runtime.rank), wanted, memory.state[LIMIT_WORD].item()

    ends = on_ranks(3, body)
    assert ends[2] == (0, 0, 0, -1)
    for rank in (0, 1):
        taken, sender, wanted, limit = ends[rank]
        assert (taken, wanted, limit) == (1, 2, 1) and sender in {0, 1, 2} - {rank}


def test_pieces_are_those_of_torch_chunk():
    for world, shape, dim in itertools.product(WORLDS, [(7, 3), (2, 5, 4)], (0, 1)):
        boxes, tensor = pieces(shape, dim, world), torch.arange(torch.Size(shape).numel()).view(shape)
        rows = tensor.reshape(boxes.rows, boxes.total)
        for rank in range(world):
            begin = min(rank * boxes.chunk, boxes.total)
            part = rows[:, begin : min(begin + boxes.chunk, boxes.total)]
            assert torch.equal(part.flatten(), narrow(tensor, dim, world, rank).flatten())


def test_words_are_as_wide_as_memory_allows():
    tensor = torch.empty(64, dtype=torch.bfloat16)
    start = tensor.data_ptr() % 8 // 2
    for skipped, unit in ((0, 8), (1, 2), (2, 4), (4, 8)):
        part = tensor[(4 - start) % 4 + skipped :][:32]
        assert unit_of(part, whole((32,))) == unit
    assert unit_of(tensor, whole((63,))) == 2
