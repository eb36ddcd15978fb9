"""What is left out of the kernels of collectives by blocks is found on simulated ranks."""

from __future__ import annotations

import inspect

import pytest
import torch

from overlap.codegen.module_io import load_module
from overlap.errors import OverlapError
from overlap.runtime.packets import block_kernels, block_parts, blocks, transport
from overlap.runtime.packets.low_latency import low_latency_of
from overlap.sim.runtime import SimRuntime
from tests.support.small_calls import (
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
    two_steps,
)
from tests.support.sweep import SWEEP

__all__ = ["few_lines", "two_steps"]
pytestmark = pytest.mark.one_triton

ROUNDS = range(20 if SWEEP else 2)


@pytest.fixture(autouse=True)
def by_blocks(few_lines, monkeypatch):
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", "0")


@pytest.fixture
def mutate(monkeypatch, tmp_path):
    """Replaces text of the kernels, as `Blocks` finds them."""

    def make(*edits):
        parts, text = (inspect.getsource(module) for module in (block_parts, block_kernels))
        begin = text.index("from .block_parts import")
        text = text[:begin] + parts.split("from __future__ import annotations")[1] + text[text.index(")", begin) + 1 :]
        text = text.replace("from .lines", "from overlap.runtime.packets.lines")
        for old, new in edits:
            assert text.count(old), old
            text = text.replace(old, new)
        path = tmp_path / "mutated.py"
        path.write_text(text)
        module = load_module(str(path))
        for name in ("exchange_blocks_kernel", "sum_blocks_kernel", "two_step_blocks_kernel"):
            monkeypatch.setattr(blocks, name, getattr(module, name))

    return make


def mixed(runtime):
    """Calls of every kind, of other sizes each, and once more: the first of a shape meets the other ranks, which orders all."""
    for call in range(6):
        size = (200, 3, 90)[call % 3]
        reduce_all(runtime, (size,), torch.bfloat16, call)
        exchange(runtime, (5, 1 + size // 4), 0, 1, torch.float16, call)
        scatter(runtime, (3, size), 1, torch.float32, call)
        gather(runtime, (size, 3), 0, torch.uint8, call)


def found(body=mixed, world=3):
    """How runs of several seeds end: the faults by their first word, or ``wrong``."""
    ends = []
    for seed in ROUNDS:
        try:
            on_ranks(world, body, seed=seed)
            ends.append("")
        except OverlapError as error:
            ends.append(error.message.split(":")[0])
        except AssertionError:
            ends.append("wrong")
    return ends


RACE = ["race"] * len(ROUNDS)
RACE_OR_WRONG = {"race", "crash"}
"""Where a rank ends with wrong numbers, which its own check finds, before another one comes to race with it."""


def test_the_kernels_as_they_are(two_steps, mutate):
    mutate()
    assert found() == [""] * len(ROUNDS)


def test_one_side_instead_of_two(two_steps, mutate):
    sides = ("side = epoch", "epoch_of(calls, pid)", "flag_at(epoch", "slot_at(epoch")
    mutate(*((f"{side} & 1", f"{side} & 0") for side in sides))
    assert found() == RACE


def test_flags_ahead_of_their_data(mutate):
    text = inspect.getsource(block_parts)
    begin = text.index("            for number in range(first,")
    middle = text.index("            epoch = epoch_of(calls, pid)\n            numbers")
    raised = "            ol.raise_flags(flags, there, epoch)\n"
    end = text.index(raised) + len(raised)
    stores, flags = text[begin:middle], text[middle:end]
    mutate((stores + flags, flags + stores))
    assert found() == RACE


def test_flags_of_blocks_to_come(mutate):
    """Of those that are raised together, such as other programs send."""
    mutate(("numbers = first + programs * tl.arange", "numbers = first + tl.arange"))
    assert found() == RACE


def test_flags_of_all_ahead_of_their_data(mutate):
    text = inspect.getsource(block_parts)
    stores = text[text.index("    for turn in range(1, world, 4):") : text.index("    flags = as_flag(bases")]
    raised = "    ol.raise_flags(flags, 1 + tl.arange(0, RANKS) < world, epoch)\n"
    mutate((stores, ""), (raised, raised + stores))
    assert found() == RACE


@pytest.mark.parametrize(
    ("barrier", "sem", "scope"), [(False, "release", "sys"), (True, "relaxed", "sys"), (True, "release", "gpu")]
)
def test_flags_raised_otherwise(two_steps, mutate, barrier, sem, scope):
    """Without a barrier ahead of them, a thread's release says nothing of the others' stores."""
    ahead = "    tl.debug_barrier()\n    " if barrier else "    "
    value = "epoch + tl.zeros(flags.shape, tl.int64)"
    raised = (
        f'{ahead}tl.atomic_xchg(flags, {value}, mask=1 + tl.arange(0, RANKS) < world, sem="{sem}", scope="{scope}")\n'
    )
    mutate(("    ol.raise_flags(flags, 1 + tl.arange(0, RANKS) < world, epoch)\n", raised))
    assert found() == RACE


AWAIT = "    vain = await_flags(flags, there, epoch, state) < epoch\n"
VAIN = "    vain = found < epoch\n"


@pytest.mark.parametrize(
    ("barrier", "sem", "scope"), [(False, "acquire", "sys"), (True, "relaxed", "sys"), (True, "acquire", "gpu")]
)
def test_looks_that_learn_nothing(two_steps, mutate, barrier, sem, scope):
    """Without a barrier behind it, a thread's acquire says nothing to the others."""
    look = (
        "tl.where(there, tl.atomic_add(as_flag(flags), tl.zeros(flags.shape, tl.int64), mask=there, "
        f'sem="{sem}", scope="{scope}"), epoch)\n'
    )
    behind = "    tl.debug_barrier()\n" if barrier else ""
    mutate((AWAIT, f"    found = {look}    while tl.min(found) < epoch:\n        found = {look}{behind}{VAIN}"))
    assert found() == RACE


def test_the_same_looks_that_learn_what_they_should(mutate):
    look = (
        "tl.where(there, tl.atomic_add(as_flag(flags), tl.zeros(flags.shape, tl.int64), mask=there, "
        'sem="acquire", scope="sys"), epoch)\n'
    )
    mutate(
        (
            AWAIT,
            f"    found = {look}    while tl.min(found) < epoch:\n        found = {look}    tl.debug_barrier()\n{VAIN}",
        )
    )
    assert found() == [""] * len(ROUNDS)


def test_a_block_more_of_a_group_is_left_out(mutate):
    """Of several peers whose addresses are read together."""
    mutate(("            _store_block(data, inside & (turn + 1 < world), base1 + place, VEC, UNITS)\n", ""))
    assert set(found()) == {"crash"}


def test_a_summand_of_a_group_is_left_out(mutate):
    mutate(("tl.where(begin + 1 < world, total + got1", "tl.where(begin > 0, total + got1"))
    assert set(found(lambda runtime: scatter(runtime, (500,), 0, torch.float32, 0))) == {"crash"}


def test_nothing_is_waited_for(mutate):
    mutate((AWAIT, "    vain = senders < 0\n"))
    assert set(found(lambda runtime: gather(runtime, (90, 3), 0, torch.uint8, 0))) <= RACE_OR_WRONG


def test_the_flag_of_another_block(mutate):
    mutate(("flags = own + flag_at(epoch & 1, senders, world, capacity, places, block)",
            "flags = own + flag_at(epoch & 1, senders, world, capacity, places, 0)"))  # fmt: skip
    assert found(lambda runtime: gather(runtime, (500, 3), 0, torch.uint8, 0)) == RACE


def test_the_flag_of_one_sender_alone(mutate):
    mutate(("there = (senders < world) & (senders != rank)", "there = senders == (rank + 1) % world"))
    assert set(found(lambda runtime: scatter(runtime, (500,), 0, torch.float32, 0))) <= RACE_OR_WRONG


def test_a_second_step_that_waits_for_the_first(two_steps, mutate):
    """Whose flag is up before the sum is there."""
    mutate(("own, epoch, state, owner, world, capacity, places, longest + block, late",
            "own, epoch, state, owner, world, capacity, places, block, late"))  # fmt: skip
    assert found() == RACE


def test_a_second_steps_flag_ahead_of_its_sum(two_steps, mutate):
    mutate(("        here, late = await_all(",
            "        for peer in range(world):\n"
            "            base = tl.load(peers + peer)\n"
            "            ol.raise_flag(as_flag(base + flag_at(epoch & 1, rank, world, capacity, places, "
            "blocks_of(tl.minimum(chunk, total), UNITS) + block)), epoch)\n"
            "        here, late = await_all("))  # fmt: skip
    assert found(lambda runtime: reduce_all(runtime, (500,), torch.bfloat16, 0)) == RACE


def test_sums_sent_where_the_first_step_is(two_steps, mutate):
    mutate(("rank, world, capacity, places, longest + block,\n", "rank, world, capacity, places, block,\n"))
    assert all(found())


def test_a_second_step_ahead_of_the_first(two_steps, mutate):
    """A program that waits for sums before it has added what others wait for."""
    text = inspect.getsource(block_kernels.two_step_blocks_kernel.fn)
    begin, middle = text.index("    for block in range("), text.index("    others = tl.maximum")
    end = text.index("    end_call(")
    mutate((text[begin:middle] + text[middle:end], text[middle:end] + text[begin:middle]))
    assert found() == ["deadlock"] * len(ROUNDS)


def test_an_epoch_that_does_not_grow(mutate):
    mutate(("    tl.store(calls + pid, epoch)\n", ""))
    assert all(found())


def test_programs_that_a_launch_has_not_are_left_behind(mutate):
    """A later call of more programs then has two epochs."""
    mutate(("mask=others >= programs", "mask=others < 0"))

    def body(runtime):
        for call, size in enumerate((1, 400, 1, 1, 400)):
            scatter(runtime, (size,), 0, torch.float32, call)

    assert all(found(body))


def test_empty_pieces_that_say_nothing(mutate):
    """Ranks without a piece are then heard of by nobody, who may be two calls ahead of them."""
    mutate(("tl.maximum((units + UNITS - 1) // UNITS, 1)", "(units + UNITS - 1) // UNITS"))

    def body(runtime):
        calls, kept = low_latency_of(runtime), []
        for call in range(6):
            wanted = made((1, 40), torch.uint8, 7, call)
            kept.append((poisoned((1, 40), torch.uint8), wanted))
            assert calls.all_gather(narrow(wanted, 0, 3, runtime.rank), 0, kept[-1][0])
        runtime.synchronize()
        assert all(same(*pair) for pair in kept)

    assert "race" in found(body)


def test_more_programs_than_are_resident(monkeypatch):
    """Some programs then wait for peers' that wait for a multiprocessor."""
    monkeypatch.setattr(transport, "A_MULTIPROCESSOR", 100)
    monkeypatch.setattr(SimRuntime, "resident", lambda *_: 100)
    assert "deadlock" in found(lambda runtime: scatter(runtime, (1500,), 0, torch.float32, 0))
