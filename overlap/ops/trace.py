"""`trace_operator`: one call of a prebuilt operator on random data, measured beside what is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from overlap.api.auto import DTYPES
from overlap.api.groups import resolve_group
from overlap.api.trace import WARM, record, recording
from overlap.chunkplan.cuts import split_of, split_text
from overlap.pipeline.timing import tile_seconds_of
from overlap.runtime.of_group import runtime_of
from overlap.schedule.machine import Machine
from overlap.schedule.measured import Measured
from overlap.schedule.model import RankSchedule

from .tuning import OperatorCall, problem_of


def trace_operator(
    op: str,
    sizes: Mapping[str, int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    group: Any = None,
    machine: Machine | None = None,
    tile_us: float | None = None,
    warm: int = WARM,
    **options: Any,
) -> Measured:
    """Records one call; collective.

    Args:
        op: ``ag_gemm``, ``gemm_rs``, ...
        sizes: M, N and K of the whole product; of what is divided unevenly a rank's piece is rounded up.
        dtype: of operands and result.
        machine: whose times are predicted.
        tile_us: what a tile is predicted to take; by default a product's tile on that machine.
        warm: calls ahead of the recorded one.
        options: keywords of the operator: ``backend``, ``plan``, ``split``, ``comm_sms``.

    Raises:
        UsageError: the call goes through a collective, so there is nothing to record.
    """
    group = resolve_group(group)
    runtime = runtime_of(group)
    world = runtime.world
    problem = problem_of(op, sizes, dtype, world)
    m, n, k = problem.m, problem.n, problem.k
    # What one rank multiplies.
    local = {"ag_gemm": (m, n // world, k), "ag_gemm_k": (m, n // world, k)}
    local |= dict.fromkeys(("gemm_rs", "gemm_ar"), (m, n, k // world))
    rows, columns, depth = local.get(op, (-(-m // world), n, k))
    elements = rows * columns + rows * depth + columns * depth
    short = DTYPES[dtype]

    def tile(schedules: Sequence[RankSchedule], on: Machine) -> float:
        if tile_us is not None:
            return tile_us * 1e-6
        return tile_seconds_of(schedules[0].axes, on, steps=depth, elements=elements, dtype=short)

    call = OperatorCall(op, problem, world, runtime.rank, runtime.device)
    words = {n: split_text(split_of(value)) if n == "split" else value for n, value in options.items()}
    said = ", ".join(f"{name}={value}" for name, value in words.items())
    title = f"{op} {m},{n},{k} {short} on {world} rank{'s' * (world != 1)}{': ' if said else ''}{said}"
    with recording(), torch.no_grad():
        return record(
            lambda: call.plain(group, **options), group, title=title, dtype=short, tile=tile, machine=machine, warm=warm
        )
