"""`reserve`: memory for all later calls of the prebuilt operators, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from overlap import settings
from overlap.api import CompiledKernel
from overlap.api.fallback import MOVING, STORING, check_backend
from overlap.api.groups import resolve_group
from overlap.api.memory import reserve_operator
from overlap.backends.capabilities import AUTO, SERIAL
from overlap.chunkplan.cuts import Split, SplitLike, split_of
from overlap.errors import UsageError

from .arguments import check_programs, ranks
from .blocks import most_tiles
from .exchange_gemm import PLAN as EXCHANGE_PLAN
from .exchange_gemm import SPLIT as EXCHANGE_SPLIT
from .gather_call import PLAN as GATHER_PLAN
from .gather_call import PUSHED, compiled_kernel
from .gather_k_gemm import along_of
from .gemm_exchange import default_split as exchange_split
from .kernels import ag_gemm_any, ag_gemm_tma, gemm_out_stored, gemm_out_tma
from .partials import FINISHED, by_stores, compiled_partial, storing_reason
from .products import rows_fit
from .reduce_gemm import ONE_SHOT, TWO_SHOT, default_split
from .scatter_gemm import SPLIT
from .sums import tiles_in_time
from .tuned import settle


@dataclass(frozen=True)
class Form:
    """How an operator compiles its kernels.

    ``tma``: its kernel where TMA takes rows (`ag_gemm_any` is the other); ``along``: how ``M`` and, for inner dimensions,
    ``B`` and others are said; ``width``: the axis of ``hidden``; ``plans``, ``split``: what runs unless a call says otherwise.
    """

    make: Callable[..., CompiledKernel]
    tma: Any
    along: tuple[str, ...]
    width: str
    plans: tuple[str, ...]
    split: Split = 1


FORMS = {
    "ag_gemm": Form(compiled_kernel, ag_gemm_tma, ("M", "B"), "K", (GATHER_PLAN, PUSHED)),
    "ag_gemm_k": Form(compiled_kernel, ag_gemm_tma, ("K",), "K", ("all_gather_1d",)),
    "gemm_rs": Form(compiled_partial, gemm_out_tma, ("M", "B", "N"), "N", ("reduce_scatter_1d",), SPLIT),
    "gemm_ar": Form(compiled_partial, gemm_out_tma, ("",), "N", (ONE_SHOT, TWO_SHOT)),
    "a2a_gemm": Form(compiled_kernel, ag_gemm_tma, ("K:M", "K:B"), "K", (EXCHANGE_PLAN,), EXCHANGE_SPLIT),
    "gemm_a2a": Form(compiled_partial, gemm_out_tma, ("M:N", "B:N"), "N", ("all_to_all_1d",)),
}


def reserve(
    group: Any = None,
    *,
    max_tokens: int,
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    operator: str = "ag_gemm",
    inner_dims: bool = False,
    plan: str | None = None,
    split: SplitLike | None = None,
    backend: str = "copy_engine",
    comm_sms: int = 0,
) -> None:
    """Makes the symmetric memory of an operator on a group, for ``dtype``; collective.

    Afterwards calls with this plan, split and dtype make none, ever: one that needs more is refused, both sizes named. Calls
    that name neither take what is built in, and nothing that was tuned, whose memory would be another.

    Args:
        group: as for the operators.
        max_tokens: the largest number of rows of the communicated tensor, all dimensions but the last multiplied.
        hidden: its largest last dimension: of x where that is gathered or exchanged, of the result where that is.
        dtype: of the communicated tensor as it travels.
        operator: ``ag_gemm``, ``gemm_rs`` and so on.
        inner_dims: also for calls along inner dimensions, in batches of small matrices and of uneven shards, and
            `gemm_rs` along the last, which lie in memory of their own.
        plan, split, backend, comm_sms: as the calls will say; by default as they do by default.

    Raises:
        UsageError: no such operator or backend, or sizes that are no positive integers.
        RuntimeContractError: ranks that ask for different sizes, or less was reserved before.
    """
    for name, size in (("max_tokens", max_tokens), ("hidden", hidden)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{name}={size!r}", help=f"{name} is a positive integer")
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype={dtype!r}", help="a dtype of torch, such as torch.bfloat16")
    if operator not in FORMS:
        raise UsageError(f"no operator {operator!r}", help=f"operators: {', '.join(FORMS)}")
    form = FORMS[operator]
    made = form.tma is gemm_out_tma
    check_backend(backend, STORING if made else MOVING)
    if backend == AUTO:
        raise UsageError(
            "auto chooses call by call, and each backend has memory of its own", help='backend="copy_engine"'
        )
    plans = form.plans if plan is None else (plan,)
    tma = gemm_out_stored if made and any(by_stores(each, backend) for each in plans) else form.tma
    check_programs(backend, comm_sms)
    moved_by = "copy_engine" if backend == SERIAL else backend
    how = (moved_by,) if made else (moved_by, comm_sms)
    fits = rows_fit(hidden, dtype)
    if made and (reason := storing_reason(backend, fits)):
        raise UsageError(f"{backend} is impossible here: {reason}", help='backend="ldst_inline"')
    kernels = (tma, ag_gemm_any) if fits else (ag_gemm_any,)
    served = (tma,) if made and storing_reason(backend, False) else (tma, ag_gemm_any)
    for kernel in served:
        for along in form.along:
            usual = kernel is kernels[0] and along == form.along[0]
            wanted = usual or kernel in kernels and inner_dims
            tokens, width = (max_tokens, hidden) if wanted else (0, 0)
            rows = {"B": tokens, "M": 1} if "B" in along else {"B": 1, "M": tokens}
            for chosen in plans:
                sizes = {**rows, form.width: width}
                if chosen == PUSHED and plan is None:
                    by_default = kernel is ag_gemm_tma and moved_by == "copy_engine"
                    if not by_default or not _may_push(group, along, tokens, width * dtype.itemsize):
                        sizes[form.width] = 0
                splits = [form.split] if split is None else [split_of(split)]
                if split is None and operator in ("gemm_ar", "gemm_a2a"):
                    # What larger results are cut into, and smaller ones are not.
                    world, _ = ranks(resolve_group(group))
                    whole = tokens * width * dtype.itemsize
                    if operator == "gemm_ar":
                        larger = default_split(chosen, whole, world, moved_by)
                    else:
                        larger = exchange_split(chosen, whole // world, world, moved_by)
                    splits += {larger} - {form.split}
                for pieces in splits:
                    where = along_of(pieces) if operator == "ag_gemm_k" else along
                    compiled = form.make(kernel, where, chosen, pieces, *how)
                    reserve_operator(compiled.operator, group, sizes, dtype)
                    if kernel is gemm_out_tma and moved_by == "copy_engine" and (chosen, along) == FINISHED:
                        # Calls whose tiles add have a kernel of their own, and so memory.
                        added = sizes if _may_add(group, tokens, width, pieces) else {**sizes, form.width: 0}
                        compiled = compiled_partial(kernel, along, chosen, pieces, moved_by, tile_sums=True)
                        reserve_operator(compiled.operator, group, added, dtype)
    settle(group, operator)


def _may_push(group: Any, along: str, rows: int, row_bytes: int) -> bool:
    """Whether `ag_gemm` by copy engine pushes, of itself (`default_plan`), some gathered tensor of no more than ``rows`` rows, of
    no more than ``row_bytes``. Of a batch that is shared out along itself one rank may hold all: its only matrix."""
    least = max(1, settings.get("given_bytes"))
    if rows * row_bytes < least or not settings.get("in_place"):
        return False
    world, _ = ranks(resolve_group(group))
    shard = rows if along == "B" else -(-rows // world)
    return world > 1 and shard * row_bytes >= least


def _may_add(group: Any, rows: int, columns: int, split: Split) -> bool:
    """Whether tiles of `gemm_rs` by copy engine add (`launch_partial`), of some result of no more rows and columns than these."""
    said, group = settings.get("tile_sums"), resolve_group(group)
    if said is not None:
        return bool(said)
    if hasattr(group, "overlap_runtime"):
        units = group.overlap_runtime.sm_count
    elif torch.cuda.is_available():
        units = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    else:
        return False
    return tiles_in_time(most_tiles(rows, columns), ranks(group)[0], split, units)
