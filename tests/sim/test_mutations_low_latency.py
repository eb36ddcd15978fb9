"""What is left out of the kernels of low-latency collectives is found on simulated ranks."""

from __future__ import annotations

import inspect

import pytest
import torch

from overlap.errors import OverlapError
from overlap.runtime.packets import kernels as packet_kernels
from overlap.runtime.packets import lines as packet_lines
from overlap.runtime.packets import transport, words
from overlap.runtime.packets.low_latency import low_latency_of
from overlap.sim.runtime import SimRuntime
from tests.support.small_calls import (
    exchange,
    few_lines,
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


def mutated(monkeypatch, *edits):
    """The kernels with lines of theirs replaced, as `LowLatency` finds them."""
    parts, text = (inspect.getsource(module) for module in (packet_lines, packet_kernels))
    begin = text.index("from .lines import")
    text = text[:begin] + parts.split("from __future__ import annotations")[1] + text[text.index(")", begin) + 1 :]
    for old, new in edits:
        assert text.count(old), old
        text = text.replace(old, new)
    return text


@pytest.fixture
def mutate(monkeypatch, tmp_path):
    def make(*edits):
        from overlap.codegen.module_io import load_module

        path = tmp_path / "mutated.py"
        path.write_text(mutated(monkeypatch, *edits))
        module = load_module(str(path))
        for name in ("exchange_kernel", "sum_packets_kernel", "two_step_kernel"):
            monkeypatch.setattr(words, name, getattr(module, name))

    return make


def found(world=3, calls=4, body=None):
    """How runs of several seeds end: the faults by their first word, or ``wrong``."""
    ends = []

    def default(runtime):
        for call in range(calls):
            reduce_all(runtime, (40,), torch.bfloat16, call)
            exchange(runtime, (5, 1 + call), 0, 1, torch.float16, call)

    for seed in ROUNDS:
        try:
            on_ranks(world, body or default, seed=seed)
            ends.append("")
        except OverlapError as error:
            ends.append(error.message.split(":")[0])
        except AssertionError:
            ends.append("wrong")
    return ends


def test_the_kernels_as_they_are(mutate):
    mutate()
    assert found() == [""] * len(ROUNDS)


def test_one_side_instead_of_two(mutate):
    mutate(("(epoch & 1) * _STEPS", "(epoch & 0) * _STEPS"))
    assert found() == ["race"] * len(ROUNDS)


def test_a_mark_that_does_not_depend_on_the_call(mutate):
    mutate(("mark = mark_of(epoch)", "mark = mark_of(epoch * 0 + 1)"))
    assert all(found())


def test_an_epoch_that_does_not_grow(mutate):
    mutate(("    tl.store(calls + pid, epoch)\n", ""))
    assert all(found())


def test_programs_that_a_launch_has_not_are_left_behind(mutate):
    """A later call of more programs then has two epochs."""
    mutate(("mask=others >= programs", "mask=others < 0"))

    def body(runtime):
        for call, size in enumerate((1, 200, 1, 1, 200)):
            scatter(runtime, (size,), 0, torch.float32, call)

    assert found(body=body) == ["deadlock"] * len(ROUNDS)


def test_sums_sent_on_the_first_steps_side(two_steps, mutate):
    mutate(("second = side + world * wide", "second = side"))
    assert all(found())


def test_empty_pieces_that_say_nothing(mutate):
    """Ranks without a piece are then heard of by nobody, who may be two calls ahead of them."""
    mutate(("tl.maximum((elements + UNITS - 1) // UNITS, 1)", "(elements + UNITS - 1) // UNITS"))

    def body(runtime):
        calls, kept = low_latency_of(runtime), []
        for call in range(6):
            wanted = made((1, 40), torch.uint8, 7, call)
            kept.append((poisoned((1, 40), torch.uint8), wanted))
            assert calls.all_gather(narrow(wanted, 0, 3, runtime.rank), 0, kept[-1][0])
        runtime.synchronize()
        assert all(same(*pair) for pair in kept)

    assert "race" in found(body=body)


def test_lines_taken_before_they_have_come(mutate):
    mutate(("data, left, seen = receive(place, inside, mark, state)",
            "data, left, seen = receive(place, inside & (line < 0), mark, state)"))  # fmt: skip
    assert all(found())


def test_a_line_that_is_not_sent(mutate):
    mutate(("_LINE, data, mark, inside)", "_LINE, data, mark, inside & (line != 0))"))
    assert found() == ["deadlock"] * len(ROUNDS)


def test_more_programs_than_are_resident(monkeypatch):
    """Some programs then wait for peers' that wait for a multiprocessor."""
    monkeypatch.setattr(transport, "A_MULTIPROCESSOR", 100)
    monkeypatch.setattr(SimRuntime, "resident", lambda *_: 100)

    def body(runtime):
        scatter(runtime, (400,), 0, torch.float32, 0)

    assert "deadlock" in found(body=body)
