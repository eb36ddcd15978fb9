"""Which low-latency calls are like an earlier one: other addresses, results in summands' memory, growth, graphs."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch

from overlap.errors import DeadlineError
from overlap.runtime.faults.faults import FaultRecord
from overlap.runtime.packets import limits, transport
from overlap.runtime.packets.low_latency import low_latency_of
from overlap.sim.runtime import SimRuntime
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

__all__ = ["carried_by", "few_lines", "two_steps"]
pytestmark = pytest.mark.one_triton


@pytest.fixture
def capturing(monkeypatch):
    """A list whose only word says whether calls are captured."""
    said, plain = [False], SimRuntime.in_order

    @contextlib.contextmanager
    def in_order(runtime, key, main):
        with plain(runtime, key, main):
            yield said[0]

    monkeypatch.setattr(SimRuntime, "in_order", in_order)
    return said


def test_calls_of_other_addresses_are_other_calls(carried_by):
    """What lies at an odd address is moved in narrower words, by a launch of its own."""

    def body(runtime):
        words, call = low_latency_of(runtime), 0
        for begin, into in itertools.product((0, 1), (0, 1)):
            call += 1
            summand, out = poisoned((60,), torch.bfloat16)[begin:], poisoned((60,), torch.bfloat16)[into:]
            summand[:44] = made((44,), torch.bfloat16, runtime.rank, call)
            assert words.all_reduce(summand[:44], out[:44])
            runtime.synchronize()
            assert same(out[:44], summed(2, (44,), torch.bfloat16, call).to(torch.bfloat16))
            assert out[44:].isnan().all()

    on_ranks(2, body)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_results_in_the_memory_of_summands(monkeypatch, carried_by, steps, out_dtype):
    """Beside ones that are like them, but in other memory."""
    monkeypatch.setattr(limits, "SAVED_BYTES", 0 if steps == 2 else 1 << 40)
    size, apart = 277, 400

    def body(runtime):
        words, found = low_latency_of(runtime), []
        for call, (begin, into) in enumerate(((0, apart), (0, 64), (128, 0), (0, 0), (0, apart))):
            memory = poisoned((1200,), torch.bfloat16)
            summand = memory[begin : begin + size]
            out = memory[into:].view(torch.uint8).view(out_dtype)[:size]
            summand.copy_(made((size,), torch.bfloat16, runtime.rank, call))
            assert words.all_reduce(summand, out)
            found.append(out)
        runtime.synchronize()
        for call, out in enumerate(found):
            assert same(out, summed(3, (size,), torch.bfloat16, call).to(out_dtype)), call

    on_ranks(3, body)


def test_all_ranks_move_to_larger_memory_whatever_their_layouts(monkeypatch, carried_by):
    """A rank whose tensor is not dense finds no earlier call; the others', through smaller slots, would wait for it in vain."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")

    def body(runtime):
        reduce_all(runtime, (40,), torch.float32, 0)
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "4000")
        reduce_all(runtime, (200,), torch.float32, 1)
        summand, out = made((40,), torch.float32, runtime.rank, 2), poisoned((40,), torch.float32)
        if runtime.rank == 1:
            summand = torch.stack([summand, summand], 1)[:, 0]
        assert low_latency_of(runtime).all_reduce(summand, out)
        runtime.synchronize()
        assert same(out, summed(3, (40,), torch.float32, 2))

    on_ranks(3, body)


def test_who_gets_many_bytes_gets_them_by_blocks(monkeypatch, two_steps):
    """One behind the other, and through one `LowLatency`: each has slots and epochs of its own."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "4000")
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", "400")

    def body(runtime):
        calls, pending, went_by = low_latency_of(runtime), [], []
        for call in range(12):
            # In each of two steps a rank gets 2 pieces of ceil(4 size / 24) x 8 bytes.
            size = (144, 145, 744, 3, 745, 150)[call % 6]
            out = poisoned((size,), torch.float32)
            went_by.append(calls.all_reduce(made((size,), torch.float32, runtime.rank, call), out))
            if went_by[-1]:
                pending.append((out, summed(3, (size,), torch.float32, call)))
            wanted = made((3, size // 3), torch.float32, 7, call)
            out = poisoned(wanted.shape, torch.float32)
            assert calls.all_gather(narrow(wanted, 0, 3, runtime.rank), 0, out) == (
                "blocks" if size >= 150 else "words"
            )
            pending.append((out, wanted))
        runtime.synchronize()
        assert all(same(*pair) for pair in pending)
        return went_by

    for seed in range(2):
        assert on_ranks(3, body, seed=seed) == [["words", "blocks", "blocks", "words", "", "blocks"] * 2] * 3


@pytest.mark.parametrize("steps", [1, 2])
def test_what_lay_in_slots_of_blocks_is_in_no_result(monkeypatch, steps):
    """Filled with what is no number in any dtype, behind a call of every kind, whose flags are up."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", "0")
    monkeypatch.setattr(limits, "SAVED_BYTES", 0 if steps == 2 else 1 << 40)

    def body(runtime):
        def calls(number):
            reduce_all(runtime, (277,), torch.bfloat16, number)
            scatter(runtime, (7, 33), 1, torch.float32, number)
            gather(runtime, (31, 5), 0, torch.bfloat16, number)
            exchange(runtime, (5, 91), 0, 1, torch.float16, number)

        for number in range(3):
            calls(number)
            memory = low_latency_of(runtime).blocks.memory
            runtime.agree("all have ended", number)
            memory.slots[: 2 * runtime.world * memory.capacity // 8].fill_(-1)
            runtime.synchronize()
            runtime.agree("all are filled", number)

    on_ranks(3, body)


def test_a_setting_that_changed_holds_for_calls_like_earlier_ones(monkeypatch, carried_by):
    """Whether a rank finds an earlier call, or not, because its tensor is not dense."""
    other = {"words": "0", "blocks": "6000"}[carried_by]

    def body(runtime):
        calls, went_by = low_latency_of(runtime), []
        summand = made((60,), torch.float32, runtime.rank, 0)
        if runtime.rank == 1:
            summand = torch.stack([summand, summand], 1)[:, 0]
        for value in (None, other):
            runtime.agree("a setting", value)
            if value is not None:
                monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", value)
            out = poisoned((60,), torch.float32)
            went_by.append(calls.all_reduce(summand, out))
            runtime.synchronize()
            assert same(out, summed(2, (60,), torch.float32, 0))
        return went_by

    before = {"words": "6000", "blocks": "0"}[carried_by]
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", before)
    assert on_ranks(2, body) == [[carried_by, "blocks" if carried_by == "words" else "words"]] * 2


def test_by_blocks_a_sum_in_two_steps_needs_no_copy(monkeypatch, carried_by, two_steps):
    cloned, clone = [], torch.Tensor.clone

    def kept(tensor, **options):
        cloned.append(tensor.data_ptr())
        return clone(tensor, **options)

    def body(runtime):
        calls = low_latency_of(runtime)
        tensor = made((300,), torch.bfloat16, runtime.rank, 0)
        assert calls.all_reduce(tensor, tensor)
        runtime.synchronize()
        assert same(tensor, summed(3, (300,), torch.bfloat16, 0).to(torch.bfloat16))
        return calls.copies_in_place(600), tensor.data_ptr()

    # Patched around all ranks: each would put back what the one before had put there.
    monkeypatch.setattr(torch.Tensor, "clone", kept)
    copied = carried_by == "words"
    assert [(said, at in cloned) for said, at in on_ranks(3, body)] == [(copied, copied)] * 3


def test_the_launch_of_a_call_makes_those_like_it_alone(monkeypatch, carried_by):
    """Tensors elsewhere: one more call. At odd addresses, in one memory, or when the slots have grown: none."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")
    size = 44

    def body(runtime):
        words, pending = low_latency_of(runtime), []

        def summand(call):
            return made((size,), torch.bfloat16, runtime.rank, call)

        reduce_all(runtime, (size,), torch.bfloat16, 0)
        latest = words.latest
        for call in (1, 2):
            out = poisoned((size,), torch.bfloat16)
            assert latest(summand(call), out)
            pending.append((out, summed(2, (size,), torch.bfloat16, call).to(torch.bfloat16)))
        given, out = summand(3), poisoned((size + 1,), torch.bfloat16)
        assert not latest(given, out[1:]) and not latest(given, given) and out.isnan().all()
        assert words.all_reduce(given, out[1:]) and words.latest is not latest
        pending.append((out[1:], summed(2, (size,), torch.bfloat16, 3).to(torch.bfloat16)))
        apart = torch.stack([given, given], 1)[:, 0]
        assert words.all_reduce(apart, poisoned((size,), torch.bfloat16)) and words.latest is None
        runtime.synchronize()
        assert all(same(*pair) for pair in pending)
        runtime.agree("they grow", None)
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "4000")
        reduce_all(runtime, (400,), torch.float32, 4)
        assert not latest(summand(5), poisoned((size,), torch.bfloat16))

    on_ranks(2, body)


def test_no_more_programs_are_launched_than_are_resident(monkeypatch, carried_by):
    monkeypatch.setattr(transport, "A_MULTIPROCESSOR", 100)
    for seed in range(2):
        on_ranks(3, lambda runtime: scatter(runtime, (400,), 0, torch.float32, 0), seed=seed)


def test_a_call_like_an_earlier_one_says_that_a_wait_was_in_vain():
    def body(runtime):
        reduce_all(runtime, (9,), torch.float32, 0)
        words = low_latency_of(runtime)
        memory = words.words.memory
        address = memory.addresses[runtime.rank] + 16 * memory.capacity
        memory.fault = lambda: FaultRecord(address, 2, 1, 0)
        for _ in range(2):
            with pytest.raises(DeadlineError, match=rf"rank {runtime.rank}: .* for rank 1 to send \(call 2\)"):
                words.all_reduce(torch.ones(9), torch.empty(9))

    on_ranks(2, body)


def test_what_a_graph_holds_stays(monkeypatch, capturing, carried_by):
    """The first call of a shape is left to others inside of a capture; slots that were captured stay when they grow."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")

    def body(runtime, like_an_earlier):
        words = low_latency_of(runtime)
        whole, small = made((6, 3), torch.uint8, 1), made((40,), torch.float32, runtime.rank, 0)
        if not like_an_earlier:
            # Of a layout that is copied first, so that every call goes the long way.
            small = torch.stack([small, small], 1)[:, 0]

        def calls():
            gathered = words.all_gather(narrow(whole, 0, 2, runtime.rank), 0, torch.empty_like(whole))
            return words.all_reduce(small, torch.empty(40)), gathered

        assert words.all_reduce(small, torch.empty(40))
        runtime.agree("a capture begins", None)
        capturing[0] = True
        by = getattr(words, carried_by)
        captured = by.memory
        assert calls() == (carried_by, "")
        runtime.agree("it ends", None)
        capturing[0] = False
        for number in range(2):
            monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", str(4000 << number))
            reduce_all(runtime, (500 << number,), torch.float32, 0)
        assert by.kept == [captured]
        words.clear()
        assert not by.kept and words.words.memory is None and words.blocks.memory is None

    for like_an_earlier in (True, False):
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")
        on_ranks(2, lambda runtime, like=like_an_earlier: body(runtime, like))
