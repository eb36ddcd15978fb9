"""What each way to carry out a plan would take on a machine: the event model, told what is different about the way.

    lanes      copies by copy engine                 the machine as it is
    moves      programs of the launch move chunks    their rate by how many there are; so many units fewer compute
    shared     the programs that compute move them   the rate of all units, which compute nothing meanwhile
    stores     tiles are stored where they go        a tile takes longer by its bytes over the link; nothing is copied
    serial     the library's collective, then the kernel or before it

How fast programs copy is the machine's to say (``programs:`` of its file, which ``overlap calibrate`` measures): of a machine
that does not, ways by programs are not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from overlap.chunkplan.plan import P2P, CommPlan
from overlap.errors import PlanError

from .collective import library_seconds
from .early import can_be_early, in_rounds
from .events import ItemSize, simulate_ends
from .machine import Machine
from .work import TileRun, Work, work_per_chunk

Form = Literal["lanes", "moves", "shared", "stores", "serial"]
SHARE = 8
"""Of the units, one in so many moves chunks, where nobody says how many."""
FEWEST_UNITS = 4
"""Moving programs take no more than one unit in so many."""
MARGIN = 0.03
"""Predictions that differ by less are the same: one run of a launch differs from the next by more."""


@dataclass(frozen=True)
class Way:
    """A way to carry out a plan: the backend's name, its form, how many programs move (``moves``; 0: an eighth), whether an
    input goes by whoever has it (``pushed``), whether programs copy by TMA, and how many units the kernel leaves to sums that are
    made while it runs (``free``, of ``lanes``; where they cannot be, sums follow it)."""

    name: str
    form: Form
    programs: int = 0
    pushed: bool = False
    tma: bool = False
    free: int = 0

    def __str__(self) -> str:
        if self.free:
            return f"{self.name} with {self.free} units for sums"
        return f"{self.name} with {self.programs} programs" if self.programs else self.name


LANES = Way("copy_engine", "lanes")


@dataclass(frozen=True)
class Task:
    """What one rank computes of a launch, as `work.Gemm` counts it, and what is communicated of it.

    Args:
        tiles: of the slowest rank.
        flops: of one tile; ``moved``: bytes that all of a rank's tiles read and write of memory.
        dtype: of the operands, for the machine's rate.
        kinds: by communicated tensor, the collective that does the same, and the bytes that it is asked for
            (`collective.library_seconds`).
        produced: communicated tensors that tiles make.
        inside: tiles wait inside their loop.
    """

    tiles: int
    flops: float
    moved: float
    dtype: str
    kinds: Mapping[str, tuple[str, float]]
    produced: tuple[str, ...] = ()
    inside: bool = False

    def tile_seconds(self, machine: Machine) -> float:
        """How long a unit works on a tile: its arithmetic, or its share of what goes through memory."""
        waves = max(1, -(-self.tiles // machine.units))
        return max(self.flops * machine.units / machine.rate(self.dtype), self.moved / machine.memory / waves)

    def alone(self, machine: Machine) -> float:
        """The kernel with nothing communicated."""
        return machine.kernel + -(-self.tiles // machine.units) * self.tile_seconds(machine)

    def library(self, world: int, machine: Machine) -> float:
        """The library's collectives, one behind the other."""
        return sum(library_seconds(kind, range(world), size, machine) for kind, size in self.kinds.values())


def way_seconds(way: Way, task: Task, plan: CommPlan, machine: Machine, *, itemsize: ItemSize) -> float:
    """Seconds of one launch on the slowest rank.

    Raises:
        PlanError: the machine does not say how fast programs copy, has no rate for the dtype, or not that many ranks.
    """
    machine.check_world(plan.world)
    if way.form == "serial" or plan.world == 1:
        return task.alone(machine) + task.library(plan.world, machine)
    if way.form == "stores":
        return _stored(way, task, plan, machine, itemsize)
    if way.form == "lanes" and way.free:
        rounds = in_rounds(plan, task.produced)
        if can_be_early(rounds, task.produced):
            machine = machine.with_free(way.free)
            work = work_per_chunk(rounds, task.tiles, task.tile_seconds(machine), produced=task.produced, free=way.free)
            return simulate_ends(rounds, machine, work, itemsize=itemsize).total
    if way.form != "lanes":
        machine = by_programs(way, plan, machine)
    return simulate_ends(plan, machine, _work(task, plan, machine), itemsize=itemsize).total


def frees_tried(machine: Machine, produced: bool, form: Form, split: object) -> tuple[int, ...]:
    """Numbers of units worth a prediction that are left to sums which are made while the kernel runs; 0: they follow it."""
    if not produced or form != "lanes" or split == 1:
        return (0,)
    return (0, *sorted({max(1, machine.units // share) for share in (32, 16)}))


def programs_tried(machine: Machine, direction: str, *, tma: bool = False) -> tuple[int, ...]:
    """Numbers of moving programs worth a prediction: those that were measured, as far as most units go on computing."""
    most = max(1, machine.units // FEWEST_UNITS)
    return tuple(count for count in sorted(_rates(machine, direction, tma)) if count <= most)


def _rates(machine: Machine, direction: str, tma: bool) -> Mapping[int, float]:
    """By the number of programs, how fast they copy; by TMA as by load/store where only that was measured."""
    plain = machine.programs.get(direction, {})
    return machine.programs.get(f"{direction}_tma", plain) if tma else plain


def rate_of_programs(machine: Machine, direction: str, count: int, *, tma: bool = False) -> float:
    """Bytes a second that so many programs copy, between what was measured; never more than the link carries.

    Raises:
        PlanError: nobody measured it.
    """
    known = sorted(_rates(machine, direction, tma).items())
    if not known:
        raise PlanError(
            f"machine {machine.name} does not say how fast programs copy",
            help="measure it: overlap calibrate writes a machine file, and the setting machine names it",
        )
    low = max((pair for pair in known if pair[0] <= count), default=(0, 0.0))
    high = min((pair for pair in known if pair[0] >= count), default=known[-1])
    share = 0.0 if high[0] <= low[0] else (count - low[0]) / (high[0] - low[0])
    rate = low[1] + share * (high[1] - low[1])
    return min(rate, machine.inside.bytes_per_s)


def by_programs(way: Way, plan: CommPlan, machine: Machine) -> Machine:
    """The machine whose links are as fast as programs are, without the units that these take.

    Raises:
        PlanError: the machine does not say how fast programs copy.
    """
    units = machine.units
    count = units if way.form == "shared" else way.programs or max(1, units // SHARE)
    rate = min(rate_of_programs(machine, direction, count, tma=way.tma) for direction in _directions(plan))
    # A move is no copy that the driver starts: what it costs besides its bytes is the flag.
    inside = replace(machine.inside, bytes_per_s=rate, latency_s=min(machine.inside.latency_s, machine.flag))
    if way.form == "shared":
        # Programs that move compute nothing meanwhile.
        return replace(machine, inside=inside, contention=1 + machine.contention)
    left = max(1, units - count)
    return replace(machine.scaled(compute=left / units), inside=inside, units=left)


def _stored(way: Way, task: Task, plan: CommPlan, machine: Machine, itemsize: ItemSize) -> float:
    """Tiles that take longer by what they store over the link, then whatever is sent of sums, by copy engine."""
    rate = rate_of_programs(machine, "push", machine.units, tma=way.tma)
    first = [op for _, op in plan.items() if not op.depends]
    later = [op for _, op in plan.items() if op.depends]
    stored, sent = (max(_leaving(ops, plan.world, itemsize), default=0.0) for ops in (first, later))
    arithmetic = _work(task, plan, machine)
    longer = stored / rate / max(1, task.tiles) * min(task.tiles, machine.units)
    slowed = tuple(
        Work(tuple(replace(run, seconds=run.seconds + longer) for run in own.runs), own.as_arrived)
        for own in arithmetic
    )
    inside = replace(machine.inside, bytes_per_s=1e18, latency_s=0.0)
    ends = simulate_ends(plan, replace(machine, inside=inside, contention=0.0), slowed, itemsize=itemsize).total
    return ends + (machine.inside.latency_s + sent / machine.inside.bytes_per_s if later else 0.0)


def _leaving(ops: Collection[object], world: int, itemsize: ItemSize) -> list[float]:
    """By rank, the bytes that leave it by these operations."""
    found = [0.0] * world
    for op in ops:
        if isinstance(op, P2P):
            width = itemsize.get(op.src.tensor, 0.0) if isinstance(itemsize, Mapping) else itemsize
            found[op.src_rank] += op.src.box.size * width
    return found


def _directions(plan: CommPlan) -> list[str]:
    found = {op.direction for _, op in plan.items() if isinstance(op, P2P) and op.direction != "local"}
    return sorted(found) or ["push"]


def _work(task: Task, plan: CommPlan, machine: Machine) -> tuple[Work, ...]:
    seconds = task.tile_seconds(machine)
    if task.inside:
        return in_parts(plan, task.tiles, seconds, machine.units)
    return work_per_chunk(plan, task.tiles, seconds, produced=task.produced)


def in_parts(plan: CommPlan, tiles: int, seconds: float, units: int) -> tuple[Work, ...]:
    """Tiles that wait inside their loop: the first wave goes through the chunks as they land, all others find them there."""
    chunks = work_per_chunk(plan, 1 << 20, seconds)
    first = min(tiles, units)
    works = []
    for work in chunks:
        runs = [
            TileRun(first, seconds * run.tiles / (1 << 20), run.waits, (), run.label, run.chunk, run.op, run.source)
            for run in work.runs
        ]
        if tiles > first:
            runs.append(TileRun(tiles - first, seconds, tuple(dict.fromkeys(w for run in runs for w in run.waits))))
        works.append(Work(tuple(runs), as_arrived=True))
    return tuple(works)


@dataclass(frozen=True)
class Candidate:
    """A way and what it is predicted to take, in seconds; or why it is none (``refused``)."""

    way: Way
    seconds: float | None = None
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.way} {1e3 * self.seconds:.3f} ms" if self.seconds is not None else f"{self.way}: {self.refused}"


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The first of those that are as fast as the fastest, to within `MARGIN`.

    Raises:
        PlanError: none is possible.
    """
    able = [c for c in candidates if c.seconds is not None]
    if not able:
        said = "; ".join(map(str, candidates)) or "there are none"
        raise PlanError(f"no way to carry this out can be predicted: {said}", help='name one: backend="copy_engine"')
    least = min(c.seconds or 0.0 for c in able)
    return next(c for c in able if (c.seconds or 0.0) <= least * (1 + MARGIN))


def predicted(way: Way, seconds: Callable[[], float]) -> Candidate:
    """The candidate of a way, refused where its prediction is."""
    try:
        return Candidate(way, seconds())
    except PlanError as error:
        return Candidate(way, refused=error.message)


def listed(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """One candidate a backend, of several numbers of programs the best: the fastest first, then those refused."""
    able = sorted((c for c in candidates if c.seconds is not None), key=lambda c: c.seconds or 0.0)
    shown: dict[str, Candidate] = {}
    for candidate in [*able, *(c for c in candidates if c.seconds is None)]:
        shown.setdefault(candidate.way.name, candidate)
    return tuple(shown.values())
