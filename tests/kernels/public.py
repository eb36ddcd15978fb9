"""GEMM kernels of public packages, copied with nothing changed but pragma comment lines put in.

Each copy keeps the package's own kernel and its own host function. The tables below say which comment goes above or
below which line; a pattern that does not match exactly one line is an error, so a new release cannot pass unnoticed.

torchao 0.18.0, int8_mm.py: 1-D grouped grid, wrapped rows, K descends, below autotune and heuristics.
    int8 A[M,K] and B[K,N], float row_scale[M] and col_scale[N]; the result has the scales' dtype.
rotalabs-accel 1.1.1, gemm.py: 2-D grid, masked, below autotune, defined inside an `if`.
    fp16 x[M,K], int8 weight_int8[N,K], fp32 scale[N]; the result is fp16.
flag-gems 5.0.2, fp8_matmul.py: 1-D grouped grid, wrapped rows.
    fp8 a[M,K] and b[N,K], fp32 a_s[M,G] and b_s[H,G], K = 128 G and H = ceil(N / 128); the result is bf16.
    Its stores are wrapped too and have no mask: two programs write the same rows unless 64 divides M and N.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

Insertion = tuple[str, str]
"""(pattern of a whole stripped line, comment that goes above it)."""

TORCHAO: tuple[Insertion, ...] = (
    (r"pid = tl\.program_id\(0\)", "# @overlap.tile_id"),
    (r"grid_m = \(M \+ BLOCK_M - 1\) // BLOCK_M", "# @overlap.axis_count M block=BLOCK_M"),
    (r"grid_n = \(N \+ BLOCK_N - 1\) // BLOCK_N", "# @overlap.axis_count N block=BLOCK_N"),
    (r"width = GROUP_M \* grid_n", "# @overlap.dispatch begin\n# @overlap.pid_map M=pid_m N=pid_n"),
    (r"ram = tl\.max_contiguous\(.*\)", "# @overlap.axis_count K=range"),
    (
        r'@torch\.library\.impl\(lib, "scaled_int8_mm", "CUDA"\)',
        "# @overlap.host_entry A[M,K] B[K,N] row_scale[M] col_scale[N] -> C[M,N]",
    ),
)
TORCHAO_END: tuple[Insertion, ...] = ((r"pid_n = \(pid % width\) // \(group_size\)", "# @overlap.dispatch end"),)

ROTALABS: tuple[Insertion, ...] = (
    (
        r"pid_m = tl\.program_id\(0\)",
        "# @overlap.axis_count M block=BLOCK_M\n# @overlap.axis_count N block=BLOCK_N\n"
        "# @overlap.dispatch begin\n# @overlap.pid_map M=pid_m N=pid_n",
    ),
    (r"def _int8_gemm_triton\(", "# @overlap.host_entry x[M,K] weight_int8[N,K] scale[N] -> y[M,N]"),
    (r"b_ptrs = B \+ .*", "# @overlap.tensor B[K,N] read"),
)
ROTALABS_END: tuple[Insertion, ...] = ((r"pid_n = tl\.program_id\(1\)", "# @overlap.dispatch end"),)

FLAGGEMS: tuple[Insertion, ...] = (
    (r"pid = tl\.program_id\(0\)", "# @overlap.tile_id"),
    (r"num_pid_m = tl\.cdiv\(M, BLOCK_M\)", "# @overlap.axis_count M block=BLOCK_M"),
    (r"num_pid_n = tl\.cdiv\(N, BLOCK_N\)", "# @overlap.axis_count N block=BLOCK_N"),
    (
        r"num_pid_in_group = GROUP_SIZE_M \* num_pid_n",
        "# @overlap.dispatch begin\n# @overlap.pid_map M=pid_m N=pid_n",
    ),
    (r"def fp8_matmul\(", "# @overlap.host_entry a[M,K] a_s[M,G] b[N,K] b_s[H,G] -> C[M,N]"),
)
FLAGGEMS_END: tuple[Insertion, ...] = (
    (r"pid_n = \(pid % num_pid_in_group\) // group_size_m", "# @overlap.dispatch end"),
)


def package_file(package: str, relative: str) -> Path:
    """A file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{package} is not installed: pip install --no-deps -r constraints/kernels.txt")
    return Path(next(iter(spec.submodule_search_locations))) / relative


def annotated_torchao(directory: Path) -> Path:
    """``scaled_int8_mm_cuda(A, B, row_scale, col_scale)``: gather A[M] or B[N]."""
    source = package_file("torchao", "prototype/quantized_training/int8_mm.py")
    return _copy(source, directory / "torchao_int8_mm.py", TORCHAO, TORCHAO_END)


def annotated_rotalabs(directory: Path) -> Path:
    """``_int8_gemm_triton(x, weight_int8, scale)``: gather x[M]."""
    source = package_file("rotalabs_accel", "kernels/gemm.py")
    return _copy(source, directory / "rotalabs_gemm.py", ROTALABS, ROTALABS_END)


def annotated_flaggems(directory: Path) -> Path:
    """``fp8_matmul(a, a_s, b, b_s)``: gather a[M] or b[N]."""
    source = package_file("flag_gems", "ops/fp8_matmul.py")
    return _copy(source, directory / "flaggems_fp8_matmul.py", FLAGGEMS, FLAGGEMS_END)


def _copy(source: Path, target: Path, above: Sequence[Insertion], below: Sequence[Insertion]) -> Path:
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    before: dict[int, str] = {}
    after: dict[int, str] = {}
    for insertions, placed in ((above, before), (below, after)):
        for pattern, comment in insertions:
            at = [i for i, line in enumerate(lines) if re.fullmatch(_whole(pattern), line.strip())]
            if len(at) != 1:
                raise ValueError(f"{source}: {len(at)} lines match {pattern!r}, expected one")
            indent = re.match(r"[ \t]*", lines[at[0]])[0]
            placed[at[0]] = "".join(f"{indent}{line}\n" for line in comment.splitlines())
    text = "".join(before.get(i, "") + line + after.get(i, "") for i, line in enumerate(lines))
    target.write_text(text, encoding="utf-8")
    return target


def _whole(pattern: str) -> str:
    """A pattern that ends at an open parenthesis covers the line's start only."""
    return pattern + (".*" if pattern.endswith(r"\(") else "")
