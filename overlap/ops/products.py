"""Products on a gathered tensor: which kernel takes one, its arguments and its launch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.runtime.instance import Instance
from overlap.runtime.kernels.entry import gather_kernel
from overlap.runtime.launch.prepared import gather_arguments
from overlap.runtime.protocol import Runtime
from overlap.runtime.repeat.repeat import KernelLaunch

from .blocks import Blocks, choose_blocks
from .kernels import ag_gemm_any, ag_gemm_tma, copy_flat
from .views import GatherView

COPY_BLOCK = 4096
FEWEST_ROWS = 48
"""Smaller matrices of a batch go by pointers, in smaller tiles."""


@dataclass(frozen=True)
class Product:
    """C[batch, rows, N] = A @ W[D, N] + bias[N]; ``result`` is contiguous."""

    weight: torch.Tensor
    result: torch.Tensor
    bias: torch.Tensor | None

    @property
    def columns(self) -> int:
        return self.weight.shape[1]

    def result_by(self) -> str:
        """How a kernel may write the result: ``rows`` by TMA, or ``pointers``."""
        c = self.result
        aligned = c.shape[-1] * c.element_size() % 16 == 0 and c.data_ptr() % 16 == 0
        return "rows" if c.numel() and aligned else "pointers"


def weight_by(w: torch.Tensor) -> str:
    """How a kernel may read a weight [D, N]: by TMA along N (``rows``) or along D (``columns``), or by ``pointers``."""
    for by, dim in (("rows", 1), ("columns", 0)):
        pitch = w.stride(1 - dim)
        if w.stride(dim) == 1 and pitch >= w.shape[dim] and pitch * w.element_size() % 16 == 0:
            return by if w.numel() and w.data_ptr() % 16 == 0 else "pointers"
    return "pointers"


def rows_fit(depth: int, dtype: torch.dtype) -> bool:
    """Whether TMA can read rows of ``depth`` elements: 16-bit, a multiple of 16 bytes, sm_90 or later."""
    fits = dtype.itemsize == 2 and depth * 2 % 16 == 0
    return fits and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


def by_tma(view: GatherView, dtype: torch.dtype) -> bool:
    """Whether TMA reads the gathered tensor: it can, and matrices of a batch fill its tiles. Alike on every rank."""
    return rows_fit(view.depth, dtype) and (view.batch == 1 or view.rows >= FEWEST_ROWS)


def product_arguments(
    product: Product,
    a: torch.Tensor,
    view: GatherView,
    runtime: Runtime,
    *,
    tma: bool | None = None,
    blocks: Blocks | None = None,
    left_out: int = 0,
) -> tuple[Any, Any, dict[str, Any]]:
    """Kernel, grid and arguments of ``A @ W``.

    Args:
        a: [batch, rows, D] or, for a fused launch, this rank's shard of it.
        tma: whether TMA reads A; by default as `by_tma` says of ``view``.
        blocks: of the tiles; by default those that suit the sizes.
        left_out: of the last tiles, those that another launch makes (`tail`); where TMA reads A.
    """
    w, c = product.weight, product.result
    m, n, k = view.rows, product.columns, view.depth
    tma = by_tma(view, w.dtype) if tma is None else tma
    blocks = blocks or product_blocks(product, view, runtime, tma)
    tiles = blocks.tiles(view.batch, m, n)
    shared = {
        "bias_ptr": product.bias, "HAS_BIAS": product.bias is not None, "B": view.batch, "M": m, "N": n, "K": k,
        "BLOCK_B": 1, "stride_bk": w.stride(0), "stride_bn": w.stride(1), **blocks.arguments(),
    }  # fmt: skip
    if not tma:
        arguments = {
            "a_ptr": a, "b_ptr": w, "c_ptr": c, "stride_ab": m * k, "stride_am": k, "stride_ak": 1,
            "stride_cb": m * n, "stride_cm": n, "stride_cn": 1,
            "PRECISION": "ieee" if w.element_size() > 2 else "tf32", **shared,
        }  # fmt: skip
        return ag_gemm_any, (tiles,), arguments
    programs = max(1, min(runtime.sm_count, tiles))
    read_by, result_by = weight_by(w), product.result_by()
    if read_by == "pointers":
        shared["num_warps"] = 8  # addresses take registers
    a_desc, b_desc, c_desc = descriptors(product, a, view, blocks)
    arguments = {
        "a_desc": a_desc, "b_desc": b_desc, "c_desc": c_desc,
        "b_ptr": w if b_desc is None else None, "c_ptr": c if c_desc is None else None,
        "NUM_PROGRAMS": programs, "B_BY": read_by, "C_BY": result_by, "LEFT_OUT": left_out, **shared,
    }  # fmt: skip
    return ag_gemm_tma, (programs,), arguments


def product_blocks(
    product: Product, view: GatherView, runtime: Runtime, tma: bool, tuned: Blocks | None = None
) -> Blocks:
    """Blocks of a product: those that were ``tuned``, where its result is not too wide for them, or by its sizes.

    Args:
        tma: whether TMA reads A.
    """
    itemsize, result = product.weight.element_size(), product.result.element_size()
    if tuned is not None and (not tma or tuned.fit(itemsize, result)):
        return tuned
    return choose_blocks(
        descriptors=tma,
        itemsize=itemsize,
        result=result,
        batch=view.batch,
        rows=view.rows,
        columns=product.columns,
        multiprocessors=runtime.sm_count,
    )


def descriptors(
    product: Product, a: torch.Tensor, view: GatherView, blocks: Blocks
) -> tuple[TensorDescriptor, TensorDescriptor | None, TensorDescriptor | None]:
    """Of A, of the weight and of the result; None where TMA does not take one."""
    w, c = product.weight, product.result
    m, n, k = view.rows, product.columns, view.depth
    b_desc = c_desc = None
    read_by = weight_by(w)
    if read_by == "rows":
        b_desc = TensorDescriptor(w, [k, n], [w.stride(0), 1], [blocks.k, blocks.n])
    elif read_by == "columns":
        b_desc = TensorDescriptor(w, [n, k], [w.stride(1), 1], [blocks.n, blocks.k])
    if product.result_by() == "rows":
        c_desc = TensorDescriptor(c, [view.batch, m, n], [m * n, n, 1], [1, blocks.m, blocks.n])
    return descriptor(a, [view.batch, m, k], [m * k, k, 1], [1, blocks.m, blocks.k]), b_desc, c_desc


def descriptor(base: torch.Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """A descriptor of the whole of a communicated tensor, unchecked: a shard in its place need not be aligned, what the
    runtime puts there is."""
    made = object.__new__(TensorDescriptor)
    made.base, made.shape, made.strides, made.block_shape = base, shape, strides, block
    return made


def product_launch(product: Product, gathered: torch.Tensor, view: GatherView, runtime: Runtime) -> KernelLaunch:
    """A product on the gathered tensor [batch, rows, D], which is dense."""
    kernel, grid, arguments = product_arguments(product, gathered, view, runtime)
    return KernelLaunch(kernel, (*grid, 1, 1), arguments, frozenset(("a_desc", "a_ptr")))


def launch_product(product: Product, gathered: torch.Tensor, view: GatherView, runtime: Runtime) -> None:
    """Enqueues a product on the gathered tensor on the main stream."""
    if product.columns:
        launch = product_launch(product, gathered, view, runtime)
        runtime.launch(launch.kernel, launch.grid, (), launch.arguments, runtime.main_stream())


def copy_launch(gathered: torch.Tensor, whole: torch.Tensor) -> KernelLaunch:
    """A copy of the gathered tensor, dense, into ``whole``."""
    grid, arguments = _copy_arguments(gathered, whole)
    return KernelLaunch(copy_flat, grid, arguments, frozenset(("src_ptr",)))


def arrivals_launches(instance: Instance) -> list[KernelLaunch]:
    """A kernel that waits for all that is brought to this rank, as tiles do where a rank has some; none behind a library's
    collective, which stands in the stream itself."""
    here = [op for op in instance.slots[instance.runtime.rank] if not instance.plan.op(op).dst.box.empty]
    if instance.direct or not here:
        return []
    return [KernelLaunch(gather_kernel, (1, 1, 1), gather_arguments(instance, here), frozenset(("words", "state")))]


def warm_arrivals(runtime: Runtime, device: torch.device) -> None:
    """Compiles what `arrivals_launches` gives."""
    if "arrivals" not in warmed(runtime):
        words, state = (torch.empty(2, dtype=torch.int64, device=device) for _ in range(2))
        runtime.warm(gather_kernel, (1, 1, 1), {"words": words, "count": 0, "state": state, "num_warps": 1})
        warmed(runtime).add("arrivals")


def _copy_arguments(gathered: torch.Tensor, whole: torch.Tensor) -> tuple[tuple[int, int, int], dict[str, Any]]:
    count = gathered.numel()
    arguments = {"src_ptr": gathered, "dst_ptr": whole, "count": count, "BLOCK": COPY_BLOCK, "num_warps": 8}
    return (triton.cdiv(count, COPY_BLOCK), 1, 1), arguments


_WARM: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()
"""What has been compiled, by runtime."""


def warm_product(product: Product, view: GatherView, runtime: Runtime) -> None:
    """Compiles what `product_launch` gives: nothing may be compiled or loaded behind a kernel that spins."""
    w, b, c = product.weight, product.bias, product.result
    aligned = (w.data_ptr() % 16, c.data_ptr() % 16, None if b is None else (b.dtype, b.data_ptr() % 16))
    key = (view, w.shape, w.stride(), w.dtype, aligned)
    if product.columns and key not in warmed(runtime):
        stand_in = torch.empty(1, 1, 8, dtype=w.dtype, device=w.device)  # as aligned as the gathered tensor
        kernel, grid, arguments = product_arguments(product, stand_in, view, runtime)
        runtime.warm(kernel, (*grid, 1, 1), arguments)
        warmed(runtime).add(key)


def warm_copy(whole: torch.Tensor, runtime: Runtime) -> None:
    """Compiles what `copy_launch` gives."""
    key = whole.dtype, whole.numel()
    if key not in warmed(runtime):
        grid, arguments = _copy_arguments(whole, whole)
        runtime.warm(copy_flat, grid, arguments)
        warmed(runtime).add(key)


def warmed(runtime: Runtime) -> set[Any]:
    """Keys of what has been compiled."""
    return _WARM.setdefault(runtime, set())
