"""Moves to and from ranks that no pointer reaches, in the table of `overlap.schedule.moves`.

A piece that NVSHMEM carries has a negative kind, which holds direction and number of the other rank, and there are rows in the
place of words, bytes in the place of elements. Both its addresses are of this rank's own memory. A flag on such a rank has in
its move's record, negative, the place in the table of a pair: the address that the word would have here, and the rank's number.
"""

from __future__ import annotations

LIBRARY = "nvshmem"
"""Name of NVSHMEM's device code, among the libraries that a kernel is linked with."""
BITCODE = "libnvshmem_device.bc"
PUT, GET = 0, 1
SIGNAL_WORDS = 2
F_FLAG, F_PE = range(SIGNAL_WORDS)
LANE_WORDS = 4
L_COUNTER, L_END, L_FLAG, L_PE = range(LANE_WORDS)
"""One operation by a kernel of its own: how many programs are done, where the pieces behind these words end, its flag's address
here, and the number of the rank whose flag that is, negative for this rank's own."""
CARRY_PROGRAMS = 8
"""Of them at most: few enough to find room beside a kernel's."""
PART_BYTES = 1 << 16
"""Bytes of a row that one call moves at most: enough for a network, and few enough that programs share a chunk."""


def kind_of(direction: int, pe: int) -> int:
    """The kind of a piece that is put to, or got from, the rank with NVSHMEM's number ``pe``."""
    return -1 - (2 * pe + direction)
