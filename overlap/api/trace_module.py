"""`trace_module`: one call of a generated module on random data, measured beside what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overlap.codegen.module_io import find_operator, load_module
from overlap.runtime.dtypes import dtype_of
from overlap.runtime.of_group import runtime_of
from overlap.schedule.machine import Machine
from overlap.schedule.measured import Measured
from overlap.schedule.model import RankSchedule
from overlap.sim.inputs import check_sizes, make_inputs

from .groups import resolve_group
from .trace import WARM, record


def trace_module(
    path: str,
    sizes: dict[str, int],
    *,
    dtype: str,
    tile: Callable[[Sequence[RankSchedule], Machine], float],
    title: str,
    group: Any = None,
    machine: Machine | None = None,
    search: Sequence[str] = (),
    warm: int = WARM,
) -> Measured:
    """Records one call of the host function of a module that was compiled with ``trace=1``; collective.

    Args:
        path: the module's file.
        sizes: axis to the extent that the user's host function sees.
        dtype: of all tensors, by its short name.
        search: folders that the original imports from.
        tile, title, machine, warm: as for `overlap.api.trace.record`.

    Raises:
        UsageError: sizes that do not fit the module.
    """
    group = resolve_group(group)
    runtime = runtime_of(group)
    module = load_module(path, search=tuple(search))
    operator = find_operator(module)
    check_sizes(operator, sizes)
    kind = dtype_of(dtype)
    (calls,) = make_inputs(operator, sizes, kind, runtime.world, 1)
    passed = {name: _here(value, runtime.device) for name, value in calls[runtime.rank].passed.items()}
    host = getattr(module, operator.name)

    def call() -> Any:
        return host(**passed, group=group, sizes=sizes)

    return record(call, group, title=title, dtype=dtype, tile=tile, machine=machine, warm=warm)


def _here(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
