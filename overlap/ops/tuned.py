"""What is tuned for a call of a prebuilt operator: its key, and whether a config can serve it."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from overlap.api.auto import DTYPES, Problem, machine_world
from overlap.api.fallback import Choice
from overlap.api.groups import no_group, resolve_group
from overlap.api.tuned import device_name, look_up, refusal, sizes_of, versions
from overlap.autotune.config import Config
from overlap.autotune.key import Key, text_hash
from overlap.backends.capabilities import Need
from overlap.runtime.cuda.launchers import triton_here
from overlap.runtime.cuda.runtime import known_runtime

from . import kernels


@cache
def kernels_hash() -> str:
    """Hash of the operators' kernels."""
    files = sorted({kernels.ag_gemm_any.fn.__code__.co_filename, kernels.gemm_out_stored.fn.__code__.co_filename})
    return text_hash(*(Path(file).read_text(encoding="utf-8") for file in files))


def key_of(problem: Problem, world: int, device: torch.device) -> Key:
    """The key of an operator's problem."""
    return Key(
        problem.op,
        sizes_of({"M": problem.m, "N": problem.n, "K": problem.k}),
        DTYPES.get(problem.dtype, str(problem.dtype).removeprefix("torch.")),
        world,
        device_name(device),
        source=kernels_hash(),
        versions=versions(),
    )


def need_of(problem: Problem, device: torch.device) -> Need:
    """What the problem needs of a backend here."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    moves = "result" if problem.produced else "input"
    return Need(problem.op, "", moves, triton=triton_here(), capability=capability)


def tuned_choice(group: Any, x: torch.Tensor, problem: Problem) -> Choice | None:
    """The choice that was tuned for a call that names neither backend, plan, split nor programs; None: nothing was."""
    if not problem.open or problem.op in getattr(known_runtime(group), "overlap_settled", ()):
        return None

    def refuse(config: Config) -> str:
        return refusal(config, need_of(problem, x.device), problem.lacking)

    return look_up(group, x, problem, partial(_key, group, x, problem), refuse)


def settle(group: Any, operator: str) -> None:
    """Leaves an operator's calls on a group to keyword and built-in, until its memory is released: it is reserved for these."""
    if no_group(group):
        return
    resolved = resolve_group(group)
    runtime = None if hasattr(resolved, "overlap_runtime") else known_runtime(resolved)
    if runtime is not None:
        settled: dict[str, bool] = getattr(runtime, "overlap_settled", {})
        settled[operator] = True
        runtime.overlap_settled = settled  # type: ignore[attr-defined]


def _key(group: Any, x: torch.Tensor, problem: Problem) -> Key:
    return key_of(problem, machine_world(group), x.device)
