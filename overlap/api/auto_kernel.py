"""``auto`` for kernels that their callers launch: what a launch computes and moves, from its arguments and the kernel's plan.

Blocks and extents are those of the launch; a tile is taken to multiply and add once for each of its elements and each step
of its loops, which is a product's and for other kernels a guess (`overlap.pipeline.timing.tile_seconds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from overlap.backends import backend as find_backend
from overlap.backends.base import Realization
from overlap.backends.capabilities import Need
from overlap.backends.ways import ways_of
from overlap.chunkplan.collectives.text import KINDS
from overlap.errors import OverlapError
from overlap.runtime.calls.kernel_call import KernelCall
from overlap.runtime.calls.shapes import piece
from overlap.runtime.memory.part import Given
from overlap.runtime.of_group import runtime_of
from overlap.runtime.operator import Operator
from overlap.runtime.workspace import plan_for
from overlap.schedule.carried import Way
from overlap.schedule.machine import Machine
from overlap.schedule.op_ways import counted
from overlap.schedule.ways import Candidate, Task, predicted, way_seconds

from .auto import DTYPES, decide
from .fallback import Choice

if TYPE_CHECKING:
    from .compiled import CompiledKernel

BLOCK = 128
"""Of an axis whose block is known only below heuristics."""


def choose_kernel(
    kernel: CompiledKernel,
    group: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    transport: torch.dtype | None,
) -> Choice:
    """The choice for a launch; the first launch of a signature makes it, collectively.

    Args:
        group: as `resolve_group` returns it.
        transport: dtype of communicated results on their way.

    Raises:
        OverlapError: what a launch by any backend would refuse; or no machine, or nothing that can be predicted on it.
    """
    operator, runtime = kernel.operator, runtime_of(group)
    call = KernelCall(operator, runtime, grid, args, kwargs, transport=transport)
    given = call.read_launch(runtime.world, runtime.rank)
    numbers = {name: value for name, value in call.kwargs.items() if isinstance(value, int)}
    task = launch_task(operator, given, numbers, runtime.world)
    produced = any(comm.produced for comm in operator.comms)
    consumed = any(not comm.produced for comm in operator.comms)
    first = operator.comms[0]

    def lacking(name: str) -> str:
        found = find_backend(name)
        for comm in operator.comms:
            why = Need(str(comm), comm.tensor, "result" if comm.produced else "input").lacking(found)
            if why:
                return why
        try:
            kernel.variant(name, 0).path  # noqa: B018  what it refuses to compile
        except OverlapError as error:
            return error.message
        return ""

    def predict(machine: Machine, ways: Sequence[Way]) -> Sequence[Candidate]:
        itemsize = {comm.tensor: float(g.dtype.itemsize) for comm, g in zip(operator.comms, given, strict=True)}
        found = []
        for way in counted(ways, machine, produced=not consumed):
            asked = replace_backend(operator, way.name)

            def seconds(way: Way = way, asked: Operator = asked) -> float:
                plan = plan_for(asked, runtime.world, [g.shape for g in given])
                ways = None if way.form == "serial" or way.free else ways_of(way.name, task.produced, way.programs)
                return way_seconds(way, task, plan, machine, itemsize=itemsize, ways=ways)

            found.append(predicted(way, seconds))
        return found

    shapes = tuple((g.shape, str(g.dtype)) for g in given)
    key = (kernel.__name__, id(kernel), shapes, task.tiles, task.flops, task.moved)
    need = Need(str(first), first.tensor, "result" if produced and not consumed else "input")
    moved_bytes = sum(math.prod(g.shape) * g.dtype.itemsize for g in given)
    return decide(group, call.shards[first.tensor], key, need, predict, moved_bytes, lacking=lacking)


def replace_backend(operator: Operator, name: str) -> Operator:
    """The operator as another backend would carry it out, for its plan alone."""
    chosen = name if name != "serial" else operator.realization.backend
    return replace(operator, realization=Realization(backend=chosen, split=operator.realization.split))


def launch_task(operator: Operator, given: Sequence[Given], numbers: Mapping[str, int], world: int) -> Task:
    """What one rank computes of a launch.

    Args:
        given: of the communicated tensors, in the order of ``comms``.
        numbers: the launch's integer arguments.
    """
    blocks = [int(axis.block) if axis.block.isdecimal() else numbers.get(axis.block, BLOCK) for axis in operator.axes]
    extents = [numbers.get(axis.extent, 1) for axis in operator.axes]
    named = {axis.name for axis in operator.axes}
    inner = math.prod(numbers.get(param, 1) for name, param in operator.extents.items() if name not in named)
    tiles = math.prod(-(-extent // block) for extent, block in zip(extents, blocks, strict=True))
    kinds: dict[str, tuple[str, float]] = {}
    moved = 0.0
    for comm, each in zip(operator.comms, given, strict=True):
        size = float(math.prod(each.shape) * each.dtype.itemsize)
        kinds[comm.tensor] = (KINDS[comm.kind], size / world if comm.kind == "all_to_all" else size)
        moved += math.prod(piece(each.shape, comm.seen, world, 0).shape) * each.dtype.itemsize
    for name, dims in (*operator.inputs.items(), *operator.outputs.items()):
        if name not in kinds:
            params = [operator.extents.get(dim, "") for dim in dims]
            moved += math.prod(numbers.get(param, 1) for param in params) * given[0].dtype.itemsize
    return Task(
        tiles=tiles,
        flops=2.0 * math.prod(blocks) * inner,
        moved=moved,
        dtype=DTYPES.get(given[0].dtype, "fp32"),
        kinds=kinds,
        produced=tuple(comm.tensor for comm in operator.comms if comm.produced),
        inside=bool(operator.ranges) and all(not comm.produced for comm in operator.comms),
    )
