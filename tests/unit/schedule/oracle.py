"""What a schedule must be, element by element and tick by tick, with no code taken from `overlap.schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

from overlap.chunkplan.plan import CommPlan, OpId
from overlap.schedule.machine import Machine, load_machine
from overlap.schedule.model import AxisTiles, RankSchedule


@cache
def elements(axis: AxisTiles, tile: int, wraps: bool) -> frozenset[int]:
    """Indices that a tile reads along the dimension its axis spans."""
    raw = range(tile * axis.block, (tile + 1) * axis.block)
    return frozenset(i % axis.extent for i in raw) if wraps else frozenset(i for i in raw if i < axis.extent)


def reads_box(read, axes: tuple[AxisTiles, ...], tile: tuple[int, ...], lo, hi, window=None) -> bool:
    """Whether a tile reads (or writes) an element of the box; tiles count from where the window begins."""
    start = window.lo if window else (0,) * len(lo)
    size = window.shape if window else hi
    lo, hi = ([max(0, min(n, x - low)) for x, low, n in zip(at, start, size, strict=True)] for at in (lo, hi))
    by_name = {axis.name: (axis, t) for axis, t in zip(axes, tile, strict=True)}
    for d, name in enumerate(read.axes):
        if name is None:
            if lo[d] == hi[d]:
                return False
            continue
        axis, t = by_name[name]
        if not any(lo[d] <= i < hi[d] for i in elements(axis, t, getattr(read, "wraps", {d: False})[d])):
            return False
    return True


def needed(plan: CommPlan, reads, axes, rank: int, tile: tuple[int, ...], windows=None) -> set[OpId]:
    """Operations whose result a tile of ``rank`` reads."""
    found = set()
    for owner, ops in enumerate(plan.ops):
        for index, op in enumerate(ops):
            if op.dst_rank != rank:
                continue
            for read in reads:
                if read.tensor == op.dst.tensor and reads_box(
                    read, axes, tile, op.dst.box.lo, op.dst.box.hi, (windows or {}).get(read.tensor)
                ):
                    found.add((owner, index))
    return found


def arrivals(plan: CommPlan, machine: Machine | None = None, itemsize: int = 2) -> dict[OpId, int]:
    """The tick at which the flag of each operation is up, tick by tick: one copy at a time out of a rank and into a rank,
    over each class of links; of those that ask at one tick the first in the plan goes first. Sums are made when
    their parts are there, one at a time on a rank.
    """
    machine = machine or load_machine("h100-nvlink")
    start = whole(machine.entry + staging(plan, machine, itemsize))
    waiting = {op_id: set(op.depends) for op_id, op in plan.items()}
    for rank, ops in enumerate(plan.ops):
        last: dict[int, OpId] = {}
        for index, op in enumerate(ops):
            if op.channel in last:
                waiting[rank, index].add(last[op.channel])
            last[op.channel] = (rank, index)
            parts = {d for d in op.depends if plan.op(d).dst_rank == op.src_rank and plan.op(d).reduce}
            if parts:
                waiting[rank, index].add((op.src_rank, op.src))
                waiting.setdefault((op.src_rank, op.src), parts)
    sent_on = {part for node, parts in waiting.items() if not isinstance(node[1], int) for part in parts}
    for rank in range(plan.world):
        # What is not sent on is added at the end, all of it together.
        last_ones = {o for o, op in plan.items() if op.reduce and op.dst_rank == rank and o not in sent_on}
        if last_ones:
            waiting[rank, "end"] = last_ones
    free: dict[tuple, int] = {}
    done: dict[tuple, int] = {}
    while waiting:
        asking = {}
        for node, behind in waiting.items():
            if behind <= done.keys():
                at = max((done[b] for b in behind), default=start)
                is_sum = not isinstance(node[1], int)
                turn = max(b for b in behind if done[b] == at) if is_sum else node
                asking[node] = (at, not is_sum, turn)
        assert asking, "the plan of this test is cyclic"
        node = min(asking, key=asking.__getitem__)
        ends = asking[node][0]
        parts = waiting.pop(node)
        if not isinstance(node[1], int):
            if node[1] == "end":
                boxes = [plan.op(part).dst.box for part in parts]
                size = (sum(box.size for box in boxes) + 2 * sum(box.size for box in set(boxes))) * itemsize
            else:
                size = node[1].box.size * (len(parts) + 2) * itemsize
            adder = ("sum", node[0])
            done[node] = free[adder] = max(ends, free.get(adder, 0)) + whole(machine.kernel + size / machine.memory)
            continue
        op, size = plan.op(node), plan.op(node).dst.box.size * itemsize
        if size and op.src_rank != op.dst_rank:
            link = machine.inside if op.src_rank // machine.node == op.dst_rank // machine.node else machine.between
            ports = [(link.name, "out", op.src_rank), (link.name, "in", op.dst_rank)]
            ends = max(ends, *(free.get(port, 0) for port in ports)) + whole(link.latency_s + size / link.bytes_per_s)
            free.update(dict.fromkeys(ports, ends))
        done[node] = ends + whole(machine.flag)
    return {node: at for node, at in done.items() if isinstance(node[1], int)}


def whole(seconds: float) -> int:
    return round(seconds * 2**44)


def staging(plan: CommPlan, machine: Machine, itemsize: int) -> float:
    """What every rank copies first where peers are to read it."""
    if not any(op.direction == "pull" for _, op in plan.items()):
        return 0.0
    return 2 * max(sum(chunk.box.size for chunk in held) for held in plan.before) * itemsize / machine.memory


def past(plan: CommPlan) -> dict[OpId, set[OpId]]:
    """All that happens before each operation."""

    @cache
    def of(op_id: OpId) -> frozenset[OpId]:
        rank, index = op_id
        direct = set(plan.op(op_id).depends)
        direct |= {(rank, i) for i in range(index) if plan.ops[rank][i].channel == plan.op(op_id).channel}
        return frozenset(direct.union(*(of(d) for d in direct)))

    return {(r, i): set(of((r, i))) for r, ops in enumerate(plan.ops) for i in range(len(ops))}


def tiles_of(run) -> list[tuple[int, ...]]:
    return list(product(*(range(lo, lo + n) for lo, n in zip(run.origin, run.counts, strict=True))))


def value(plan: CommPlan, rank: int, tensor: str, element: tuple[int, ...], happened, before) -> tuple:
    """What an element is worth on a rank when the operations ``happened`` have: own parts, as (rank, path) pairs.

    A path names the operations that a part came through. Straight from the rule: the own part, then in any order that
    ``before`` allows each operation that lands, which adds what its source is worth to it or puts it in its place.
    """
    worth = tuple((rank, ()) for chunk in plan.before[rank] if chunk.tensor == tensor and inside(chunk.box, element))
    for op_id in sorted(happened, key=lambda op_id: (len(before[op_id]), op_id)):
        op = plan.op(op_id)
        if op.dst_rank == rank and op.dst.tensor == tensor and inside(op.dst.box, element):
            brought = tuple(
                (origin, (*path, op_id))
                for origin, path in value(plan, op.src_rank, tensor, element, before[op_id], before)
            )
            worth = (*worth, *brought) if op.reduce else brought
    return worth


def inside(box, element: tuple[int, ...]) -> bool:
    return all(lo <= i < hi for lo, i, hi in zip(box.lo, element, box.hi, strict=True))


def points(box) -> list[tuple[int, ...]]:
    return list(product(*map(range, box.lo, box.hi)))


def sends_partial(plan: CommPlan, op_id: OpId, before) -> bool:
    """Whether all that an operation sends is what its own rank's kernel made."""
    op = plan.op(op_id)
    own = ((op.src_rank, ()),)
    return all(
        value(plan, op.src_rank, op.src.tensor, element, before[op_id], before) == own for element in points(op.src.box)
    )


def leaving(plan: CommPlan, writes, rank: int, before) -> dict:
    """Chunks that tiles of the rank make and operations send as they are: the operations of each, in list order."""
    produced = {write.tensor for write in writes}
    found: dict = {}
    for index, op in enumerate(plan.ops[rank]):
        if op.src.tensor in produced and sends_partial(plan, (rank, index), before):
            found.setdefault(op.src, []).append((rank, index))
    return found


def check(
    schedules: Sequence[RankSchedule], plan: CommPlan, reads, axes, *, ordered: bool = True, writes=(), windows=None
) -> None:
    """Asserts everything that the schedules of all ranks promise. ``axes`` and ``windows`` may differ by rank."""
    assert len(schedules) == plan.world
    before = past(plan)
    ticks = arrivals(plan)
    for rank, schedule in enumerate(schedules):
        own = axes if all(isinstance(axis, AxisTiles) for axis in axes) else axes[rank]
        seen = windows[rank] if windows else {}
        check_rank(schedule, plan, reads, own, rank, before, ticks, ordered, writes, seen)


def check_rank(
    schedule: RankSchedule,
    plan: CommPlan,
    reads,
    axes,
    rank: int,
    before,
    ticks,
    ordered: bool,
    writes=(),
    windows=None,
) -> None:
    assert (schedule.rank, schedule.world, schedule.axes) == (rank, plan.world, tuple(axes))

    def lateness(op: OpId) -> tuple[int, int, OpId]:
        return ticks[op], (plan.op(op).src_rank - rank) % plan.world, op

    grid = list(product(*(range(axis.count) for axis in axes)))
    order = [tile for run in schedule.runs for tile in tiles_of(run)]
    assert sorted(order) == grid, "the order is no permutation of the grid"
    assert [run.first for run in schedule.runs] == [
        sum(r.tiles for r in schedule.runs[:i]) for i in range(len(schedule.runs))
    ]

    landing = {(o, i) for o, ops in enumerate(plan.ops) for i, op in enumerate(ops) if op.dst_rank == rank}
    assert set(schedule.slots) == landing
    assert sorted(schedule.slots.values()) == list(range(len(landing)))

    chunks = leaving(plan, writes, rank, before)
    assert [(counter.chunk, list(counter.ops)) for counter in schedule.counters] == list(chunks.items())
    assert [counter.slot for counter in schedule.counters] == list(range(len(chunks)))

    def makes(tile: tuple[int, ...]) -> set[int]:
        return {
            slot
            for slot, chunk in enumerate(chunks)
            if any(
                write.tensor == chunk.tensor
                and reads_box(write, axes, tile, chunk.box.lo, chunk.box.hi, (windows or {}).get(chunk.tensor))
                for write in writes
            )
        }

    made = {tile: makes(tile) for tile in grid}
    for counter in schedule.counters:
        assert counter.target == sum(counter.slot in slots for slots in made.values()), "a target that is not reached"

    last_key = None
    for run in schedule.runs:
        assert all(wait.slot == schedule.slots[wait.op] and wait.count == 1 for wait in run.waits)
        wants = [needed(plan, reads, axes, rank, tile, windows) for tile in tiles_of(run)]
        for want in wants:
            assert (max(want, key=lateness) if want else None) == run.chunk, "not cut by last arrival"
        counts = [raised.slot for raised in run.raises]
        for tile in tiles_of(run):
            assert sorted(counts) == sorted(made[tile]), "a tile counts into chunks that it makes no part of, or not"
        assert all(raised.count == 1 for raised in run.raises)
        waited = [wait.op for wait in run.waits]

        def covered(waits: list[OpId], wants: list[set[OpId]] = wants) -> bool:
            seen = set(waits)
            if ordered:
                seen = seen.union(*(before[w] for w in waits))
            return all(want <= seen for want in wants)

        assert covered(waited), "a tile reads what its run does not wait for"
        for wait in waited:
            assert not covered([w for w in waited if w != wait]), "a wait that is not needed"
        arrival = (-1, 0, (0, 0)) if run.chunk is None else lateness(run.chunk)
        departs = min((i for slot in counts for _, i in schedule.counters[slot].ops), default=len(plan.ops[rank]))
        key = (departs, arrival)
        assert last_key is None or last_key <= key, "runs are not in order of departure, then of arrival"
        last_key = key

    for i, a in enumerate(schedule.runs):
        for b in schedule.runs[i + 1 :]:
            if (a.chunk, a.raises) == (b.chunk, b.raises):
                apart = [d for d in range(len(axes)) if (a.origin[d], a.counts[d]) != (b.origin[d], b.counts[d])]
                joins = len(apart) == 1 and (
                    a.origin[apart[0]] + a.counts[apart[0]] == b.origin[apart[0]]
                    or b.origin[apart[0]] + b.counts[apart[0]] == a.origin[apart[0]]
                )
                assert not joins, "two runs that are one box"
