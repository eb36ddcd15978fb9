"""Load and store by programs of the user's own launch that compute nothing: reserved multiprocessors.

    rank r   program 0 .. n-1   chunk 1, a part each | count, the last raises its flag | chunk 2 ...
             program n ..       tiles of the own shard | wait for flag 1 | tiles of chunk 1 ...

One launch, so nothing is queued behind a grid that fills the device, and nothing but the entry kernel and the credits is
enqueued beside it. The moving programs come first in launch order. A copy is worth about 25 GB/s a multiprocessor over
NVLink until the link is full.
"""

from __future__ import annotations

from .base import Backend

LDST_RESERVED = Backend(
    name="ldst_reserved",
    default_direction="push",
    directions=("pull", "push"),
    ordered=True,
    strided=True,
    reduce=False,
    comm_sms=True,
    writer="load/store",
    moves=("input",),
    reserved=True,
)
