"""Load and store by the programs that compute, between and behind their tiles.

    result   rank r   tile of the chunk for p | store into r's slot on p | count in ... the last tile of the chunk raises its flag
    input    rank r   program p   tile | part p of chunk 1, count | tile | part p of chunk 2, count | wait for a flag | tile ...

No copy engine, no lane and no multiprocessor that computes nothing. Of a result no memory of the rank's own, but stores over the
link take the place of stores to memory in the tile's tail, and a tile on the edge of two chunks is stored once for each. What
is summed before it leaves (the second step of an all-reduce) goes by copy engine. Of an input every program that is resident
from the start makes a part of every move, through registers, so that the pipeline of its tiles keeps its stages and its shared
memory; few of them at a time where they have many tiles (`overlap.schedule.interleave`).
"""

from __future__ import annotations

from .base import Backend

LDST_INLINE = Backend(
    name="ldst_inline",
    default_direction="push",
    directions=("pull", "push"),
    ordered=True,
    strided=True,
    reduce=False,
    comm_sms=False,
    writer="load/store",
    inline=True,
)
