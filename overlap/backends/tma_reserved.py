"""TMA by programs of the user's own launch that compute nothing: reserved multiprocessors that copy in boxes.

    rank r   program 0 .. n-1   chunk 1, every n-th box each | landed | count, the last raises its flag | chunk 2 ...
             program n ..       tiles of the own shard | wait for flag 1 | tiles of chunk 1 ...

As `ldst_reserved`, but a thread starts a box and the copy takes few registers of the kernel, so that its tiles keep theirs. Rows
that TMA does not take (a few bytes wide, or other than 16-byte aligned at their ends) go by load and store, in the same programs.
Eight programs reach 241 GB/s over NVLink by push and 173 by pull, sixteen fill it either way.
"""

from __future__ import annotations

from .base import Backend

TMA_RESERVED = Backend(
    name="tma_reserved",
    default_direction="push",
    directions=("pull", "push"),
    ordered=True,
    strided=True,
    reduce=False,
    comm_sms=True,
    writer="tma store",
    moves=("input",),
    reserved=True,
)
