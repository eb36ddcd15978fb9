"""How autograd sees `ag_gemm` and `gemm_rs`: one node each, in eager mode and under a tracer.

    eager             a `torch.autograd.Function` around the direct call; no dispatcher
    traced (compile)  the custom operator, whose formula is registered here and traced with the rest of the backward

Both keep the same tensors and call the same formulas, those of `grad_pair`. A gathered x that is kept for the weights'
gradients is a result of the node, whether or not the caller asked for it, so that gradients of gradients reach x through
it. On simulated ranks nothing is recorded: autograd's engine is one for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overlap.errors import UsageError

from .autocast import without_autocast
from .grad_pair import Half, Maybe, Needs, ag_gemm_gradients, gemm_rs_gradients
from .grad_weights import MainGrad


def recorded(group: Any, tensors: Sequence[Maybe], out: Any) -> bool:
    """Whether autograd wants to know of a call on these tensors.

    Raises:
        UsageError: it does, and the caller passed ``out``.
    """
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in tensors):
        return False
    # A tracer knows no such attribute of a group; it also never meets simulated ranks.
    if not torch.compiler.is_compiling() and hasattr(group, "overlap_runtime"):
        return False
    if out is not None:
        raise UsageError(
            "out= has no gradient, and an input needs one", help="leave out= away, or call under torch.no_grad()"
        )
    return True


class AgGemm(torch.autograd.Function):
    """``apply(run, half, main_grads, keep, count, x, *weights, *biases)``, with ``count`` weights and as many biases or None.

    ``run(x, weights, biases)`` gives the results and, with ``keep``, the gathered x as the last.
    """

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[..., list[torch.Tensor]],
        half: Half,
        main_grads: Sequence[MainGrad],
        keep: bool,
        count: int,
        x: torch.Tensor,
        *rest: Maybe,
    ) -> tuple[torch.Tensor, ...]:
        weights, biases = rest[:count], rest[count:]
        results = run(x, weights, biases)
        keep_for_ag_gemm(ctx, half, main_grads, x, weights, biases, results[-1] if keep else None)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> tuple[Any, ...]:
        dx, dws, dbs = ag_gemm_backward(ctx, grads)
        return (None, None, None, None, None, dx, *dws, *dbs)


class GemmRs(torch.autograd.Function):
    """``apply(run, half, main_grads, x, w, bias)``; ``run(x, w, bias)`` gives the result."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[..., torch.Tensor],
        half: Half,
        main_grads: Sequence[MainGrad],
        x: torch.Tensor,
        w: torch.Tensor,
        bias: Maybe,
    ) -> torch.Tensor:
        y = run(x, w, bias)
        keep_for_gemm_rs(ctx, half, main_grads, x, w, bias)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> tuple[Any, ...]:
        return (None, None, None, *gemm_rs_backward(ctx, grads[0]))


def keep_for_ag_gemm(
    ctx: Any,
    half: Half,
    main_grads: Sequence[MainGrad],
    x: torch.Tensor,
    weights: Sequence[Maybe],
    biases: Sequence[Maybe],
    gathered: Maybe,
) -> None:
    """Keeps what the gradients of an `ag_gemm` need: weights for that of x, x for those of weights, in one form."""
    needs = _needs(x, weights, biases)
    of_weights = any(needs.weights)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        x if of_weights and gathered is None else None, gathered if of_weights else None, *weights
    )  # fmt: skip
    ctx.half, ctx.needs, ctx.main_grads, ctx.gathered = half, needs, main_grads, gathered is not None


@without_autocast
def ag_gemm_backward(ctx: Any, grads: Sequence[Maybe]) -> tuple[Maybe, list[Maybe], list[Maybe]]:
    x, gathered, *weights = ctx.saved_tensors
    grads = [as_it_lies(grad) for grad in grads]
    dys, of_gathered = (grads[:-1], grads[-1]) if ctx.gathered else (grads, None)
    return ag_gemm_gradients(ctx.half, ctx.needs, x, weights, gathered, dys, of_gathered, ctx.main_grads)


def keep_for_gemm_rs(
    ctx: Any, half: Half, main_grads: Sequence[MainGrad], x: torch.Tensor, w: torch.Tensor, bias: Maybe
) -> None:
    """Keeps what the gradients of a `gemm_rs` need."""
    needs = _needs(x, [w], [bias])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if needs.weights[0] else None, w)
    ctx.half, ctx.needs, ctx.main_grads = half, needs, main_grads


@without_autocast
def gemm_rs_backward(ctx: Any, dy: Maybe) -> tuple[Maybe, Maybe, Maybe]:
    dy = as_it_lies(dy)
    if dy is None:
        return None, None, None
    x, w = ctx.saved_tensors
    return gemm_rs_gradients(ctx.half, ctx.needs, x, w, dy, ctx.main_grads)


def as_it_lies(grad: Maybe) -> Maybe:
    """A gradient whose memory is its value: behind complex numbers it comes as a negated view, and no caller could resolve it."""
    return None if grad is None else grad.resolve_neg().resolve_conj()


def _needs(x: torch.Tensor, weights: Sequence[Maybe], biases: Sequence[Maybe]) -> Needs:
    def all_of(tensors: Sequence[Maybe]) -> tuple[bool, ...]:
        return tuple(t is not None and t.requires_grad for t in tensors)

    return Needs(x.requires_grad, all_of(weights), all_of(biases))
