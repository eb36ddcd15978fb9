"""Bad input: each case names the class, the source line the caret is under, and what the message and help say."""

# ruff: noqa: E501  (a table, one case a line)

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate, describe
from overlap.errors import HostEntryError, OverlapError, PragmaError, UnsupportedError, UsageError

BEGIN = "    # @overlap.dispatch begin\n"
END = "    # @overlap.dispatch end\n"
PID_MAP = "    # @overlap.pid_map M=pid_m N=pid_n\n"
LAUNCH = "    gemm[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), c.stride(0), c.stride(1), BM=32, BN=32, BK=16)\n"
HOST = "# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]"
LOAD_A = "tl.load(pa, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)"
SECOND = """\
    # @overlap.dispatch begin
    # @overlap.pid_map M=qm N=qn
    qm = pid // cols
    qn = pid % cols
    # @overlap.dispatch end
"""

PRAGMAS = {
    "unknown pragma": (("axis_count M block", "axes_count M block"), "axes_count M", "unknown pragma `axes_count`; did you mean `axis_count`?", "the pragmas are"),
    "misspelt prefix": (("@overlap.tile_id", "@overlp.tile_id"), "@overlp", "`@overlp.tile_id` is no pragma", "# @overlap.tile_id"),
    "missing dot": (("@overlap.tile_id", "@overlap tile_id"), "@overlap tile_id", "`@overlap tile_id` is no pragma", "# @overlap.tile_id"),
    "no name": (("@overlap.tile_id", "@overlap."), "@overlap.", "a pragma without a name", "axis_count"),
    "unknown key": (("M block=BM", "M blok=BM"), "blok=BM", "unknown key `blok`; did you mean `block`?", "axis_count M block=BLOCK_M"),
    "key without value": (("M block=BM", "M block"), "M block", "`block` needs a value", "block=BLOCK_M"),
    "key twice": (("M block=BM", "M block=BM block=BN"), "block=BM block=BN", "`block` is given twice", "block="),
    "no axis": (("axis_count M block=BM", "axis_count block=BM"), "axis_count block=BM", "needs block=PARAMETER", "axis_count M"),
    "no block": (("axis_count M block=BM", "axis_count M"), "axis_count M", "axis_count M needs block=PARAMETER", "block="),
    "range misspelt": (("K=range", "K=rang"), "K=rang", "did you mean `range`?", "K=range"),
    "range with block": (("K=range", "K=range block=BK"), "K=range", "takes no block", "K=range"),
    "bad word": (("M block=BM", "M block=BM*2"), "BM*2", "`block=BM*2` is not a name", "block="),
    "unknown block": (("M block=BM", "M block=BLOCK"), "block=BLOCK", "block `BLOCK` is no parameter of gemm", "block size"),
    "unknown extent": (("axis_count M block", "axis_count L block"), "axis_count L", "`L` is no parameter of gemm", "L=PARAMETER"),
    "axis twice": (("axis_count N block=BN", "axis_count M block=BM"), "axis_count M", "axis M is declared twice (first on line 11)", ""),
    "tile_id word": (("@overlap.tile_id", "@overlap.tile_id persistant"), "persistant", "did you mean `persistent`?", "tile_id persistent"),
    "num_tiles word": (("    width =", "    # @overlap.num_tiles x\n    width ="), "num_tiles x", "num_tiles takes nothing", "num_tiles"),
    "dispatch word": (("dispatch begin", "dispatch start"), "dispatch start", "not `start`", "dispatch begin"),
    "pid_map without pairs": (("pid_map M=pid_m N=pid_n", "pid_map M N"), "pid_map M N", "AXIS=VARIABLE", "pid_map M=pid_m"),
    "pid_map twice the axis": (("N=pid_n", "M=pid_n"), "M=pid_m M=pid_n", "pid_map names `M` twice", "pid_map"),
    "tensor mode": (("K=range\n", "K=range\n    # @overlap.tensor a_ptr[M,K] reads\n"), "reads", "unknown mode `reads`; did you mean `read`?", "tensor a_ptr"),
    "tensor axis": (("K=range\n", "K=range\n    # @overlap.tensor a_ptr[M,L]\n"), "[M,L]", "nobody declares axis L", "axis_count L=range"),
    "tensor name": (("K=range\n", "K=range\n    # @overlap.tensor a_pt[M,K]\n"), "a_pt[M,K]", "did you mean `a_ptr`?", ""),
    "tensor wrong mode": (("K=range\n", "K=range\n    # @overlap.tensor a_ptr[M,K] write\n"), "write", "declared write, but the kernel reads it (line 34)", "write read"),
    "tensor twice": (("K=range\n", "K=range\n    # @overlap.tensor a_ptr[M,K]\n    # @overlap.tensor a_ptr[M,K]\n"), "a_ptr", "declared twice", ""),
    "tensor dims twice": (("K=range\n", "K=range\n    # @overlap.tensor a_ptr[M,M]\n"), "[M,M]", "names an axis twice", "tensor a_ptr"),
    "tensor contradicts the code": (("K=range\n", "K=range\n    # @overlap.tensor b_ptr[N,K]\n"), "b_ptr[N,K]", "host_entry passes it with dimensions [K,N]", "line 43"),
    "host dims contradict the code": (("b[K,N] ->", "b[N,K] ->"), "b[N,K]", "b_ptr[N,K] contradicts the kernel", "order"),
    "rank contradicts the code": ((HOST, "# @overlap.host_entry a[M] b[K,N] -> c[M,N]"), "a[M]", "a_ptr[M] contradicts", "order"),
    "host without arrow": ((" -> c[M,N]", ""), "host_entry", "needs `->`", "-> c[M,N]"),
    "host garbage": (("b[K,N] ->", "b[K;N] ->"), "b[K;N]", "`K;N` is no axis name", "host_entry a[M,K]"),
    "host over nothing": ((HOST + "\ndef matmul", HOST + "\nX = 1\ndef matmul"), "host_entry", "stands over no function", "right above"),
    "kernel pragma at module level": (("\n\n@triton.jit", "\n# @overlap.tile_id\nX = 1\n\n@triton.jit"), "tile_id", "stands in no function", "kernel"),
    "not a kernel": (("@triton.jit\n", ""), "tile_id", "`gemm` carries kernel pragmas but is not a Triton kernel", "@triton.jit"),
}  # fmt: skip

REGIONS = {
    "begin never closed": ((END, ""), "dispatch begin", "never closed", "dispatch end"),
    "end without begin": ((BEGIN + PID_MAP, PID_MAP + BEGIN), "pid_map", "outside a dispatch region", ""),
    "only an end": ((BEGIN, ""), "pid_map", "outside a dispatch region", ""),
    "nested": ((PID_MAP, PID_MAP + BEGIN), "dispatch begin", "inside the region that begins on line 18", "dispatch end"),
    "no pid_map": ((PID_MAP, ""), "dispatch begin", "has no pid_map", "pid_map M=pid_m"),
    "two pid_maps": ((PID_MAP, PID_MAP + PID_MAP), "pid_map", "a second pid_map", ""),
    "unknown axis": (("N=pid_n", "L=pid_n"), "L=pid_n", "names axis L, which nobody declares", "axis_count L"),
    "axis without block": (("axis_count N block=BN", "axis_count N=range"), "N=pid_n", "which has no block", "block=BLOCK_N"),
    "axis not mapped": ((" N=pid_n", ""), "axis_count N", "no pid_map gives its coordinate", "N=VARIABLE"),
    "variable not assigned": (("N=pid_n", "N=pid_x"), "N=pid_x", "`pid_x` (axis N) is not assigned in the region; did you mean `pid_", "between"),
    "empty region": ((BEGIN + PID_MAP, BEGIN + PID_MAP + END + "    # x\n"), "dispatch begin", "is empty", "around"),
    "region cut by a block": (("    pid_n = (pid % width) // size\n" + END, "    pid_n = (pid % width) // size\n    if K > 0:\n        x = 1\n    " + END + "        y = 2\n"), "dispatch end", "not in one block", "indentation"),
    "regions over other axes": ((END, END + SECOND.replace(" N=qn", "")), "M=qm", "maps axes M, the one on line 18 maps M, N", "same axes"),
    "regions with another map": ((END, END + SECOND), "dispatch begin", "otherwise than the one on line 18", "same map"),
    "tile id of nothing": (("    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n", "    pid = tl.program_id(axis=0)\n    # @overlap.tile_id\n    tl.static_assert(G > 0)\n"), "tile_id", "stands over neither", "tl.program_id(0)"),
    "persistent without a loop": (("@overlap.tile_id", "@overlap.tile_id persistent"), "tile_id persistent", "never advances", "drop `persistent`"),
    "tile id that is none": (("pid = tl.program_id(axis=0)", "pid = tl.program_id(axis=0) + 1"), "pid = ", "tile id `pid` is program_id(0) + 1", "tl.program_id(0)"),
    "tile id of another dimension": (("pid = tl.program_id(axis=0)", "pid = tl.program_id(axis=1)"), "pid = ", "is program_id(1)", "tl.program_id(0)"),
    "region without a tile id": (("    # @overlap.tile_id\n    pid =", "    other = 0\n    # @overlap.tile_id\n    pid2 = tl.program_id(0)\n    pid ="), "dispatch begin", "reads no tile id", "`pid2`"),
    "num_tiles of nothing": (("    tl.store(", "    # @overlap.num_tiles\n    tl.store("), "num_tiles", "stands over no assignment", ""),
    "count of another block": (("rows = tl.cdiv(M, BM)", "rows = tl.cdiv(M, BN)"), "rows = ", "axis M has extent M and block BM, but `rows` is cdiv(M, BN)", "line 11"),
    "count assigned again": (("    width =", "    rows = rows + 1\n    width ="), "rows = rows + 1", "assigned again", "another name"),
    "extent changed": (("    width =", "    M = M // 2\n    width ="), "M = M // 2", "the kernel changes `M`", "host function"),
    "region behind a return": ((BEGIN, "    return\n" + BEGIN), "dispatch begin", "never reached", "return"),
    "no tile id at all": (("    # @overlap.tile_id\n", ""), "pid_map", "cannot tell which grid dimension", "tile_id"),
}  # fmt: skip

SLICES = {
    "loaded coordinates": (("group = pid // width", "group = tl.load(c_ptr + pid) // width"), "tl.load", "depend on loaded data", "tile counts"),
    "a second id in the map": (("group = pid // width", "group = (pid + tl.program_id(1)) // width"), "tl.program_id(1)", "beside its tile id `pid`", "tile counts"),
    "num_programs in the map": (("width = G * cols", "width = tl.num_programs(0)"), "tl.num_programs(0)", "beside its tile id", "tile counts"),
    "computed in a loop": (("width = G * cols", "width = 0\n    for i in range(G):\n        width += cols"), "for i in range(G)", "`width`, which feeds the tile coordinates, is computed in a loop", "without a loop"),
    "helper variable used later": (("rm = pid_m", "top = group * 2\n    rm = pid_m"), "top = group * 2", "`group` is computed in the dispatch region and used after it", "below"),
    "other statement in the region": ((END, "    rm0 = pid_m * BM\n" + END), "rm0 = pid_m * BM", "makes no pid", "below"),
    "tile id in an address": (("c_ptr + rm", "c_ptr + pid + rm"), "tl.store(", "pid is used in an address outside the dispatch region", "tile coordinates"),
    "program id in an address": (("c_ptr + rm", "c_ptr + tl.program_id(1) * scm + rm"), "tl.store(", "program_id(1) is used in an address", "pid_map"),
    "tile id through a branch": (("    pc = c_ptr + rm", "    off = 0\n    if pid > 3:\n        off = 64\n    pc = c_ptr + off + rm"), "tl.store(", "pid is used in an address", "pid_map"),
    "tile id through a variable": (("    pc = c_ptr + rm", "    off = tl.maximum(pid, 3)\n    pc = c_ptr + off + rm"), "tl.store(", "pid is used in an address", "pid_map"),
}  # fmt: skip

UNSUPPORTED = {
    "split-K by an id in the offset": (("rk = tl.arange(0, BK)", "rk = tl.program_id(1) * BK + tl.arange(0, BK)"), "tl.load", "split-K: program_id(1) partitions the K loop", "declare the split as a tile axis"),
    "split-K by loop bounds": (("for k in range(0, steps):", "for k in range(tl.program_id(1), steps, 4):"), "tl.load", "split-K", "declare the split as a tile axis"),
    "split-K by the end of the loop": (("for k in range(0, steps):", "for k in range(0, tl.program_id(1) + 1):"), "tl.load", "split-K: program_id(1) partitions", "declare the split as a tile axis"),
    "split-K by atomics": (("tl.store(pc, acc.to(c_ptr.dtype.element_ty), mask", "tl.atomic_add(pc + tl.program_id(1) * 0 + tl.program_id(2), acc, mask"), "tl.atomic_add", "split-K", "declare the split as a tile axis"),
    "warp specialisation": (("range(0, steps)", "tl.range(0, steps, warp_specialize=True)"), "warp_specialize=True", "warp_specialize", "warp_specialize=False"),
    "clusters at the launch": (("BK=16)", "BK=16, num_ctas=2)"), "gemm[grid]", "num_ctas above 1", "num_ctas=1"),
    "clusters in a configuration": (("@triton.jit", "@triton.autotune(configs=[triton.Config({}, num_ctas=4)], key=[])\n@triton.jit"), "num_ctas=4", "num_ctas above 1", "num_ctas=1"),
    "clusters in a named configuration": (("@triton.jit", "CONFIGS = [triton.Config({}, num_ctas=2)]\n@triton.autotune(configs=CONFIGS, key=[])\n@triton.jit"), "num_ctas=2", "num_ctas above 1", "num_ctas=1"),
}  # fmt: skip

HOSTS = {
    "no launch": ((LAUNCH, ""), "def matmul", "`matmul` never launches `gemm`", "gemm[grid]"),
    "two launches": ((LAUNCH, LAUNCH + LAUNCH), "gemm[grid]", "`gemm` is launched twice (first on line 48)", "exactly once"),
    "launch in a loop": ((LAUNCH, "    for _ in range(2):\n    " + LAUNCH), "gemm[grid]", "launched in a loop", "exactly once"),
    "launch in an inner function": ((LAUNCH, "    def run():\n    " + LAUNCH + "    run()\n"), "gemm[grid]", "a function inside `matmul`", "host_entry"),
    "input that is no parameter": (("a[M,K] b[K,N] ->", "a[M,K] bb[K,N] ->"), "bb[K,N]", "`bb` is no parameter of `matmul`", "the parameters are a, b"),
    "result that is no variable": (("-> c[M,N]", "-> out[M,N]"), "out[M,N]", "has no variable `out`", "result"),
    "result that is not passed": (("-> c[M,N]", "-> grid[M,N]"), "gemm[grid]", "the result `grid` is not passed", "writes into"),
    "two host entries": (("    return c\n", "    return c\n\n\n" + HOST + "\ndef other(a, b):\n    c = a\n" + LAUNCH.replace("M, N, K", "1, 1, 1")), "host_entry", "two host entries launch `gemm`", "one host_entry"),
}  # fmt: skip


def _check(refusal, case, error_class):
    (old, new), line, message, help_text = case
    error = refusal((old, new))
    assert type(error) is error_class, error
    assert line in error.where.text, error
    assert message in error.message
    assert help_text in error.help


@pytest.mark.parametrize("case", [*PRAGMAS.values(), *REGIONS.values()], ids=[*PRAGMAS, *REGIONS])
def test_pragmas_and_regions(refusal, case):
    _check(refusal, case, PragmaError)


@pytest.mark.parametrize("name", SLICES)
def test_slices(refusal, name):
    named = ("loaded coordinates", "computed in a loop")
    _check(refusal, SLICES[name], UnsupportedError if name in named else PragmaError)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_by_name(refusal, name):
    _check(refusal, UNSUPPORTED[name], UnsupportedError)


@pytest.mark.parametrize("name", HOSTS)
def test_hosts(refusal, name):
    _check(refusal, HOSTS[name], HostEntryError)


@pytest.mark.parametrize(
    "edits",
    [
        (("G: tl.constexpr = 8", "G: tl.constexpr = 8, WS: tl.constexpr = True"),),
        (("G: tl.constexpr = 8", "G: tl.constexpr = 8, WS: tl.constexpr = False"), ("BK=16)", "BK=16, WS=True)")),
    ],
)
def test_warp_specialisation_by_a_parameter(refusal, edits):
    error = refusal(("range(0, steps)", "tl.range(0, steps, warp_specialize=WS)"), *edits)
    assert type(error) is UnsupportedError and error.message.startswith("warp_specialize")


def test_helper_variable_read_in_the_next_iteration(refusal, persistent):
    error = refusal(
        text=persistent.replace(
            "        # @overlap.dispatch begin\n", "        tl.static_print(group)\n        # @overlap.dispatch begin\n"
        )
    )
    assert type(error) is PragmaError and error.message.startswith(
        "`group` is computed in the dispatch region and used after it"
    )
    assert error.where.text.strip() == "tl.static_print(group)"


def test_map_carried_by_the_tile_loop(refusal, persistent):
    text = persistent.replace("    width =", "    shift = 0\n    width =").replace(
        "group = pid // width", "group = (pid + shift) // width"
    )
    error = refusal(text=text.replace("        rm = pid_m", "        shift = 1\n        rm = pid_m"))
    assert type(error) is UnsupportedError and "`shift`, which feeds the tile coordinates, is carried" in error.message


def test_every_line_deleted_or_doubled(grouped, persistent):
    """No input that differs by a line gives anything but a model or an error with a place."""
    models = refused = 0
    for text in (grouped, persistent):
        lines = text.splitlines()
        for i, line in enumerate(lines):
            for changed in (lines[:i] + lines[i + 1 :], [*lines[:i], line, *lines[i:]]):
                try:
                    describe(annotate(SourceUnit.from_text("\n".join(changed) + "\n", "gemm.py")))
                    models += 1
                except OverlapError as error:
                    assert error.where is not None and error.render().startswith("gemm.py:")
                    refused += 1
    assert models > 50 and refused > 50


def test_stream_k(refusal):
    error = refusal(
        ("    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n", "    start = tl.program_id(0)\n"),
        ("    width = G * cols\n", "    width = G * cols\n    # @overlap.tile_id\n    pid = start * 5 // steps\n"),
    )
    assert type(error) is UnsupportedError
    assert error.message.startswith("stream-K: ") and "K" in error.message
    assert "pid = start" in error.where.text


def test_stream_k_inside_the_region(refusal):
    error = refusal(("group = pid // width", "group = pid // steps // width"))
    assert type(error) is UnsupportedError and error.message.startswith("stream-K: ")


def test_fused_tile_and_k_loop(refusal):
    region = BEGIN + PID_MAP
    error = refusal(
        (
            region,
            "    for ki in range(0, steps * rows * cols):\n        if ki % steps == 0:\n"
            "            # @overlap.dispatch begin\n            # @overlap.pid_map M=pid_m N=pid_n\n"
            "            pid_m = pid // cols\n            pid_n = pid % cols\n            # @overlap.dispatch end\n",
        ),
        ("    pid_m = group * G + (pid % width) % size\n    pid_n = (pid % width) // size\n" + END, ""),
    )
    assert type(error) is UnsupportedError
    assert "`if ki % steps == 0` inside a loop" in error.message
    assert "tile loop around a K loop" in error.help


def test_coordinates_carried_between_iterations(refusal):
    error = refusal(
        (
            BEGIN + PID_MAP,
            "    seen = 0\n    for j in range(G):\n        # @overlap.dispatch begin\n"
            "        # @overlap.pid_map M=pid_m N=pid_n\n        pid_m = pid // cols + seen\n        pid_n = pid % cols\n"
            "        # @overlap.dispatch end\n        seen += 1\n",
        ),
        ("    pid_m = group * G + (pid % width) % size\n    pid_n = (pid % width) // size\n" + END, ""),
    )
    assert type(error) is UnsupportedError
    assert "`seen`, which feeds the tile coordinates, is carried" in error.message


def test_target_of_a_loop_that_is_no_tile_loop(refusal):
    error = refusal(
        (
            BEGIN + PID_MAP,
            "    for j in range(G):\n        # @overlap.dispatch begin\n"
            "        # @overlap.pid_map M=pid_m N=pid_n\n        pid_m = pid // cols + j\n        pid_n = pid % cols\n"
            "        # @overlap.dispatch end\n",
        ),
        ("    pid_m = group * G + (pid % width) % size\n    pid_n = (pid % width) // size\n" + END, ""),
    )
    assert type(error) is UnsupportedError
    assert "`j`, the target of a loop that is no tile loop" in error.message


def test_tile_loop_over_too_many_tiles(refusal):
    error = refusal(
        ("    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n", ""),
        (
            "    width = G * cols\n",
            "    width = G * cols\n    # @overlap.tile_id persistent\n"
            "    for pid in range(tl.program_id(0), rows * cols * G, 4):\n",
        ),
        *((f"    {line}\n", f"        {line}\n") for line in (
            "# @overlap.dispatch begin",
            "# @overlap.pid_map M=pid_m N=pid_n",
            "group = pid // width",
            "size = min(rows - group * G, G)",
            "pid_m = group * G + (pid % width) % size",
            "pid_n = (pid % width) // size",
            "# @overlap.dispatch end",
        )),
    )  # fmt: skip
    assert type(error) is PragmaError
    assert "but the tile axes have cdiv(M, BM) * cdiv(N, BN) tiles" in error.message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tl.program_id(1)", "tl.program_id(0)", "axes M and N both come from program_id(0)"),
        ("tl.program_id(1)", "tl.program_id(2)", "the grid's dimension 1 has no axis"),
        ("tl.program_id(0)", "tl.program_id(0) // 2", "cannot tell which grid dimension axis M has"),
        ("tl.program_id(1)", "tl.program_id(BLOCK_N)", "cannot tell which grid dimension axis N has"),
    ],
)
def test_dimensions_of_an_n_d_grid(refusal, repo, old, new, message):
    error = refusal((old, new), text=(repo / "templates/kernels/gemm_2d.py").read_text())
    assert type(error) is PragmaError and message in error.message and "pid_map" in error.where.text


@pytest.mark.parametrize("operation", ["//", "%"])
def test_axes_that_share_a_grid_dimension(refusal, repo, operation):
    """As batch and heads do: what to write is what tests/kernels/wild/batched_heads.py does."""
    text = (repo / "templates/kernels/gemm_2d.py").read_text()
    error = refusal(("tl.program_id(1)", f"tl.program_id(1) {operation} N"), text=text)
    assert "give it one axis of its own, `X = tl.program_id(1)`" in error.help and "behind the region" in error.help


def test_no_annotated_kernel(refusal):
    error = refusal(text="import triton\n\n\n@triton.jit\ndef f(x):\n    pass\n")
    assert type(error) is PragmaError and "has no annotated kernel" in error.message and error.where.line == 4 + 1


def test_kernel_without_pragmas_named(refusal):
    error = refusal(text="import triton\n\n\n@triton.jit\ndef f(x):\n    pass\n", kernel="f")
    assert "kernel `f` has no pragmas" in error.message


def test_several_kernels_need_a_name(refusal, grouped, model):
    second = grouped.split("# @overlap.host_entry")[0].replace("def gemm(", "def other(").split("@triton.jit")[1]
    text = grouped + "\n\n@triton.jit" + second
    error = refusal(text=text)
    assert type(error) is UsageError and "2 annotated kernels" in error.message
    assert error.help == "name one: gemm.py:gemm, gemm.py:other"
    assert model(text=text, kernel="gemm").host is not None
    assert model(text=text, kernel="other").host is None
    wrong = refusal(text=text, kernel="othr")
    assert type(wrong) is UsageError and "did you mean `other`?" in wrong.message
