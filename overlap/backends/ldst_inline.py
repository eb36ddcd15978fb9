"""Plain stores by the program that made the tile, straight into the slot of the rank that it goes to.

    rank r   tile of the chunk for p | store into r's slot on p | count in ... the last tile of the chunk raises its flag on p

No copy, no lane and no memory of the rank's own for what leaves it, but stores over the link take the place of stores to
memory in the tile's tail, and a tile on the edge of two chunks is stored once for each. What is summed before it leaves (the
second step of an all-reduce) goes by copy engine.
"""

from __future__ import annotations

from .base import Backend

LDST_INLINE = Backend(
    name="ldst_inline",
    default_direction="push",
    directions=("push",),
    ordered=False,
    strided=True,
    reduce=False,
    comm_sms=False,
    writer="load/store",
    moves=("result",),
    inline=True,
)
