"""A plan alone on a machine: when it ends, what goes over which links, and which of them it waits for most.

plan kv_ring on 8 ranks of h100-nvlink, x[32768, 1024], 2 bytes an element
  ends         1.274 ms, tiles aside
  nvlink       469.8 MB, at most 58.7 MB out of a rank (0) and 58.7 MB into one (0)
  bottleneck   nvlink out of rank 0, busy 1.249 ms (98 %)
  chain        7 copies one behind the other
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from overlap.chunkplan.links import Links
from overlap.chunkplan.plan import Collective, CommPlan

from .collective import collective_bytes
from .events import ItemSize, simulate
from .machine import Machine
from .timeline import Event

LIBRARY = "library"
"""The class that collectives of a library count to: nobody says which links it takes."""
PORTS = 1e-3
"""Links that are busy less than this part of the time longer or shorter than each other are busy as long."""


@dataclass(frozen=True)
class LinkUse:
    """What goes over the links of one class.

    ``bytes``: of all ranks together; ``most_out`` and ``most_in``: (bytes, rank) of those that send and receive most.
    ``busy``: seconds for which the link or port that is busy longest carries something, ``where`` is which.
    """

    name: str
    bytes: float
    most_out: tuple[float, int]
    most_in: tuple[float, int]
    busy: float
    where: str

    def __str__(self) -> str:
        (out, sender), (into, receiver) = self.most_out, self.most_in
        return (
            f"{self.bytes / 1e6:.1f} MB, at most {out / 1e6:.1f} MB out of a rank ({sender}) "
            f"and {into / 1e6:.1f} MB into one ({receiver})"
        )


@dataclass(frozen=True)
class PlanTimes:
    """What a plan takes on a machine when no tiles hold it up.

    ``total`` is in seconds from the launch; ``uses`` are by class of links, the one with the busiest link first; ``chain``
    is the number of copies on the critical path, by class.
    """

    plan: CommPlan
    machine: str
    total: float
    uses: tuple[LinkUse, ...]
    chain: Mapping[str, int]

    @property
    def bottleneck(self) -> LinkUse | None:
        """The class with the link that is busy longest; None where nothing moves."""
        return self.uses[0] if self.uses and self.uses[0].busy else None

    def __str__(self) -> str:
        tensors = ", ".join(map(str, self.plan.tensors))
        lines = [
            f"plan {self.plan.name} on {self.plan.world} rank{'s' * (self.plan.world != 1)} of {self.machine}, {tensors}",
            f"  ends         {self.total * 1e3:10.3f} ms, tiles aside",
        ]
        lines += [f"  {use.name:<12} {use}" for use in self.uses]
        worst = self.bottleneck
        if worst is None:
            return "\n".join([*lines, "  nothing moves between ranks"])
        share = worst.busy / self.total
        lines.append(f"  bottleneck   {worst.where}, busy {worst.busy * 1e3:.3f} ms ({share:.0%})")
        copies = sum(self.chain.values())
        kinds = ", ".join(f"{count} over {name}" for name, count in sorted(self.chain.items()))
        lines.append(f"  chain        {copies} cop{'y' if copies == 1 else 'ies'} one behind the other, {kinds}")
        return "\n".join(lines)


def plan_times(plan: CommPlan, machine: Machine, *, itemsize: ItemSize = 2, links: Links | None = None) -> PlanTimes:
    """When a plan ends on a machine, and what its links carry.

    Args:
        plan: a plan that `verify_plan` accepts.
        itemsize: bytes of an element, of all tensors or of each by its name.
        links: which ranks are joined, by what, and which share ports, instead of the machine's own.

    Raises:
        PlanError: as `events.simulate`.
    """
    timeline = simulate(plan, machine, itemsize=itemsize, links=links)
    width = dict(itemsize) if isinstance(itemsize, Mapping) else {spec.name: float(itemsize) for spec in plan.tensors}
    out: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    into: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    busy: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    chain: dict[str, int] = defaultdict(int)
    critical = {id(timeline.events[place]) for place in timeline.critical}
    for event in timeline.events:
        if event.kind != "copy" or event.op is None:
            continue
        name, size, source, target, held = _carried(plan, event, machine, links, width)
        if not size:
            continue
        out[name][source] += size
        into[name][target] += size
        for resource in held:
            busy[name][resource] += event.seconds
        chain[name] += id(event) in critical
    uses = [_use(name, out[name], into[name], busy[name]) for name in out]
    uses.sort(key=lambda use: (-use.busy, use.name))
    return PlanTimes(plan, machine.name, timeline.total, tuple(uses), {n: count for n, count in chain.items() if count})


def _carried(
    plan: CommPlan, event: Event, machine: Machine, links: Links | None, width: Mapping[str, float]
) -> tuple[str, float, int, int, tuple[str, ...]]:
    """Class of the links, bytes, sender, receiver, and what the copy holds while it lasts."""
    assert event.op is not None
    op = plan.op(event.op)
    item = width[op.dst.tensor]
    if isinstance(op, Collective):
        whole = op.src if op.kind == "reduce_scatter" else op.dst
        size = collective_bytes(op.kind, len(op.ranks), whole.box.size * item)
        return LIBRARY, size, event.rank, event.rank, (f"the library on rank {event.rank}",)
    source, target = op.src_rank, op.dst_rank
    if source == target:
        return "", 0.0, source, target, ()
    link = machine.link(source, target) if links is None else links.classes[source, target]
    assert link is not None
    shared = not machine.own_wires if links is None else link.name in links.switched
    ports = (f"{link.name} out of rank {source}", f"{link.name} into rank {target}")
    return (
        link.name,
        op.dst.box.size * item,
        source,
        target,
        ports if shared else (f"{link.name} {source} -> {target}",),
    )


def _use(name: str, out: Mapping[int, float], into: Mapping[int, float], busy: Mapping[str, float]) -> LinkUse:
    def most(by_rank: Mapping[int, float]) -> tuple[float, int]:
        rank = min(by_rank, key=lambda rank: (-by_rank[rank], rank))
        return by_rank[rank], rank

    longest = max(busy.values())
    where = next(resource for resource, seconds in busy.items() if seconds >= longest * (1 - PORTS))
    return LinkUse(name, sum(out.values()), most(out), most(into), longest, where)
