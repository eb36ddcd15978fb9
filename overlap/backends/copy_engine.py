"""The copy engine: chunks move by asynchronous peer copies on a side stream, no multiprocessor taken.

    main   entry | ------- kernel: run 0 | wait flag 1 | run 1 | wait flag 2 | run 2 ------- | join
    side         \\ copy 1 | flag 1 | copy 2 | flag 2 | ... | credits ______________________/

A flag is an 8-byte copy of the device-held epoch word behind the chunk on the same stream, always
between two devices: a local device-to-device copy runs as a kernel and starves behind a spinning grid.
The launch protocol itself is data, `overlap.schedule.steps`.
"""

from __future__ import annotations

from .base import Backend

COPY_ENGINE = Backend(
    name="copy_engine",
    default_direction="pull",
    directions=("pull", "push"),
    ordered=True,
    strided=True,
    reduce=False,
    comm_sms=False,
    writer="copy engine",
)
