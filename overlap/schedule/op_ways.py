"""What the ways to carry out a prebuilt operator would take: `ways` for a product and its own plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import CommPlan

from .carried import Way, WayOf, programs_tried
from .machine import Machine
from .operators import TENSOR, Operator, Sizes, operator_of, tensor_of
from .predict import operator_plan
from .product import best_blocks, itemsize_of
from .tiles import Tile
from .ways import Candidate, Task, predicted, way_seconds


def operator_task(
    op: Operator, world: int, sizes: Sizes, machine: Machine, dtype: str, tile: Tile | None = None
) -> Task:
    """The product of one rank, in such tiles, else in those that the model likes best, and what is communicated of it."""
    own = {**sizes, op.divided: -(-sizes[op.divided] // world)}
    gemm = best_blocks(own["M"], own["N"], own["K"], machine, dtype)
    itemsize = itemsize_of(dtype)
    if tile is not None:
        slowness = tile.slowness(gemm.k, itemsize, machine.rate(dtype) / machine.units)
        gemm = replace(gemm, block_m=tile.block_m, block_n=tile.block_n, slowness=slowness)
    whole = float(itemsize * sizes[op.moved[0]] * sizes[op.moved[1]])
    return Task(
        tiles=gemm.tiles,
        flops=2.0 * gemm.block_m * gemm.block_n * gemm.k * gemm.slowness,
        moved=float(itemsize * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)),
        dtype=dtype,
        kinds={TENSOR: (op.kind, whole / world if op.kind == "all_to_all" else whole)},
        produced=(TENSOR,) if op.produced else (),
        inside=op.inside,
        in_place=op.in_place(world, sizes, (gemm.block_m, gemm.block_n), itemsize),
        block=(gemm.block_m, gemm.block_n) if op.adds_in_tiles(itemsize) else (),
    )


def operator_candidates(
    op: str,
    ways: Iterable[Way],
    *,
    world: int,
    sizes: Sizes,
    machine: Machine,
    dtype: str = "bf16",
    split: Split = 1,
    plan: str | None = None,
    tile: Tile | None = None,
    named: Callable[[Way], WayOf] | None = None,
) -> tuple[Candidate, ...]:
    """What each of ``ways`` takes; one by moving programs whose number is open is there once for every number tried.

    Args:
        op, sizes, dtype, split: as for `predict`.
        plan: the template that moves the tensor; None: the operator's own.
        tile: what the product is cut into; None: what the model likes best.
        named: who carries the plan's operations out where those that name no backend go this way; None: all go so.

    Raises:
        UsageError: an unknown operator, or sizes that are not M, N and K.
        PlanError: no such plan, or the machine has not that many ranks.
    """
    operator = operator_of(op, sizes)
    machine.check_world(world)
    itemsize = itemsize_of(dtype)
    found = []
    for way in counted(ways, machine, produced=operator.produced):

        def seconds(way: Way = way) -> float:
            task = operator_task(operator, world, sizes, machine, dtype, tile)
            by_default = plan is None and way.form == "lanes" and operator.pushes(world, sizes, itemsize)
            made = _plan(operator, world, sizes, split, plan, way.pushed or by_default, parts=way.free > 0)
            own = None if named is None or way.free else named(way)
            return way_seconds(way, task, made, machine, itemsize=itemsize, ways=own)

        found.append(predicted(way, seconds))
    return tuple(found)


def counted(ways: Iterable[Way], machine: Machine, *, produced: bool) -> list[Way]:
    """The ways, those by moving programs once for every number of programs that is tried."""
    found: list[Way] = []
    for way in ways:
        direction = "push" if produced or way.pushed else "pull"
        counts = programs_tried(machine, direction, by=way.by) if way.form == "moves" and not way.programs else ()
        found += [replace(way, programs=count) for count in counts] or [way]
    return found


def _plan(
    op: Operator, world: int, sizes: Sizes, split: Split, plan: str | None, pushed: bool, parts: bool = False
) -> CommPlan:
    """``parts``: as for `operator_plan`."""
    tensor = tensor_of(op, sizes)
    if plan is None or plan == op.plan:
        return operator_plan(op, world, tensor.shape, split, pushed=pushed, parts=parts)
    path, text = find_template(plan)
    return build_plan(
        text,
        world=world,
        tensor=tensor,
        dim=op.dim,
        to_dim=op.to_dim,
        split=split,
        split_dim=op.split_dim,
        direction="push" if op.produced or pushed else "pull",
        path=path,
    )
