"""What each way to carry out a plan would take on a machine: the event model, told what is different about the way.

    lanes      copies by copy engine                 the machine as it is
    moves      programs of the launch move chunks    their rate by how many there are; so many units fewer compute
    shared     the programs that compute move them   the rate of all units, which compute nothing meanwhile
    stores     tiles are stored where they go        a tile takes longer by its bytes over the link; nothing is copied
    words      tiles are sent in words               by twice their bytes; nothing before the tiles, no launch behind them
    serial     the library's collective, then the kernel or before it
    around     the same with a kernel that reads or writes where the library does: what is communicated is copied besides

What is different is `carried`'s; operations of one plan may each go another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from overlap import settings
from overlap.chunkplan.plan import CommPlan
from overlap.errors import PlanError

from .carried import Way, WayOf, by_sums, carried
from .collective import library_seconds
from .early import can_be_early, in_rounds
from .events import ItemSize, simulate_ends
from .machine import Machine
from .tile_sums import adding_seconds, parts_chosen
from .work import TileRun, Work, cut_across, work_per_chunk

AROUND_COPIES = 2
"""How often what is communicated is copied for a library's collective around a generated kernel: to where it is, and back."""
MARGIN = 0.03
"""Predictions that differ by less are the same: one run of a launch differs from the next by more."""


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
        in_place: tiles beside lanes access what is the rank's own in its caller's tensors (`Work.in_place`).
        block: elements of a tile of the one result that is communicated, along each of its dimensions; empty where tiles cannot
            add up what comes of it (`tile_sums`).
    """

    tiles: int
    flops: float
    moved: float
    dtype: str
    kinds: Mapping[str, tuple[str, float]]
    produced: tuple[str, ...] = ()
    inside: bool = False
    in_place: bool = False
    block: tuple[int, ...] = ()

    @property
    def waiting(self) -> bool:
        """Whether every tile waits for what others hold."""
        return self.inside or (not self.produced and any(kind == "all_to_all" for kind, _ in self.kinds.values()))

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

    def copies(self, machine: Machine) -> float:
        """What a generated kernel costs that has the library's collectives around it."""
        read_and_written = 2 * AROUND_COPIES * sum(size for _, size in self.kinds.values())
        return read_and_written / machine.memory


def way_seconds(
    way: Way, task: Task, plan: CommPlan, machine: Machine, *, itemsize: ItemSize, ways: WayOf | None = None
) -> float:
    """Seconds of one launch on the slowest rank.

    Args:
        ways: of single operations, where they do not all go by ``way``.

    Raises:
        PlanError: the machine does not say how fast programs copy, has no rate for the dtype, or not that many ranks.
    """
    machine.check_world(plan.world)
    if way.form == "serial" or plan.world == 1:
        return task.alone(machine) + task.library(plan.world, machine)
    if way.form == "around":
        return task.alone(machine) + task.library(plan.world, machine) + task.copies(machine)
    each = ways or (lambda op: way)
    in_tiles = tiles_adding(task, plan, machine, itemsize, way, each)
    if in_tiles is not None:
        return simulate_ends(plan, machine, in_tiles, itemsize=itemsize).total
    if ways is None and way.form == "lanes" and way.free:
        rounds = in_rounds(plan, task.produced)
        if can_be_early(rounds, task.produced):
            carries, machine = by_sums(rounds, machine), machine.with_free(way.free)
            work = work_per_chunk(rounds, task.tiles, task.tile_seconds(machine), produced=task.produced, free=way.free)
            work = _in_place(task, work)
            return simulate_ends(rounds, machine, work, itemsize=itemsize, carries=carries).total
    found = carried(plan, machine, each, itemsize=itemsize, waiting=task.waiting)
    work = found.slowed(_work(task, plan, found.machine))
    if task.in_place and all(each(op).form == "lanes" for _, op in plan.items()):
        work = _in_place(task, work)
    return simulate_ends(plan, found.machine, work, itemsize=itemsize, carries=found.carries).total


def tiles_adding(
    task: Task, plan: CommPlan, machine: Machine, itemsize: ItemSize, way: Way, ways: WayOf
) -> tuple[Work, ...] | None:
    """The work of ranks whose tiles add what comes of the part that they keep; None where sums do."""
    if not task.block or any(ways(op).form != "lanes" or ways(op).by for _, op in plan.items()):
        return None
    (made,) = task.produced
    said = settings.get("tile_sums", way.tile_sums)
    parts = parts_chosen(plan, made, task.block, task.tiles, machine.units, said)
    if parts is None:
        return None
    width = itemsize[made] if isinstance(itemsize, Mapping) else itemsize
    adding = adding_seconds(task.block, width, machine)
    return work_per_chunk(
        plan, task.tiles, task.tile_seconds(machine), produced=task.produced, parts=parts, adding=adding
    )


def _work(task: Task, plan: CommPlan, machine: Machine) -> tuple[Work, ...]:
    seconds = task.tile_seconds(machine)
    if task.inside:
        return in_parts(plan, task.tiles, seconds, machine.units)
    return work_per_chunk(plan, task.tiles, seconds, produced=task.produced)


def _in_place(task: Task, works: Sequence[Work]) -> tuple[Work, ...]:
    return tuple(replace(work, in_place=task.in_place) for work in works)


def in_parts(plan: CommPlan, tiles: int, seconds: float, units: int) -> tuple[Work, ...]:
    """Tiles that wait inside their loop: the first wave goes through the chunks as they land, all others find them there.

    Where pieces are cut along what tiles differ in, tiles wait before their loop instead.
    """
    if cut_across(plan):
        return work_per_chunk(plan, tiles, seconds)
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
