"""Kernels in whose launches programs move chunks: the branch, ids and counts of the others, by what tile loops step."""

import textwrap

import libcst as cst
import pytest

from overlap.backends.base import Realization
from overlap.codegen.passes import dispatch, kernel_signature, reserve
from overlap.errors import UnsupportedError

from .test_passes import SOURCE, context

RESERVED = Realization("ldst_reserved")
LOOPS = {
    "range": """
        start = tl.program_id(0)
        # @overlap.tile_id persistent
        for tile in tl.range(start, total, PROGRAMS, flatten=True):
    """,
    "advanced": """
        # @overlap.tile_id persistent
        tile = tl.program_id(0) - PROGRAMS
        for _ in range(total // PROGRAMS + 1):
            tile += PROGRAMS
    """,
    "by the grid": """
        # @overlap.tile_id persistent
        tile = tl.program_id(0) - tl.num_programs(0)
        step = tl.num_programs(axis=0)
        for _ in range(total):
            tile = tile + step
    """,
    "by a number": """
        # @overlap.tile_id persistent
        tile = tl.program_id(0) - 132
        for _ in range(total):
            tile += 132
    """,
}


def persistent(loop: str) -> str:
    """A kernel that walks over tiles."""
    head = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr):
    # @overlap.axis_count M block=BM
    rows = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    cols = tl.cdiv(N, BN)
    # @overlap.num_tiles
    total = rows * cols
"""
    body = """
# @overlap.dispatch begin
# @overlap.pid_map M=i N=j
i = tile % rows
j = tile // rows
# @overlap.dispatch end
m = i * BM + tl.arange(0, BM)
n = j * BN + tl.arange(0, BN)
x = tl.load(a + m[:, None] * K + tl.arange(0, BK)[None, :])
y = tl.load(b + tl.arange(0, BK)[:, None] * N + n[None, :])
tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y))
"""
    tail = """

# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device)
    kernel[(132,)](a, b, c, M, N, K, BM=32, BN=32, BK=32, PROGRAMS=132)
    return c
"""
    return (
        head + textwrap.indent(textwrap.dedent(LOOPS[loop]).strip("\n"), "    ") + textwrap.indent(body, " " * 8) + tail
    )


def reserved(text: str, realization: Realization = RESERVED) -> str:
    given = context(text, realization=realization)
    module = cst.parse_module(text)
    for run in (kernel_signature.run, dispatch.run, reserve.run):
        module = run(module, given)
    return module.code


def test_one_tile_a_program():
    text = reserved(SOURCE)
    branch = """\
    ol_epoch = ol.now(ol_state)
    # Programs that move chunks come first in the launch; the others are counted from 0.
    if ol.moving(ol_moves):
        ol.move_chunks(ol_moves, ol_state, ol_epoch)
        return
    """
    assert textwrap.indent(textwrap.dedent(branch), "    ").rstrip() + "\n" in text
    assert "ol_table, ol_state, ol_moves):" in text and "ol_programs" not in text
    assert "pid = ol.computing_id(ol_moves, 0)" in text and "program_id" not in text


@pytest.mark.parametrize(
    ("loop", "kept", "gone"),
    [
        ("range", "for tile in tl.range(start, total, ol_programs, flatten=True):", "PROGRAMS,"),
        ("range", "ol_programs = ol.computing_programs(ol_moves)\n", "num_programs"),
        ("advanced", "for _ in range(total // ol_programs + 1):\n        tile += ol_programs", "- PROGRAMS"),
        ("by the grid", "step = ol.computing_programs(ol_moves, 0)", "num_programs"),
    ],
)
def test_tile_loops_step_by_the_programs_that_compute(loop, kept, gone):
    text = reserved(persistent(loop))
    kernel = text.split("def kernel")[1].split("):", 1)[1].split("\n\n\n")[0]
    assert kept in kernel and gone not in kernel


def test_a_step_that_is_no_number_of_programs_is_refused():
    with pytest.raises(UnsupportedError, match="advances by `132`") as caught:
        reserved(persistent("by a number"))
    assert "tl.num_programs(0)" in caught.value.help and caught.value.where.path == "user.py"


def test_other_backends_pass_through():
    given = context()
    module = cst.parse_module(SOURCE)
    assert reserve.run(module, given) is module


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [("range", ("PROGRAMS",)), ("advanced", ("PROGRAMS",)), ("by the grid", ()), ("by a number", None)],
)
def test_parameters_that_stand_for_the_number_of_programs(loop, wanted):
    """Of a kernel that makes a result: it gets fewer of them where sums are made beside it."""
    text = persistent(loop)
    assert reserve.counted_by(cst.parse_module(text), context(text, on="c[M]")) == wanted
    assert reserve.counted_by(cst.parse_module(text), context(text, on="a[M]")) is None


@pytest.mark.parametrize(
    ("step", "wanted"),
    [("PROGRAMS * 2", None), ("tl.num_programs(0)", ()), ("132", None), ("tl.cdiv(PROGRAMS, 1)", None)],
)
def test_other_steps_of_a_tile_loop(step, wanted):
    text = persistent("range").replace("total, PROGRAMS,", f"total, {step},")
    assert reserve.counted_by(cst.parse_module(text), context(text, on="c[M]")) == wanted


def test_a_grid_of_one_tile_a_program_stays_as_it_is():
    assert reserve.counted_by(cst.parse_module(SOURCE), context(on="c[M]")) is None
    stored = context(persistent("range"), on="c[M]", realization=Realization("ldst_inline"))
    assert reserve.counted_by(cst.parse_module(persistent("range")), stored) is None


@pytest.mark.parametrize("inner", ["tl.program_id(0)", "deeper()"])
def test_program_ids_that_a_helper_reads_are_refused(inner):
    """They would count the programs that move as well, whatever the kernel reads itself."""
    helpers = f"@triton.jit\ndef deeper():\n    return tl.num_programs(0)\n\n\n@triton.jit\ndef here():\n    return {inner}\n\n\n"
    at = SOURCE.index("@triton.jit")
    text = SOURCE[:at] + helpers + SOURCE[at:].replace("acc = tl.zeros", "x = here()\n    acc = tl.zeros", 1)
    made = context(text, realization=RESERVED)
    with pytest.raises(UnsupportedError, match="helper `(here|deeper)` reads program ids") as caught:
        reserve.run(cst.parse_module(text), made)
    assert "copy_engine" in caught.value.help
