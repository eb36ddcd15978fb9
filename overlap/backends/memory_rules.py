"""The one table of what must stand between the last data write and the flag, and between the flag and the first read.

Read by backends (what to emit), by the compile tier (what to look for in PTX) and by the simulator (what orders what).
Sources: the PTX memory model (release / acquire patterns, proxies), `cp.async.bulk` completion rules, the CUDA driver's
stream order, NVSHMEM's `put_signal`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WriterRule:
    """One way of writing data that another rank will read.

    ``before_flag``: what must complete or fence the data first. ``flag``: how the flag itself is written.
    ``barrier``: a CTA barrier must stand before the flag. ``completes``: the write may land late until ``before_flag`` is done.
    """

    writer: str
    before_flag: str
    flag: str
    barrier: bool
    completes: bool


@dataclass(frozen=True)
class ReaderRule:
    """One way of reading data behind a flag. ``proxy_fence``: the acquire alone does not order it."""

    reader: str
    rule: str
    proxy_fence: bool


SEM = {"poll": "acquire", "flag": "release"}
SCOPE = "sys"
"""Scope of every atomic that another device takes part in."""

PROXY_FENCE = "fence.proxy.async.global"
"""Orders TMA (async proxy) accesses to global memory behind what this thread has acquired; sm_90 and later."""

WRITERS = {
    rule.writer: rule
    for rule in (
        WriterRule(
            "load/store",
            "every data store and atomic of the program, then a CTA barrier",
            "atomic, release, system scope: scalar, or one lane a counter where a tile is part of several chunks",
            barrier=True,
            completes=False,
        ),
        WriterRule(
            "tma store",
            "cp.async.bulk.wait_group 0 (not .read) by the issuing thread, then a CTA barrier",
            "atomic, release, system scope: scalar, or one lane a counter where a tile is part of several chunks",
            barrier=True,
            completes=True,
        ),
        WriterRule(
            "nvshmem put",
            "quiet by every program that has put a part, then a CTA barrier and a count that acquires; what one call puts "
            "with its signal needs none; fence orders puts to one rank and no gets",
            "put_signal, SET, on the flag's own 8-byte word; of a get, as load/store",
            barrier=True,
            completes=True,
        ),
        WriterRule(
            "copy engine",
            "the copy, earlier on the same stream",
            "an 8-byte copy of the device-held epoch word between two devices",
            barrier=False,
            completes=True,
        ),
        WriterRule(
            "packet",
            "nothing: data and mark are one 64-bit word, stored relaxed at system scope; of a vector each word has its mark",
            "the word itself, low half of the epoch but for 0 and all ones; it stands for no other write",
            barrier=False,
            completes=False,
        ),
    )
}

READERS = {
    rule.reader: rule
    for rule in (
        ReaderRule("load", "an acquire at system scope that the load's address depends on", proxy_fence=False),
        ReaderRule(
            "tma load",
            "the same acquire, then the proxy fence, then an address that depends on both",
            proxy_fence=True,
        ),
        ReaderRule(
            "packet",
            "64-bit loads of the word itself, relaxed at system scope, until its mark is the call's; nothing else may be read "
            "because of it",
            proxy_fence=False,
        ),
    )
}
