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
    few_lines,
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
    def in_order(runtime, key):
        with plain(runtime, key):
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


def test_no_more_programs_are_launched_than_are_resident(monkeypatch):
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
        assert not by.kept and words.memory == (None, None)

    for like_an_earlier in (True, False):
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")
        on_ranks(2, lambda runtime, like=like_an_earlier: body(runtime, like))
