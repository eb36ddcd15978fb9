"""The words for kernels of users: a rank's place, a peer's memory, signals, and moves that carry one.

    box = overlap.symmetric((world, 1024), torch.float32, signals=2, group=group)      # on the host, on every rank
    kernel[(1,)](box.tensor, box.handle, ...)

``h`` is the handle of a symmetric tensor (layout: `overlap.language.handle`). Pointers are those of this rank's own
tensor; peers' are made of them. A signal is an int64 word of one rank that any rank may raise; it only grows. Which
rule of the memory model a word obeys stands in `overlap.language.words` and docs/language.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import handle as _handle
from .flags import after, landed, poll

_RANK: tl.constexpr = tl.constexpr(_handle.W_RANK)
_WORLD: tl.constexpr = tl.constexpr(_handle.W_WORLD)
_TABLE: tl.constexpr = tl.constexpr(_handle.W_TABLE)
_SIGNALS: tl.constexpr = tl.constexpr(_handle.W_SIGNALS)
_FIRST: tl.constexpr = tl.constexpr(_handle.S_SIGNAL * _handle.SLOT_WORDS)
_WORDS: tl.constexpr = tl.constexpr(_handle.SLOT_WORDS)
_PEER: tl.constexpr = tl.constexpr(_handle.PEER_WORDS)
_LINE: tl.constexpr = tl.constexpr(_handle.LINE)
_ALIGNED: tl.constexpr = tl.constexpr(_handle.ALIGNED)
_SET: tl.constexpr = tl.constexpr("set")


@triton.jit
def rank(h):
    """This rank, an int32 scalar: read from memory, so no kernel is specialised to it."""
    return tl.load(h + _RANK).to(tl.int32)


@triton.jit
def num_ranks(h):
    """The number of ranks, an int32 scalar."""
    return tl.load(h + _WORLD).to(tl.int32)


@triton.jit
def _entry(h, peer):
    """The entry of ``peer`` in the table of ranks."""
    tl.device_assert((peer >= 0) & (peer < num_ranks(h)), "no such rank")
    return tl.load(h + _TABLE).to(tl.pointer_type(tl.int64)) + (peer + 1) * _PEER


@triton.jit
def symm_at(h, pointer, peer):
    """The same place in ``peer``'s tensor as ``pointer``, one or many, has in this rank's.

    Alignment and contiguity of the pointers stay known to the compiler, so accesses stay vectors.
    """
    bits: tl.constexpr = pointer.dtype.scalar.element_ty.primitive_bitwidth
    size: tl.constexpr = bits // 8 if bits > 8 else 1
    lines = tl.load(_entry(h, peer))
    return pointer + tl.multiple_of(lines * (_LINE // size), _ALIGNED)


@triton.jit
def _raise(h, slot, peer, value, op: tl.constexpr):
    tl.static_assert(op == "set" or op == "add", 'a signal is raised by op="set" or op="add"')
    tl.device_assert((slot >= 0) & (slot < tl.load(h + _SIGNALS)), "no such signal")
    flag = tl.load(_entry(h, peer) + 1).to(tl.pointer_type(tl.int64)) + slot * _WORDS
    if op == "set":
        tl.atomic_xchg(flag, value, sem="release", scope="sys")
    else:
        tl.atomic_add(flag, value, sem="release", scope="sys")


@triton.jit
def notify(h, slot, peer, value, op: tl.constexpr = _SET):
    """Raises signal ``slot`` of ``peer`` to ``value`` (``op="set"``) or by it (``"add"``), after all stores of this program.

    Between the stores and the release at system scope stands a CTA barrier: Triton 3.6 to 3.8 put none there, and one
    thread would release what others still store. One writer sets a signal; several, of a grid or of several ranks, add.
    """
    tl.debug_barrier()
    _raise(h, slot, peer, value, op)


@triton.jit
def notify_async(h, slot, peer, value, op: tl.constexpr = _SET):
    """As `notify`, behind stores through descriptors (TMA), which have landed and not only been read; sm_90.

    Also for the tail of a loop with ``flatten=True``, whose pipeline the barrier of `notify` would take apart.
    """
    _raise(h, landed(slot + tl.zeros((), tl.int32)), peer, value, op)


@triton.jit
def wait(h, slot, value):
    """Waits until signal ``slot`` of this rank is at least ``value``; returns the value seen, an int64 scalar.

    An acquire at system scope. What is loaded behind it must have an address made from the value it returned: `after`,
    and for loads through descriptors (TMA) `after_async`. Past the deadline it returns with less, and `overlap.check` raises.
    """
    tl.device_assert((slot >= 0) & (slot < tl.load(h + _SIGNALS)), "no such signal")
    return poll(h + _FIRST + slot * _WORDS, value, h)


@triton.jit
def put(h, pointer, value, peer, slot, signal, op: tl.constexpr = _SET, mask=None):
    """Stores ``value`` where ``pointer`` is in ``peer``'s tensor, then raises its signal ``slot`` as `notify` does."""
    tl.store(symm_at(h, pointer, peer), value, mask=mask)
    notify(h, slot, peer, signal, op)


@triton.jit
def get(h, pointer, peer, slot, signal, mask=None, other=None):
    """Waits for this rank's signal ``slot`` as `wait` does, then loads from where ``pointer`` is in ``peer``'s tensor.

    The owner raises the signal once the data is there; before it overwrites them it needs one back.
    """
    seen = wait(h, slot, signal)
    return tl.load(after(symm_at(h, pointer, peer), seen), mask=mask, other=other)
