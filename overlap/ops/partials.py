"""Products whose result is communicated: which kernel makes one, its arguments, and the fused launch.

The kernel is given this rank's part of the result in the place of the whole, with the whole's sizes and strides; the
runtime puts memory of its own there, of the transport's dtype, and fills the part when all summands have come.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap import settings
from overlap.api import CompiledKernel, LastPlan, compile
from overlap.autotune.config import Config
from overlap.backends import backends
from overlap.backends.base import Realization
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.library import find_template
from overlap.chunkplan.named import named_backends
from overlap.runtime.of_group import runtime_of
from overlap.runtime.protocol import Runtime
from overlap.runtime.repeat.repeat import Repeat

from .blocks import Blocks, blocks_of, choose_blocks
from .kernels import ag_gemm_any, gemm_out_stored, gemm_out_tma
from .products import FEWEST_ROWS, descriptor, rows_fit, weight_by
from .sums import in_whole_tiles, offered_sums, tiles_in_time

C_OF = {"gemm_out_tma": "c_desc", "gemm_out_stored": "c_ptr", "ag_gemm_any": "c_ptr"}
"""The communicated parameter, by kernel."""
FINISHED = ("reduce_scatter_1d", "M")
"""The plan, and what is cut, of results whose own tiles can add what has come: nothing else is added to them, or sent on."""


def left_by(x: torch.Tensor) -> str:
    """How a kernel may read [batch, rows, K]: ``rows`` by TMA, or ``pointers``."""
    size = x.element_size()
    aligned = x.stride(2) == 1 and all(s * size % 16 == 0 for s in x.stride()[:2]) and x.data_ptr() % 16 == 0
    apart = all(s >= x.shape[2] for s in x.stride()[:2])  # an expanded tensor's rows are not
    return "rows" if x.numel() and aligned and apart else "pointers"


def out_by_tma(dtype: torch.dtype, moved: torch.dtype, batch: int, rows: int, columns: int) -> bool:
    """Whether the kernel with TMA makes a result, from what all ranks know.

    Args:
        dtype: of the operands.
        moved: of the result as it travels.
        batch, rows, columns: of the largest result of any rank.
    """
    return dtype.itemsize == 2 and rows_fit(columns, moved) and (batch == 1 or rows >= FEWEST_ROWS)


def storing_reason(backend: str | None, tma: bool) -> str:
    """Why ``backend`` cannot store the tiles of a result, or nothing. ``tma``: as `out_by_tma` says."""
    if tma or backend != "tma_inline":
        return ""
    return (
        f"TMA stores 16-bit products of 16-bit operands, in rows of a multiple of 16 bytes and, of a batch, at least "
        f"{FEWEST_ROWS} rows a matrix, on sm_90 and later; ldst_inline stores any"
    )


def chosen_reason(backend: str | None, tma: bool) -> str:
    """Why no call that names no backend goes by ``backend``, or nothing: as `storing_reason`, or because programs that wait for
    words of all others may be more than are resident at once, where there is one for each tile."""
    if not tma and backend in backends and backends[backend].words:
        return f"{backend} has all programs of a launch resident at once, and this product has one for each tile"
    return storing_reason(backend, tma)


def partial_arguments(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    c: torch.Tensor,
    columns: int,
    tma: bool,
    runtime: Runtime,
    stored: bool = False,
    blocks: Blocks | None = None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Kernel, grid and arguments of ``x @ w + bias``.

    Args:
        x: [batch, rows, K], any strides.
        c: the result [batch, rows, columns] or, for a fused launch, this rank's part of it.
        tma: as `out_by_tma` says.
        stored: tiles leave by plain stores.
        blocks: of the tiles; by default those that suit the sizes.
    """
    batch, m, k = x.shape
    blocks = blocks or choose_blocks(
        descriptors=tma,
        itemsize=x.element_size(),
        batch=batch,
        rows=m,
        columns=columns,
        multiprocessors=runtime.sm_count,
    )
    tiles = blocks.tiles(batch, m, columns)
    shared = {
        "bias_ptr": bias, "HAS_BIAS": bias is not None, "B": batch, "M": m, "N": columns, "K": k, "BLOCK_B": 1,
        "stride_ab": x.stride(0), "stride_am": x.stride(1), "stride_ak": x.stride(2),
        "stride_bk": w.stride(0), "stride_bn": w.stride(1), **blocks.arguments(),
    }  # fmt: skip
    if not tma:
        arguments = {
            "a_ptr": x, "b_ptr": w, "c_ptr": c.transpose(0, 1),
            "stride_cb": m * columns, "stride_cm": columns, "stride_cn": 1,
            "PRECISION": "ieee" if x.element_size() > 2 else "tf32", **shared,
        }  # fmt: skip
        return ag_gemm_any, (tiles,), arguments
    a_by, b_by = left_by(x), weight_by(w)
    a_desc = b_desc = None
    if a_by == "rows":
        a_desc = TensorDescriptor(x, list(x.shape), list(x.stride()), [1, blocks.m, blocks.k])
    if b_by == "rows":
        b_desc = TensorDescriptor(w, [k, columns], [w.stride(0), 1], [blocks.k, blocks.n])
    elif b_by == "columns":
        b_desc = TensorDescriptor(w, [columns, k], [w.stride(1), 1], [blocks.n, blocks.k])
    if "pointers" in (a_by, b_by):
        shared["num_warps"] = 8  # addresses take registers
    programs = max(1, min(runtime.sm_count, tiles))
    arguments = {
        "a_desc": a_desc, "b_desc": b_desc,
        "a_ptr": x if a_desc is None else None, "b_ptr": w if b_desc is None else None,
        "NUM_PROGRAMS": programs, "A_BY": a_by, "B_BY": b_by, **shared,
    }  # fmt: skip
    if stored:
        strides = {"stride_cb": m * columns, "stride_cm": columns, "stride_cn": 1}
        return gemm_out_stored, (programs,), {**arguments, "c_ptr": c.transpose(0, 1), **strides}
    arguments["c_desc"] = descriptor(
        c.transpose(0, 1), [m, batch, columns], [columns, m * columns, 1], [blocks.m, 1, blocks.n]
    )
    return gemm_out_tma, (programs,), arguments


@cache
def by_stores(plan: str, backend: str) -> bool:
    """Whether tiles of a result are stored where they go by plain stores, some at least, which a descriptor is in the way of.

    Raises:
        PlanError: there is no such plan.
    """
    if backend == "ldst_inline":
        return True
    path, text = find_template(plan)
    return "ldst_inline" in named_backends(text, path)


def compiled_partial(
    kernel: Any,
    along: str,
    plan: str,
    split: Split,
    backend: str = "copy_engine",
    sum_sms: int | None = None,
    tile_sums: bool = False,
) -> CompiledKernel:
    """A GEMM kernel whose C is communicated: ``M`` and such reduce-scatter, nothing all-reduces, ``M:N`` exchanges.

    ``split``: words go tile by tile, whatever it says.
    """
    split = 1 if backend in backends and backends[backend].words else split
    return _compiled(kernel, along, plan, split, backend, sum_sms, tile_sums)


@cache
def _compiled(
    kernel: Any, along: str, plan: str, split: Split, backend: str, sum_sms: int | None, tile_sums: bool
) -> CompiledKernel:
    realization = Realization(backend, split, sum_sms=sum_sms, tile_sums=1 if tile_sums else None)
    return compile(plan=plan, on=f"{C_OF[kernel.fn.__name__]}[{along}]", realization=realization)(kernel)


def launch_partial(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    part: torch.Tensor,
    columns: int,
    *,
    along: str,
    tma: bool,
    moved: torch.dtype,
    group: Any,
    backend: str,
    plan: str,
    split: Split,
    repeat: Repeat | None = None,
    config: Config | None = None,
    exchanged: int | None = None,
) -> LastPlan:
    """One fused launch: ``part``, this rank's part of the communicated result [batch, rows, columns], is filled.

    ``config``: what is tuned or pinned for it, as whether tiles add where they can; ``exchanged``: rows of the largest product,
    where ranks exchange their results; they are added up where it is None (`sums.offered_sums`).
    """
    blocks, sum_sms = blocks_of(config), None if config is None else config.realization.sum_sms
    stored = by_stores(plan, backend)
    runtime, (batch, rows, depth) = runtime_of(group), x.shape
    offered = 0
    if backend == "copy_engine":
        how = {"world": runtime.world, "units": runtime.sm_count, "itemsize": x.element_size(), "moved": moved.itemsize}
        how |= {"again": not along, "split": split, "exchanged": exchanged is not None}
        offered = offered_sums(batch * rows if exchanged is None else exchanged, columns, depth, **how)
    kernel, grid, arguments = partial_arguments(x, w, bias, part, columns, tma, runtime, stored, blocks)
    finished = tma and backend == "copy_engine" and (plan, along) == FINISHED and part.dtype == moved
    asked = None if config is None or config.realization.tile_sums is None else bool(config.realization.tile_sums)
    if finished:
        tiles = batch * -(-rows // arguments["BLOCK_M"]) * -(-columns // arguments["BLOCK_N"])
        said = settings.get("tile_sums", asked)
        finished = tiles_in_time(tiles, runtime.world, split, runtime.sm_count) if said is None else said
        finished = finished and in_whole_tiles(rows, runtime.world, split, arguments["BLOCK_M"])
    compiled = compiled_partial(kernel, along, plan, split, backend, sum_sms, finished)
    return compiled.launch(
        grid, (), arguments, group=group, backend=backend, transport=moved, repeat=repeat, sum_sms=offered
    )
