"""Packets: words that carry data and their own flag, for messages so small that a flag behind them would cost more than they do.

    a line   | 4 bytes of data, mark | 4 bytes of data, mark |      16 bytes in the receiver's memory for 8 bytes sent

A rank stores lines straight into a slot of the receiver, which looks at the words themselves until every one bears the mark of
this call. Nothing is released or acquired, no barrier stands anywhere, and no flag follows.

What that rests on, of the PTX memory model:

* ``st.relaxed.sys`` and ``ld.relaxed.sys`` of 64 bits are single-copy atomic, so data and mark of a word arrive together;
* a vector access is a sequence of scalar ones in no given order, so each word of a line has a mark of its own;
* a word orders nothing but itself: whatever else a peer has written, a packet says nothing about. All that a kernel may make
  of one is what the word carries. Between kernels of a stream the end of one orders what it read ahead of what the next sends,
  which is what slots are given to new calls by (`overlap.runtime.packets.low_latency`).

The assembly is NVIDIA's. `receive` looks at several senders' lines at a time, so that their latencies add up to one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import table as _layout

LINE_BYTES = 16
"""Of a line in memory."""
DATA_BYTES = 8
"""That it carries."""
SENDERS = (1, 2, 4)
"""Lines that `receive` can look at together."""
MARKS = 2**32 - 2
"""Marks in use, 1 to this: neither fresh memory, which is zero, nor memory filled with ones looks like a word that was sent."""

MOST_PROGRAMS = 1024
"""Words that hold the epoch: every program reads its own, so that one program's end is no other's beginning."""
CLEAN_EVERY = 2**31
"""Calls after which lines are cleared that no call has written for as long: their marks would come round again."""

_SPIN_LIMIT: tl.constexpr = tl.constexpr(_layout.S_SPIN_LIMIT * _layout.SLOT_WORDS)
_MARKS: tl.constexpr = tl.constexpr(MARKS)
_FAULT: tl.constexpr = tl.constexpr(_layout.S_FAULT * _layout.SLOT_WORDS)


def send_assembly() -> str:
    """``$1`` address, ``$2`` data, ``$3`` mark, ``$4`` whether there is anything to send."""
    return """{
    .reg .pred there;
    .reg .b32 low, high;
    .reg .b64 first, second;
    setp.ne.b32 there, $4, 0;
    mov.b64 {low, high}, $2;
    mov.b64 first, {low, $3};
    mov.b64 second, {high, $3};
    @there st.relaxed.sys.global.v2.b64 [$1], {first, second};
    mov.b32 $0, 0;
    }"""


def receive_assembly(senders: int) -> str:
    """Looks at ``senders`` lines until all have come, or the limit on looks is reached, which it then lowers to one.

    Results: the data of each, the lines that have not come (bits), the mark that one of them has. Operands: addresses, mark,
    lines to look at (bits), address of the limit (0: none).
    """
    every = range(senders)
    out = {"left": f"${senders}", "seen": f"${senders + 1}"}
    address = [f"${senders + 2 + k}" for k in every]
    mark, wanted, limit = (f"${2 * senders + 2 + i}" for i in range(3))
    lines = [
        ".reg .pred come, on;",
        ".reg .b32 left, seen, bit, low, high, one, two;",
        ".reg .b64 looks, most;",
        *(f".reg .pred open{k}; .reg .b64 data{k}, first{k}, second{k};" for k in every),
        f"mov.b32 left, {wanted};",
        "mov.b32 seen, 0;",
        "mov.b64 looks, 0;",
        *(f"mov.b64 data{k}, 0; mov.b64 first{k}, 0; mov.b64 second{k}, 0;" for k in every),
        "again:",
        # All loads are on their way before the first is looked at.
        *(
            f"and.b32 bit, left, {1 << k}; setp.ne.b32 open{k}, bit, 0; "
            f"@open{k} ld.relaxed.sys.global.v2.b64 {{first{k}, second{k}}}, [{address[k]}];"
            for k in every
        ),
        f"ld.relaxed.gpu.global.b64 most, [{limit}];",
        *(
            f"mov.b64 {{low, one}}, first{k}; mov.b64 {{high, two}}, second{k}; "
            f"setp.eq.and.b32 come, one, {mark}, open{k}; setp.eq.and.b32 come, two, {mark}, come; "
            f"@come mov.b64 data{k}, {{low, high}}; @come and.b32 left, left, {~(1 << k)}; "
            f"@open{k} mov.b32 seen, one;"
            for k in every
        ),
        "setp.eq.b32 come, left, 0;",
        "@come bra done;",
        "add.s64 looks, looks, 1;",
        "setp.eq.s64 on, most, 0;",
        "@on bra again;",
        "setp.lt.s64 on, looks, most;",
        "@on bra again;",
        f"st.relaxed.gpu.global.b64 [{limit}], 1;",
        "done:",
        *(f"mov.b64 ${k}, data{k};" for k in every),
        f"mov.b32 {out['left']}, left;",
        f"mov.b32 {out['seen']}, seen;",
    ]
    return "{\n" + "\n".join(lines) + "\n}"


_SEND: tl.constexpr = tl.constexpr(send_assembly())
_RECEIVE_1: tl.constexpr = tl.constexpr(receive_assembly(1))
_RECEIVE_2: tl.constexpr = tl.constexpr(receive_assembly(2))
_RECEIVE_4: tl.constexpr = tl.constexpr(receive_assembly(4))


@triton.jit
def mark_of(epoch):
    """The mark (int32) of the words of call ``epoch`` (int64, from 1 on): its low half, but for two values left out."""
    return (1 + (epoch - 1) % tl.cast(_MARKS, tl.int64)).to(tl.int32)


@triton.jit
def send(address, data, mark, there):
    """Stores lines: ``data`` (int64) at ``address`` (int64), where ``there``."""
    tl.inline_asm_elementwise(
        _SEND,
        "=r,l,l,r,r",
        [address, data, mark, there.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def receive(address, wanted, mark, state):
    """The data (int64) of the lines at ``address`` (int64) where ``wanted``, once they bear ``mark``.

    Returns also which of them (int32: 0 or 1) had not come when the spin limit in ``state`` was reached, 0 in any other case,
    and the mark that one of those bore; their data are zero. The limit is one from then on, as behind `overlap.language.poll`.
    """
    data, left, seen = tl.inline_asm_elementwise(
        _RECEIVE_1,
        "=l,=r,=r,l,r,r,l",
        [address, mark, wanted.to(tl.int32), (state + _SPIN_LIMIT).to(tl.int64)],
        dtype=(tl.int64, tl.int32, tl.int32),
        is_pure=False,
        pack=1,
    )
    return data, left, seen


@triton.jit
def receive_two(address0, address1, wanted, mark, state):
    """As `receive`, of two lines together; ``wanted`` and what is left are bits."""
    data0, data1, left, seen = tl.inline_asm_elementwise(
        _RECEIVE_2,
        "=l,=l,=r,=r,l,l,r,r,l",
        [address0, address1, mark, wanted, (state + _SPIN_LIMIT).to(tl.int64)],
        dtype=(tl.int64, tl.int64, tl.int32, tl.int32),
        is_pure=False,
        pack=1,
    )
    return data0, data1, left, seen


@triton.jit
def receive_four(address0, address1, address2, address3, wanted, mark, state):
    """As `receive`, of four lines together; ``wanted`` and what is left are bits."""
    data0, data1, data2, data3, left, seen = tl.inline_asm_elementwise(
        _RECEIVE_4,
        "=l,=l,=l,=l,=r,=r,l,l,l,l,r,r,l",
        [address0, address1, address2, address3, mark, wanted, (state + _SPIN_LIMIT).to(tl.int64)],
        dtype=(tl.int64, tl.int64, tl.int64, tl.int64, tl.int32, tl.int32),
        is_pure=False,
        pack=1,
    )
    return data0, data1, data2, data3, left, seen


@triton.jit
def record_late(state, late, epoch, seen, instance):
    """Records the first line that did not come, if none is recorded yet (`overlap.runtime.faults`).

    ``late``: addresses (int64) of lines in vain, 0 of those that came; ``seen``: the marks (int32) that they bore; ``instance``:
    the number of what is launched.
    """
    lost = late != 0
    nothing = tl.zeros(late.shape, tl.int32)
    earlier = tl.atomic_xchg(state + _FAULT + nothing, 1, mask=lost, sem="relaxed", scope="gpu")
    first = lost & (earlier == 0)
    # Nothing is loaded where nothing is to be recorded, so that nobody waits for it.
    record = tl.load(state + _FAULT + 1 + nothing, mask=first, other=0).to(tl.pointer_type(tl.int64))
    tl.store(record + 1, late, mask=first)
    tl.store(record + 2, epoch, mask=first)
    tl.store(record + 3, seen.to(tl.int64), mask=first)
    tl.store(record + 4, instance, mask=first)
    tl.store(record, 1, mask=first)
