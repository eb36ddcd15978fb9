"""Will overlap pay, before any code is written: an operator on so many ranks of a machine, by the event model.

    predict("ag_gemm", world=256, sizes={"M": 8192, "N": 28672, "K": 8192}, machine=load_machine("h100-nvlink-ib400"))

M, N and K are global, as in the tables of `bench`. `operators` says what of them a rank has, what moves, and by which plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Literal

from overlap import settings
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.library import find_template
from overlap.chunkplan.links import Links
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, CommPlan, OpId, TensorSpec
from overlap.errors import PlanError

from .carried import LANES, Carried, Way, WayOf, by_sums, carried
from .collective import library_seconds
from .cost import Volumes, volumes
from .early import can_be_early, in_rounds
from .events import Ends, simulate, simulate_ends
from .machine import Machine
from .operators import TENSOR, Operator, Sizes, check_plan, operator_of, tensor_of
from .prediction import REACH, Prediction
from .product import Gemm, best_blocks, itemsize_of
from .tile_sums import Parts, adding_seconds, parts_chosen
from .timeline import Timeline
from .ways import in_parts
from .work import Work, work_per_chunk


def predict(
    op: str,
    *,
    world: int,
    sizes: Sizes,
    machine: Machine,
    dtype: str = "bf16",
    split: Split = 1,
    break_even: bool = True,
    mesh: Mesh | None = None,
    plan: CommPlan | None = None,
    links: Links | None = None,
    way: Way = LANES,
    ways: WayOf | None = None,
) -> Prediction:
    """What an operator takes on a machine, serial and overlapped.

    Args:
        sizes: M, N and K, global.
        split: chunks that each shard is cut into, where the plan is not given.
        break_even: also look for the sizes from which on it pays (several simulations).
        mesh: the grid that the ranks stand in, whose nodes the machine's are (`Machine.on_mesh`).
        plan: moves the operator's tensor (`operators.tensor_of`); by default the operator's own.
        links: instead of the machine's.
        way: how the bytes are moved, by lanes beside the kernel or by programs of its own, or stored by its tiles.
        ways: of single operations of ``plan``, where they do not all go by ``way``.

    Raises:
        UsageError: an unknown operator, or sizes that are not M, N and K.
        PlanError: the machine has not that many ranks, no rate for the dtype, does not say how fast programs copy, or a plan
            that does something else.
    """
    case = _case(op, world, sizes, machine, dtype, split, mesh, plan, links, way, ways)
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
        ways=case.used,
        in_tiles=case.parts is not None,
        gemm=gemm,
        library=case.library(sizes),
        fused=ends.total,
        limit=max(gemm, case.bytes_alone(sizes)),
        sent=case.sent(sizes),
        pays=pays,
        hides=hides,
    )


def predicted_timeline(
    op: str,
    *,
    world: int,
    sizes: Sizes,
    machine: Machine,
    dtype: str = "bf16",
    split: Split = 1,
    mesh: Mesh | None = None,
    plan: CommPlan | None = None,
    links: Links | None = None,
    way: Way = LANES,
    ways: WayOf | None = None,
) -> Timeline:
    """The timeline behind `predict`; raises what it raises."""
    case = _case(op, world, sizes, machine, dtype, split, mesh, plan, links, way, ways)
    itemsize = case.itemsize * case.scale(sizes)
    return simulate(
        case.plan, case.fused.machine, case.work(sizes), itemsize=itemsize, links=links, carries=case.fused.carries
    )


def _case(
    op: str,
    world: int,
    sizes: Sizes,
    machine: Machine,
    dtype: str,
    split: Split,
    mesh: Mesh | None = None,
    plan: CommPlan | None = None,
    links: Links | None = None,
    way: Way = LANES,
    ways: WayOf | None = None,
) -> _Case:
    operator = operator_of(op, sizes)
    if mesh is not None and mesh.world != world:
        raise PlanError(f"a mesh {mesh} for a world of {world} ranks", help=f"give one of {world} ranks")
    machine = machine.on_mesh(mesh)
    machine.check_world(world)
    machine.rate(dtype)
    if plan is None:
        levels = machine.between is not None and world > machine.node > 1 and world % machine.node == 0
        shape, node = tensor_of(operator, sizes).shape, machine.node if levels else 0
        by_default = not node and way.form == "lanes" and operator.pushes(world, sizes, itemsize_of(dtype))
        plan = operator_plan(operator, world, shape, split, node, pushed=way.pushed or by_default, parts=way.free > 0)
    else:
        check_plan(operator, plan, world, sizes)
    free = 0 if ways else way.free
    return _Case(operator, dict(sizes), machine, dtype, plan, links, ways or (lambda op: way), free, way.tile_sums)


class _Case:
    """One operator and plan on one machine. The plan is made for the given sizes; others scale its bytes.

    ``fused``: the machine as it is for the overlapped launch, and who carries operations out; ``used``: all ways of those;
    ``parts``: by rank, what its tiles add up themselves (`tile_sums`), None where sums do.
    """

    def __init__(
        self,
        op: Operator,
        sizes: Sizes,
        machine: Machine,
        dtype: str,
        plan: CommPlan,
        links: Links | None,
        ways: WayOf,
        free: int,
        tile_sums: bool | None = None,
    ) -> None:
        self.op, self.machine, self.dtype, self.links = op, machine, dtype, links
        self.world = plan.world
        self.itemsize = itemsize_of(dtype)
        self.fused = carried(plan, machine, ways, itemsize=itemsize_of(dtype), waiting=op.waiting)
        self.used = tuple(dict.fromkeys(ways(moved) for _, moved in plan.items() if isinstance(moved, P2P)))
        self.free = 0
        self.parts = self._parts(plan, sizes, tile_sums)
        self.used = tuple(replace(way, tile_sums=None, free=way.free if self.parts is None else 0) for way in self.used)
        if free and op.produced and self.parts is None:
            rounds = in_rounds(plan, (TENSOR,))
            if can_be_early(rounds, (TENSOR,)):
                plan, self.free = rounds, free
                self.fused = Carried(machine.with_free(free), by_sums(rounds, machine))
        self.plan = plan
        self.shape = tensor_of(op, sizes).shape

    def _parts(self, plan: CommPlan, sizes: Sizes, asked: bool | None) -> tuple[Parts, ...] | None:
        if not self.op.adds_in_tiles(self.itemsize) or any(way.form != "lanes" or way.by for way in self.used):
            return None
        said, gemm = settings.get("tile_sums", asked), self.gemm(sizes)
        return parts_chosen(plan, TENSOR, (gemm.block_m, gemm.block_n), gemm.tiles, self.machine.units, said)

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

    @cached_property
    def _volumes(self) -> Volumes:
        return volumes(self.plan, self.itemsize)

    def sent(self, sizes: Sizes) -> float:
        """Bytes that leave a rank by the plan, the one that sends most."""
        return max(self._volumes.sent) * self.scale(sizes)

    def needed(self, sizes: Sizes) -> float:
        """Bytes that must reach a rank, and leave one, by any plan."""
        return self.tensor(sizes) * (self.world - 1) / self.world * (2 if self.op.kind == "all_reduce" else 1)

    def bytes_alone(self, sizes: Sizes) -> float:
        """The least time for what must reach a rank: over each class of links the part that no order can keep off it."""
        machine, world = self.machine, self.world
        needed = self.needed(sizes)
        if self.links is not None:
            return max((needed / rate if rate else 0.0 for rate in _rates_into(self.links)), default=0.0)
        if world <= machine.node or machine.between is None:
            return needed / machine.inside.bytes_per_s
        # All ports of a node together bring in, once, what its ranks lack; the rest goes round inside.
        share = needed * (world - machine.node) / (world - 1) if world > 1 else 0.0
        far = share if self.op.kind == "all_to_all" else share / machine.node
        return max(far / machine.between.bytes_per_s, (needed - far) / machine.inside.bytes_per_s)

    def work(self, sizes: Sizes) -> tuple[Work, ...]:
        gemm = self.gemm(sizes)
        machine = self.fused.machine
        seconds = gemm.tile_seconds(machine)
        if self.op.inside:
            return in_parts(self.plan, gemm.tiles, seconds, machine.units)
        produced = (TENSOR,) if self.op.produced else ()
        adding = adding_seconds((gemm.block_m, gemm.block_n), self.itemsize, machine)
        made = work_per_chunk(
            self.plan, gemm.tiles, seconds, produced=produced, free=self.free, parts=self.parts, adding=adding
        )
        if all(way.form == "lanes" for way in self.used) and self.op.in_place(
            self.world, sizes, (gemm.block_m, gemm.block_n), self.itemsize
        ):
            made = tuple(replace(work, in_place=True) for work in made)
        return self.fused.slowed(made, self.scale(sizes))

    def ends(self, sizes: Sizes) -> Ends:
        itemsize = self.itemsize * self.scale(sizes)
        return simulate_ends(
            self.plan,
            self.fused.machine,
            self.work(sizes),
            itemsize=itemsize,
            links=self.links,
            carries=self.fused.carries,
        )

    def gains(self, sizes: Sizes) -> bool:
        return self.ends(sizes).total < self.alone(sizes) + self.library(sizes)

    def hides(self, sizes: Sizes) -> bool:
        return self.gemm(sizes).seconds(self.machine) >= self.bytes_alone(sizes)


@lru_cache(maxsize=16)
def operator_plan(
    op: Operator,
    world: int,
    shape: tuple[int, ...],
    split: Split,
    node: int = 0,
    pushed: bool = False,
    parts: bool = False,
) -> CommPlan:
    """The plan of the operator's tensor ``x``.

    Args:
        node: ranks of a node where there are two levels, else 0.
        pushed: whoever has a chunk sends it, also where it is read; what tiles make always goes so.
        parts: every part of a sum that is sent on depends on its own summands, as in the template; many, of hundreds of ranks.
    """
    mesh = Mesh((world // node, node), ("node", "gpu")) if node else None
    direction: Literal["pull", "push"] = "push" if op.produced or pushed else "pull"

    def build(name: str) -> CommPlan:
        path, text = find_template(name)
        tensor = TensorSpec(TENSOR, shape)
        return build_plan(
            text,
            world=world,
            mesh=mesh,
            tensor=tensor,
            dim=op.dim,
            to_dim=op.to_dim,
            split=split,
            split_dim=op.split_dim,
            direction=direction,
            path=path,
        )

    if node:
        return build(f"{op.kind}_2d")
    if op.kind != "all_reduce" or parts:
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


def _rates_into(links: Links) -> list[float]:
    """Bytes a second that can enter each rank, over all its links together: a switched class counts once."""
    found: list[dict[object, float]] = [{} for _ in range(links.world)]
    for (source, target), link in links.classes.items():
        wire = link.name if link.name in links.switched else source
        found[target][wire] = max(link.bytes_per_s, found[target].get(wire, 0.0))
    return [sum(rates.values()) for rates in found]


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
