"""Exposed communication of a prebuilt operator, measured on request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from overlap.api import LastPlan
from overlap.api.groups import resolve_group
from overlap.api.measure import exposed_ms
from overlap.errors import UsageError
from overlap.runtime.of_group import runtime_of
from overlap.runtime.protocol import Runtime

from .arguments import check_dim
from .exchange_gemm import a2a_gemm
from .gather_gemm import ag_gemm
from .gather_k_gemm import ag_gemm_k
from .gemm_exchange import gemm_a2a
from .partials import out_by_tma, partial_arguments
from .products import Product, copy_launch, launch_product
from .record import last_plan, remember
from .reduce_gemm import gemm_ar
from .scatter_gemm import gemm_rs
from .views import GatherView, gather_view

OPERATORS: dict[str, Callable[..., Any]] = {
    "ag_gemm": ag_gemm,
    "ag_gemm_k": ag_gemm_k,
    "gemm_rs": gemm_rs,
    "gemm_ar": gemm_ar,
    "a2a_gemm": a2a_gemm,
    "gemm_a2a": gemm_a2a,
}


def measure(
    x: torch.Tensor,
    w: torch.Tensor | Sequence[torch.Tensor],
    *,
    operator: str = "ag_gemm",
    iterations: int = 20,
    **options: Any,
) -> LastPlan:
    """Calls an operator repeatedly and measures the communication that its products do not hide; collective.

    Args:
        x, w, options: as for the operator.
        operator: its name.
        iterations: calls that are timed; the median counts.

    Returns:
        `last_plan` with ``exposed_ms``: the call's time less that of the same kernels with nothing communicated.

    Raises:
        UsageError: no such operator.
    """
    if operator not in OPERATORS:
        raise UsageError(f"no operator {operator!r}", help=f"operators: {', '.join(OPERATORS)}")
    call = OPERATORS[operator]
    call(x, w, **options)
    said = last_plan(operator)
    assert said is not None
    if said.backend == "serial":
        return said
    runtime = runtime_of(resolve_group(options.get("group")))
    if isinstance(w, torch.Tensor) and operator in ("gemm_rs", "gemm_ar", "gemm_a2a"):
        alone = _partial(x, w, said, runtime)
    else:
        weights = [w] if isinstance(w, torch.Tensor) else list(w)
        view, returned = _gathered(x, operator, options, said), options.get("return_gathered", False)
        alone = _products(view, weights, options.get("bias"), x, runtime, returned)
    exposed = exposed_ms(lambda: call(x, w, **options), alone, iterations)
    said = replace(said, exposed_ms=exposed)
    remember(said)
    return said


def _gathered(x: torch.Tensor, operator: str, options: dict[str, Any], said: LastPlan) -> GatherView:
    """What the kernels of an operator read once it is there."""
    if operator == "ag_gemm":
        return gather_view(x, options.get("gather_dim", 0), options.get("gather_size"), said.world, said.rank)
    rows = math.prod(x.shape[:-1])
    depth = said.shape[-1]
    if operator == "a2a_gemm":
        dim = check_dim(x, options.get("scatter_dim", 0), "scatter_dim", last=False)
        rows = rows // x.shape[dim] * -(-x.shape[dim] // said.world)
    return GatherView((rows, depth), 1, rows, depth, "M")


def _products(
    view: GatherView, weights: Sequence[torch.Tensor], bias: Any, x: torch.Tensor, runtime: Runtime, returned: bool
) -> Callable[[], None]:
    """The products on a tensor that is there; where that is ``returned``, its copy too."""
    biases = list(bias) if isinstance(bias, (list, tuple)) else [bias] * len(weights)
    gathered = torch.randn(view.batch, view.rows, view.depth, device=x.device).to(x.dtype)
    products = [
        Product(each, torch.empty(view.batch, view.rows, each.shape[1], dtype=x.dtype, device=x.device), b)
        for each, b in zip(weights, biases, strict=True)
    ]

    copies = [copy_launch(gathered, torch.empty_like(gathered))] if returned else []

    def alone() -> None:
        for product in products:
            launch_product(product, gathered, view, runtime)
        for each in copies:
            runtime.launch(each.kernel, each.grid, (), each.arguments, runtime.main_stream())

    return alone


def _partial(x: torch.Tensor, w: torch.Tensor, said: LastPlan, runtime: Runtime) -> Callable[[], None]:
    """The product whose result would be communicated, in ordinary memory."""
    rows, columns = math.prod(x.shape[:-1]), w.shape[1]
    moved = getattr(torch, said.dtype.removeprefix("torch."))
    c = torch.empty(1, rows, columns, dtype=moved, device=x.device)
    tma = out_by_tma(x.dtype, moved, 1, rows, columns)
    kernel, grid, arguments = partial_arguments(x.reshape(1, rows, x.shape[-1]), w, None, c, columns, tma, runtime)

    def alone() -> None:
        runtime.launch(kernel, (*grid, 1, 1), (), arguments, runtime.main_stream())

    return alone
