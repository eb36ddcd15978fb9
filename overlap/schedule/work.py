"""What a rank computes, as the event model sees it: runs of tiles, each with what it waits for and what it lets go.

    product of M x N x K in tiles, chunks of a along M, rank 1 of 4
    runs     own rows | rows of rank 2, waits for (1, 0) | rows of rank 3, waits for (1, 1) | ...

From schedules (`work_of_schedules`), which know runs exactly, or from tiles and a plan alone (`work_per_chunk`), where each
chunk gets tiles by its size: hundreds of ranks, before any kernel is written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, OpId
from overlap.errors import ScheduleError

from .collector import no_collector
from .early import kept_chunks, places_of
from .model import RankSchedule, Run
from .pieces import Values, partial_sources
from .tile_sums import Parts


@dataclass(frozen=True, slots=True)
class TileRun:
    """``tiles`` tiles of ``seconds`` each, that start when all of ``waits`` have landed; ``feeds`` start when they are done.

    ``chunk``, ``op`` and ``source``: what of the plan completes them (or what they make), for people. ``keeps``: the rank's own
    chunks that are whole when they are done, of which sums are made while others run.
    """

    tiles: int
    seconds: float
    waits: tuple[OpId, ...] = ()
    feeds: tuple[OpId, ...] = ()
    label: str = ""
    chunk: str = ""
    op: OpId | None = None
    source: int = -1
    keeps: tuple[Chunk, ...] = ()


@dataclass(frozen=True)
class Work:
    """The runs of one rank, in their order, or with ``as_arrived`` each as soon as it can (the first of equals first).

    ``free``: units beside those that compute, for sums that are made meanwhile. ``in_place``: tiles store what stays of a result
    (`staying`) in the result itself, or read what their rank holds where its caller has it. ``finished``: tiles add what comes
    of what the rank keeps, so that no sum does (`tile_sums`).
    """

    runs: tuple[TileRun, ...]
    as_arrived: bool = False
    free: int = 0
    in_place: bool = False
    finished: bool = False

    @property
    def tiles(self) -> int:
        return sum(run.tiles for run in self.runs)


def work_of_schedules(
    plan: CommPlan,
    schedules: Sequence[RankSchedule],
    seconds: float,
    free: int = 0,
    in_place: bool = False,
    adding: float = 0.0,
) -> tuple[Work, ...]:
    """The runs of each rank's schedule.

    Args:
        seconds: a tile's.
        free: units left to sums that are made while tiles run.
        in_place: kernels can access what is the rank's own in its caller's tensors; the runs say which tiles do.
        adding: seconds that a tile takes longer for each summand that it adds (`tile_sums`); the runs say which tiles do.

    Raises:
        ScheduleError: schedules of another world.
    """
    if len(schedules) != plan.world:
        raise ScheduleError(f"schedules of {len(schedules)} ranks for a plan of {plan.world}")
    works = []
    made = {counter.chunk.tensor for schedule in schedules for counter in schedule.counters}
    for schedule in schedules:
        last = {raised.slot: i for i, run in enumerate(schedule.runs) for raised in run.raises}
        feeds: dict[int, list[OpId]] = defaultdict(list)
        chunks: dict[int, str] = {}
        keeps: dict[int, list[Chunk]] = defaultdict(list)
        for counter in schedule.counters:
            # A counter is whole when the last run that counts into it is done: runs are handed out in order.
            if counter.slot in last:
                feeds[last[counter.slot]] += counter.ops
                keeps[last[counter.slot]].append(counter.chunk)
                chunks[last[counter.slot]] = str(counter.chunk)
        runs = []
        summed = [_summed(plan, schedule.rank, run, made) for run in schedule.runs]
        for i, run in enumerate(schedule.runs):
            chunk = chunks.get(i, "") if run.chunk is None else str(plan.op(run.chunk).dst)
            waits = tuple(dict.fromkeys(wait.op for wait in run.waits))
            label = f"run {i}, {run.tiles} tiles" + (f" that add {summed[i]} to each" if summed[i] else "")
            kept, takes = tuple(keeps[i]) if free else (), seconds + adding * summed[i]
            runs.append(TileRun(run.tiles, takes, waits, tuple(feeds[i]), label, chunk, run.chunk, run.peer, kept))
        in_place_here = in_place and any(run.own for run in schedule.runs)
        works.append(Work(tuple(runs), free=free, in_place=in_place_here, finished=any(summed)))
    return tuple(works)


def _summed(plan: CommPlan, rank: int, run: Run, made: Collection[str]) -> int:
    """How many summands the tiles of a run add, each from another rank: of what tiles make, those alone wait for any."""
    last = None if run.chunk is None else plan.op(run.chunk)
    if not isinstance(last, P2P) or not last.reduce or last.dst.tensor not in made:
        return 0
    landed = (plan.op(op_id) for op_id in plan.arriving(rank))
    here = (op for op in landed if isinstance(op, P2P) and op.dst.tensor == last.dst.tensor)
    return len({op.src_rank for op in here if op.dst.box.overlaps(last.dst.box)})


def work_per_chunk(
    plan: CommPlan,
    tiles: int | Sequence[int],
    seconds: float,
    *,
    produced: Collection[str] = (),
    free: int = 0,
    parts: Sequence[Parts] | None = None,
    adding: float = 0.0,
) -> tuple[Work, ...]:
    """Every chunk gets tiles by its size: those that read what lands on a rank, as it arrives and behind the rank's own, or
    for the tensors in ``produced`` those that make what it sends, in the order of its list and before what it keeps.

    Args:
        tiles: of every rank, or one number a rank.
        seconds: a tile's.
        produced: tensors that tiles write; all others of the plan are read.
        free: units left to sums that are made while tiles run, of a plan for which they can be (`early.can_be_early`).
        parts: by rank, what its tiles finish (`tile_sums.parts_added`); None: sums add.
        adding: seconds that such a tile takes longer for each summand.

    Raises:
        ScheduleError: numbers for another world.
    """
    counts = [tiles] * plan.world if isinstance(tiles, int) else list(tiles)
    if len(counts) != plan.world:
        raise ScheduleError(f"tiles of {len(counts)} ranks for a plan of {plan.world}")
    with no_collector():
        if parts is not None:
            made = frozenset(produced)
            return tuple(_makes(plan, r, counts[r], seconds, made, parts[r], adding) for r in range(plan.world))
        return _works(plan, counts, seconds, frozenset(produced), free)


def _works(
    plan: CommPlan, counts: Sequence[int], seconds: float, produced: frozenset[str], free: int
) -> tuple[Work, ...]:
    if any(spec.name in produced for spec in plan.tensors):
        if free:
            values = Values(plan)
            return tuple(
                _makes_in_rounds(plan, r, counts[r], seconds, produced, free, values) for r in range(plan.world)
            )
        return tuple(_makes(plan, rank, counts[rank], seconds, produced) for rank in range(plan.world))
    landing: list[list[OpId]] = [[] for _ in range(plan.world)]
    kept = [_kept(plan, rank) for rank in range(plan.world)]
    for op_id, op in plan.items():
        rank = op_id[0] if isinstance(op, Collective) else op.dst_rank
        ends = kept[rank]
        if ends is None or any(op.dst.tensor == c.tensor and op.dst.box.overlaps(c.box) for c in ends):
            landing[rank].append(op_id)
    known: dict[object, tuple[int, str]] = {}
    return tuple(_reads(plan, rank, landing[rank], counts[rank], seconds, known) for rank in range(plan.world))


def _kept(plan: CommPlan, rank: int) -> tuple[Chunk, ...] | None:
    """What the rank ends with, where that is not everything: what is only passed on is not read."""
    after = plan.after[rank]
    whole = sum(math.prod(spec.shape) for spec in plan.tensors)
    return None if not after or sum(chunk.box.size for chunk in after) >= whole else after


def _shares(sizes: Sequence[int], tiles: int, *, early: bool) -> list[int]:
    """``tiles`` shared out by size, none lost to rounding.

    A tile of several chunks counts to the last of them (it reads them all), or with ``early`` to the first (it makes
    part of them all). Of nothing but empty chunks the first gets everything.
    """
    whole = sum(sizes)
    given, done = [], 0
    reached = 0
    for size in sizes:
        reached += size
        upto = tiles * reached // whole if whole else tiles
        if early and whole:
            upto = -(-tiles * reached // whole)
        given.append(upto - done)
        done = upto
    return given


def _reads(
    plan: CommPlan, rank: int, landing: Sequence[OpId], tiles: int, seconds: float, known: dict[object, tuple[int, str]]
) -> Work:
    """``known``: size and name of boxes that other ranks' runs have asked for."""
    ops = [plan.ops[owner][index] for owner, index in landing]
    along = _across(plan, rank, landing)
    if along is not None:
        return _reads_across(plan, rank, along, landing, tiles, seconds)
    chunks = []
    for op in ops:
        key = (op.dst.tensor, op.dst.box.lo, op.dst.box.hi)
        chunks.append(known.get(key) or known.setdefault(key, (op.dst.box.size, str(op.dst))))
    own = sum(chunk.box.size for chunk in plan.before[rank])
    first, *rest = _shares([own, *(size for size, _ in chunks)], tiles, early=False)
    runs = [TileRun(first, seconds, label="own")] if first else []
    for op_id, op, (_, name), share in zip(landing, ops, chunks, rest, strict=True):
        if share:
            source = -1 if isinstance(op, Collective) else op.src_rank
            runs.append(TileRun(share, seconds, (op_id,), (), "", name, op_id, source))
    return Work(tuple(runs), as_arrived=True)


def cut_across(plan: CommPlan) -> bool:
    """Whether tiles that read all of what shards are cut in wait for parts, along what they differ in."""
    for op_id, op in plan.items():
        if not isinstance(op, Collective) and not op.dst.box.empty:
            return _across(plan, op.dst_rank, (op_id,)) is not None
    return False


def _across(plan: CommPlan, rank: int, landing: Sequence[OpId]) -> int | None:
    """The dimension along which tiles differ that read all of that in which shards are cut; None where they read none such.

    Of an exchange it is the one of which the rank ends with a part, having had another one's; of a gather that in which
    parts of what arrives are narrower than the shard that the rank has.
    """
    if len(plan.before[rank]) != 1 or len(plan.after[rank]) != 1 or plan.world == 1:
        return None
    (before,), (after,) = plan.before[rank], plan.after[rank]
    if before.tensor != after.tensor:
        return None
    pairs = list(zip(before.box.shape, after.box.shape, strict=True))
    if not any(had < has for had, has in pairs):
        return None
    narrower = [dim for dim, (had, has) in enumerate(pairs) if has < had]
    if narrower:
        return narrower[0]
    arrived = next((plan.op(op_id).dst.box for op_id in landing if not plan.op(op_id).dst.box.empty), None)
    if arrived is None:
        return None
    cut = [dim for dim, (had, has) in enumerate(pairs) if arrived.shape[dim] < had == has]
    return cut[0] if cut else None


def _reads_across(plan: CommPlan, rank: int, dim: int, landing: Sequence[OpId], tiles: int, seconds: float) -> Work:
    """Tiles that need a part of every rank's piece: those between two cuts along ``dim`` wait for all that lands there."""
    held = plan.after[rank][0].box
    spans = {op_id: plan.ops[op_id[0]][op_id[1]].dst.box for op_id in landing}
    cuts = {held.lo[dim], held.hi[dim]}
    for box in spans.values():
        cuts |= {box.lo[dim], box.hi[dim]}
    points = sorted(cut for cut in cuts if held.lo[dim] <= cut <= held.hi[dim])
    between = list(zip(points, points[1:], strict=False))
    runs = []
    for (low, high), share in zip(between, _shares([b - a for a, b in between], tiles, early=False), strict=True):
        waits = tuple(
            op_id for op_id, box in spans.items() if not box.empty and box.lo[dim] < high and low < box.hi[dim]
        )
        if share:
            name = str(Chunk(plan.after[rank][0].tensor, held.with_interval(dim, low, high)))
            runs.append(TileRun(share, seconds, waits, (), "", name, waits[-1] if waits else None))
    return Work(tuple(runs), as_arrived=True)


def _makes(
    plan: CommPlan,
    rank: int,
    tiles: int,
    seconds: float,
    produced: frozenset[str],
    parts: Parts | None = None,
    adding: float = 0.0,
) -> Work:
    """``parts``: of what the rank keeps, that its tiles finish."""
    sends: dict[object, list[OpId]] = defaultdict(list)
    for index, op in enumerate(plan.ops[rank]):
        if op.src.tensor in produced and (isinstance(op, Collective) or op.src_rank == rank):
            sends[op.src].append((rank, index))
    sizes = [plan.op(ops[0]).src.box.size for ops in sends.values()]
    held = sum(chunk.box.size for chunk in plan.before[rank] if chunk.tensor in produced)
    ends = [chunk.box.size for chunk, _ in parts or ()]
    left = max(0, held - sum(sizes) - sum(ends))
    shares = _shares([*sizes, *ends, *([left] if left or not ends else [])], tiles, early=True)
    runs: list[TileRun] = []
    for (chunk, ops), share in zip(sends.items(), shares, strict=False):
        if share or not runs:
            runs.append(TileRun(share, seconds, (), tuple(ops), f"makes {chunk}", str(chunk), ops[0]))
        else:
            # Made by tiles of the run before it.
            runs[-1] = replace(runs[-1], feeds=runs[-1].feeds + tuple(ops))
    for (chunk, landed), share in zip(parts or (), shares[len(sizes) :], strict=False):
        if share:
            takes, last = seconds + adding * len(landed), landed[-1] if landed else None
            source = -1 if last is None else last[0]
            runs.append(TileRun(share, takes, landed, (), f"adds up {chunk}", str(chunk), last, source))
    if shares[-1] and len(shares) > len(sizes) + len(ends):
        runs.append(TileRun(shares[-1], seconds, label="kept"))
    return Work(tuple(runs), finished=parts is not None)


def _makes_in_rounds(
    plan: CommPlan, rank: int, tiles: int, seconds: float, produced: frozenset[str], free: int, values: Values
) -> Work:
    """In the order in which a schedule has them (`depgraph.Made`): own chunks of early sums stand behind their rounds."""
    sent = partial_sources(plan, rank, produced, values)
    kept = kept_chunks(plan, rank, produced, values)
    places = places_of(plan, rank, kept, [op for _, ops in sent for op in ops])
    made: list[tuple[int, Chunk, tuple[OpId, ...]]] = [(2 * ops[0][1], chunk, ops) for chunk, ops in sent]
    made += [(place, chunk, ()) for (chunk, _), place in zip(kept, places, strict=True)]
    made.sort(key=lambda entry: entry[0])
    held = sum(chunk.box.size for chunk in plan.before[rank] if chunk.tensor in produced)
    sizes = [chunk.box.size for _, chunk, _ in made]
    shares = _shares([*sizes, max(0, held - sum(sizes))], tiles, early=True)
    runs: list[TileRun] = []
    for (_, chunk, ops), share in zip(made, shares, strict=False):
        if share or not runs:
            first = ops[0] if ops else None
            runs.append(TileRun(share, seconds, (), ops, f"makes {chunk}", str(chunk), first, keeps=(chunk,)))
        else:
            # Made by tiles of the run before it.
            runs[-1] = replace(runs[-1], feeds=runs[-1].feeds + ops, keeps=(*runs[-1].keeps, chunk))
    if shares[-1]:
        runs.append(TileRun(shares[-1], seconds, label="kept"))
    return Work(tuple(runs), free=free)
