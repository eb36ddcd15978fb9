"""`CompiledKernel.tune`: what a kernel leaves open, read off it and its launch.

communication   plans that do the same as its own x backends x pieces x programs
tiles           configurations of its autotuner; block sizes and what else its tile mapping takes, half and twice
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from overlap.autotune.config import Config
from overlap.autotune.prune import Limits, by_limits, prune
from overlap.autotune.session import BUDGET_S, DEADLINE_S, Space, Tuned, tune
from overlap.autotune.space import MIXED_WITH, PLANS, around, mixed, ordered, splits_of
from overlap.backends import backends
from overlap.backends.base import Realization
from overlap.backends.capabilities import unasked
from overlap.backends.ways import LIBRARY_WAYS, way_named, way_of, ways_of
from overlap.chunkplan.collectives.text import KINDS
from overlap.chunkplan.library import find_template
from overlap.errors import OverlapError, UsageError
from overlap.runtime.calls.kernel_call import KernelCall, parameters
from overlap.runtime.cuda.runtime import known_runtime
from overlap.runtime.of_group import runtime_of
from overlap.runtime.operator import Operator
from overlap.runtime.workspace import plan_for
from overlap.schedule.carried import frees_tried, programs_tried
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.ways import way_seconds

from .auto_kernel import launch_task
from .groups import resolve_group
from .tuned import forced, forget
from .tuned_kernel import _tensor, key_of, needs_of, open_to_tuning

if TYPE_CHECKING:
    from .compiled import CompiledKernel

LEAST_BLOCK = 16
"""Of a tile, what a matrix product of the tensor cores takes."""
SETTINGS = ("budget", "deadline", "lock", "say")


def tune_kernel(kernel: CompiledKernel, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], group: Any) -> Tuned:
    """As `CompiledKernel.tune`.

    Raises:
        UsageError: as that says, or no process group of GPUs.
    """
    settings = {name: kwargs.pop(name) for name in SETTINGS if name in kwargs and name not in kernel.arg_names}
    if not open_to_tuning(kernel):
        raise UsageError(
            f"`{kernel.__name__}` names how it is carried out, so nothing is left to tune",
            help="leave backend= and other keys out of overlap.compile",
        )
    group = resolve_group(group)
    operator = kernel.operator
    given = {**dict(zip(parameters(operator), args, strict=False)), **kwargs}
    first = _tensor(given.get(operator.comms[0].param))
    if not isinstance(group, dist.ProcessGroup) or first is None or first.device.type != "cuda":
        raise UsageError("trials need ranks of a process group with a GPU each", help="call it under torchrun, on GPUs")
    lock = settings.pop("lock", None)
    budget, deadline = settings.pop("budget", BUDGET_S), settings.pop("deadline", DEADLINE_S)

    def call(config: Config, trials: Any) -> None:
        with forced(config):
            kernel.launch(grid, args, dict(kwargs), group=trials)

    found = tune(
        group,
        key_of(kernel, group, grid, args, kwargs, None, first.device),
        lambda: space_of(kernel, group, grid, args, kwargs, first.device),
        lambda: call,
        first.device,
        budget=budget,
        deadline=deadline,
        lock=None if lock is None else Path(lock),
        **settings,
    )
    if known_runtime(group) is not None:
        forget(group)
    return found


def space_of(
    kernel: CompiledKernel,
    group: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Space:
    """What is tried of a launch."""
    operator, runtime = kernel.operator, runtime_of(group)
    call = KernelCall(operator, runtime, grid, args, dict(kwargs))
    given = call.read_launch(runtime.world, runtime.rank)
    numbers = {name: value for name, value in call.kwargs.items() if isinstance(value, int)}
    machine = machine_for(runtime.world)
    produced = all(comm.produced for comm in operator.comms)
    itemsize = {comm.tensor: float(g.dtype.itemsize) for comm, g in zip(operator.comms, given, strict=True)}

    def seconds(config: Config) -> float | None:
        task = launch_task(operator, given, {**numbers, **dict(config.realization.meta)}, runtime.world)
        name = config.realization.backend
        realization = config.realization
        # A kernel's tiles add only where it is compiled to, of which the model knows nothing here.
        way = way_named(name, produced, realization.comm_sms, realization.sum_sms or 0, False)
        try:
            asked = as_configured(operator, config)
            plan = plan_for(asked, runtime.world, [g.shape for g in given])
            ways = None if config.serial or way.free else ways_of(name, task.produced, config.realization.comm_sms)
            return way_seconds(way, task, plan, machine, itemsize=itemsize, ways=ways)
        except OverlapError:
            return None

    configs, refused = communication_of(kernel, machine, device, runtime.world)
    facts = torch.cuda.get_device_properties(device)
    limits = Limits(getattr(facts, "shared_memory_per_block_optin", 227 * 1024), 1024, facts.multi_processor_count)
    refusals = (by_limits(limits, min(g.dtype.itemsize for g in given)),)
    pruned = prune(configs, refusals)
    chosen, predicted, behind = ordered(pruned.kept, seconds)
    refused = refused + pruned.refused
    if behind:
        refused["predicted to take longer"] += behind
    tiles = tiles_of(kernel, numbers, free=callable(grid) and not any(map(_described, call.kwargs.values())))

    def near(config: Config) -> tuple[Config, ...]:
        return prune(around(config, tiles), refusals).kept

    return Space(Config(Realization()), chosen, near, predicted, refused, seconds, machine.name)


def communication_of(
    kernel: CompiledKernel, machine: Machine, device: torch.device, world: int
) -> tuple[list[Config], Counter[str]]:
    """All configs of what a kernel communicates, and those refused, counted by reason."""
    operator = kernel.operator
    needs = needs_of(operator, device)
    produced = all(comm.produced for comm in operator.comms)
    plans = [""]
    splits = splits_of(KINDS[operator.comms[0].kind] if len(operator.comms) == 1 else "")
    if len(operator.comms) == 1 and isinstance(kernel.plan, str):
        same = PLANS.get(KINDS[operator.comms[0].kind], ())
        plans += [name for name in same if name != kernel.plan] if kernel.plan in same else []
    found, refused = [Config(Realization(name)) for name in LIBRARY_WAYS], Counter[str]()
    for backend in backends.values():
        why = next(filter(None, (need.lacking(backend) for need in needs)), "") or unasked(backend)
        if not why and backend.far:
            why = "pointers reach every peer here"
        if why:
            refused[why] += len(plans) * len(splits)
            continue
        way = way_of(backend, produced)
        counts = programs_tried(machine, backend.default_direction, by=way.by) if way.form == "moves" else ()
        found += [
            Config(Realization(backend.name, split=split, comm_sms=count, sum_sms=free), plan)
            for plan in plans
            for split in splits
            for count in counts or (0,)
            for free in frees_tried(machine, produced, way.form, split)
        ]
    if world > 2 and len(plans) > 1 and {"copy_engine", MIXED_WITH} <= {config.realization.backend for config in found}:
        found += mixed(KINDS[operator.comms[0].kind])
    return found, refused


def as_configured(operator: Operator, config: Config) -> Operator:
    """The operator as a config would carry it out, for its plan alone."""
    realization = config.realization
    chosen = operator.realization.backend if realization.backend in LIBRARY_WAYS else realization.backend
    made = replace(operator, realization=Realization(chosen, split=realization.split))
    if config.plan:
        _, text = find_template(config.plan)
        made = replace(made, plan=text)
    return made


def tiles_of(kernel: CompiledKernel, numbers: Mapping[str, int], *, free: bool) -> list[dict[str, int]]:
    """Launch arguments to try: the autotuner's, else what the tile mapping takes, half and twice.

    Args:
        free: whether grid and descriptors follow the block sizes.
    """
    operator = kernel.operator
    configs = getattr(kernel.fn, "configs", None) or ()
    if configs:
        shared = [
            {
                **{k: v for k, v in c.kwargs.items() if type(v) is int},
                "num_warps": c.num_warps,
                "num_stages": c.num_stages,
            }
            for c in configs
        ]
        blocks = {axis.block for axis in operator.axes}
        return [tile for tile in shared if free or not blocks & set(tile)]
    start = {name: numbers[name] for name in ("num_warps", "num_stages") if name in numbers}
    code = operator.tile_map.__code__
    mapped = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    blocks = {axis.block for axis in operator.axes if axis.block in numbers}
    groups = {name for name in mapped if name in numbers and name not in blocks and numbers[name] > 1}
    found: list[dict[str, int]] = []
    changes: dict[str, Callable[[int], bool]] = {name: lambda value: value >= 1 for name in groups}
    if free:
        changes |= {name: lambda value: value >= LEAST_BLOCK for name in blocks}
    for name, able in sorted(changes.items()):
        found += [{**start, name: value} for value in (numbers[name] // 2, numbers[name] * 2) if able(value)]
    for name, least in (("num_warps", 1), ("num_stages", 1)):
        if name in start:
            values = (start[name] // 2, start[name] * 2) if name == "num_warps" else (start[name] - 1, start[name] + 1)
            found += [{**start, name: value} for value in values if value >= least]
    return found


def _described(value: Any) -> bool:
    return hasattr(value, "block_shape")
