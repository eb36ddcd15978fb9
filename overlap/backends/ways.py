"""Backends as the event model sees them: the ways that ``auto`` chooses among, and the machine of launches by one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from overlap.chunkplan.plan import P2P, CommOp, CommPlan
from overlap.errors import PlanError
from overlap.schedule.carried import Way, WayOf, carried
from overlap.schedule.machine import Machine
from overlap.schedule.operators import TENSOR
from overlap.schedule.ways import Candidate

from .base import Backend
from .capabilities import COLLECTIVE, SERIAL, Need
from .carriers import Carriers, form_of
from .registry import backends

SERIAL_WAY = Way(SERIAL, "serial")
LIBRARY_WAYS = {SERIAL: SERIAL_WAY, COLLECTIVE: Way(COLLECTIVE, "around")}
"""A library's collective and then a kernel, or before it: as it was, or the generated one."""
COPIED_BY = {"tma store": "tma", "nvshmem put": "nvshmem"}
"""By who writes, what programs copy by, where it is not load/store."""


def way_of(found: Backend, produced: bool, programs: int = 0, free: int = 0, tile_sums: bool | None = None) -> Way:
    """A backend as a way to move what a kernel makes (``produced``), or reads.

    Args:
        programs: of the launch that move chunks, where it takes any; 0: open.
        free: units that a kernel leaves to sums that are made while it runs.
        tile_sums: tiles add what comes of the part that their rank keeps; None: as the setting says.
    """
    if found.words:
        return Way(found.name, "words", 0, pushed=True)
    form = form_of(found, produced)
    counted = programs if found.comm_sms else 0
    pushed, by = found.default_direction == "push", COPIED_BY.get(found.writer, "")
    if form == "moves":
        return Way(found.name, "shared" if found.inline else "moves", counted, pushed, by)
    if not produced or form != "lanes":
        free, tile_sums = 0, None
    return Way(found.name, form, 0, pushed, by, free, tile_sums)


def way_named(name: str, produced: bool, programs: int = 0, free: int = 0, tile_sums: bool | None = None) -> Way:
    """`way_of` by a name, which may be that of what a library does (`LIBRARY_WAYS`)."""
    return LIBRARY_WAYS.get(name) or way_of(backends[name], produced, programs, free, tile_sums)


def machine_of(
    machine: Machine, plan: CommPlan, carriers: Carriers, produced: Collection[str], programs: int
) -> Machine:
    """The machine as launches of a kernel see it: where programs of theirs make every transfer, copies are as fast as those.

    The machine itself where a lane makes one, and where it does not say how fast programs copy.

    Args:
        produced: tensors of the plan that the kernel makes.
        programs: of the launch that move chunks; 0: the backend's own number.
    """
    transfers = {op_id for op_id, op in plan.items() if isinstance(op, P2P) and op.src_rank != op.dst_rank}
    if carriers.moving is None or not transfers or not transfers <= carriers.moved(plan, produced):
        return machine
    way = way_of(backends[carriers.moving], False, programs)
    try:
        found = carried(plan, machine, lambda op: way, itemsize=1)
    except PlanError:
        return machine
    carry = next(iter(found.carries.values()), None)
    if carry is None:
        return found.machine
    return replace(found.machine, inside=carry.over(machine.inside), contention=carry.contention)


def ways_of(chosen: str, produced: Collection[str], programs: int = 0) -> WayOf:
    """Who carries the operations of a launch out: the backend that each names, else ``chosen``.

    Args:
        produced: tensors of the plan that the kernel makes.
        programs: of the launch that move chunks; 0: the backend's own number.
    """
    known: dict[tuple[str, bool], Way] = {}

    def way(op: CommOp) -> Way:
        key = (op.backend or chosen, op.src.tensor in produced)
        if key not in known:
            known[key] = way_of(backends[key[0]], key[1], programs)
        return known[key]

    return way


def naming(produced: bool) -> Callable[[Way], WayOf]:
    """`ways_of` a prebuilt operator's plan, by the way of the operations that name no backend."""
    return lambda way: ways_of(way.name, (TENSOR,) if produced else (), way.programs)


def able_ways(
    need: Need, *, programs: int = 0, serial: bool = True, lacking: Callable[[str], str] = lambda name: ""
) -> tuple[tuple[Way, ...], tuple[Candidate, ...]]:
    """The ways that can serve a need, and the others as candidates refused, with why.

    Args:
        programs: that the caller wants to move chunks; backends that take none are no candidates then. 0: any number.
        serial: whether there is a library that carries out collectives.
        lacking: why a backend, by its name, cannot serve the call; nothing where it can.
    """
    able, refused = [], []
    for found in backends.values():
        why = need.lacking(found) or lacking(found.name)
        if not why and found.far and not need.far:
            why = "pointers reach every peer here"
        if not why and programs and not found.comm_sms:
            why = f"it takes no programs, and {programs} are wanted"
        way = way_of(found, need.moves == "result", programs)
        if why:
            refused.append(Candidate(way, refused=why))
        else:
            able.append(way)
    if serial:
        able.append(SERIAL_WAY)
    return tuple(able), tuple(refused)
