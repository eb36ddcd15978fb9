"""Gradients of weights and biases, and where they go: a new tensor, or an fp32 ``main_grad`` that sums them in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch

from overlap.errors import UsageError
from overlap.interop import define, tracing

Accumulate: TypeAlias = "bool | torch.Tensor | Sequence[torch.Tensor | None]"
"""What a caller says of main_grad: no, yes (that of the parameter), or the tensors themselves."""

_HELP = (
    "give the parameter a main_grad of its own shape and strides, torch.zeros_like(weight, dtype=torch.float32), and pass "
    "the parameter or a view of it (weight.t(), a slice), not a copy; or pass accumulate_main_grad the tensors themselves"
)


@dataclass(frozen=True)
class MainGrad:
    """Where the gradient of one weight is added.

    ``tensor``: in the weight's own shape; ``parameter``: what carries Megatron's mark ``grad_added_to_main_grad``, if
    any does.
    """

    tensor: torch.Tensor
    parameter: torch.Tensor | None = None


def main_grads_of(weights: Sequence[torch.Tensor], wanted: Accumulate) -> list[MainGrad]:
    """The main_grad of each weight; an empty list where none is wanted.

    Args:
        wanted: True for that of each weight's parameter (`main_grad_of`), or the tensors, in the weights' shapes.

    Raises:
        UsageError: a weight that needs a gradient has none that fits.
    """
    if isinstance(wanted, bool):
        if not wanted:
            return []
        return [main_grad_of(w, i) if w.requires_grad else MainGrad(w.detach()) for i, w in enumerate(weights)]
    given = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    if len(given) != len(weights):
        raise UsageError(f"accumulate_main_grad: {len(given)} tensors for {len(weights)} weights")
    for i, (w, main_grad) in enumerate(zip(weights, given, strict=True)):
        if w.requires_grad:
            _check_fit(i, main_grad, w)
    return [
        MainGrad(w.detach() if main_grad is None else main_grad) for w, main_grad in zip(weights, given, strict=True)
    ]


def main_grad_of(weight: torch.Tensor, position: int = 0) -> MainGrad:
    """The part of a parameter's ``main_grad`` that belongs to ``weight``.

    Args:
        weight: the parameter, or a view of it (its transpose, a slice), for which the same view of main_grad is given.
        position: of the weight in the call, for messages.

    Raises:
        UsageError: there is no main_grad, or it does not fit.
    """
    parameter = weight
    if getattr(weight, "main_grad", None) is None and weight._base is not None:
        parameter = weight._base
    main_grad = _check_fit(position, getattr(parameter, "main_grad", None), parameter)
    marked = parameter if hasattr(parameter, "grad_added_to_main_grad") else None
    if parameter is weight:
        return MainGrad(main_grad, marked)
    if main_grad.stride() != parameter.stride():
        raise UsageError(
            f"accumulate_main_grad: weight {position} is a view of a parameter with strides {parameter.stride()}, whose "
            f"main_grad has {main_grad.stride()}",
            help=_HELP,
        )
    offset = main_grad.storage_offset() + weight.storage_offset() - parameter.storage_offset()
    return MainGrad(main_grad.as_strided(weight.shape, weight.stride(), offset), marked)


def _check_fit(position: int, main_grad: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    if main_grad is None:
        raise UsageError(f"accumulate_main_grad: weight {position} has no main_grad", help=_HELP)
    if main_grad.shape != weight.shape or main_grad.device != weight.device:
        raise UsageError(
            f"accumulate_main_grad: the main_grad of weight {position} is {tuple(main_grad.shape)} on {main_grad.device}, "
            f"the weight {tuple(weight.shape)} on {weight.device}",
            help=_HELP,
        )
    if not main_grad.dtype.is_floating_point or main_grad.requires_grad:
        kind = "requires a gradient itself" if main_grad.requires_grad else f"is {main_grad.dtype}"
        raise UsageError(
            f"accumulate_main_grad: the main_grad of weight {position} {kind}",
            help="make it a plain tensor of torch.float32",
        )
    return main_grad


def weight_gradient(
    a: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor, main_grad: MainGrad | None
) -> torch.Tensor | None:
    """``a.t() @ dy``, [D, N], over all rows.

    Args:
        a: what the weight was multiplied with, [..., D].
        dy: the gradient of the product, [..., N].
        weight: [D, N]; the gradient lies in memory in its order, so that a transposed parameter's needs no copy.
        main_grad: where to add the gradient in place, in its own precision.

    Returns:
        The gradient; nothing with ``main_grad``, except for a parameter that carries Megatron's mark
        ``grad_added_to_main_grad``: that is set, and zeros without memory stand in for the gradient, so that hooks run.
    """
    rows, columns = a.flatten(0, -2), dy.flatten(0, -2)
    if main_grad is None:
        if _transposed(weight):
            return torch.mm(columns.t(), rows).t()
        return torch.mm(rows.t(), columns)
    into = main_grad.tensor
    if _transposed(into):
        _accumulate(into.t(), columns, rows)
    else:
        _accumulate(into, rows, columns)
    if main_grad.parameter is None:
        return None
    main_grad.parameter.grad_added_to_main_grad = True
    return weight.new_zeros(()).expand(weight.shape)


def bias_gradient(dy: torch.Tensor) -> torch.Tensor:
    """The sum of ``dy`` [..., N] over all rows."""
    return dy.flatten(0, -2).sum(0)


def _transposed(matrix: torch.Tensor) -> bool:
    return matrix.stride(0) == 1 and matrix.stride(1) != 1


def _accumulate(into: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``into += a.t() @ b``; products of 16-bit numbers are summed in fp32 and added before anything is rounded."""
    with torch.no_grad():
        if into.dtype == a.dtype:
            into.addmm_(a.t(), b)
        elif a.is_cuda and into.dtype == torch.float32 and a.dtype.itemsize == 2:
            add = _ADD if tracing(None, (into, a, b)) else _add_product
            add(into, a, b)
        else:
            into.addmm_(a.t().to(into.dtype), b.to(into.dtype))


def _add_product(into: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``into += a.t() @ b`` for an fp32 ``into`` and 16-bit ``a`` and ``b`` on a GPU."""
    if _adds_in_one_product(a.device, a.dtype):
        torch.addmm(into, a.t(), b, out_dtype=torch.float32, out=into)
    else:
        into.add_(torch.mm(a.t(), b, out_dtype=torch.float32))


@cache
def _adds_in_one_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch adds a product of 16-bit matrices to an fp32 one; until 2.9 it refuses."""
    total, one = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device, dtype=dtype)
    try:
        torch.addmm(total, one, one, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return True


def _add_nothing(into: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """The fake: results are written into the argument."""


# Tracers take no addmm with out_dtype.
_ADD = define("overlap::add_product", _add_product, _add_nothing, mutates=("into",))
