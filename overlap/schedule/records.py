"""What a simulation writes down, and what becomes of it: times of operations, ends, a timeline.

record    (rank, kind, node, start, end, the record that let it start): a copy, its flag, tiles, a wait or a sum
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter

from overlap.chunkplan.plan import Collective, CommPlan, OpId

from .machine import Machine
from .timeline import Event, Timeline
from .units import Units
from .wiring import Wiring
from .work import Work

COPY, FLAG, TILES, WAIT, SUM = range(5)
KINDS = ("copy", "flag", "tile-run", "wait", "sum")


@dataclass(frozen=True)
class Ends:
    """The times of a launch without its events: when all has ended, when the last copy has, each rank's tiles alone."""

    total: float
    copies: float
    compute: tuple[float, ...]


class Records(Wiring):
    """The graph of a launch on a machine, and the records of one run through it."""

    def __init__(self, plan: CommPlan, work: Sequence[Work], machine: Machine, stored: Collection[OpId] = ()) -> None:
        super().__init__(plan, work, stored)
        self.machine = machine
        self.records: list[tuple[int, int, int, float, float, int]] = []

    def _record(self, rank: int, kind: int, node: int, start: float, end: float, by: int) -> int:
        self.records.append((rank, kind, node, start, end, by))
        return len(self.records) - 1

    def landed(self) -> dict[OpId, float]:
        return {self.ids[node]: end for _, kind, node, _, end, _ in self.records if kind == FLAG}

    def ends(self) -> Ends:
        total = max((end for *_, end, _ in self.records), default=0.0)
        copies = max((end for _, kind, _, _, end, _ in self.records if kind == FLAG), default=0.0)
        return Ends(total, copies, self._compute())

    def _compute(self) -> tuple[float, ...]:
        return tuple(map(self._alone, self.work)) or (0.0,) * self.plan.world

    def _alone(self, work: Work) -> float:
        """The tiles of a rank if they never waited."""
        paces = {run.seconds for run in work.runs}
        if len(paces) <= 1:
            return -(-work.tiles // self.machine.units) * max(paces, default=0.0)
        units = Units(self.machine.units)
        return max(units.take(run.tiles, run.seconds, 0.0)[1] for run in work.runs)

    def timeline(self) -> Timeline:
        """Records as events, in order of start, and the way back from the last to end."""
        records = self.records
        events = self._events()
        path = []
        end_of = [record[4] for record in records]
        total = max(end_of, default=0.0)
        at = end_of.index(total) if records else -1
        while at >= 0:
            path.append(events[at])
            at = records[at][5]
        events.sort(key=itemgetter(3))
        wanted = {id(event) for event in path}
        critical = [place for place, event in enumerate(events) if id(event) in wanted]
        return Timeline(self.plan.world, tuple(events), tuple(critical), total, self._compute())

    def _events(self) -> list[Event]:
        """An event for each record. There may be a million: what many share is looked up, and made once."""
        names: dict[tuple[object, ...], str] = {}
        lanes: dict[int, str] = {}
        ops, ids = self.ops, self.ids
        events: list[Event] = []
        lane = chunk = label = ""
        source, op_id = -1, (-1, -1)
        for rank, kind, node, start, end, _ in self.records:
            if kind == COPY:
                op, op_id = ops[node], ids[node]
                box = op.dst.box
                key = (op.dst.tensor, box.lo, box.hi)
                chunk = names.get(key) or names.setdefault(key, str(op.dst))
                lane = lanes.get(op.channel) or lanes.setdefault(op.channel, f"copy {op.channel}")
                if isinstance(op, Collective):
                    source, label = -1, f"{op.kind} {chunk}"
                else:
                    source = op.src_rank
                    label = f"{op.direction} {chunk} {source} -> {op.dst_rank}"
                events.append(Event(rank, lane, "copy", start, end, label, chunk, op_id, source))
            elif kind == FLAG:
                # Recorded right behind its copy.
                events.append(Event(rank, lane, "flag", start, end, chunk, chunk, op_id, source))
            else:
                events.append(self._on_units(rank, kind, node, start, end))
        return events

    def _on_units(self, rank: int, kind: int, node: int, start: float, end: float) -> Event:
        if kind == SUM:
            summed = str(self.sums[node - self.sum_base][1])
            return Event(rank, "sums", "sum", start, end, f"sum of {summed}", summed)
        if node < 0:
            return Event(rank, "tiles", "wait", start, end, "for all ranks to be ready, and the launch")
        run = self.work[rank].runs[node - self.rank_runs[rank]]
        label = f"for {run.chunk or run.label}" if kind == WAIT else run.label or f"{run.tiles} tiles of {run.chunk}"
        return Event(rank, "tiles", KINDS[kind], start, end, label, run.chunk, run.op, run.source)
