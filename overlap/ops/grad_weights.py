"""Gradients of weights and biases, and where they go: a new tensor, or an fp32 ``main_grad`` that sums them in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from overlap.errors import UsageError

_HELP = (
    "give the parameter a main_grad of its own shape and strides, torch.zeros_like(weight, dtype=torch.float32), and pass "
    "the parameter or a view of it (weight.t(), a slice), not a copy; or leave accumulate_main_grad out"
)


def main_grads_of(weights: Sequence[torch.Tensor], wanted: bool) -> list[torch.Tensor]:
    """The ``main_grad`` of each weight in the weight's own shape; an empty list where none is wanted.

    Raises:
        UsageError: a weight that needs a gradient has none that fits.
    """
    if not wanted or not torch.is_grad_enabled() or not any(w.requires_grad for w in weights):
        return []
    return [main_grad_of(w, i) if w.requires_grad else w.detach() for i, w in enumerate(weights)]


def main_grad_of(weight: torch.Tensor, position: int = 0) -> torch.Tensor:
    """The part of a parameter's ``main_grad`` that belongs to ``weight``.

    Args:
        weight: the parameter, or a view of it (its transpose, a slice), for which the same view of main_grad is given.
        position: of the weight in the call, for messages.

    Raises:
        UsageError: there is no main_grad, or it does not fit.
    """
    parameter, main_grad = weight, getattr(weight, "main_grad", None)
    if main_grad is None and weight._base is not None:
        parameter = weight._base
        main_grad = getattr(parameter, "main_grad", None)
    if main_grad is None:
        raise UsageError(f"accumulate_main_grad: weight {position} has no main_grad", help=_HELP)
    if main_grad.shape != parameter.shape or main_grad.device != parameter.device:
        raise UsageError(
            f"accumulate_main_grad: the main_grad of weight {position} is {tuple(main_grad.shape)} on {main_grad.device}, "
            f"the parameter {tuple(parameter.shape)} on {parameter.device}",
            help=_HELP,
        )
    if not main_grad.dtype.is_floating_point:
        raise UsageError(
            f"accumulate_main_grad: the main_grad of weight {position} is {main_grad.dtype}",
            help="make it torch.float32",
        )
    if parameter is weight:
        return main_grad
    if main_grad.stride() != parameter.stride():
        raise UsageError(
            f"accumulate_main_grad: weight {position} is a view of a parameter with strides {parameter.stride()}, whose "
            f"main_grad has {main_grad.stride()}",
            help=_HELP,
        )
    offset = main_grad.storage_offset() + weight.storage_offset() - parameter.storage_offset()
    return main_grad.as_strided(weight.shape, weight.stride(), offset)


def weight_gradient(
    a: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor, main_grad: torch.Tensor | None
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
    if _transposed(main_grad):
        _accumulate(main_grad.t(), columns, rows)
    else:
        _accumulate(main_grad, rows, columns)
    return _stand_in(weight)


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
            torch.addmm(into, a.t(), b, out_dtype=torch.float32, out=into)
        else:
            into.addmm_(a.t().to(into.dtype), b.to(into.dtype))


def _stand_in(weight: torch.Tensor) -> torch.Tensor | None:
    parameter = weight if weight._base is None else weight._base
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    return weight.new_zeros(()).expand(weight.shape)
