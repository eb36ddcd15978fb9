"""`ag_gemm`: y = gather(x) @ w, the gather hidden behind the product.

    rank r   x shard -> own slot | copies from peers ... | [gathered x]
             tiles of the own rows | rows of r+1 | rows of r+2 | ...  | further weights on the gathered x

A call is carried out by `gather_call`; here are what users see of it, and what torch's dispatcher and autograd do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overlap.api.groups import group_by_name, no_group, resolved
from overlap.chunkplan.cuts import SplitLike, split_of, split_text
from overlap.errors import UsageError
from overlap.interop import define, group_name, tracing

from .arguments import listed
from .autograd import AgGemm, ag_gemm_backward, keep_for_ag_gemm, recorded
from .gather_call import check_arguments, run
from .grad_pair import Half
from .grad_weights import Accumulate, MainGrad, main_grads_of
from .repeat import repeated


def ag_gemm(
    x: torch.Tensor,
    w: torch.Tensor | Sequence[torch.Tensor],
    *,
    bias: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
    gather_dim: int = 0,
    gather_size: int | None = None,
    group: Any = None,
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    return_gathered: bool = False,
    backend: str | None = None,
    plan: str | None = None,
    split: SplitLike = 1,
    comm_sms: int = 0,
    save_gathered: bool = True,
    accumulate_main_grad: Accumulate = False,
) -> Any:
    """``gather(x, gather_dim) @ w + bias`` over the ranks of ``group``.

    Args:
        x: this rank's shard, [..., D]; any strides.
        w: this rank's weight [D, N], any strides (``linear.weight.t()`` is one), or several [D, N_i] for one gather; as many
            on every rank.
        bias: [N] of x's dtype, or one (or None) for each weight.
        gather_dim: the dimension x is sharded along; not the last.
        gather_size: its global extent, needed where shards are uneven; they follow `torch.chunk`.
        group: process group, its name, DeviceMesh, (mesh, dim), or a simulated group; None is the default group.
        out: where results go, of their shape and dtype; one for each weight.
        return_gathered: return the gathered x as well, as a tensor of its own; on all ranks or on none.
        backend: ``copy_engine`` (fused), ``ldst_reserved`` or ``tma_reserved`` (fused, some of the kernel's programs move
            the shards), ``ldst_inline`` or ``tma_inline`` (fused, all of them do between their tiles) or ``serial`` (a
            collective, then torch's product); by default fused, and serial where that is impossible or slower, which
            `last_plan` and the log say.
        plan: the plan template that moves the shards; by default ``all_gather_1d``, which pulls or pushes as the backend does
            it better, and by copy engine ``all_gather_1d_push`` where tiles can then read the rank's own shard where it is.
        split: chunks a shard is cut into.
        comm_sms: programs that move the shards, with a backend that reserves some; 0: an eighth of the multiprocessors.
        save_gathered: keep the gathered x for the gradients of the weights; else it is gathered again in the backward.
        accumulate_main_grad: add the gradient of each weight to its parameter's ``main_grad`` in place, in that one's
            precision (fp32), while ``grad`` stays None; or the tensors to add to, in the shapes of the weights.

    Returns:
        y [..., N] of x's dtype, accumulated in fp32 (fp32 inputs in IEEE precision): one tensor, or a list for a list
        of weights; with ``return_gathered`` a pair of that and the gathered x.

    Raises:
        UsageError: shapes, dtypes or devices that do not fit each other, or an unknown backend.
        UnsupportedError: a gather along D.
        RuntimeContractError: a shard that is not this rank's piece.
    """
    weights = [w] if isinstance(w, torch.Tensor) else listed("w", w)
    biases = [bias] * len(weights) if bias is None or isinstance(bias, torch.Tensor) else listed("bias", bias)
    if isinstance(bias, torch.Tensor) and not isinstance(w, torch.Tensor):
        raise UsageError(f"one bias for {len(weights)} weights", help="pass a list: a bias, or None, for each weight")
    outs = None if out is None else [out] if isinstance(out, torch.Tensor) else listed("out", out)
    split = split_of(split)
    options = (len(weights), gather_dim, gather_size, backend, plan, split, comm_sms, return_gathered)
    asked = repeated("ag_gemm", group, (x, *weights, *biases), outs, options)
    if isinstance(asked, list):
        ys = asked[0] if isinstance(w, torch.Tensor) else asked[: len(weights)]
        return (ys, asked[-1]) if return_gathered else ys
    check_arguments(group, x, weights, biases, outs)
    tensors = [x, *weights, *biases]
    recording = recorded(group, tensors, out)
    main_grads = main_grads_of(weights, accumulate_main_grad) if recording else []
    keep = return_gathered or recording and save_gathered and any(each.requires_grad for each in weights)
    results: Any
    if out is None and not no_group(group) and tracing(group, tensors):
        present, biased = [b for b in biases if b is not None], [i for i, b in enumerate(biases) if b is not None]
        name = group_name(group)
        sums = [m.tensor for m in main_grads]
        results = _OPERATOR(
            x,
            weights,
            present,
            biased,
            gather_dim,
            gather_size,
            name,
            backend,
            plan,
            split_text(split),
            comm_sms,
            keep,
            sums,
        )
    else:

        def call(x: torch.Tensor, weights: Any, biases: Any) -> list[torch.Tensor]:
            options = (gather_dim, gather_size, group, outs, backend, plan, split, comm_sms, keep)
            return run(x, weights, biases, *options, asked)

        if recording:
            half = Half(gather_dim, gather_size, resolved(group), backend, plan, split, comm_sms)
            results = AgGemm.apply(call, half, main_grads, keep, len(weights), x, *weights, *biases)
        else:
            results = call(x, weights, biases)
    ys = results[0] if isinstance(w, torch.Tensor) else list(results[: len(weights)])
    return (ys, results[-1]) if return_gathered else ys


def _call(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    biased: Sequence[int],
    gather_dim: int,
    gather_size: int | None,
    group: str,
    backend: str | None,
    plan: str | None,
    split: str,
    comm_sms: int,
    return_gathered: bool,
    main_grads: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """``biases`` are those of the weights numbered in ``biased``: autograd sees no tensors in a list with None."""
    each = dict(zip(biased, biases, strict=True))
    all_biases = [each.get(i) for i in range(len(weights))]
    found = group_by_name(group)
    return run(
        x,
        weights,
        all_biases,
        gather_dim,
        gather_size,
        found,
        None,
        backend,
        plan,
        split_of(split),
        comm_sms,
        return_gathered,
    )


def _fake(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    biased: Sequence[int],
    gather_dim: int,
    gather_size: int | None,
    group: str,
    backend: str | None,
    plan: str | None,
    split: str,
    comm_sms: int,
    return_gathered: bool,
    main_grads: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    found = group_by_name(group)
    dim = gather_dim % x.dim()
    extent = x.shape[dim] * found.size() if gather_size is None else gather_size
    whole = (*x.shape[:dim], extent, *x.shape[dim + 1 :])
    ys = [x.new_empty((*whole[:-1], w.shape[1])) for w in weights]
    return [*ys, x.new_empty(whole)] if return_gathered else ys


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    x, weights, biases, biased, dim, size, group, backend, plan, split, comm_sms, keep, main_grads = inputs
    half = Half(dim, size, group, backend, plan, split_of(split), comm_sms)
    each = dict(zip(biased, biases, strict=True))
    all_biases = [each.get(i) for i in range(len(weights))]
    keep_for_ag_gemm(ctx, half, [MainGrad(t) for t in main_grads], x, weights, all_biases, output[-1] if keep else None)
    ctx.biased = biased


def _backward(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    dx, dws, dbs = ag_gemm_backward(ctx, grads)
    none_of_main_grads = [None] * len(ctx.main_grads)
    return dx, dws, [dbs[i] for i in ctx.biased], *[None] * 9, none_of_main_grads


_OPERATOR = define("overlap::ag_gemm", _call, _fake, setup_context=_keep, backward=_backward)
