"""A communication library on simulated ranks: a collective is one operation of every rank's stream, and ends on none of them
before all have come to it.

    rank 0   ... | come | read what each other rank brought | read by all | ...
    rank 1   ......... | come | read ...                     | read by all | ...

What the ranks' streams did before is seen by all of them behind it, where a library may let a rank go on as soon as its own
part is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from overlap.chunkplan.order import collective_groups
from overlap.chunkplan.plan import CommPlan
from overlap.runtime.group.library import Boxed

from .clocks import Clock
from .engine import NOWHERE, Stream, fill_operation

if TYPE_CHECKING:
    from .world import World


class Meeting:
    """Who has come to one call of the library, with what, and who has read all that it takes of the others'."""

    def __init__(self) -> None:
        self.come: dict[int, tuple[Boxed, Clock]] = {}
        self.read: dict[int, Clock] = {}


def collective_operation(
    world: World, rank: int, number: int, plan: CommPlan, source: Boxed, target: Boxed
) -> Callable[[Stream], None]:
    """Carries out ``rank``'s part of all collectives of ``plan``, none of which reads what another one writes.

    Args:
        number: of the call, counted on every rank.
        source, target: what they read and write here.
    """

    calls = collective_groups(plan)

    def run(stream: Stream) -> None:
        meeting = world.library.setdefault(number, Meeting())
        meeting.come[rank] = (source, dict(stream.agent.clock))
        _meet(world, stream, {r: clock for r, (_, clock) in meeting.come.items()}, lambda: meeting.come, "to come to")
        for _, clock in meeting.come.values():
            stream.agent.see(clock)
        for members in calls:
            at = {member[0]: plan.op(member) for member in members}
            op = at.get(rank)
            parts = {}
            for other, given in at.items() if op is not None else ():
                assert op is not None
                brought = meeting.come[other][0]
                box = op.dst.box if op.reduce is not None else given.src.box.intersect(op.dst.box)
                if not box.empty:
                    parts[other] = (box, _seen(world, stream, brought.view(box)))
            if op is not None and op.reduce is not None and parts:
                box, first = next(iter(parts.values()))
                wide = torch.float64 if first.dtype == torch.float64 else torch.float32
                total = sum(value.to(wide) for _, value in parts.values())
                assert isinstance(total, torch.Tensor)
                fill_operation(world, target.view(box), total.to(first.dtype), rank)(stream)
            else:
                for box, value in parts.values():
                    fill_operation(world, target.view(box), value, rank)(stream)
        stream.agent.tick()
        meeting.read[rank] = dict(stream.agent.clock)
        _meet(world, stream, meeting.read, lambda: meeting.read, "to be done with")
        for clock in meeting.read.values():
            stream.agent.see(clock)

    return run


def _meet(world: World, stream: Stream, there: object, who: Callable[[], object], what: str) -> None:
    world.scheduler.progress = True
    world.events_changed.notify()
    world.events_changed.wait(lambda: len(who()) == world.size, f"all ranks {what} a collective")  # type: ignore[arg-type]


def _seen(world: World, stream: Stream, view: torch.Tensor) -> torch.Tensor:
    """What a view holds now; the read is checked like any other."""
    buffer = world.memory.of(view)
    if buffer is not None:
        places = world.memory.offsets(view)
        access = world.shadow.access(stream.agent, "reads for a collective", NOWHERE)
        world.shadow.read(buffer, buffer.granules(places, view.element_size()), access)
    return view.clone()
