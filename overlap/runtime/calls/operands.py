"""What kernels and copies take: tensors whose memory holds their elements, one by one and as they are.

Both go to a tensor's memory themselves, so nothing that torch does on the way there is done: no sign is turned, no element is
looked up, no batch is taken apart. A tensor that needs any of it is refused before its memory is read for its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from overlap.errors import SourceSpan, UsageError

_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def check_operands(operands: Iterable[tuple[str, Any]], where: Callable[[], SourceSpan | None] = lambda: None) -> None:
    """Raises UsageError, with the name it is given and what to pass instead, for what is not such a tensor.

    Args:
        where: gives the user's line.
    """
    for name, value in operands:
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"{name} is a {type(value).__name__}", where=where(), help="give a tensor")
        found = _unreadable(value)
        if found is not None:
            what, instead = found
            raise UsageError(f"{name} {what}", where=where(), help=instead)


def check_results(results: Iterable[tuple[str, Any]], where: Callable[[], SourceSpan | None] = lambda: None) -> None:
    """`check_operands` of what is written, whose elements must also lie apart: tiles and copies come in any order."""
    for name, value in results:
        check_operands([(name, value)], where)
        if not _apart(value):
            raise UsageError(
                f"{name} has shape {tuple(value.shape)} and strides {value.stride()}, so that elements share memory",
                where=where(),
                help="pass memory for each of its elements",
            )


def _apart(tensor: torch.Tensor) -> bool:
    """Whether every step along a dimension leads past all that the finer dimensions reach."""
    reached = 0
    for step, extent in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if step <= reached:
            return not tensor.numel()
        reached += step * (extent - 1)
    return True


def check_launch(launch: dict[str, Any], where: Callable[[], SourceSpan | None] = lambda: None) -> None:
    """`check_operands` of the arguments of a launch, which must also be of a dtype that kernels know."""
    tensors = tensors_of(launch)
    check_operands(tensors, where)
    for name, tensor in tensors:
        if tensor.is_complex():
            raise UsageError(
                f"{name} is {tensor.dtype}, which Triton has no type for",
                where=where(),
                help="pass its torch.view_as_real, and compute on real and imaginary parts",
            )


def tensors_of(launch: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors among the arguments of a launch, under descriptors too, by name."""
    bases = ((name, getattr(value, "base", value)) for name, value in launch.items())
    return [(f"`{name}`", base) for name, base in bases if isinstance(base, torch.Tensor)]


def _unreadable(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Why a tensor's memory is not its value, and what to pass instead; None where it is."""
    if _wrapped(tensor):
        return (
            "is what a transform of torch.func (vmap, grad, jvp) puts in a tensor's place",
            "call outside of transforms",
        )
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        return f"is {kind}", "pass a dense tensor, such as its to_dense() or to_padded_tensor()"
    if tensor.is_quantized:
        return f"is quantized, {tensor.dtype}", "pass its dequantize() or its int_repr()"
    if tensor.is_neg() or tensor.is_conj():
        kind, instead = ("negated", "resolve_neg()") if tensor.is_neg() else ("conjugated", "resolve_conj()")
        return f"is a {kind} view of its memory", f"pass its {instead}"
    try:
        lies_nowhere = not tensor.data_ptr() and tensor.numel() > 0
    except (RuntimeError, NotImplementedError):  # a subclass that wraps others
        lies_nowhere = True
    if lies_nowhere:
        kind = type(tensor).__name__
        instead = "pass a plain tensor whose storage is there (of a DTensor its to_local())"
        return f"has no memory of its own ({kind} on {tensor.device})", instead
    return None
