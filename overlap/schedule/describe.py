"""A rank's schedule as text, for `overlap explain`."""

from __future__ import annotations

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId

from .model import RankSchedule, Run


def describe(schedule: RankSchedule, plan: CommPlan) -> str:
    """Runs, waits and counters of one rank: a line a run, then one a counter, then the empty chunks."""
    grid = " x ".join(f"{axis.name} {axis.count}" for axis in schedule.axes)
    tiles = sum(run.tiles for run in schedule.runs)
    lines = [
        f"rank {schedule.rank} of {schedule.world}: {_counted(tiles, 'tile')} ({grid or 'no axes'}) in "
        f"{_counted(len(schedule.runs), 'run')}, {_counted(len(schedule.slots), 'flag')}"
        + (f", {_counted(len(schedule.counters), 'counter')}" if schedule.counters else "")
    ]
    produces = ("counts into",) if schedule.counters else ()
    rows: list[tuple[str, ...]] = [("run", "tiles", "box", "ready with", "waits for", *produces)]
    rows += [_row(i, run, schedule, plan) for i, run in enumerate(schedule.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        lines.append("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for counter in schedule.counters:
        sent = ", ".join(_sent(plan, op) for op in counter.ops) or "added up"
        lines.append(
            f"  counter {counter.slot}: {counter.chunk} is whole at {_counted(counter.target, 'tile')}; {sent}"
        )
    for op, slot in sorted(schedule.slots.items(), key=lambda item: item[1]):
        if plan.op(op).dst.box.empty:
            lines.append(f"  flag {slot} is of an empty chunk, raised all the same: {name_op(plan, op)}")
    if schedule.coordinates is not None:
        lines.append("  the kernel's own tile order is no bijection on some run, so the table lists every tile")
    return "\n".join(lines)


def _row(number: int, run: Run, schedule: RankSchedule, plan: CommPlan) -> tuple[str, ...]:
    box = " ".join(
        f"{axis.name}[{lo}:{lo + count}]" for axis, lo, count in zip(schedule.axes, run.origin, run.counts, strict=True)
    )
    if run.chunk is None:
        ready = "the launch" if schedule.counters else "own chunk"
    else:
        op = plan.op(run.chunk)
        how = f"{op.direction} from rank {op.src_rank}" if isinstance(op, P2P) else op.kind
        ready = f"{op.dst} ({how})"
    waits = ", ".join(f"flag {wait.slot}" + (f" x{wait.count}" if wait.count != 1 else "") for wait in run.waits)
    tiles = f"{run.first}..{run.first + run.tiles - 1}"
    if not schedule.counters:
        return str(number), tiles, box, ready, waits or "nothing"
    counters = ", ".join(f"counter {raised.slot}" for raised in run.raises)
    return str(number), tiles, box, ready, waits or "nothing", counters or "nothing sent"


def _sent(plan: CommPlan, op_id: OpId) -> str:
    op = plan.op(op_id)
    return f"sent to rank {op.dst_rank}" if isinstance(op, P2P) else op.kind


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
