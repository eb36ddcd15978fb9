"""What serial calls communicate by: low-latency words where the message is small and every peer is reached by pointer, blocks
where it is longer, else a collective of the library.

    message    < low_latency_blocks_from_bytes    one launch of our own (`overlap.runtime.packets.low_latency`), by words
               < low_latency_below_bytes          the same, by blocks
               else                               torch.distributed

A call that asks for ``backend="serial"`` gets the library's collective: it is what others are measured and checked against. The
answer is the same on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from overlap.errors import OverlapError
from overlap.runtime.group import collectives
from overlap.runtime.of_group import runtime_of
from overlap.runtime.packets.low_latency import LowLatency, Ready, low_latency_of
from overlap.runtime.repeat.known_calls import Asked
from overlap.runtime.repeat.places import Carried

from . import serial
from .fallback import ASKED, Choice, impossible
from .report import LastPlan

COLLECTIVE = "collective"
WORDS, BLOCKS = "low-latency words", "low-latency blocks"
"""What `LastPlan.plan` says of a serial call."""
_SAID = {"words": WORDS, "blocks": BLOCKS}


class Serially:
    """A serial call, once more with other tensors (`overlap.runtime.repeat.known_calls.Ready`).

    Args:
        call: makes it, given its operands and results.
    """

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, carried: Carried) -> bool:
        self._call(*carried.tensors)
        return True


class Again:
    """What the collective of a serial call went by, for calls that differ in where their tensors lie alone.

    Those need not look up by what they go, nor a launch. Of the library's collectives it knows nothing.
    """

    __slots__ = ("ready", "said")

    def __init__(self) -> None:
        self.ready: Ready | None = None
        self.said = ""


def _said(again: Again | None, words: LowLatency, by: str) -> str:
    """What is said of the last call, which went ``by`` words or blocks; calls like it are told its launch."""
    said = _SAID[by]
    if again is not None:
        again.ready, again.said = words.latest, said
    return said


def keep(
    asked: Asked | None,
    group: Any,
    went_by: str,
    call: Callable[..., object],
    results: Sequence[torch.Tensor],
    said: LastPlan,
    forced: bool,
) -> None:
    """Keeps a serial call for those like it.

    Not where it went by the library because a graph is being captured: the next one might go by low-latency words or blocks.

    Args:
        call: makes it, given its operands and results; holds no tensor.
    """
    if asked is None:
        return
    words = _WORDS.get(group) if went_by != COLLECTIVE else None
    if words is None and _captured(results[0]):
        return
    asked.keep_ready(Serially(call), results, said, forced=forced)


_WORDS: weakref.WeakKeyDictionary[Any, LowLatency | None] = weakref.WeakKeyDictionary()


def gather(
    group: Any,
    choice: Choice,
    shard: torch.Tensor,
    shape: tuple[int, ...],
    dim: int,
    order: tuple[int, ...] | None = None,
    again: Again | None = None,
) -> tuple[torch.Tensor, str]:
    """`serial.gather`, and what it went by.

    Args:
        again: of calls like this one, here and below.
    """
    whole = None
    if again is not None and again.ready is not None:
        whole = serial.ordered(shard, shape, order)
        if again.ready(shard, whole):
            return whole, again.said
    words = words_of(group, choice, shard)
    if words is not None:
        whole = serial.ordered(shard, shape, order) if whole is None else whole
        if by := words.all_gather(shard, dim, whole):
            return whole, _said(again, words, by)
    return serial.gather(group, shard, shape, dim, order), COLLECTIVE


def reduce_scatter(
    group: Any,
    choice: Choice,
    summand: torch.Tensor,
    dim: int,
    out: torch.Tensor,
    *,
    fixed_order: bool = False,
    again: Again | None = None,
) -> str:
    """`collectives.reduce_scatter`; gives what it went by. Words and blocks of our own always add in a fixed order."""
    if again is not None and again.ready is not None and again.ready(summand, out):
        return again.said
    words = words_of(group, choice, summand)
    if words is not None and (by := words.reduce_scatter(summand, dim, out)):
        return _said(again, words, by)
    collectives.reduce_scatter(group, summand, dim, out, fixed_order=fixed_order)
    return COLLECTIVE


def all_reduce(
    group: Any,
    choice: Choice,
    summand: torch.Tensor,
    out: torch.Tensor,
    *,
    fixed_order: bool = False,
    again: Again | None = None,
) -> str:
    """`collectives.all_reduce`; gives what it went by."""
    if again is not None and again.ready is not None and again.ready(summand, out):
        return again.said
    words = words_of(group, choice, summand)
    if words is not None and (by := words.all_reduce(summand, out)):
        return _said(again, words, by)
    collectives.all_reduce(group, summand, out, fixed_order=fixed_order)
    return COLLECTIVE


def sums_in_place(group: Any, choice: Choice, summand: torch.Tensor, size: int) -> bool:
    """Whether an all-reduce of ``size`` bytes is best given its result's memory as summand."""
    words = words_of(group, choice, summand)
    return words is None or not words.copies_in_place(size)


def all_to_all(
    group: Any,
    choice: Choice,
    held: torch.Tensor,
    from_dim: int,
    to_dim: int,
    out: torch.Tensor,
    again: Again | None = None,
) -> str:
    """`collectives.all_to_all`; gives what it went by."""
    if again is not None and again.ready is not None and again.ready(held, out):
        return again.said
    words = words_of(group, choice, held)
    if words is not None and (by := words.all_to_all(held, from_dim, to_dim, out)):
        return _said(again, words, by)
    collectives.all_to_all(group, held, from_dim, to_dim, out)
    return COLLECTIVE


def words_of(group: Any, choice: Choice, tensor: torch.Tensor) -> LowLatency | None:
    """The low-latency collectives of a group, where its ranks have any; collective at first use.

    None: the call asked for serial, the ranks cannot all reach each other, or nobody looked before a graph was captured.
    """
    if group is None or choice.why_serial == ASKED or tensor.device.type != "cuda" or torch.version.hip:
        return None
    if group not in _WORDS:
        if _captured(tensor):
            return None
        _WORDS[group] = _able(group, tensor)
    return _WORDS[group]


def _captured(tensor: torch.Tensor) -> bool:
    """Whether a graph is captured on the stream that computes with ``tensor``."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _able(group: Any, tensor: torch.Tensor) -> LowLatency | None:
    if impossible(group, tensor):
        return None
    runtime = runtime_of(group)
    if runtime.world == 1 or len(set(runtime.nodes)) > 1:
        return None
    try:
        # Ranks choose one together; where there is none, on every rank, the library's collectives do.
        runtime.provider  # type: ignore[attr-defined]  # noqa: B018
    except OverlapError:
        return None
    return low_latency_of(runtime)
