"""Records one call on all ranks: when its tiles waited, began and ended, beside what the event model predicts of it.

    every rank   warm calls | all meet | the call | stamp | all meet | what was written down goes to every rank
    beside it                          | a stream that is held until its flags rise |

The meeting ahead aligns the devices' timers and is the moment that times count from (`overlap.runtime.tracing.clocks`); on GPUs
the device sleeps before it, so that the host has enqueued all by then and what it takes is no part of what is seen.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from overlap import settings
from overlap.backends.ways import ways_of
from overlap.chunkplan.plan import OpId
from overlap.errors import PlanError, UsageError
from overlap.pipeline.timing import timeline_in_tiles
from overlap.runtime.instance import Instance
from overlap.runtime.instances import instances
from overlap.runtime.of_group import runtime_of
from overlap.runtime.protocol import Runtime
from overlap.runtime.tracing.clocks import Clock, Meeting, aligned
from overlap.runtime.tracing.recording import last_log
from overlap.runtime.tracing.watching import Watcher
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.measured import Measured
from overlap.schedule.model import RankSchedule
from overlap.schedule.recorded import RankRecord, tiles_of

from .groups import resolve_group

WARM = 5
"""Calls ahead of the one that is recorded."""
SLEEP_CYCLES = 10_000_000
"""How long the device sleeps ahead of the meeting: some milliseconds, in which the host enqueues the call."""


class _Told(NamedTuple):
    """What a rank tells the others of a call; ``loops`` over the parts, in a tile."""

    before: Clock
    after: Clock
    stamp: int
    words: bytes
    schedule: RankSchedule
    parts: RankSchedule | None
    loops: int
    names: tuple[str, ...]
    watched: dict[OpId, float]
    copied: dict[OpId, tuple[float, float]]


def record(
    call: Callable[[], Any],
    group: Any,
    *,
    title: str,
    dtype: str,
    tile: Callable[[Sequence[RankSchedule], Machine], float],
    machine: Machine | None = None,
    warm: int = WARM,
) -> Measured:
    """Records one call; collective.

    Args:
        call: a call of a fused operator, or a launch of a compiled kernel, on this rank; all ranks' are alike.
        title: for people.
        dtype: of the communicated tensors, by its short name.
        tile: what a tile is predicted to take, in seconds, from the schedules of all ranks.
        machine: whose times are predicted; by default the one that decides the order of chunks.
        warm: calls ahead of it.

    Returns:
        the same on every rank.

    Raises:
        UsageError: the call launches no fused kernel that records.
        DeadlineError: a rank does not come.
    """
    group = resolve_group(group)
    runtime = runtime_of(group)
    for _ in range(max(1, warm)):
        call()
    runtime.synchronize()
    cached = list(instances(runtime).values())
    log = last_log(cached[-1]) if cached else None
    if log is None:
        raise UsageError(
            f"{title}: nothing was recorded, the call launched no fused kernel that records",
            help="a call that goes through a collective has no tiles to show: name a backend, or take a larger shape; "
            "a module is compiled with --set trace=1",
        )
    instance: Instance = log.instance
    meeting = Meeting(runtime)
    log.clear()
    watcher = Watcher(instance)
    runtime.agree("the start of what is recorded", None)
    _sleep(runtime)
    meeting.meet(0)
    watcher.begin()
    call()
    meeting.stamp()
    watcher.look()
    meeting.meet(1)
    while runtime.device.type == "cuda" and not watcher.done:
        # What a rank waited for in vain is told instead of waited for again.
        instance.workspace.check()
        time.sleep(1e-3)
    runtime.synchronize()
    instance.workspace.check()
    told: list[_Told] = runtime.agree(
        "what was recorded",
        _Told(
            meeting.clock(0),
            meeting.clock(1),
            meeting.stamped(),
            array("q", log.read()).tobytes(),
            log.schedule,
            log.parts,
            instance.operator.logged,
            log.names,
            watcher.times(),
            watcher.copied(),
        ),
    )
    meeting.release()
    records = _records(told, 1e-9 if runtime.device.type == "cuda" else 1e-6)
    how, operator = instance.operator.realization, instance.operator
    on = machine or machine_for(runtime.world, instance.plan.mesh, how.machine)
    seconds = tile([record.schedule for record in records], on)
    predicted = partial(
        timeline_in_tiles,
        instance.plan,
        [record.schedule for record in records],
        [record.parts for record in records if record.parts is not None],
        on,
        dtype=dtype,
        tile=seconds,
        # Of inputs a call that is recorded stages what its rank holds.
        in_place=bool(operator.parameter("own")) and operator.comms[0].produced and settings.get("in_place"),
    )
    try:
        timeline = predicted(
            ways=ways_of(how.backend, [comm.tensor for comm in operator.comms if comm.produced], how.comm_sms)
        )
    except PlanError:
        timeline = predicted()  # nobody has timed programs of that machine
    return Measured(title, instance.plan, records, timeline, seconds, _device(runtime))


_LOCK = threading.Lock()
_INSIDE: list[str] = []
_BEFORE: list[str | None] = []


@contextmanager
def recording() -> Any:
    """Operators and compiled kernels that are called inside record their tiles (the setting ``trace``)."""
    import os

    name = settings.SETTINGS["trace"].variable
    with _LOCK:
        # Simulated ranks are threads of one process: the first sets it, the last one out puts it back.
        if not _INSIDE:
            _BEFORE[:] = [os.environ.get(name)]
            os.environ[name] = "1"
        _INSIDE.append(name)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            if not _INSIDE:
                before = _BEFORE.pop()
                if before is None:
                    del os.environ[name]
                else:
                    os.environ[name] = before


def _records(told: Sequence[_Told], rate: float) -> tuple[RankRecord, ...]:
    """``rate``: seconds of a count of the timers."""
    before, after = aligned([each.before for each in told]), aligned([each.after for each in told])
    found = []
    for rank, (each, start, end) in enumerate(zip(told, before, after, strict=True)):
        words = array("q")
        words.frombytes(each.words)
        tiles = sum(run.tiles for run in each.schedule.runs)
        parts = len(each.parts.runs) * each.loops if each.parts is not None else 0
        # Where the marks of streams are counted from.
        begun = each.before.met[-1] - start.zero
        found.append(
            RankRecord(
                rank,
                each.schedule,
                each.parts,
                each.names,
                tiles_of(words, tiles, parts, start.zero, rate, each.loops),
                (each.stamp - start.zero) * rate,
                {op: (begun + when) * rate for op, when in each.watched.items()},
                {op: ((begun + one) * rate, (begun + other) * rate) for op, (one, other) in each.copied.items()},
                max(start.exactly, end.exactly) * rate,
                each.before.step * rate,
            )
        )
    return tuple(found)


def _sleep(runtime: Runtime) -> None:
    if runtime.device.type == "cuda":
        torch.cuda._sleep(SLEEP_CYCLES)


def _device(runtime: Runtime) -> str:
    """What the times are of, for people."""
    if runtime.device.type == "cuda":
        return f"{torch.cuda.get_device_name(runtime.device)}, "
    return "simulated ranks, whose clock counts the simulator's steps as us; "
