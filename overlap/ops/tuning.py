"""`tune` for the prebuilt operators: a product of given global sizes on random data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from overlap import settings
from overlap.api.auto import DTYPES, Problem
from overlap.api.groups import resolve_group
from overlap.api.tuned import forced, forget
from overlap.autotune.config import Config
from overlap.autotune.prune import Limits, Tile, by_limits, by_rows, prune
from overlap.autotune.search import Say
from overlap.autotune.session import BUDGET_S, DEADLINE_S, Space, Tuned
from overlap.autotune.session import tune as tune_problem
from overlap.autotune.space import Product, around, communication, ordered, predict, with_tile, words_of
from overlap.backends.base import Realization
from overlap.backends.capabilities import SERIAL
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.region import shard_interval
from overlap.errors import UsageError
from overlap.runtime.cuda.runtime import known_runtime
from overlap.schedule.machine import machine_for
from overlap.schedule.operators import operator_of

from .blocks import blocks_tried
from .exchange_gemm import PLAN as EXCHANGE
from .exchange_gemm import SPLIT as EXCHANGE_SPLIT
from .exchange_gemm import a2a_gemm
from .gather_call import PLAN as GATHER
from .gather_gemm import ag_gemm
from .gather_k_gemm import ag_gemm_k
from .gemm_exchange import PLAN as EXCHANGE_RESULT
from .gemm_exchange import default_split as exchange_split
from .gemm_exchange import gemm_a2a
from .partials import chosen_reason, out_by_tma
from .products import rows_fit
from .reduce_gemm import default_plan, default_split, gemm_ar
from .scatter_gemm import PLAN as SCATTER
from .scatter_gemm import SPLIT as SCATTER_SPLIT
from .scatter_gemm import gemm_rs
from .tuned import key_of, need_of

CALLS: dict[str, Callable[..., Any]] = {
    "ag_gemm": ag_gemm,
    "ag_gemm_k": ag_gemm_k,
    "gemm_rs": gemm_rs,
    "gemm_ar": gemm_ar,
    "a2a_gemm": a2a_gemm,
    "gemm_a2a": gemm_a2a,
}
BUILT_IN: Mapping[str, tuple[str | None, Split]] = {
    "ag_gemm": (None, 1),
    "ag_gemm_k": (GATHER, 1),
    "gemm_rs": (SCATTER, SCATTER_SPLIT),
    "gemm_ar": ("", 1),
    "a2a_gemm": (EXCHANGE, EXCHANGE_SPLIT),
    "gemm_a2a": (EXCHANGE_RESULT, 1),
}
"""Plan and split of a call that names none; both of `gemm_ar` and `gemm_a2a`'s split follow its size, and `ag_gemm`'s plan (None)
that and its backend."""


def tune(
    operator: str,
    sizes: Mapping[str, int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    group: Any = None,
    budget: float = BUDGET_S,
    deadline: float = DEADLINE_S,
    lock: str | Path | None = None,
    device: torch.device | str | None = None,
    say: Say = lambda stage, done, count: None,
) -> Tuned:
    """Measures how to carry out a prebuilt operator, and keeps the fastest for later calls; collective.

    Calls of that size (and its neighbours, `overlap.autotune.key`) that name neither backend, plan, split nor ``comm_sms`` take
    it from then on, on this machine. Results of a call are never in question: only how it is carried out.

    Args:
        operator: ``ag_gemm``, ``ag_gemm_k``, ``gemm_rs``, ``gemm_ar``, ``a2a_gemm`` or ``gemm_a2a``.
        sizes: M, N and K of the whole product, over all ranks. Of what is divided unevenly a rank's piece is rounded up.
        dtype: of operands and result.
        group: process group, its name, DeviceMesh or (mesh, dim); None is the default group.
        budget: seconds that trials may take.
        deadline: seconds that a wait of a trial may last.
        lock: pins the winner in this file as well.
        device: of this rank; by default the current GPU, or the CPU where there is none, where only serial can be tried.
        say: told the stage, and how many trials of it are done and there are; on rank 0.

    Raises:
        UsageError: no such operator, sizes or dtype that it does not take, or ranks that ask for different things.
        RuntimeContractError: no process group, or nothing ran.
    """
    if operator not in CALLS:
        raise UsageError(f"no operator {operator!r}", help=f"operators: {', '.join(CALLS)}")
    if not (lock is None or isinstance(lock, (str, Path))):
        raise UsageError(f"lock is a {type(lock).__name__}", help="the path of a file to pin the winner in")
    if not isinstance(sizes, Mapping) or any(type(n) is not int for n in sizes.values()):
        raise UsageError(f"sizes={sizes!r}", help='write {"M": 8192, "N": 28672, "K": 8192}')
    operator_of(operator, sizes)
    if dtype not in DTYPES:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise UsageError(f"{dtype} is not tuned", help=f"dtypes: {known}")
    group = resolve_group(group)
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError("trials need the ranks of a process group", help="simulated ranks have no clock worth reading")
    place = _device(device)
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    problem = problem_of(operator, sizes, dtype, world)
    key = key_of(problem, world, place)
    found = tune_problem(
        group,
        key,
        partial(_space, problem, world, place),
        partial(OperatorCall, operator, problem, world, rank, place),
        place,
        budget=budget,
        deadline=deadline,
        lock=None if lock is None else Path(lock),
        say=say,
    )
    if place.type == "cuda" and known_runtime(group) is not None:
        forget(group)
    return found


def _device(given: torch.device | str | None) -> torch.device:
    if given is not None:
        found = torch.device(given)
    else:
        found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def problem_of(operator: str, sizes: Mapping[str, int], dtype: torch.dtype, world: int) -> Problem:
    """The problem as a call of these sizes has it: what ranks divide is rounded up to what they all can have."""
    whole = dict(sizes)
    divided = {"ag_gemm": "N", "ag_gemm_k": "N", "gemm_rs": "K", "gemm_ar": "K"}.get(operator)
    if divided is not None:
        whole[divided] = -(-whole[divided] // world) * world
    m, n, k = (whole[axis] for axis in "MNK")
    plan, split = BUILT_IN[operator]
    if operator == "gemm_ar":
        moved = m * n * dtype.itemsize
        plan = default_plan(moved)
        split = default_split(plan, moved, world)
    if operator == "gemm_a2a":
        split = exchange_split(EXCHANGE_RESULT, m * n * dtype.itemsize // world, world)
    problem = Problem(operator, m, n, k, dtype, plan, split, open=True)
    if problem.produced:
        tma = _tma_out(operator, m, n, dtype, world)
        problem = replace(problem, lacking=partial(chosen_reason, tma=tma))
    return problem


def _tma_out(operator: str, m: int, n: int, dtype: torch.dtype, world: int) -> bool:
    rows = -(-m // world) if operator == "gemm_a2a" else m
    return out_by_tma(dtype, dtype, 1, rows, n)


def _space(problem: Problem, world: int, device: torch.device) -> Space:
    """What is tried: what the capability table, the device and the model leave."""
    on_gpu = device.type == "cuda"
    if not on_gpu or world == 1:
        only = Config(Realization(SERIAL))
        return Space(only, (only,))
    machine = machine_for(world)
    product = Product(problem.op, {"M": problem.m, "N": problem.n, "K": problem.k}, DTYPES[problem.dtype], world)
    configs, refused = communication(product, machine, need_of(problem, device), lacking=problem.lacking)
    facts = torch.cuda.get_device_properties(device)
    shared = getattr(facts, "shared_memory_per_block_optin", 227 * 1024)
    limits = Limits(shared, 1024, facts.multi_processor_count)
    itemsize = problem.dtype.itemsize
    # Rows of a shard are cut, or of what a rank ends with; shards of K have all of them.
    rows = problem.m if problem.op == "ag_gemm_k" else -(-problem.m // world)
    descriptors = _by_descriptors(problem, world)
    tile = Tile(result=itemsize if descriptors else 0)
    refusals = (by_limits(limits, itemsize, tile), by_rows(rows), words_of(product))
    pruned = prune(configs, refusals)

    def seconds(config: Config) -> float | None:
        return predict(product, machine, config)

    chosen, predicted, behind = ordered(pruned.kept, seconds)
    refused = refused + pruned.refused
    if behind:
        refused["predicted to take longer"] += behind
    tiles = [blocks.arguments() for blocks in blocks_tried(descriptors=descriptors, itemsize=itemsize)]

    def near(config: Config) -> tuple[Config, ...]:
        return prune(around(config, tiles), refusals).kept

    # The same bounds, counted once: every config would meet these tiles.
    some = Config(Realization())
    refused += prune([with_tile(some, tile) for tile in tiles], refusals).refused
    default = Config(Realization(split=problem.split), problem.plan or "")
    if _moved_bytes(problem, world) < settings.get("serial_below_bytes"):
        default = Config(Realization(SERIAL))
    return Space(default, chosen, near, predicted, refused, seconds, machine.name)


def _moved_bytes(problem: Problem, world: int) -> int:
    """Of the communicated tensor, as calls count them."""
    elements = problem.m * (problem.n if problem.produced else problem.k)
    return elements * problem.dtype.itemsize // (world if "a2a" in problem.op else 1)


def _by_descriptors(problem: Problem, world: int) -> bool:
    if problem.produced:
        return _tma_out(problem.op, problem.m, problem.n, problem.dtype, world)
    return rows_fit(problem.k, problem.dtype)


class OperatorCall:
    """Calls of an operator on random data, made once.

    Args:
        problem: whole sizes.
    """

    def __init__(self, operator: str, problem: Problem, world: int, rank: int, device: torch.device) -> None:
        self._call = CALLS[operator]
        m, n, k = problem.m, problem.n, problem.k
        rows, depth = (slice(*shard_interval(extent, world, rank)) for extent in (m, k))
        held_rows, held_depth = rows.stop - rows.start, depth.stop - depth.start
        x, w, self._options = {
            "ag_gemm": ((held_rows, k), (k, n // world), {"gather_size": m}),
            "ag_gemm_k": ((m, held_depth), (k, n // world), {}),
            "gemm_rs": ((m, k // world), (k // world, n), {}),
            "gemm_ar": ((m, k // world), (k // world, n), {}),
            "a2a_gemm": ((m, held_depth), (k, n), {}),
            "gemm_a2a": ((held_rows, k), (k, n), {"gather_size": m}),
        }[operator]
        generator = torch.Generator(device).manual_seed(rank)
        self._x = torch.randn(x, generator=generator, device=device).to(problem.dtype)
        self._w = torch.randn(w, generator=generator, device=device).to(problem.dtype)

    def __call__(self, config: Config, group: Any) -> None:
        with forced(config), torch.no_grad():
            self.plain(group)

    def plain(self, group: Any, **options: Any) -> Any:
        """The operator's own call, with further ``options``."""
        return self._call(self._x, self._w, group=group, **self._options, **options)
