"""Timelines made by hand: an AllGather by pull on any number of ranks, whose tiles are faster than its copies or slower."""

from __future__ import annotations

from overlap.schedule.timeline import Event, Timeline


def gathering(world: int, *, copy: float = 30e-6, run: float = 20e-6, name: str = "a") -> Timeline:
    """Rank r pulls the shards of r+1, r+2, ... one behind the other; a run of tiles follows each, one on its own data."""
    events: list[Event] = []
    last: list[int] = []
    for rank in range(world):
        at = run
        events.append(Event(rank, "tiles", "tile-run", 0.0, at, "run 0"))
        for step in range(1, world):
            source = (rank + step) % world
            chunk, op = f"{name}[{source}]", (rank, step - 1)
            landed = step * copy
            events.append(Event(rank, "copy 0", "copy", landed - copy, landed, f"pull {chunk}", chunk, op, source))
            if landed > at:
                events.append(Event(rank, "tiles", "wait", at, landed, f"wait for {chunk}", chunk, op, source))
            events.append(
                Event(rank, "tiles", "flag", max(at, landed), max(at, landed), "flag seen", chunk, op, source)
            )
            at = max(at, landed) + run
            events.append(Event(rank, "tiles", "tile-run", at - run, at, f"run {step}", chunk, op, source))
        last.append(len(events) - 1)
    critical = [i for i, e in enumerate(events) if e.rank == 0 and e.kind == "copy"] + [last[0]]
    order = sorted(range(len(events)), key=lambda i: (events[i].start, i))
    where = {old: new for new, old in enumerate(order)}
    total = max(event.end for event in events)
    return Timeline(
        world, tuple(events[i] for i in order), tuple(where[i] for i in critical), total, (world * run,) * world
    )
