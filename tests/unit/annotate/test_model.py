"""Kernels of every style, as models: axes, tile ids, regions, accesses, host entries."""

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate, describe, returns_after_dispatch
from overlap.annotate.model import Param

GEMMS = {
    # file: (style, read a, read b, write c) as (axes, wraps)
    "templates/kernels/grouped_gemm.py": ("grid_1d", "a_ptr", "b_ptr", "c_ptr", ("K", "N"), False),
    "templates/kernels/gemm_2d.py": ("grid_nd", "a_ptr", "b_ptr", "c_ptr", ("K", "N"), False),
    "templates/kernels/persistent_gemm.py": ("persistent", "a_ptr", "b_ptr", "c_ptr", ("K", "N"), False),
    "tests/kernels/listing1.py": ("persistent", "a_ptr", "b_ptr", "c_ptr", ("N", "K"), False),
    "tests/kernels/host_descriptors.py": ("persistent", "a_desc", "b_desc", "c_desc", ("K", "N"), False),
    "tests/kernels/nested_alias.py": ("grid_nd", "x", "w", "y", ("K", "N"), False),
    "tests/kernels/persistent_epilogue_tile.py": ("persistent", "a_ptr", "b_ptr", "c_ptr", ("K", "N"), False),
    "tests/kernels/wrapped_rows.py": ("grid_1d", "a_ptr", "b_ptr", "c_ptr", ("K", "N"), True),
}


def accesses(kernel, param):
    return {(a.mode, a.axes, a.wraps) for a in kernel.accesses if a.tensor == param}


@pytest.mark.parametrize("path", GEMMS)
def test_gemms(repo, path):
    style, a, b, c, b_axes, wrapped = GEMMS[path]
    program = annotate(SourceUnit.from_file(repo / path))
    kernel, host = program.kernel, program.host
    assert kernel.style == style
    assert accesses(kernel, a) == {("read", ("M", "K"), (wrapped, False))}
    assert accesses(kernel, b) == {("read", b_axes, (wrapped and b_axes[0] == "N", wrapped and b_axes[1] == "N"))}
    assert accesses(kernel, c) == {("write", ("M", "N"), (False, False))}
    assert [(t.param, t.mode) for t in kernel.tensors] == [(a, "read"), (b, "read"), (c, "write")]
    assert kernel.tensor(b).dims == b_axes
    assert [p for _, p in host.tensor_params] == [a, b, c]
    for region in kernel.regions:
        assert [axis for axis, _ in region.pid_map] == ["M", "N"]
        assert region.grid_axes == (("M", "N") if style == "grid_nd" else ())
        assert region.begin_line < min(s.line for s in region.slice if s.inside) < region.end_line
    # Only the stores of an epilogue with a tile id of its own belong to the second region.
    last = len(kernel.regions) - 1
    assert {(x.mode, x.region) for x in kernel.accesses} == {("read", 0), ("write", last)}


def test_listing_1_keeps_the_papers_lines(repo):
    lines = [line.strip() for line in (repo / "tests/kernels/listing1.py").read_text().splitlines()]
    printed = [
        "start_pid = tl.program_id(axis=0)",
        "# @sy.axis_count M block=BLOCK_SIZE_M",
        "num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)",
        "# @sy.tile_id persistent",
        "tile_id = start_pid - NUM_SMS",
        "tile_id += NUM_SMS",
        "# @sy.dispatch begin",
        "# @sy.pid_map M=pid_m N=pid_n",
        "pid_m, pid_n = get_pid_mn(tile_id,",
        "# @sy.dispatch end",
        "offs_am = pid_m * BLOCK_SIZE_M",
        "offs_bn = pid_n * BLOCK_SIZE_N",
        "offs_k = ki * BLOCK_SIZE_K",
        "a = a_desc.load([offs_am, offs_k])",
        "b = b_desc.load([offs_bn, offs_k])",
        "accumulator = tl.dot(a, b.T, accumulator)",
    ]
    at = [lines.index(line) for line in printed]
    assert at == sorted(at)
    kernel = annotate(SourceUnit.from_file(repo / "tests/kernels/listing1.py")).kernel
    assert [(t.name, t.form) for t in kernel.tile_ids] == [("tile_id", "persistent_assign")]
    assert [s.text.splitlines()[0] for s in kernel.regions[0].slice] == ["pid_m, pid_n = get_pid_mn(tile_id,"]
    assert kernel.regions[0].slice[0].reads == ("tile_id", "num_pid_m", "num_pid_n", "GROUP_SIZE_M")
    assert kernel.regions[0].slice[0].globals == ("get_pid_mn",)


def test_grouped_slice(model):
    (region,) = model().kernel.regions
    assert [(s.text, s.targets, s.reads, s.globals, s.inside) for s in region.slice] == [
        ("width = G * cols", ("width",), ("G", "cols"), (), False),
        ("group = pid // width", ("group",), ("pid", "width"), (), True),
        ("size = min(rows - group * G, G)", ("size",), ("rows", "group", "G"), ("min",), True),
        ("pid_m = group * G + (pid % width) % size", ("pid_m",), ("group", "G", "pid", "width", "size"), (), True),
        ("pid_n = (pid % width) // size", ("pid_n",), ("pid", "width", "size"), (), True),
    ]
    assert region.tile_id == "pid" and region.pid_map == (("M", "pid_m"), ("N", "pid_n"))


def test_axes_and_params(model):
    kernel = model().kernel
    assert [(a.name, a.extent, a.block, a.count_name) for a in kernel.axes] == [
        ("M", "M", "BM", "rows"),
        ("N", "N", "BN", "cols"),
        ("K", "K", None, None),
    ]
    assert kernel.params[0] == Param("a_ptr") and kernel.params[-1] == Param("G", "tl.constexpr", "8")
    assert kernel.params[-1].is_constexpr and not kernel.params[0].is_constexpr
    assert kernel.qualname == "gemm" and kernel.decorators == ("triton.jit",)


def test_axes_of_the_host_entry_need_no_pragma(model):
    kernel = model(("    # @overlap.axis_count K=range\n", "")).kernel
    assert kernel.axis("K").block is None and kernel.axis("K").span.text.startswith("# @overlap.host_entry")
    assert accesses(kernel, "a_ptr") == {("read", ("M", "K"), (False, False))}


@pytest.mark.parametrize(
    "count", ["(M + BM - 1) // BM", "triton.cdiv(M, BM)", "tl.cdiv(M, BM).to(tl.int32)", "cdiv(M, BM)"]
)
def test_spellings_of_the_count(model, count):
    kernel = model(("tl.cdiv(M, BM)", count), ("import torch\n", "import torch\nfrom triton import cdiv\n")).kernel
    assert kernel.axis("M").count_name == "rows"


def test_axis_count_anywhere(model):
    moved = model(
        ("    # @overlap.axis_count M block=BM\n", ""),
        ("    # @overlap.axis_count N block=BN\n", ""),
        (
            "    rm = pid_m",
            "    # @overlap.axis_count M block=BM\n    # @overlap.axis_count N block=BN\n    rm = pid_m",
        ),
    ).kernel
    assert {(a.name, a.count_name) for a in moved.axes} == {("M", "rows"), ("N", "cols"), ("K", None)}


def test_the_count_under_the_pragma_wins(model):
    kernel = model(
        ("    # @overlap.axis_count M block=BM\n", "    high = tl.cdiv(M, BM)\n    # @overlap.axis_count M block=BM\n")
    ).kernel
    assert kernel.axis("M").count_name == "rows"


def test_counts_written_out_in_the_map(model):
    kernel = model(
        ("    rows = tl.cdiv(M, BM)\n", ""), ("size = min(rows - group", "size = min(tl.cdiv(M, BM) - group")
    ).kernel
    assert kernel.axis("M").count_name is None


def test_extent_of_another_parameter(model, grouped):
    text = grouped.replace("axis_count M block", "axis_count M=height block").replace(
        "M, N, K, sam", "height, N, K, sam"
    )
    text = text.replace("tl.cdiv(M, BM)", "tl.cdiv(height, BM)").replace("rm[:, None] < M", "rm[:, None] < height")
    axis = annotate(SourceUnit.from_text(text)).kernel.axis("M")
    assert (axis.extent, axis.count_name) == ("height", "rows")


def test_hints_keep_an_extent(model):
    assert model(("    width =", "    M = tl.multiple_of(M, 8)\n    width =")).kernel.axis("M").count_name == "rows"


HEADS = {
    "jit call": "@triton.jit(do_not_specialize=['M'])",
    "autotune and heuristics": "@triton.autotune(configs=[triton.Config({'BM': 32}, num_ctas=1)], key=['M'])\n"
    "@triton.heuristics({'G': lambda args: 8})\n@triton.jit",
    "foreign decorators": "@libentry()\n@libtuner(configs=f('mm'), key=[])\n@triton.jit",
    "renamed import": "from triton import jit as compiled\n\n\n@compiled",
    "alias by assignment": "jit = triton.jit\n\n\n@jit",
}


@pytest.mark.parametrize("head", HEADS)
def test_decorators(model, head):
    kernel = model(("@triton.jit", HEADS[head])).kernel
    assert kernel.decorators == tuple(line[1:] for line in HEADS[head].splitlines() if line.startswith("@"))


def test_jitted_by_a_call(model):
    assert (
        model(("@triton.jit\n", ""), ("# @overlap.host", "gemm = triton.jit(gemm)\n\n\n# @overlap.host")).kernel.name
        == "gemm"
    )


@pytest.mark.parametrize(
    ("line", "alias"),
    [
        ("import triton.language as L", "L"),
        ("from triton import language as lang", "lang"),
        ("import triton.language", "triton.language"),
        ("try:\n    import triton.language as t\nexcept ImportError:\n    t = None", "t"),
        ("from other_package import language_extension as tle", "tle"),
    ],
)
def test_language_aliases(model, grouped, line, alias):
    text = grouped.replace("import triton.language as tl", line).replace("tl.", alias + ".")
    assert annotate(SourceUnit.from_text(text)).kernel.accesses[0].axes == ("M", "K")


def test_bare_language_names(model):
    kernel = model(
        (
            "import triton.language as tl",
            "import triton.language as tl\nfrom triton.language import load, program_id as which",
        ),
        ("tl.program_id(axis=0)", "which(0)"),
        ("tl.load(pa", "load(pa"),
    ).kernel
    assert accesses(kernel, "a_ptr") == {("read", ("M", "K"), (False, False))}


def test_nested_in_functions(grouped):
    head, kernel_and_host = grouped.split("@triton.jit")
    indented = "\n".join("    " + line if line else "" for line in ("@triton.jit" + kernel_and_host).splitlines())
    text = head + "def outer():\n    class Holder:\n        pass\n\n" + indented + "\n    return matmul\n"
    program = annotate(SourceUnit.from_text(text))
    assert program.kernel.qualname == "outer.gemm" and program.host is not None
    assert annotate(SourceUnit.from_text(text), "outer.gemm") == program


def test_persistent_forms(model, grouped):
    """`for` target, and a `while` loop with an assigned id."""
    body = grouped[grouped.index("    # @overlap.dispatch begin") : grouped.index("\n\n\n# @overlap.host_entry")]
    inner = "\n".join("    " + line for line in body.splitlines())
    start = "    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n"
    for loop, form in (
        (
            "    # @overlap.tile_id persistent\n"
            "    for pid in tl.range(tl.program_id(0), rows * cols, G, flatten=True):\n",
            "persistent_for",
        ),
        (
            "    # @overlap.tile_id\n    for pid in range(tl.program_id(0), (cols * rows), tl.num_programs(0)):\n",
            "persistent_for",
        ),
        (
            "    # @overlap.tile_id persistent\n    pid = tl.program_id(0)\n    while pid < rows * cols:\n",
            "persistent_assign",
        ),
    ):
        advance = "\n        pid += G" if "while" in loop else ""
        kernel = model((start, ""), (body, loop + inner + advance)).kernel
        assert [(t.name, t.form) for t in kernel.tile_ids] == [("pid", form)]
        assert kernel.style == "persistent"
        assert accesses(kernel, "a_ptr") == {("read", ("M", "K"), (False, False))}


def test_guard_returns(model, refusal):
    kernel = model(("    width =", "    if pid >= rows * cols:\n        return\n    width =")).kernel
    assert accesses(kernel, "c_ptr") == {("write", ("M", "N"), (False, False))}


def test_branch_in_the_region(model):
    """Both ways of a constexpr branch belong to the map."""
    old = "    pid_m = group * G + (pid % width) % size\n    pid_n = (pid % width) // size\n"
    new = (
        "    if G == 1:\n        pid_m = pid // cols\n        pid_n = pid % cols\n    else:\n"
        "        pid_m = group * G + (pid % width) % size\n        pid_n = (pid % width) // size\n"
    )
    (region,) = model((old, new)).kernel.regions
    assert [s.inside for s in region.slice] == [False, True, True, True]
    assert region.slice[-1].text == "\n".join(line[4:] for line in new.splitlines())
    assert region.slice[-1].targets == ("pid_m", "pid_n")


def test_conditional_value_before_the_region(model):
    (region,) = model(
        ("    width = G * cols\n", "    width = G * cols\n    if G == 1:\n        width = cols\n")
    ).kernel.regions
    assert [s.text for s in region.slice if not s.inside] == ["width = G * cols", "if G == 1:\n    width = cols"]


def test_value_in_two_steps(model):
    (region,) = model(("    width = G * cols\n", "    width = G\n    width *= cols\n")).kernel.regions
    assert [s.text for s in region.slice if not s.inside] == ["width = G", "width *= cols"]
    assert region.slice[1].reads == ("width", "cols") and region.slice[1].targets == ("width",)


def test_two_regions_that_reuse_names(repo):
    text = (
        (repo / "tests/kernels/persistent_epilogue_tile.py")
        .read_text()
        .replace("out_m", "pid_m")
        .replace("out_n", "pid_n")
    )
    kernel = annotate(SourceUnit.from_text(text)).kernel
    assert {(a.mode, a.region, a.axes[0]) for a in kernel.accesses if a.tensor != "b_ptr"} == {
        ("read", 0, "M"),
        ("write", 1, "M"),
    }


def test_returns_after_the_region(model, persistent):
    unit = SourceUnit.from_text(persistent)
    region = annotate(unit).kernel.regions[0]
    assert returns_after_dispatch(unit, "gemm", region.end_line) == ()
    leaving = SourceUnit.from_text(
        persistent.replace("        rm = pid_m", "        if pid_m > 3:\n            return\n        rm = pid_m")
    )
    assert returns_after_dispatch(leaving, "gemm", region.end_line) == (region.end_line + 2,)


def test_qualname_with_locals(grouped):
    head, rest = grouped.split("@triton.jit")
    indented = "\n".join("    " + line for line in ("@triton.jit" + rest).splitlines())
    unit = SourceUnit.from_text(f"{head}def outer():\n{indented}\n")
    assert annotate(unit, "outer.<locals>.gemm").kernel.qualname == "outer.gemm"


def test_overwritten_value_is_not_in_the_slice(model):
    (region,) = model(("    width = G * cols\n", "    width = 5\n    width = G * cols\n")).kernel.regions
    assert [s.line for s in region.slice if not s.inside] == [18]


def test_tile_id_assigned_inside_the_region(model):
    start = "    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n"
    (region,) = model((start, ""), ("    group = pid", start + "    group = pid")).kernel.regions
    assert region.slice[1].text == "pid = tl.program_id(axis=0)" and region.slice[1].inside


def test_describe(model):
    text = describe(model())
    assert text.splitlines()[:6] == [
        "kernel gemm (gemm.py:7), 1-D grid, one tile a program",
        "  axis M: extent M, block BM, rows = cdiv(M, BM) tiles",
        "  axis N: extent N, block BN, cols = cdiv(N, BN) tiles",
        "  axis K: extent K, a range inside the tile",
        "  tile id pid: one a program (line 9)",
        "  dispatch region 0 (lines 18-24): tile id pid -> pid_m on M, pid_n on N",
    ]
    assert "    line 33: read by pointer at [pid_m * BM on M; k * BK on K], region 0" in text
    assert text.splitlines()[-4:] == [
        "host matmul: a[M,K] b[K,N] -> c[M,N], launch on line 48",
        "  a is passed as a_ptr",
        "  b is passed as b_ptr",
        "  c is passed as c_ptr",
    ]
    assert "host: no host_entry" in describe(
        model(("# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]\n", ""), ("K=range", "K=range"))
    )
