"""What the prebuilt operators check before anything else: operands, results, dtypes, and where a call can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from overlap import settings
from overlap.api.auto import Problem, choose_auto
from overlap.api.fallback import NARROW_INPUT, NARROW_RESULT, Choice, check_plan, choose
from overlap.api.tuned import BUILT_IN, KEYWORD
from overlap.backends.capabilities import AUTO
from overlap.backends.registry import backends
from overlap.chunkplan.region import shard_interval
from overlap.errors import RuntimeContractError, UsageError
from overlap.interop import tracing
from overlap.runtime.calls.operands import check_operands

from .tuned import tuned_choice

UNEVEN = "uneven shards of a dimension with others on both sides"
"""Why a tensor cannot be exchanged by a kernel."""

FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""What the kernels compute and transports carry."""
SERIAL_DTYPES = (*FUSED_DTYPES, torch.float64)


def ranks(group: Any) -> tuple[int, int]:
    """World and rank of a resolved group; None is one rank alone."""
    carried = getattr(group, "overlap_runtime", None)
    if carried is not None:
        return carried.world, carried.rank
    if group is None:
        return 1, 0
    return group.size(), group.rank()


def check_product(
    group: Any,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    *,
    sharded_depth: bool = False,
) -> None:
    """Raises UsageError unless a weight and a bias fit ``x``.

    Args:
        group, out: as the caller gave them.
        sharded_depth: ``x`` holds only a piece of the dimension it is multiplied along.
    """
    check_memory(group, out, ("x", x), ("the weight", w), *([] if bias is None else [("the bias", bias)]))
    if out is not None:
        check_written("out", out)
    if x.dim() < 2:
        raise UsageError(
            f"x has {x.dim()} dimensions", help="x is [..., K], with at least one dimension before the last"
        )
    if w.dim() != 2 or not sharded_depth and w.shape[0] != x.shape[-1]:
        raise UsageError(
            f"the weight has shape {tuple(w.shape)}, x has {tuple(x.shape)}",
            help="w is [K, N] with K the last dimension of x; the weight of a Linear layer is passed as weight.t()",
        )
    check_alike(x, ("the weight", w), ("the bias", bias))
    if bias is not None and tuple(bias.shape) != (w.shape[1],):
        raise UsageError(f"the bias has shape {tuple(bias.shape)}, the weight {tuple(w.shape)}", help="bias is [N]")


def check_alike(x: torch.Tensor, *operands: tuple[str, torch.Tensor | None]) -> None:
    """Raises UsageError for a tensor that is on another device than ``x``, or of another dtype."""
    for name, tensor in operands:
        if tensor is not None and tensor.device != x.device:
            raise UsageError(f"{name} is on {tensor.device}, x on {x.device}")
        if tensor is not None and tensor.dtype != x.dtype:
            raise UsageError(f"{name} is {tensor.dtype}, x is {x.dtype}", help="convert one of them")


def check_memory(group: Any, out: Any, *operands: tuple[str, Any]) -> None:
    """Raises UsageError for an operand that is no tensor, has a tangent, or memory that is not its value (`check_operands`).

    What torch's dispatcher gets, it hands on as plain tensors; a call with ``out`` does not come there.
    """
    for name, value in operands:
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"{name} is a {type(value).__name__}", help="give a tensor")
    if torch.compiler.is_dynamo_compiling():
        return  # which cannot tell; `of_no_graph` asks when the call is made
    if forward_ad._current_level >= 0:
        for name, tensor in operands:
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise UsageError(
                    f"{name} has a tangent, and no operator has derivatives in forward mode",
                    help="pass its primal (torch.autograd.forward_ad.unpack_dual), or differentiate backward",
                )
    if out is not None or not tracing(group, (tensor for _, tensor in operands)):
        check_operands(operands)


def check_written(name: str, out: Any) -> None:
    """Raises UsageError for an ``out`` that is no tensor, or one that autograd would have to follow."""
    if not isinstance(out, torch.Tensor):
        raise UsageError(f"{name} is a {type(out).__name__}", help="give a tensor")
    if torch.is_grad_enabled() and out.requires_grad:
        raise UsageError(
            f"{name} requires a gradient, and what is written into it has none",
            help="pass its detach(), or call under torch.no_grad()",
        )


def labelled(x: Any, weights: Sequence[Any], biases: Sequence[Any]) -> list[tuple[str, Any]]:
    """The operands of several products on one ``x`` that are there, as errors name them."""
    present = [(f"bias {i}", b) for i, b in enumerate(biases) if b is not None]
    return [("x", x), *((f"weight {i}", w) for i, w in enumerate(weights)), *present]


def listed(name: str, values: Any) -> list[Any]:
    """A list of what a caller gave as several tensors; raises UsageError where it is none."""
    try:
        return list(values)
    except TypeError:
        raise UsageError(f"{name} is a {type(values).__name__}", help="give a tensor, or a list of tensors") from None


def check_programs(backend: str, comm_sms: int) -> None:
    """Raises UsageError where programs of the kernel are to move chunks by a backend that takes none."""
    takers = [found.name for found in backends.values() if found.comm_sms]
    if comm_sms and backend not in takers:
        named = " or ".join(f'backend="{name}"' for name in takers)
        raise UsageError(f"{backend} takes no programs of the kernel", help=f"{named}, or comm_sms=0")


def check_dim(x: torch.Tensor, dim: int, name: str, *, last: bool = True) -> int:
    """A dimension of ``x``, counted from the front.

    Args:
        last: whether the last one may be meant.

    Raises:
        UsageError: ``x`` has no such dimension; the message lists what there is.
    """
    rank = x.dim()
    allowed = rank if last else rank - 1
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank or dim % rank >= allowed:
        raise UsageError(f"{name}={dim!r}, x has {rank} dimensions", help=f"{name} is one of 0 to {allowed - 1}")
    return dim % rank


def result_dtypes(
    x: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None, transport_dtype: torch.dtype | None
) -> tuple[torch.dtype, torch.dtype]:
    """Dtypes of the result and of what travels between ranks: ``x``'s, unless said otherwise.

    Raises:
        UsageError: ``out`` of another dtype than ``out_dtype``, or a dtype that no transport carries.
    """
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise UsageError(f"out is {out.dtype}, out_dtype is {out_dtype}", help="leave one of them out")
    made = out_dtype or (x.dtype if out is None else out.dtype)
    moved = transport_dtype or made
    for dtype, name in ((x.dtype, "x"), (made, "the result"), (moved, "transport_dtype")):
        if dtype not in SERIAL_DTYPES:
            known = ", ".join(str(d).removeprefix("torch.") for d in SERIAL_DTYPES)
            raise UsageError(f"{name} is {dtype}, which these operators do not add", help=f"they take {known}")
    return made, moved


def result(
    out: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, operands: Sequence[torch.Tensor | None]
) -> torch.Tensor:
    """Where the result goes: ``out``, checked, or new memory.

    Raises:
        UsageError: ``out`` of another shape, dtype or device, not contiguous, sharing memory with an operand, or none that has
            memory for its elements.
    """
    device = next(t.device for t in operands if t is not None)
    if out is None:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    check_operands([("out", out)])
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or out.device != device or not out.is_contiguous():
        raise UsageError(
            f"out is {tuple(out.shape)} {out.dtype} on {out.device} with strides {out.stride()}",
            help=f"it must be {tuple(shape)} {dtype} on {device}, contiguous",
        )
    if overlapping(out, operands):
        raise UsageError("out shares memory with an operand", help="pass memory of its own, or leave out= away")
    return out


def overlapping(out: torch.Tensor, others: Sequence[torch.Tensor | None]) -> bool:
    """Whether a result shares memory with one of ``others``."""
    low, high = _extent(out)
    extents = (_extent(other) for other in others if other is not None)
    return any(max(low, begin) < min(high, end) for begin, end in extents)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First address of a tensor and the first behind it."""
    if not tensor.numel():
        return 0, 0
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def refuse_gradient(operator: str, operands: Sequence[torch.Tensor | None]) -> None:
    """Raises UsageError where a gradient is wanted of a call that nothing records."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands):
        raise UsageError(f"{operator} has no gradient", help="call it under torch.no_grad(), or on detached tensors")


def choose_way(
    group: Any,
    x: torch.Tensor,
    moved_bytes: int,
    asked: str | None,
    reasons: Sequence[str],
    problem: Problem,
    row_bytes: int = 0,
) -> Choice:
    """Fused or serial.

    Args:
        group: resolved, or None.
        moved_bytes: bytes of the communicated tensor, global.
        asked: the backend the caller asked for.
        reasons: why no fused kernel can serve the call; empty ones do not count.
        problem: what ``auto`` chooses for.
        row_bytes: of the pieces that move, where they are parts of rows; the same on every rank. 0: they are whole rows.

    Raises:
        UsageError: what was asked for is impossible.
        PlanError: there is no such plan.
    """
    check_plan(problem.plan)
    reason = next(filter(None, reasons), "")
    if not reason and asked == AUTO:
        return choose_auto(group, x, problem, moved_bytes)
    if not reason or asked == "serial":
        found = tuned_choice(group, x, problem) if asked is None else None
        return found or named(choose(group, x, moved_bytes, asked, _narrow(row_bytes, problem)), asked, problem)
    if asked not in (None, AUTO):
        raise UsageError(f"{asked} is impossible here: {reason}", help='leave backend out, or backend="serial"')
    if hasattr(group, "overlap_runtime"):
        raise UsageError(f"a simulated group has no collectives, and no fused kernel takes this: {reason}")
    return Choice("serial", reason, forced=True)


def _narrow(row_bytes: int, problem: Problem) -> str:
    """The backend of pieces whose rows are too short for a copy engine; empty where they are not."""
    if not 0 < row_bytes < settings.get("strided_row_bytes"):
        return ""
    return NARROW_RESULT if problem.produced else NARROW_INPUT


def named(choice: Choice, asked: str | None, problem: Problem) -> Choice:
    """A choice with its source: the caller, or what is built in."""
    return replace(choice, source=BUILT_IN if asked is None and problem.open else KEYWORD)


def dtype_reason(*dtypes: torch.dtype) -> str:
    """Why the kernels cannot serve these dtypes, or nothing."""
    return next((f"no kernel for {dtype}" for dtype in dtypes if dtype not in FUSED_DTYPES), "")


def multiply(
    rows: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``rows @ w + bias`` rounded once, to ``dtype``; the bias is added before that.

    Args:
        rows: [R, K]; a view that `torch.mm` takes.
        out: [R, N] of ``dtype``, or None for new memory.
    """
    if dtype == rows.dtype:
        return torch.mm(rows, w, out=out) if bias is None else torch.addmm(bias, rows, w, out=out)
    wide = torch.promote_types(torch.float32, torch.promote_types(rows.dtype, dtype))
    if rows.is_cuda and rows.dtype.itemsize == 2:
        total = torch.mm(rows, w, out_dtype=torch.float32).to(wide)
    else:
        total = rows.to(wide) @ w.to(wide)
    if bias is not None:
        total = total + bias.to(wide)
    return total.to(dtype) if out is None else out.copy_(total)


def check_heads(heads: int | None, extent: int, world: int, name: str) -> None:
    """Raises UsageError where a number of heads does not make up ``extent``, or a rank would hold part of a head."""
    if heads is None:
        return
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1 or extent % heads:
        raise UsageError(f"heads={heads!r} do not make up {name}={extent}", help=f"{name} is heads times their size")
    if heads % world:
        raise UsageError(
            f"{heads} heads cannot be shared evenly by {world} ranks", help=f"pad {name} to a multiple of {world} heads"
        )


def check_piece(held: int, extent: int, world: int, rank: int) -> None:
    """Raises RuntimeContractError unless x holds this rank's piece of K."""
    low, high = shard_interval(extent, world, rank)
    if high - low != held:
        raise RuntimeContractError(
            f"rank {rank} of {world}: the piece of K={extent} is {high - low}, x has {held}",
            help="pieces follow torch.chunk; w is the whole weight [K, N]",
        )
