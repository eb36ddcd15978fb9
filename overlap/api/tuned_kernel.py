"""What is tuned for a launch of a kernel: its key, its lookup, and the variant that carries a config out."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from overlap.autotune.config import Config
from overlap.autotune.key import Key, text_hash
from overlap.backends import backend as find_backend
from overlap.backends.capabilities import Need
from overlap.chunkplan.cuts import split_text
from overlap.runtime.calls.kernel_call import KernelCall, parameters
from overlap.runtime.cuda.launchers import triton_here
from overlap.runtime.memory.part import Given
from overlap.runtime.of_group import runtime_of
from overlap.runtime.operator import Operator

from .auto import DTYPES, machine_world
from .cache import helper_sources
from .fallback import Choice
from .tuned import device_name, look_up, refusal, sizes_of, versions

if TYPE_CHECKING:
    from .compiled import CompiledKernel


def open_to_tuning(kernel: CompiledKernel) -> bool:
    """Whether its author left open how the kernel is carried out: no backend, no keys, a plan by its name."""
    return kernel.backend is None and not kernel.options and kernel.made is None


def tuned_launch(
    kernel: CompiledKernel, group: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], transport: Any
) -> Choice | None:
    """The choice that was tuned for a launch, or None; the first launch of a signature asks, collectively."""
    operator = kernel.operator
    given = {**dict(zip(parameters(operator), args, strict=False)), **kwargs}
    first = _tensor(given.get(operator.comms[0].param))
    if first is None:
        return None  # which the launch itself says

    def key() -> Key:
        return key_of(kernel, group, grid, args, kwargs, transport, first.device)

    def refuse(config: Config) -> str:
        return next(
            filter(None, (refusal(config, need, lambda name: "") for need in needs_of(operator, first.device))), ""
        )

    return look_up(group, first, (id(kernel), transport, signature(given)), key, refuse)


def signature(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a launch's arguments say of its problem: numbers, and shapes and dtypes of tensors."""
    found: list[tuple[Any, ...]] = []
    for name, value in given.items():
        tensor = _tensor(value)
        if tensor is not None:
            found.append((name, tensor.shape, tensor.dtype))
        elif isinstance(value, (int, float, str, torch.dtype, type(None))):
            found.append((name, value))
    return tuple(found)


def _tensor(value: Any) -> torch.Tensor | None:
    base = getattr(value, "base", value)
    return base if isinstance(base, torch.Tensor) else None


def needs_of(operator: Operator, device: torch.device) -> list[Need]:
    """What a kernel's communicated tensors need of a backend here."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return [
        Need(
            str(comm),
            comm.tensor,
            "result" if comm.produced else "input",
            triton=triton_here(),
            capability=capability,
        )
        for comm in operator.comms
    ]


def key_of(
    kernel: CompiledKernel,
    group: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    transport: Any,
    device: torch.device,
) -> Key:
    """The key of a launch."""
    operator, runtime = kernel.operator, runtime_of(group)
    call = KernelCall(operator, runtime, grid, args, dict(kwargs), transport=transport)
    given = call.read_launch(runtime.world, runtime.rank)
    return Key(
        kernel.__name__,
        sizes_of(extents(operator, given, call.kwargs)),
        "+".join(dict.fromkeys(DTYPES.get(g.dtype, str(g.dtype).removeprefix("torch.")) for g in given)),
        machine_world(group),
        device_name(device),
        on=", ".join(map(str, operator.comms)),
        plan=text_hash(*(comm.plan for comm in operator.comms)),
        source=source_hash(kernel),
        versions=versions(),
    )


def extents(operator: Operator, given: Sequence[Given], numbers: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of a launch by axis: of the communicated tensors, and of every axis whose size is passed."""
    found = {
        name: n
        for comm, each in zip(operator.comms, given, strict=True)
        for name, n in zip(comm.dims, each.shape, strict=True)
    }
    for axis, param in operator.extents.items():
        value = numbers.get(param)
        if isinstance(value, int):
            found.setdefault(axis, value)
    return found


def source_hash(kernel: CompiledKernel) -> str:
    """Hash of the kernel's text, as it was when it was decorated, and of its helpers'."""
    source = kernel.source
    function, unit = source.function(), source.unit
    node = next(
        (n for n in ast.walk(unit.tree) if isinstance(n, ast.FunctionDef) and n.name == function.__name__), None
    )
    text = unit.sha256 if node is None else "\n".join(unit.lines[node.lineno - 1 : node.end_lineno])
    return text_hash(text, *sorted(helper_sources(function)))


def options_of(config: Config) -> dict[str, str]:
    """A config as the options of a compilation."""
    realization = config.realization
    found = {
        key: str(getattr(realization, key))
        for key in ("num_warps", "num_stages", "sum_sms", "tile_sums")
        if getattr(realization, key) is not None
    }
    found["split"] = split_text(realization.split)
    if realization.comm_sms and find_backend(realization.backend).comm_sms:
        found["comm_sms"] = str(realization.comm_sms)
    return {**found, **{name: str(value) for name, value in realization.meta}}
