"""Low-latency words by the programs that compute: of a result that is added up, in the launch that makes it.

    rank r   program p   tile | its words into the slots of every rank that adds it, r among them | tile | words | ...
                         then p's share of r's own part: looks at the slots in rank order, adds, rounds once, stores

One launch and nothing beside it: no entry, no flag, no counter, no credit, no copy, no kernel behind. A word carries four bytes
and the mark of its call (`overlap.language.packets`), twice the bytes of what it says, so this is for messages so small that a
flag behind them would cost more. Whatever a kernel stores by, pointers or descriptors, its tile is read back where it was
stored, by the program that stored it. Programs wait for words of all others, so all of a launch must be resident at once.
What is summed before it is sent on (the second step of an all-reduce) is refused.
"""

from __future__ import annotations

from .base import Backend

WORDS_INLINE = Backend(
    name="words_inline",
    default_direction="push",
    directions=("push",),
    ordered=True,
    strided=True,
    reduce=True,
    comm_sms=False,
    writer="packet",
    moves=("result",),
    inline=True,
)
