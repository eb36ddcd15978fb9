"""TMA stores by the program that made the tile, straight into the slot of the rank that it goes to.

    rank r   tile 1 | store it into r's slot on p | tile 2 | tile 1 has landed: count it; store tile 2 | tile 3 ...

As `ldst_inline`, for kernels that store through descriptors. One descriptor reaches all places (`overlap.language.stores`), so
neither a place nor a tile costs one, and the tile loop may stay flattened with all its stages. A store has landed in the peer's
memory, and not only been read, before its tile is counted; where no tile waits for anything and the loop is not flattened it has
the next tile's time for it.
Of an input programs copy their parts as with `ldst_inline`, in small boxes, into shared memory and out of it by bulk copies in
assembly (`overlap.language.boxes`): Triton sees no descriptors, which it could not pipeline the tile loop around, and its own
buffers stay where they are. A function that is not inlined would keep the pipeline too, but until 3.8 Triton gives it shared
memory that the kernel's buffers are in (`overlap.build.callees`): tiles near a copy came out wrong on two H200s.
"""

from __future__ import annotations

from .base import Backend

TMA_INLINE = Backend(
    name="tma_inline",
    default_direction="push",
    directions=("pull", "push"),
    ordered=True,
    strided=True,
    reduce=False,
    comm_sms=False,
    writer="tma store",
    inline=True,
)
