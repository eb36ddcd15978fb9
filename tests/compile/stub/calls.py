"""What `overlap.runtime.cuda.driver` calls, as the stub of the driver understood it; and that what it refuses raises.

LD_LIBRARY_PATH=<folder of the stub> python calls.py
"""

from __future__ import annotations

import ctypes

from overlap.errors import RuntimeContractError
from overlap.runtime.cuda.driver import (
    Calls,
    CopyOut,
    Event,
    Graph,
    Stream,
    brings,
    chain,
    copy_call,
    hold_call,
    length,
    libcuda,
)
from overlap.runtime.memory.copies import CopyPiece
from overlap.runtime.repeat.places import Carried, Place

HIGH = 1 << 46
"""Addresses have more than 32 bits."""
PLACE = Place(1, 64, (7, 32), (48, 1))
"""64 bytes into the second tensor of a call."""
EXPECTED = (
    "copy 400000000010 400000000020 8589934592 on 0x700000000000;"
    "rows 2 400000000030 +8589934600 2 400000000040 +48, 7 x 32 at 0 0 0 0, (nil) (nil) (nil) (nil) on 0x700000000000;"
    "hold 400000000050 4294967295 0 on 0x700000000000;"
    "event 2;record 0x1234567890ab on (nil);behind 0x1234567890ab 0 on 0x700000000000;mode 2;destroy 0x1234567890ab;mode 0;"
    "mode 2;begin 0x700000000000 2;recorded 0x700000000000;make 0;upload on 0x700000000000;mode 0;drop;"
    "launch on (nil);hold 400000000050 4294967295 0 on 0x700000000000;launched;mode 2;drop made;mode 0;"
    "copy 400000000010 400000000040 8589934592 on 0x700000000000;"
    "rows 2 400000000030 +8589934600 2 400000000040 +48, 7 x 32 at 0 0 0 0, (nil) (nil) (nil) (nil) on 0x700000000000;"
    "copy 400000000010 400000001040 8589934592 on 0x700000000000;"
    "rows 2 400000000030 +8589934600 2 400000001040 +48, 7 x 32 at 0 0 0 0, (nil) (nil) (nil) (nil) on 0x700000000000;"
)


def main() -> None:
    told = (ctypes.c_char * (1 << 20)).in_dll(libcuda(), "stub_told")
    main_stream, side = Stream(0), Stream(0x7 << 44)
    linear, pitched = (
        CopyPiece(HIGH + 16, HIGH + 32, 8 << 30),
        CopyPiece(HIGH + 48, HIGH + 64, 32, 7, (8 << 30) + 8, 48),
    )
    enqueues = [
        Calls([(copy_call(linear), "a copy"), (copy_call(pitched), "rows")]),
        Calls([(hold_call(HIGH + 80, 2**32 - 1), "a count")]),
    ]
    one = chain(enqueues)
    assert isinstance(one, Calls) and len(one.calls) == 3
    one(side)
    event = Event()
    event.record(main_stream)
    event.hold(side)
    del event
    assert length(one) == 3 and length(chain([one, print])) == 4
    graph = Graph(enqueues[1], side)
    graph(main_stream)
    del graph
    brought = chain([Calls([(CopyOut(linear, PLACE), "rows of a call")]), Calls([(CopyOut(pitched, PLACE), "more")])])
    assert brings(brought) and not brings(one)
    for address in (HIGH, HIGH + 4096):
        brought(side, Carried((), [0, address]))
    assert told.value.decode() == EXPECTED, f"\n{told.value.decode()}\n{EXPECTED}"
    refused = Calls(
        [(hold_call(HIGH, 1), "a count"), (copy_call(CopyPiece(HIGH, HIGH, 13)), "rank 3: a copy of (13,)")]
    )
    told.value = b""
    try:
        Graph(refused, side)
    except RuntimeContractError:
        assert told.value.decode().endswith("recorded 0x700000000000;drop;mode 0;"), "the stream is left recording"
    else:
        raise AssertionError("a graph of what the driver refuses")
    between: list[Stream] = []
    try:
        chain([enqueues[1], lambda stream, _: between.append(stream), refused])(side)
    except RuntimeContractError as error:
        assert error.message == "rank 3: a copy of (13,): the CUDA driver answers CUDA_ERROR_INVALID_VALUE", (
            error.message
        )
    else:
        raise AssertionError("a call that the driver refused went by")
    assert between == [side]
    print("the driver understood every call")


if __name__ == "__main__":
    main()
