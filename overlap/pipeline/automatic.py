"""``--backend auto`` of a compilation: every backend that can is compiled for and planned, and the fastest by prediction taken.

A module is compiled for one backend, so the choice is for one world and one shape; calls of `overlap.compile` choose by theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from overlap.annotate.model import ProgramModel
from overlap.annotate.on import OnSpec
from overlap.backends import backends
from overlap.backends.capabilities import unasked
from overlap.backends.ways import way_of, ways_of
from overlap.chunkplan.collectives.text import KINDS
from overlap.errors import OverlapError, UsageError
from overlap.schedule.machine import machine_for
from overlap.schedule.op_ways import counted
from overlap.schedule.product import itemsize_of
from overlap.schedule.ways import Candidate, Task, best, listed, predicted, way_seconds

from .planning import Planned
from .request import Request, need_sizes
from .stages import Compilation, compile_source, planned


def choose_backend(
    request: Request, *, sizes: Mapping[str, int], dtype: str
) -> tuple[Compilation, tuple[Candidate, ...]]:
    """The compilation for the backend that is predicted to take least, and what was considered (`schedule.ways.listed`).

    Args:
        request: with ``auto`` as its backend, and a world.
        sizes: axis to global extent.
        dtype: of the tensors.

    Raises:
        UsageError: no world, or sizes that are not those of the host entry's axes.
        OverlapError: no backend can, and what the first says.
    """
    if request.world is None or not sizes:
        raise UsageError(
            "--backend auto chooses for one world and one shape",
            help='--world 4 --shape M=8192,N=28672,K=8192; or backend="auto" of overlap.compile, call by call',
        )
    world = request.world
    machine = machine_for(world, request.mesh, request.settings.get("machine"))
    itemsize = itemsize_of(dtype)
    made: dict[str, Compilation] = {}
    candidates: list[Candidate] = []
    first: OverlapError | None = None
    for name, found in backends.items():
        if found.far and machine.inside.pointer and world <= machine.node:
            candidates.append(Candidate(way_of(found, False), refused="pointers reach every peer of a node"))
            continue
        why = unasked(found)
        if why:
            candidates.append(Candidate(way_of(found, False), refused=why))
            continue
        try:
            compilation = made[name] = compile_source(replace(request, backend=name))
            need_sizes(compilation.program, dict(sizes))
            launch = planned(compilation, world=world, sizes=dict(sizes), itemsize=itemsize)
        except OverlapError as error:
            first = first or error
            candidates.append(Candidate(way_of(found, False), refused=error.message))
            continue
        task = task_of(compilation.program, compilation.ons, launch, sizes, dtype)
        produced = all(on.produced for on in compilation.ons)
        for way in counted([way_of(found, produced, compilation.realization.comm_sms)], machine, produced=produced):
            ways = None if way.free else ways_of(name, task.produced, way.programs)
            seconds = partial(way_seconds, way, task, launch.plan, machine, itemsize=itemsize, ways=ways)
            candidates.append(predicted(way, seconds))
    if first is not None and all(c.seconds is None for c in candidates):
        raise first
    chosen = best(candidates).way
    settings = dict(request.settings)
    if chosen.programs:
        settings["comm_sms"] = str(chosen.programs)
    if settings == request.settings:
        return made[chosen.name], listed(candidates)
    return compile_source(replace(request, backend=chosen.name, settings=settings)), listed(candidates)


def task_of(
    program: ProgramModel, ons: tuple[OnSpec, ...], launch: Planned, sizes: Mapping[str, int], dtype: str
) -> Task:
    """What the slowest rank computes of a launch, as `overlap.pipeline.timing.tile_seconds` takes a tile, and what moves."""
    assert program.host is not None
    itemsize = itemsize_of(dtype)
    tensors = (*program.host.inputs, *program.host.outputs)
    world = launch.plan.world
    steps = math.prod(sizes[axis.name] for axis in program.kernel.axes if axis.block is None)
    kinds = {}
    for on in ons:
        size = float(itemsize * math.prod(sizes[axis] for axis in program.host.tensor(on.tensor).dims))
        kinds[on.tensor] = (KINDS[on.kind], size / world if on.kind == "all_to_all" else size)
    return Task(
        tiles=max(math.prod(axis.count for axis in axes) for axes in launch.axes),
        flops=2.0 * math.prod(axis.block for axis in launch.axes[0]) * steps,
        moved=float(itemsize * sum(math.prod(sizes[axis] for axis in tensor.dims) for tensor in tensors)),
        dtype=dtype,
        kinds=kinds,
        produced=tuple(on.tensor for on in ons if on.produced),
        inside=bool(launch.parts) and not any(on.produced for on in ons),
    )
