"""Ways of writing that other people's kernels have: rows without a block, helpers that load, returns, dummy pointers."""

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate, describe, parse_ons
from overlap.errors import HostEntryError, OverlapError, PragmaError, UnsupportedError
from overlap.pipeline import Request, compile_source

ROWS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x_ptr, y_ptr, rows, N, stride, BLOCK: tl.constexpr):
    # @overlap.axis_count M=rows block=1
    # @overlap.dispatch begin
    # @overlap.pid_map M=row
    row = tl.program_id(0)
    # @overlap.dispatch end
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < N, other=0.0)
    tl.store(y_ptr + row * stride + cols, x / tl.sum(x), mask=cols < N)


# @overlap.host_entry x[M,N] -> y[M,N]
def normalize(x):
    y = torch.empty_like(x)
    norm[(x.shape[0],)](x, y, x.shape[0], x.shape[1], x.stride(0), BLOCK=64)
    return y
"""


def unit(text: str) -> SourceUnit:
    return SourceUnit.from_text(text, "user.py")


def test_a_tile_of_one_row_needs_no_block_parameter():
    program = annotate(unit(ROWS))
    axis = program.kernel.axes[0]
    assert (axis.extent, axis.block) == ("rows", "1")
    assert {a.tensor: a.axes for a in program.kernel.accesses} == {"x_ptr": ("M", None), "y_ptr": ("M", None)}


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "2x"])
def test_a_block_is_a_positive_number(size):
    with pytest.raises(PragmaError, match="is not a name or a NAME=NAME pair"):
        annotate(unit(ROWS.replace("block=1", f"block={size}")))


def test_a_host_entry_over_a_method_is_refused():
    text = ROWS.replace("# @overlap.host_entry", "class Norm:\n    # @overlap.host_entry")
    head, _, tail = text.partition("def normalize(x)")
    body = "".join(f"    {line}" for line in ("def normalize(x)" + tail).splitlines(True))
    with pytest.raises(HostEntryError, match="stands over the method `Norm.normalize`") as caught:
        annotate(unit(head + body))
    assert caught.value.where.line == text[: text.index("# @overlap.host_entry")].count("\n") + 1


def test_a_result_in_a_tuple_is_refused_for_that(refusal):
    error = refusal(("gemm[grid](a, b, c, ", "gemm[grid](a, b, (c, c), "))
    assert error.message == "host_entry: `c` is passed to the kernel in a tuple"


@pytest.mark.parametrize("dummy,tensor", [("c", "c"), ("a", "a")])
def test_a_pointer_that_stands_in_for_an_absent_one_is_not_taken_for_the_tensor(model, dummy, tensor):
    program = model(
        ("def gemm(a_ptr,", "def gemm(bias_ptr, a_ptr,"),
        ("def matmul(a, b):", "def matmul(a, b, bias=None):"),
        ("gemm[grid](a, b,", f"gemm[grid](bias if bias is not None else {dummy}, a, b,"),
    )
    assert dict(program.host.tensor_params)[tensor] == f"{tensor}_ptr"


LOAD_A = "a = tl.load(pa, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)"
HELPER = """\
@triton.jit
def rows_of(tile, SIZE: tl.constexpr):
    return tile * SIZE + tl.arange(0, SIZE)


@triton.jit
def fetch(p, mask, EVEN: tl.constexpr = False):
    if EVEN:
        x = tl.load(p)
    else:
        x = tl.load(p, mask=mask, other=0.0)
    return x


@triton.jit
def gemm("""


def test_helpers_of_the_module_are_followed(model):
    """Offsets that one makes span their axis; what another loads is the caller's load, at the caller's line."""
    kernel = model(
        ("@triton.jit\ndef gemm(", HELPER),
        ("rm = pid_m * BM + tl.arange(0, BM)", "rm = rows_of(pid_m, SIZE=BM)"),
        (LOAD_A, "a = fetch(pa, mask=(rm[:, None] < M) & (rk[None, :] < left))"),
    ).kernel
    found = [a for a in kernel.accesses if a.tensor == "a_ptr"]
    assert {(a.axes, a.helper, a.operation) for a in found} == {(("M", "K"), False, "load")}
    assert {a.span.text.strip() for a in found} == {"a = fetch(pa, mask=(rm[:, None] < M) & (rk[None, :] < left))"}
    assert next(a for a in kernel.accesses if a.tensor == "c_ptr").axes == ("M", "N")


def test_what_a_foreign_helper_reads_depends_on_the_coordinates_it_is_given(model):
    program = model(
        ("import torch\n", "import torch\nfrom elsewhere import fetch\n"), (LOAD_A, "a = fetch(a_ptr, rm, k, sam)")
    )
    (access,) = [a for a in program.kernel.accesses if a.tensor == "a_ptr"]
    assert access.helper and access.region == 0 and access.axes == (None, None)
    assert {leaf.axis for index in access.offsets for leaf in index.leaves() if leaf.kind == "coord"} == {"M"}
    parse_ons(["a[M]"], program)


def test_a_table_read_once_a_tile_contradicts_nothing(model):
    program = model(
        ("def gemm(a_ptr,", "def gemm(e_ptr, a_ptr,"),
        ("    acc = tl.zeros", "    expert = tl.load(e_ptr + pid_m)\n    acc = tl.zeros"),
        ("host_entry a[M,K]", "host_entry experts[P] a[M,K]"),
        ("def matmul(a, b):", "def matmul(experts, a, b):"),
        ("gemm[grid](a, b,", "gemm[grid](experts, a, b,"),
    )
    assert next(a for a in program.kernel.accesses if a.tensor == "e_ptr").axes == (None,)


LEAVES = ("    rm = pid_m", "    if pid_m * BM >= K:\n        return\n    rm = pid_m")


def compiled(text: str, on: str) -> str:
    plan = "all_gather_1d" if on[0] == "a" else "reduce_scatter_1d"
    return compile_source(Request(unit(text), plan, on)).module.text


def test_a_kernel_that_only_reads_may_leave_its_tile(grouped):
    assert "        return\n" in compiled(grouped.replace(*LEAVES), "a[M]")
    with pytest.raises(UnsupportedError, match="may return before its tile is counted"):
        compiled(grouped.replace(*LEAVES), "c[M]")


def test_no_kernel_may_leave_its_tile_loop(repo):
    text = (repo / "templates" / "kernels" / "persistent_gemm.py").read_text()
    pid = annotate(unit(text)).kernel.regions[0].pid_map[0][1]
    line = next(line for line in text.splitlines() if "acc" in line and "zeros" in line)
    indent = line[: len(line) - len(line.lstrip())]
    text = text.replace(line, f"{indent}if {pid} > 3:\n{indent}    return\n{line}")
    with pytest.raises(OverlapError, match="may return out of its tile loop"):
        compiled(text, "a[M]")


def left_out(repo, loop="num_tiles - LEFT_OUT", pragma="persistent left=LEFT_OUT") -> str:
    """The persistent kernel, its last tiles left to somebody else."""
    text = (repo / "templates" / "kernels" / "persistent_gemm.py").read_text()
    for old, new in (
        ("start_pid, num_tiles,", f"start_pid, {loop},"),
        ("tile_id persistent", f"tile_id {pragma}"),
        ("    NUM_SMS: tl.constexpr,\n", "    NUM_SMS: tl.constexpr,\n    LEFT_OUT: tl.constexpr,\n"),
        ("        NUM_SMS=num_sms,\n", "        NUM_SMS=num_sms,\n        LEFT_OUT=0,\n"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_the_last_tiles_of_a_loop_may_be_left_out(repo):
    program = annotate(unit(left_out(repo)))
    assert [tile.left for tile in program.kernel.tile_ids] == ["LEFT_OUT"]
    assert "tile id tile: target of the tile loop, without the last LEFT_OUT (line" in describe(program)
    assert "tl.range(start_pid, num_tiles - LEFT_OUT, NUM_SMS" in compiled(left_out(repo), "a[M]")
    with pytest.raises(UnsupportedError, match="may leave out its last `LEFT_OUT` tiles, which others would wait for"):
        compiled(left_out(repo), "c[M]")


@pytest.mark.parametrize(
    ("loop", "pragma", "why"),
    [
        ("num_tiles - LEFT_OUT", "persistent", "runs to num_pid_m \\* num_pid_n - LEFT_OUT, but the tile axes have"),
        ("num_tiles", "persistent left=LEFT_OUT", "tiles, of which `LEFT_OUT` are left out"),
        ("num_tiles - LEFT_OUT", "left=LEFT_OUT", "`persistent left=PARAMETER` or nothing, not `left=LEFT_OUT`"),
        ("num_tiles - LEFT_OUT", "persistent left=", "or nothing, not `persistent left=`"),
        ("num_tiles - LEFT_OUT", "persistent left=LEFT", "left=LEFT: `LEFT` is no parameter of matmul_kernel"),
    ],
)
def test_what_is_left_out_is_said_where_the_loop_ends(repo, loop, pragma, why):
    with pytest.raises(PragmaError, match=why):
        annotate(unit(left_out(repo, loop, pragma)))


def test_tiles_are_left_out_of_a_for_loop(persistent, edit):
    loop = "    for pid in tl.range(start, rows * cols, G):\n"
    text = edit(persistent, (loop, "    pid = start\n    while pid < rows * cols - M:\n        pid += G\n"))
    with pytest.raises(PragmaError, match="tile_id left=M: the tiles of `pid` are not those of a `for` loop"):
        annotate(unit(edit(text, ("tile_id persistent", "tile_id persistent left=M"))))


def test_sizes_may_be_constants_of_the_module():
    """A parameter of the same name goes before one."""
    numbers = "BLOCK: tl.constexpr = tl.constexpr(64)\nROWS = 4\n\n\n@triton.jit"
    text = ROWS.replace("@triton.jit", numbers).replace("block=1", "block=ROWS")
    text = text.replace("row * stride", "(row * ROWS + tl.arange(0, ROWS))[:, None] * stride")
    kernel = annotate(unit(text)).kernel
    assert kernel.axes[0].block == "4"
    assert {a.tensor: a.axes for a in kernel.accesses} == {"x_ptr": ("M", None), "y_ptr": ("M", None)}
    named = annotate(unit(text.replace("stride, BLOCK:", "stride, ROWS: tl.constexpr, BLOCK:"))).kernel
    assert named.axes[0].block == "ROWS"
    assert {a.tensor: a.axes for a in named.accesses} == {"x_ptr": ("M", None), "y_ptr": ("M", None)}


def test_a_constant_that_is_assigned_twice_is_none():
    text = ROWS.replace("@triton.jit", "ROWS = 4\nROWS = 8\n\n\n@triton.jit").replace("block=1", "block=ROWS")
    with pytest.raises(PragmaError, match="block `ROWS` is no parameter of norm"):
        annotate(unit(text))


def test_rows_picked_by_an_index_are_waited_for_whole(model):
    """No block of them could be waited for in a loop, so nobody is told to write one."""
    picked = ("rm = pid_m * BM + tl.arange(0, BM)", "rm = pid_m * BM + tl.arange(0, BM)\n    ids = tl.load(c_ptr + rm)")
    program = model(
        picked, ("pa = a_ptr + rm[:, None]", "pa = a_ptr + ids[:, None]"), ("host_entry a[M,K]", "host_entry a[T,K]")
    )
    (on,) = parse_ons(["a[T]"], program)
    assert not on.ranged
    assert parse_ons(["a[K]"], program)[0].ranged


def test_a_loop_in_order_is_told_of_the_parts_ahead_of_it(model):
    program = model(("        acc = tl.dot(a, b, acc)\n", "        acc = acc * 0.5 + tl.dot(a, b)\n"))
    with pytest.raises(UnsupportedError, match="`acc` goes from one iteration") as caught:
        parse_ons(["a[K]"], program)
    assert "or gather a[K/M]" in caught.value.help
    parse_ons(["a[K/M]"], program)
