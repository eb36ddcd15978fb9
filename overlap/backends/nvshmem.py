"""NVSHMEM's device put and get with signal, by programs of the user's own launch that compute nothing.

    rank r   program 0 .. n-1   chunk 1, a part each: put, quiet | count, the last: put_signal of its flag | chunk 2 ...
             program n ..       tiles of the own shard | wait for flag 1 | tiles of chunk 1 ...

For ranks that no pointer reaches; those of the rank's own node get their chunks by load and store from the same programs, in the
same launch. Where every rank is reached by pointer, all go through NVSHMEM, so that it can be measured beside the others. A flag
is an ordinary flag of the plan, in NVSHMEM's symmetric memory: a signal sets it, and kernels poll it as any other. Rows of a
strided chunk are put one by one: NVSHMEM's blocks copy contiguous bytes alone.
"""

from __future__ import annotations

from .base import Backend

NVSHMEM = Backend(
    name="nvshmem",
    default_direction="push",
    directions=("pull", "push"),
    ordered=True,
    strided=True,
    reduce=False,
    comm_sms=True,
    writer="nvshmem put",
    reserved=True,
    far=True,
)
