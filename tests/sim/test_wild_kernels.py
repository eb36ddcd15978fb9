"""Kernels in the many styles that people write them in (tests/kernels/wild), by every backend that can, against themselves.

Each way names what would show a kind of mistake: rows without a block, helpers that load, program ids cast to int64, early
returns, tables read once a tile, tiles that only count, rows picked by an index, sums in another order.
"""

from __future__ import annotations

import itertools
import math

import pytest

from overlap.annotate import annotate
from overlap.annotate.source import SourceUnit
from overlap.pipeline import Request, compile_source
from overlap.runtime.cuda.launchers import triton_here
from overlap.sim import check_module
from tests.support.sweep import every

GATHER, SCATTER, EXCHANGE = "all_gather_1d", "reduce_scatter_1d", "all_to_all_1d"
GEMM = {"M": 70, "N": 40, "K": 40}
PAGES = {"B": 7, "P": 9, "S": 16, "D": 32, "T": 3}
HEADS = {"H": 4, "S": 70, "T": 50, "D": 16}
MOE = {"T": 40, "K": 40, "E": 3, "N": 40, "S": 70, "P": 5}
# kernel: sizes, dtype, dtypes of single tensors, ways of communicating
KERNELS: dict[str, tuple[dict[str, int], str, dict[str, str], list[tuple[str, str]]]] = {
    "while_loop": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (SCATTER, "c[M]")]),
    "column_major": (GEMM, "fp16", {}, [(GATHER, "x[K/M]"), ("all_reduce_two_shot", "y[]")]),
    "batched": ({"B": 5, "M": 34, "N": 40, "K": 24}, "fp16", {}, [(GATHER, "x[B]"), (SCATTER, "out[B]")]),
    "int8_dequant": ({**GEMM, "K": 64, "G": 2}, "fp16", {"qw": "int8"}, [(GATHER, "x[K]")]),
    "epilogue": (GEMM, "bf16", {}, [(GATHER, "a[M]"), (GATHER, "residual[M]")]),
    "two_outputs": (GEMM, "fp16", {}, [(SCATTER, "post[M]"), (GATHER, "w[N]")]),
    "gated": (GEMM, "fp16", {}, [("all_gather_ring", "x[M]"), (EXCHANGE, "h[M:N]")]),
    "lora": ({**GEMM, "R": 16}, "fp16", {}, [(GATHER, "a[K]")]),
    "rms_gemm": (GEMM, "fp16", {}, [(GATHER, "x[K]"), (SCATTER, "y[N]")]),
    "softmax_row": ({"S": 37, "D": 50}, "fp16", {}, [(GATHER, "x[S]"), (EXCHANGE, "y[S:D]")]),
    "softmax_persistent": ({"S": 37, "D": 50}, "fp16", {}, [("all_gather_ring", "x[S]"), (SCATTER, "y[S]")]),
    "attention": (HEADS, "fp16", {}, [(GATHER, "k[H]"), (GATHER, "k[T/H]"), (EXCHANGE, "q[S:H]")]),
    "embedding": (
        {"T": 45, "V": 23, "D": 70},
        "fp16",
        {"ids": "int64"},
        [(GATHER, "ids[T]"), (GATHER, "table[V/D]"), (GATHER, "table[V]")],
    ),
    "moe": (
        MOE,
        "fp16",
        {"sorted_ids": "int32", "experts": "int16"},
        [(GATHER, "sorted_ids[S]"), (GATHER, "a[T]"), (SCATTER, "c[S]")],
    ),
    "transpose": ({"M": 50, "N": 37}, "fp16", {}, [(EXCHANGE, "x[M:N]"), (EXCHANGE, "out[M:N]")]),
    "elementwise": ({"n_elements": 1000}, "fp16", {}, [(GATHER, "x[n_elements]"), (SCATTER, "out[n_elements]")]),
    "helpers_load": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (GATHER, "b[K]"), (SCATTER, "c[M]")]),
    "names": (GEMM, "fp32", {}, [(GATHER, "input[M]"), ("all_reduce_one_shot", "output[]")]),
    "out_arg": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (SCATTER, "out[M]")]),
    "fp8": (GEMM, "fp16", {}, [(GATHER, "sa[M]"), (SCATTER, "c[M]")]),
    "serpentine": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (SCATTER, "c[N]")]),
    "rope": ({"S": 37, "H": 5, "D": 16, "F": 8}, "fp16", {}, [(GATHER, "cos[S]"), (EXCHANGE, "x[S:H]")]),
    "layernorm": ({"M": 37, "N": 40}, "fp32", {}, [(GATHER, "x[M]"), (SCATTER, "mean[M]")]),
    "cross_entropy": ({"M": 37, "V": 40}, "fp32", {"labels": "int8"}, [(GATHER, "logits[M]"), (GATHER, "labels[M]")]),
}
KERNELS |= {
    "global_const": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (GATHER, "a[K]"), (SCATTER, "c[M]")]),
    "xcd_remap": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (SCATTER, "c[N]")]),
    "unmasked": ({"M": 64, "N": 40}, "fp32", {}, [(GATHER, "y[N]"), (EXCHANGE, "x[M:N]")]),
    "row_reduce": ({"M": 70, "N": 72}, "fp16", {}, [(GATHER, "x[M]"), (SCATTER, "s[M]")]),
    "paged_kv": (
        PAGES,
        "fp16",
        {"table": "int8", "lens": "int8"},
        [(GATHER, "k[P]"), (GATHER, "table[B]"), (EXCHANGE, "o[B:D]")],
    ),
    "conv1d": ({"B": 3, "S": 50, "C": 40, "F": 4}, "fp16", {}, [(GATHER, "x[S]"), (SCATTER, "y[B]")]),
    "block_ptr": (GEMM, "fp16", {}, [(GATHER, "b[K]")]),  # with helpers of another module
    "pid_helper2": (GEMM, "fp16", {}, [(GATHER, "b[N]")]),
    "block_scales": (
        {"M": 70, "N": 70, "K": 40, "G": 3, "NB": 5},
        "fp16",
        {"a_s": "fp32", "b_s": "fp32"},
        [(GATHER, "a[M]"), (GATHER, "a_s[M]"), (GATHER, "a_s[G/M]"), (GATHER, "b_s[NB]"), (SCATTER, "c[M]")],
    ),
    "group_quant": (
        {"rows": 37, "N": 64, "groups": 4},
        "fp32",
        {},
        [(GATHER, "x[rows]"), (EXCHANGE, "x_q[rows:N]"), (SCATTER, "x_s[rows]")],
    ),
    "chunked_attention": (
        {"H": 5, "T": 50, "D": 32},
        "fp16",
        {},
        [(GATHER, "q[H]"), (GATHER, "k[T/H]"), (GATHER, "v[H]"), (EXCHANGE, "o[H:D]"), (SCATTER, "o[H]")],
    ),
    "tuple_strides": (GEMM, "fp16", {}, [(GATHER, "a[M]"), (GATHER, "a[K]"), (EXCHANGE, "a[K:M]"), (SCATTER, "c[M]")]),
    "gptq": (
        {"M": 40, "N": 50, "K": 64, "P": 8, "G": 2},
        "fp16",
        {"qweight": "int32"},
        [(GATHER, "input[K]"), (GATHER, "qweight[N]"), (GATHER, "qweight[P/N]"), (GATHER, "scales[G/N]")],
    ),
    "subtiles": (
        {"M": 70, "N": 96, "K": 40},
        "fp16",
        {},
        [(GATHER, "x[K]"), (EXCHANGE, "x[K:M]"), (SCATTER, "out[M]")],
    ),
    "batched_heads": (
        {"Z": 2, "H": 4, "HK": 2, "S": 50, "T": 50, "D": 16},
        "fp16",
        {},
        [(GATHER, "k[HK]"), (GATHER, "q[S]"), (EXCHANGE, "o[S:H]")],
    ),
    "by_other_names": ({"rows": 37, "cols": 20}, "fp16", {}, [(GATHER, "x[rows]"), (SCATTER, "y[rows]")]),
}
if triton_here() >= (3, 9):
    del KERNELS["block_ptr"], KERNELS["chunked_attention"]  # by block pointers, which there are no more
WAYS = [(kernel, plan, on) for kernel, (_, _, _, ways) in KERNELS.items() for plan, on in ways]
WORLDS = (1, 2, 3, 5)
UNRESERVED = ("pid_helper2",)
"""Kernels whose program ids a helper reads."""
STORES = {"gated": "tma_inline", "subtiles": "tma_inline"} | dict.fromkeys(
    ("row_reduce", "group_quant", "chunked_attention", "batched_heads"), "copy_engine"
)
"""Kernels that store by descriptors or block pointers, that add, and whose stores one of the tile axes does not span."""
INPUTS = ("copy_engine", "ldst_inline", "ldst_reserved")
CASES = list(itertools.product(WAYS, WORLDS, range(len(INPUTS))))
assert math.gcd(11, len(WORLDS) * len(INPUTS)) == 1


@pytest.mark.one_triton
@pytest.mark.parametrize("way,world,number", every(11, CASES), ids=lambda value: str(value))
def test_agrees_with_itself(repo, tmp_path, way, world, number):
    kernel, plan, on = way
    shape, dtype, dtypes, _ = KERNELS[kernel]
    out = tmp_path / "out.py"
    unit = SourceUnit.from_file(repo / "tests" / "kernels" / "wild" / f"{kernel}.py")
    stores = STORES.get(kernel, "ldst_inline")
    made = on.split("[")[0] not in {t.name for t in annotate(unit).host.inputs}
    backend = ("copy_engine", stores, stores)[number] if made else INPUTS[number]
    backend = "copy_engine" if kernel in UNRESERVED and backend == "ldst_reserved" else backend
    settings = {"comm_sms": "2"} if backend == "ldst_reserved" else {}
    out.write_text(compile_source(Request(unit, plan, on, backend=backend, settings=settings)).module.text)
    report = check_module(str(out), world=world, shape=shape, dtype=dtype, dtypes=dtypes, seeds=[world], launches=2)
    assert report.ok, str(report)
