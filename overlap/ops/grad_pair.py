"""What differentiates the two halves of tensor parallelism: each one's gradient is the other half.

    ag_gemm   y = gather(x) @ w         dx = scatter(sum over ranks of dy @ w.t())      = gemm_rs(dy, w.t())
                                        dw = gather(x).t() @ dy                           x kept, or gathered again
    gemm_rs   y = scatter(sum of x @ w) dx = gather(dy) @ w.t()                         = ag_gemm(dy, w.t())
                                        dw = x.t() @ gather(dy)                           of the same gather

The loss is the sum of the ranks' losses. Every rank's weight is a parameter of its own. The bias of `ag_gemm` belongs to
the rank's own columns; that of `gemm_rs` is one parameter of which each rank holds a copy, and its gradient, from all
rows, comes out whole on every rank.

All functions here are made of differentiable operators: gradients of gradients follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from overlap.backends.capabilities import names
from overlap.chunkplan.cuts import Split

from .grad_weights import MainGrad, bias_gradient, weight_gradient

COPIES = "copy_engine"
Maybe: TypeAlias = "torch.Tensor | None"


@dataclass(frozen=True)
class Half:
    """How one call communicated, which its gradients repeat.

    ``dim``: the dimension that is gathered or scattered; ``extent``: its global size, None where all pieces are equal.
    ``plan``, ``split`` and ``comm_sms`` are those of a gather that is done again.
    """

    dim: int
    extent: int | None
    group: Any
    backend: str | None
    plan: str | None = None
    split: Split = 1
    comm_sms: int = 0

    @property
    def reverse(self) -> str | None:
        """The backend of a gather's scatter and a scatter's gather: some carry only one of the two, or not every result."""
        both = names("input", "result")
        return self.backend if self.backend is None or self.backend in both and self.backend != "tma_inline" else COPIES


@dataclass(frozen=True)
class Needs:
    """Of which inputs the gradient is wanted. Alike on every rank, as it decides on collectives."""

    x: bool
    weights: tuple[bool, ...]
    biases: tuple[bool, ...]


def ag_gemm_gradients(
    half: Half,
    needs: Needs,
    x: Maybe,
    weights: Sequence[torch.Tensor],
    gathered: Maybe,
    dys: Sequence[Maybe],
    of_gathered: Maybe,
    main_grads: Sequence[MainGrad] = (),
) -> tuple[Maybe, list[Maybe], list[Maybe]]:
    """The gradients of x, of the weights and of the biases of one `ag_gemm`.

    Args:
        x: this rank's shard; only where a weight needs a gradient and there is no ``gathered``.
        weights: [D, N_i]
        gathered: the gathered x, if it was kept.
        dys: gradients of the products, [..., N_i], None for those that nothing depends on.
        of_gathered: the gradient of the gathered x where that was a result too.
        main_grads: for each weight, where its gradient is added; empty for none.
    """
    dx = None
    if needs.x:
        dx = _scattered(half, weights, dys, of_gathered)
    if gathered is None and any(needs.weights):
        assert x is not None
        gathered = _gathered_again(half, x)
    dws: list[Maybe] = [None] * len(weights)
    for i, (w, dy) in enumerate(zip(weights, dys, strict=True)):
        if gathered is not None and needs.weights[i] and dy is not None:
            dws[i] = weight_gradient(gathered, dy, w, main_grads[i] if main_grads else None)
    dbs = [
        bias_gradient(dy) if needed and dy is not None else None for needed, dy in zip(needs.biases, dys, strict=True)
    ]
    return dx, dws, dbs


def gemm_rs_gradients(
    half: Half, needs: Needs, x: Maybe, w: torch.Tensor, dy: torch.Tensor, main_grads: Sequence[MainGrad] = ()
) -> tuple[Maybe, Maybe, Maybe]:
    """The gradients of x, w and the bias of one `gemm_rs`.

    Args:
        x: [..., K]; only where w needs a gradient.
        w: [K, N]
        dy: the gradient of this rank's shard of the result, [..., N]; of another dtype than w where ``out_dtype`` was.
        main_grads: where the gradient of w is added, or empty.
    """
    of_parameters = needs.weights[0] or needs.biases[0]
    dx = whole = None
    if needs.x or of_parameters:
        dx, whole = _gathered_product(half, dy.to(w.dtype), w, needs.x, of_parameters)
    dw = db = None
    if needs.weights[0]:
        assert x is not None and whole is not None
        dw = weight_gradient(x, whole, w, main_grads[0] if main_grads else None)
    if needs.biases[0]:
        assert whole is not None
        db = bias_gradient(whole)
    return dx, dw, db


def _gathered_product(
    half: Half, dy: torch.Tensor, w: torch.Tensor, product: bool, gathered: bool
) -> tuple[Maybe, Maybe]:
    """``gather(dy) @ w.t()`` and ``gather(dy)``, each only where it is wanted."""
    from overlap.ops import ag_gemm

    ways: dict[str, Any] = {"gather_size": half.extent, "group": half.group, "backend": half.reverse}
    if half.dim == dy.dim() - 1:
        # Sharded along the dimension that the product sums over: columns are gathered as rows, the product is local.
        columns = dy.flatten(0, -2).t()
        _, rows = ag_gemm(columns, dy.new_empty(columns.shape[1], 0), return_gathered=True, **ways)
        whole = rows.t().reshape(*dy.shape[:-1], w.shape[1])
        return (whole @ w.t() if product else None), whole
    # Without a product this is the gather alone.
    other = w.t() if product else w.new_empty(w.shape[1], 0)
    if not gathered:
        return ag_gemm(dy, other, gather_dim=half.dim, **ways), None
    dx, whole = ag_gemm(dy, other, gather_dim=half.dim, return_gathered=True, **ways)
    return (dx if product else None), whole


def _scattered(half: Half, weights: Sequence[torch.Tensor], dys: Sequence[Maybe], of_gathered: Maybe) -> Maybe:
    """The sum over ranks and weights of ``dy @ w.t()``, plus the gradient of the gathered x, scattered.

    One product and one scatter: gradients stand side by side, weights above each other. What came back for the gathered
    x itself goes through an identity, added before anything is rounded.
    """
    from overlap.ops import gemm_rs

    parts = [(dy, w.t()) for dy, w in zip(dys, weights, strict=True) if dy is not None]
    if of_gathered is not None:
        depth = of_gathered.shape[-1]
        parts.append((of_gathered, torch.eye(depth, dtype=of_gathered.dtype, device=of_gathered.device)))
    if not parts:
        return None
    dy, w = parts[0]
    if len(parts) > 1:
        dy, w = torch.cat([d for d, _ in parts], dim=-1), torch.cat([w for _, w in parts])
    return gemm_rs(dy, w, scatter_dim=half.dim, group=half.group, backend=half.reverse)


def _gathered_again(half: Half, x: torch.Tensor) -> torch.Tensor:
    """The gathered x: of an `ag_gemm` with a weight that has no columns."""
    from overlap.ops import ag_gemm

    _, gathered = ag_gemm(
        x,
        x.new_empty(x.shape[-1], 0),
        gather_dim=half.dim,
        gather_size=half.extent,
        group=half.group,
        return_gathered=True,
        backend=half.backend,
        plan=half.plan,
        split=half.split,
        comm_sms=half.comm_sms,
    )
    return gathered
