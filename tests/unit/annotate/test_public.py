"""Kernels of public packages: only comments are added, and they are understood."""

# ruff: noqa: E501  (tables of edits, one a line)

from __future__ import annotations

import re

import pytest

from overlap.annotate import SourceUnit, annotate, merged_read, parse_on
from overlap.errors import OverlapError

CASES = {
    "annotated_torchao": ("grid_1d", "scaled_int8_mm_cuda", "A[M]", "A_ptr", ("M", "K"), (True, False), "B[N]"),
    "annotated_rotalabs": ("grid_nd", "_int8_gemm_triton", "x[M]", "A", ("M", "K"), (False, False), "scale[N]"),
    "annotated_flaggems": ("grid_1d", "fp8_matmul", "a[M]", "A", ("M", "K"), (True, False), "b[N]"),
}


@pytest.mark.parametrize("name", CASES)
def test_understood(public, tmp_path, name):
    style, host, on, param, axes, wraps, other = CASES[name]
    program = annotate(SourceUnit.from_file(getattr(public, name)(tmp_path)))
    assert program.kernel.style == style and program.host.name == host
    assert merged_read(program.kernel.accesses, param) == (axes, wraps)
    assert parse_on(on, program).param == param
    assert parse_on(other, program).axis == "N"


@pytest.mark.parametrize("name", CASES)
def test_only_comment_lines_are_added(public, tmp_path, name):
    path = getattr(public, name)(tmp_path)
    package, relative = {
        "annotated_torchao": ("torchao", "prototype/quantized_training/int8_mm.py"),
        "annotated_rotalabs": ("rotalabs_accel", "kernels/gemm.py"),
        "annotated_flaggems": ("flag_gems", "ops/fp8_matmul.py"),
    }[name]
    kept = [line for line in path.read_text().splitlines() if not re.match(r"\s*# @overlap\.", line)]
    original = public.package_file(package, relative).read_text().splitlines()
    assert kept == original and len(path.read_text().splitlines()) > len(original)


def test_a_changed_release_is_noticed(public, tmp_path):
    source = tmp_path / "changed.py"
    source.write_text("x = 1\n")
    with pytest.raises(ValueError, match="0 lines match"):
        public._copy(source, tmp_path / "out.py", public.TORCHAO, public.TORCHAO_END)


@pytest.mark.parametrize(
    ("package", "relative", "kernel", "edits", "message"),
    [
        (
            "torchao",
            "prototype/common/triton/matmul.py",
            "_kernel",
            {
                "    pid = tl.program_id(0)\n": "    # @overlap.tile_id\n    pid = tl.program_id(0)\n",
                "    grid_m = tl.cdiv(M, BLOCK_M)\n": "    # @overlap.axis_count M block=BLOCK_M\n    grid_m = tl.cdiv(M, BLOCK_M)\n",
                "    grid_n = tl.cdiv(N, BLOCK_N)\n": "    # @overlap.axis_count N block=BLOCK_N\n    grid_n = tl.cdiv(N, BLOCK_N)\n"
                "    # @overlap.axis_count K=range\n",
                "    width = GROUP_M * grid_n\n": "    # @overlap.dispatch begin\n    # @overlap.pid_map M=pid_m N=pid_n\n    width = GROUP_M * grid_n\n",
                "    pid_n = (pid % width) // (group_size)\n": "    pid_n = (pid % width) // (group_size)\n    # @overlap.dispatch end\n",
            },
            "split-K: program_id(1) partitions the K loop",
        ),
        (
            "flag_gems",
            "ops/mm_streamk.py",
            "mac_loop",
            {
                "    tile_id = start_iter // iters_per_tile\n": "    # @overlap.axis_count M block=BLOCK_M\n    # @overlap.axis_count N block=BLOCK_N\n"
                "    # @overlap.axis_count K=range\n    # @overlap.tile_id\n    tile_id = start_iter // iters_per_tile\n"
                "    # @overlap.dispatch begin\n    # @overlap.pid_map M=pid_m N=pid_n\n",
                "    rm = pid_m * BLOCK_M": "    # @overlap.dispatch end\n    rm = pid_m * BLOCK_M",
            },
            "stream-K: tile id `tile_id` is a quotient, start_iter // iters_per_tile",
        ),
    ],
    ids=["split-K", "stream-K"],
)
def test_refused_by_name(public, package, relative, kernel, edits, message):
    text = public.package_file(package, relative).read_text()
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    with pytest.raises(OverlapError) as caught:
        annotate(SourceUnit.from_text(text, relative), kernel)
    assert caught.value.message.startswith(message)
