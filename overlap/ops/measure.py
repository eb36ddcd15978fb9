"""Exposed communication of a prebuilt operator, measured on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from overlap.api import LastPlan
from overlap.api.groups import resolve_group
from overlap.api.measure import exposed_ms
from overlap.runtime.protocol import runtime_of

from .gather_gemm import ag_gemm
from .products import Product, launch_product
from .record import last_plan, remember
from .views import gather_view


def measure(
    x: torch.Tensor, w: torch.Tensor | Sequence[torch.Tensor], *, iterations: int = 20, **options: Any
) -> LastPlan:
    """Calls `ag_gemm` repeatedly and measures the communication that its products do not hide; collective.

    Args:
        x, w, options: as for `ag_gemm`.
        iterations: calls that are timed; the median counts.

    Returns:
        `last_plan` with ``exposed_ms``: the call's time less that of the same kernels on the gathered x.
    """
    plain = {key: value for key, value in options.items() if key != "return_gathered"}
    _, whole = ag_gemm(x, w, **plain, return_gathered=True)
    said = last_plan()
    assert said is not None
    if said.backend == "serial":
        return said
    group = resolve_group(options.get("group"))
    view = gather_view(x, options.get("gather_dim", 0), options.get("gather_size"), said.world, said.rank)
    gathered, runtime = whole.view(view.batch, view.rows, view.depth), runtime_of(group)
    weights = [w] if isinstance(w, torch.Tensor) else list(w)
    bias = options.get("bias")
    biases = list(bias) if isinstance(bias, (list, tuple)) else [bias] * len(weights)
    products = [
        Product(each, torch.empty(view.batch, view.rows, each.shape[1], dtype=x.dtype, device=x.device), b)
        for each, b in zip(weights, biases, strict=True)
    ]

    def alone() -> None:
        for product in products:
            launch_product(product, gathered, view, runtime)

    exposed = exposed_ms(lambda: ag_gemm(x, w, **plain), alone, iterations)
    said = replace(said, exposed_ms=exposed)
    remember(said)
    return said
