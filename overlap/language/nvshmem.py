"""NVSHMEM's device functions as Triton calls them: linked from its bitcode, with addresses and sizes known at run time.

A kernel that calls one is launched with the option ``extern_libs`` (`Runtime.linked`), and its module is made known to NVSHMEM
once it is loaded. All threads of the program call together. Addresses are int64 and those of this rank's own symmetric memory,
also where a peer's is meant: NVSHMEM looks the same place up in the memory of the rank with the number ``pe``.

The functions return nothing, and Triton's calls must return something: what they return is never read.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language import core

from overlap.schedule import table as _layout
from overlap.schedule.far import LIBRARY

_EPOCH: tl.constexpr = tl.constexpr(_layout.S_EPOCH * _layout.SLOT_WORDS)
_WORD: tl.constexpr = tl.constexpr(8)
_SET: tl.constexpr = tl.constexpr(9)
"""NVSHMEM_SIGNAL_SET (nvshmem_common_transport.h, 3.x)."""


SYMBOLS = {
    "nvshmemx_putmem_nbi_block": ("i64", "i64", "i64", "i32"),
    "nvshmemx_getmem_nbi_block": ("i64", "i64", "i64", "i32"),
    "nvshmemx_putmem_signal_block": ("i64", "i64", "i64", "i64", "i64", "i32", "i32"),
    "nvshmem_quiet": (),
    "nvshmem_fence": (),
    "nvshmem_my_pe": (),
}
"""The functions that are called, and the types of their parameters; addresses are int64."""
_TYPES = {"i64": tl.int64, "i32": tl.int32}


def _call(symbol: str, args: list[Any], semantic: Any) -> Any:
    kinds = tuple(_TYPES[kind] for kind in SYMBOLS[symbol])
    return core.extern_elementwise(LIBRARY, "", args, {kinds: (symbol, tl.int32)}, is_pure=False, _semantic=semantic)


@core.extern
def put_nbi(dst, src, size, pe, _semantic=None):
    """Starts a copy of ``size`` bytes from here to the rank ``pe``; it is there, and ``src`` may change, behind `quiet`."""
    return _call("nvshmemx_putmem_nbi_block", [dst, src, size, pe], _semantic)


@core.extern
def get_nbi(dst, src, size, pe, _semantic=None):
    """Starts a copy of ``size`` bytes from the rank ``pe`` to here; it is here behind `quiet` (`fence` orders no get)."""
    return _call("nvshmemx_getmem_nbi_block", [dst, src, size, pe], _semantic)


@core.extern
def put_signal(dst, src, size, signal, value, op, pe, _semantic=None):
    """Copies to the rank ``pe`` and then updates an 8-byte signal there, in one call: who sees the signal sees the copy."""
    return _call("nvshmemx_putmem_signal_block", [dst, src, size, signal, value, op, pe], _semantic)


@core.extern
def quiet(_semantic=None):
    """Waits until all copies that this thread has taken part in are complete, at the ranks that they went to."""
    return _call("nvshmem_quiet", [], _semantic)


@core.extern
def fence(_semantic=None):
    """What is put later to a rank is seen there after what was put earlier."""
    return _call("nvshmem_fence", [], _semantic)


@core.extern
def my_pe(_semantic=None):
    """The number by which NVSHMEM knows this rank, an int32 scalar."""
    return _call("nvshmem_my_pe", [], _semantic)


@triton.jit
def raise_far(state, flag, value, pe):
    """Sets a word of the rank ``pe`` to ``value``, behind what this program has learnt, and what it has put and quieted.

    ``state``: this rank's state words; ``flag``: the address (int64) that the word would have among them. A signal goes with a
    copy, so that one thread sends it and what it releases is ordered: the epoch, to the unused word beside the flag.
    """
    tl.debug_barrier()
    put_signal(
        flag + _WORD,
        (state + _EPOCH).to(tl.int64),
        tl.full((), _WORD, tl.int64),
        flag,
        value,
        tl.full((), _SET, tl.int32),
        pe,
    )
