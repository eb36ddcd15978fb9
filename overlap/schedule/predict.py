"""Will overlap pay, before any code is written: an operator on so many ranks of a machine, by the event model.

    predict("ag_gemm", world=256, sizes={"M": 8192, "N": 28672, "K": 8192}, machine=load_machine("h100-nvlink-ib400"))

M, N and K are global, as in the tables of `bench`. `OPERATORS` says what of them a rank has, what moves, and by which plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.document import nearest
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, CommPlan, OpId, TensorSpec
from overlap.errors import UsageError

from .collective import library_seconds
from .events import Ends, simulate, simulate_ends
from .machine import Machine
from .timeline import Timeline
from .work import Gemm, TileRun, Work, best_blocks, itemsize_of, work_per_chunk

Sizes = Mapping[str, int]
AXES = ("M", "N", "K")
REACH = 64
"""Break-evens are looked for up to so many times the size given, and as far below it."""


@dataclass(frozen=True)
class Operator:
    """A product and what is communicated of it.

    Args:
        kind: the collective that overlap replaces.
        plan: the template on one node; on several of one size it is that of two levels, ``{kind}_2d``.
        moved: axes of the tensor that moves (``a`` is [M, K] and read, ``c`` [M, N] and written).
        divided: the axis of which each rank computes its part.
        dim, to_dim: the dimension of the tensor in which it is sharded, before and after an all-to-all.
        inside: chunks are waited for inside a tile's loop over K.
    """

    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
    plan: str
    moved: str
    divided: str
    dim: int = 0
    to_dim: int | None = None
    inside: bool = False

    @property
    def produced(self) -> bool:
        return self.moved == "MN"


OPERATORS: Mapping[str, Operator] = {
    "ag_gemm": Operator("all_gather", "all_gather_1d", "MK", "N"),
    "ag_gemm_k": Operator("all_gather", "all_gather_1d", "MK", "N", dim=1, inside=True),
    "gemm_rs": Operator("reduce_scatter", "reduce_scatter_1d", "MN", "K"),
    "gemm_ar": Operator("all_reduce", "all_reduce_two_shot", "MN", "K"),
    "a2a_gemm": Operator("all_to_all", "all_to_all_1d", "MK", "M", dim=1, to_dim=0, inside=True),
    "gemm_a2a": Operator("all_to_all", "all_to_all_1d", "MN", "M", dim=0, to_dim=1),
}


@dataclass(frozen=True)
class Prediction:
    """Times in seconds of one call on the slowest rank, and where overlap begins to pay.

    ``gemm``: the product alone; ``library``: the collective alone; ``serial``: one behind the other; ``fused``: overlapped;
    ``limit``: no order of things is faster (the longer of product and bytes). ``pays[axis]`` is the smallest size of an axis
    from which on ``fused`` beats ``serial``, the others as given, and ``hides[axis]`` the smallest at which the product is as
    long as the bytes take; None where no size within `REACH` does. ``plan`` is what moves the bytes.
    """

    op: str
    world: int
    sizes: Sizes
    machine: str
    plan: str
    gemm: float
    library: float
    fused: float
    limit: float
    sent: float
    pays: Mapping[str, int | None]
    hides: Mapping[str, int | None]

    @property
    def serial(self) -> float:
        return self.gemm + self.library

    @property
    def gain(self) -> float:
        """How many times faster than serial."""
        return self.serial / self.fused if self.fused else 1.0

    @property
    def ceiling(self) -> float:
        """The gain that nothing exceeds."""
        return self.serial / self.limit if self.limit else 1.0

    def __str__(self) -> str:
        shape = ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        if self.world == 1:
            verdict = "nothing moves on one rank"
        elif self.gain > 1:
            verdict = f"overlap pays: {self.gain:.2f} times as fast as serial"
        else:
            verdict = f"overlap does not pay: {self.gain:.2f} times as fast as serial"
        exposed = max(0.0, self.fused - self.gemm)
        lines = [
            f"{self.op} on {self.world} ranks of {self.machine}, {shape}",
            f"  product alone      {self.gemm * 1e3:10.3f} ms",
            f"  collective alone   {self.library * 1e3:10.3f} ms, {self.sent / 1e6:.1f} MB from each rank",
            f"  serial             {self.serial * 1e3:10.3f} ms",
            f"  overlapped         {self.fused * 1e3:10.3f} ms, {exposed * 1e3:.3f} ms exposed, by {self.plan}",
            f"  limit              {self.limit * 1e3:10.3f} ms, a ceiling of {self.ceiling:.2f} times serial",
            verdict,
        ]
        for axis, size in self.pays.items():
            lines.append(
                f"  {axis}: pays {self._from(axis, size)}, hides communication {self._from(axis, self.hides[axis])}"
            )
        return "\n".join(lines)

    def _from(self, axis: str, size: int | None) -> str:
        if size is None:
            return f"not up to {self.sizes[axis] * REACH}"
        return f"from {size} or less" if size <= max(1, self.sizes[axis] // REACH) else f"from about {size}"


def predict(
    op: str, *, world: int, sizes: Sizes, machine: Machine, dtype: str = "bf16", split: int = 1, break_even: bool = True
) -> Prediction:
    """What an operator takes on a machine, serial and overlapped.

    Args:
        sizes: M, N and K, global.
        split: chunks that each shard is cut into.
        break_even: also look for the sizes from which on it pays (several simulations).

    Raises:
        UsageError: an unknown operator, or sizes that are not M, N and K.
        PlanError: the machine has not that many ranks, or no rate for the dtype.
    """
    case = _case(op, world, sizes, machine, dtype, split)
    ends = case.ends(sizes)
    gemm = case.alone(sizes)
    pays: dict[str, int | None] = {}
    hides: dict[str, int | None] = {}
    if break_even and world > 1:
        for axis in ("N", "K"):
            pays[axis] = _least(case.gains, sizes, axis, ends.total < gemm + case.library(sizes))
            hides[axis] = _least(case.hides, sizes, axis, case.hides(sizes))
    return Prediction(
        op=op,
        world=world,
        sizes=dict(sizes),
        machine=machine.name,
        plan=case.plan.name,
        gemm=gemm,
        library=case.library(sizes),
        fused=ends.total,
        limit=max(gemm, case.bytes_alone(sizes)),
        sent=case.sent(sizes),
        pays=pays,
        hides=hides,
    )


def predicted_timeline(
    op: str, *, world: int, sizes: Sizes, machine: Machine, dtype: str = "bf16", split: int = 1
) -> Timeline:
    """The timeline behind `predict`; raises what it raises."""
    case = _case(op, world, sizes, machine, dtype, split)
    return simulate(case.plan, machine, case.work(sizes), itemsize=case.itemsize * case.scale(sizes))


def _case(op: str, world: int, sizes: Sizes, machine: Machine, dtype: str, split: int) -> _Case:
    if op not in OPERATORS:
        raise UsageError(f"unknown operator `{op}`", help=nearest(op, OPERATORS))
    if set(sizes) != set(AXES):
        raise UsageError(
            f"the sizes of {op} are M, N and K, not {', '.join(sizes) or 'none'}", help="write M=8192,N=28672,K=8192"
        )
    empty = [axis for axis in AXES if sizes[axis] < 1]
    if empty:
        raise UsageError(f"{empty[0]}={sizes[empty[0]]}: there is nothing to multiply", help="give sizes of 1 or more")
    machine.check_world(world)
    machine.rate(dtype)
    return _Case(OPERATORS[op], world, dict(sizes), machine, dtype, split)


class _Case:
    """One operator, world and machine. The plan is built once, for the given sizes; others scale its bytes."""

    def __init__(self, op: Operator, world: int, sizes: Sizes, machine: Machine, dtype: str, split: int) -> None:
        self.op, self.world, self.machine, self.dtype = op, world, machine, dtype
        self.itemsize = itemsize_of(dtype)
        self.shape = tuple(sizes[axis] for axis in op.moved)
        levels = machine.between is not None and world > machine.node > 1 and world % machine.node == 0
        self.plan = _plan(op, world, self.shape, split, machine.node if levels else 0)

    def scale(self, sizes: Sizes) -> float:
        """Bytes of the tensor that moves, against those of the plan."""
        ratio = 1.0
        for axis, extent in zip(self.op.moved, self.shape, strict=True):
            ratio *= sizes[axis] / extent
        return ratio

    def gemm(self, sizes: Sizes) -> Gemm:
        own = {**sizes, self.op.divided: -(-sizes[self.op.divided] // self.world)}
        return best_blocks(own["M"], own["N"], own["K"], self.machine, self.dtype)

    def alone(self, sizes: Sizes) -> float:
        return self.machine.kernel + self.gemm(sizes).seconds(self.machine)

    def tensor(self, sizes: Sizes) -> float:
        """Bytes of what moves; of an all-to-all, of a rank's part of it."""
        whole = self.itemsize * float(sizes[self.op.moved[0]]) * sizes[self.op.moved[1]]
        return whole / self.world if self.op.kind == "all_to_all" else whole

    def library(self, sizes: Sizes) -> float:
        return library_seconds(self.op.kind, range(self.world), self.tensor(sizes), self.machine)

    def sent(self, sizes: Sizes) -> float:
        """Bytes that leave each rank by the plan."""
        return self.tensor(sizes) * (self.world - 1) / self.world * (2 if self.op.kind == "all_reduce" else 1)

    def bytes_alone(self, sizes: Sizes) -> float:
        """The least time for what must reach a rank: over each class of links the part that no order can keep off it."""
        machine, world = self.machine, self.world
        sent = self.sent(sizes)
        if world <= machine.node or machine.between is None:
            return sent / machine.inside.bytes_per_s
        # All ports of a node together bring in, once, what its ranks lack; the rest goes round inside.
        share = sent * (world - machine.node) / (world - 1) if world > 1 else 0.0
        far = share if self.op.kind == "all_to_all" else share / machine.node
        return max(far / machine.between.bytes_per_s, (sent - far) / machine.inside.bytes_per_s)

    def work(self, sizes: Sizes) -> tuple[Work, ...]:
        gemm = self.gemm(sizes)
        seconds = gemm.tile_seconds(self.machine)
        if self.op.inside:
            return _in_parts(self.plan, gemm.tiles, seconds, self.machine.units)
        return work_per_chunk(self.plan, gemm.tiles, seconds, produced=("x",) if self.op.produced else ())

    def ends(self, sizes: Sizes) -> Ends:
        return simulate_ends(self.plan, self.machine, self.work(sizes), itemsize=self.itemsize * self.scale(sizes))

    def gains(self, sizes: Sizes) -> bool:
        return self.ends(sizes).total < self.alone(sizes) + self.library(sizes)

    def hides(self, sizes: Sizes) -> bool:
        return self.gemm(sizes).seconds(self.machine) >= self.bytes_alone(sizes)


@lru_cache(maxsize=8)
def _plan(op: Operator, world: int, shape: tuple[int, ...], split: int, node: int) -> CommPlan:
    """The plan of the operator's tensor ``x``; ``node``: ranks of a node where there are two levels, else 0."""
    mesh = Mesh((world // node, node), ("node", "gpu")) if node else None
    direction = "push" if op.produced else "pull"

    def build(name: str) -> CommPlan:
        path, text = find_template(name)
        tensor = TensorSpec("x", shape)
        return build_plan(
            text,
            world=world,
            mesh=mesh,
            tensor=tensor,
            dim=op.dim,
            to_dim=op.to_dim,
            split=split,
            direction=direction,
            path=path,
        )

    if node:
        return build(f"{op.kind}_2d")
    if op.kind != "all_reduce":
        return build(op.plan)
    # As the template, but for the dependencies that a channel implies: of those behind the first they would be world ** 3.
    first, second = build("reduce_scatter_1d"), build("all_gather_1d")
    landing: list[list[OpId]] = [[] for _ in range(world)]
    for op_id, moved in first.items():
        assert isinstance(moved, P2P)
        landing[moved.dst_rank].append(op_id)
    ops = []
    for rank in range(world):
        sends = [replace(sent, channel=1) for sent in second.ops[rank]]
        if sends:
            sends[0] = replace(sends[0], depends=tuple(landing[rank]))
        ops.append((*first.ops[rank], *sends))
    return replace(first, name=op.plan, after=second.after, ops=tuple(ops), spans=())


def _in_parts(plan: CommPlan, tiles: int, seconds: float, units: int) -> tuple[Work, ...]:
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


def _least(holds: Callable[[Sizes], bool], sizes: Sizes, axis: str, here: bool) -> int | None:
    """The smallest size of an axis from which on a condition holds, to about a third; None if none within `REACH`.

    Looked for from the size given, where it is ``here``, in steps of 8, then between the last two: few simulations.
    """

    def at(size: int) -> bool:
        return holds({**sizes, axis: size})

    least, most = max(1, sizes[axis] // REACH), sizes[axis] * REACH
    if here:
        low = high = sizes[axis]
        while high > least:
            low = max(least, high // 8)
            if not at(low):
                break
            high = low
        if high == least:
            return least
    else:
        low, high = sizes[axis], min(8 * sizes[axis], most)
        while not at(high):
            if high == most:
                return None
            low, high = high, min(8 * high, most)
    while high > 1.33 * low and high > low + 1:
        middle = round((low * high) ** 0.5)
        low, high = (low, middle) if at(middle) else (middle, high)
    return high
