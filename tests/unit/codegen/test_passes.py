"""Each pass by before / after text, and what each refuses."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from overlap.annotate import SourceUnit, annotate, parse_ons
from overlap.backends.base import Realization
from overlap.codegen.context import Context, Names, PlanText
from overlap.codegen.locate import Substitute, statements
from overlap.codegen.passes import (
    dispatch,
    hoist,
    host_body,
    host_entry,
    imports,
    kernel_signature,
    operator,
    registrations,
    tile_map,
    unused,
)
from overlap.errors import CodegenError, HostEntryError, UnsupportedError

SOURCE = '''\
"""Doc."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Multiplies."""
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.axis_count M block=BM
    rows = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    # @overlap.dispatch begin
    # @overlap.pid_map M=i N=j
    # Column-major.
    i = pid % rows
    j = pid // rows
    # @overlap.dispatch end
    m = i * BM + tl.arange(0, BM)
    n = j * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + ks[None, :], mask=(m[:, None] < M) & (ks[None, :] < K), other=0.0)
        y = tl.load(b + ks[:, None] * N + n[None, :], mask=(ks[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device)
    kernel[(triton.cdiv(M, 32) * triton.cdiv(N, 32),)](a, b, c, M, N, K, BM=32, BN=32, BK=32)
    return c
'''


def context(text: str = SOURCE, on: str | list[str] = "a[M]", kernel: str | None = None, **changes) -> Context:
    unit = SourceUnit.from_text(text, "user.py")
    program = annotate(unit, kernel)
    ons = [on] if isinstance(on, str) else on
    fields = {
        "program": program,
        "ons": parse_ons(ons, program),
        "names": Names.avoiding(text),
        "realization": Realization(),
        "plans": tuple(PlanText("all_gather_1d", f"plan: x{i}\n" if i else "plan: x\n") for i in range(len(ons))),
        "world": None,
        "source_path": "user.py",
        "host_line": 34,
    }
    return Context(**{**fields, **changes})


def after(run, text: str = SOURCE, **options) -> str:
    return run(cst.parse_module(text), context(text, **options)).code


def test_kernel_signature_goes_behind_the_docstring():
    text = after(kernel_signature.run)
    assert "BK: tl.constexpr, ol_table, ol_state):" in text
    assert '"""Multiplies."""\n    ol_epoch = ol.now(ol_state)\n    # @overlap.tile_id' in text


def test_kernel_signature_stands_before_defaults():
    text = after(
        kernel_signature.run, SOURCE.replace("BK: tl.constexpr)", "BK: tl.constexpr, OUT: tl.constexpr = None)")
    )
    assert "BK: tl.constexpr, ol_table, ol_state, OUT: tl.constexpr = None):" in text


def test_kernel_signature_one_parameter_a_line():
    names = ["a", "b", "c", "M", "N", "K", "BM: tl.constexpr", "BN: tl.constexpr", "BK: tl.constexpr"]
    spread = "kernel(\n" + "".join(f"    {name},\n" for name in names) + "):"
    text = SOURCE.replace("kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):", spread)
    assert "    BK: tl.constexpr,\n    ol_table,\n    ol_state,\n):" in after(kernel_signature.run, text)


def test_dispatch():
    text = after(dispatch.run)
    expected = """\
        # @overlap.axis_count N block=BN
        # The run that holds this tile, and the kernel's own mapping on its counts.
        ol_run = ol.find_run(ol_table, pid)
        ol_pid = ol.rebase(ol_table, ol_run, pid)
        ol_rows = ol.count(ol_table, ol_run, 0)
        # @overlap.dispatch begin
        # @overlap.pid_map M=i N=j
        # Column-major.
        i = ol_pid % ol_rows
        j = ol_pid // ol_rows
        # @overlap.dispatch end
        # From the run to the whole grid.
        i = ol.place(ol_table, ol_run, ol_pid, 0, i)
        j = ol.place(ol_table, ol_run, ol_pid, 1, j)
        # Wait for the run's chunks of a; its loads depend on the wait through i.
        ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
        i = ol.after(i, ol_seen)
        m = i * BM + tl.arange(0, BM)
    """
    assert textwrap.indent(textwrap.dedent(expected), "    ").rstrip() in text


def test_dispatch_guards_the_axis_that_is_communicated():
    text = after(dispatch.run, on="b[N]")
    assert "j = ol.after(j, ol_seen)" in text and "i = ol.after" not in text


def test_dispatch_that_finds_no_region_raises():
    with pytest.raises(CodegenError, match="found 0 dispatch regions"):
        dispatch.run(cst.parse_module(SOURCE.replace("dispatch begin", "nothing")), context())


def test_region_at_the_end_of_its_block():
    """The closing pragma is the last line of a block: libcst keeps it in the block's footer."""
    text = SOURCE.replace(
        "    i = pid % rows\n    j = pid // rows\n    # @overlap.dispatch end\n",
        "    i = pid % rows\n    j = pid // rows\n",
    )
    text = text.replace(
        "    # @overlap.dispatch begin",
        "    if True:\n        # @overlap.dispatch begin\n        # @overlap.pid_map M=i N=j\n"
        "        i = pid % rows\n        j = pid // rows\n        # @overlap.dispatch end\n    # gone",
        1,
    )
    module = cst.parse_module(text)
    changed = dispatch.run(module, context())
    assert changed.code.count("ol.wait_run(") == 1 and changed.code.count("dispatch end") == 1


def test_names_avoid_the_users():
    assert Names.avoiding("ol = 1").prefix == "ol1"
    assert Names.avoiding("x.ol_run = 1\nol1_a = 2").prefix == "ol2"
    assert Names.avoiding("OL_PLAN = 1").prefix == "ol1"
    assert Names.avoiding("# ol\nold = 'ol'").prefix == "ol"


def test_names_follow_the_prefix_everywhere():
    text = SOURCE.replace("rows", "ol_rows")
    assert "ol1_ol_rows = ol1.count(ol1_table, ol1_run, 0)" in after(dispatch.run, text)
    assert 'ours=("ol1_table", "ol1_state"),' in "\n".join(operator.operator_lines(context(text)))


def test_unused_counts_are_marked_for_linters():
    module = dispatch.run(cst.parse_module(SOURCE), context())
    assert "rows = tl.cdiv(M, BM)  # noqa: F841\n" in unused.run(module, context()).code
    read = SOURCE.replace("m = i * BM", "tl.assume(rows > 0)\n    m = i * BM")
    module = dispatch.run(cst.parse_module(read), context(read))
    assert "noqa" not in unused.run(module, context(read)).code


def test_tile_map_runs():
    text = after(tile_map.run)
    namespace: dict = {}
    start = text.index("def ol_tile_map")
    exec(text[start : text.index("# @overlap.host_entry")], namespace)
    assert [namespace["ol_tile_map"](t, 2, 3) for t in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_host_body():
    text = after(host_body.run)
    assert "def ol_body_matmul(ol_call, a, b):" in text
    assert "    ol_call.kernel(kernel)[(triton.cdiv(M, 32) * triton.cdiv(N, 32),)](a, b, c," in text


def test_host_body_without_a_launch_raises():
    with pytest.raises(CodegenError, match="no launch"):
        host_body.run(cst.parse_module(SOURCE.replace("kernel[(", "other[(")), context())


def whole(text: str = SOURCE, **options) -> str:
    made = context(text, **options)
    module = cst.parse_module(text)
    for run in (kernel_signature.run, dispatch.run, tile_map.run, host_body.run, operator.run, host_entry.run):
        module = run(module, made)
    return module.code


def test_host_entry_keeps_parameters_and_adds_three():
    text = whole(SOURCE.replace("def matmul(a, b):", "def matmul(a, b, *, scale: float = 1.0) -> torch.Tensor:"))
    assert "def matmul(a, b, *, scale: float = 1.0, group=None, sizes=None, out=None) -> torch.Tensor:" in text
    assert 'call({"a": a, "b": b, "scale": scale}, group=group, sizes=sizes, out=out)' in text
    assert "# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]\ndef matmul(" in text
    assert text.index("OL_OPERATOR = ") < text.index("def matmul(")


def test_long_signature_goes_one_a_line():
    names = ", ".join(f"option_number_{i}=None" for i in range(8))
    text = whole(SOURCE.replace("def matmul(a, b):", f"def matmul(a, b, {names}):"))
    assert "def matmul(\n    a,\n    b,\n    option_number_0=None,\n" in text
    assert "    *,\n    group=None,\n    sizes=None,\n    out=None,\n):" in text
    assert max(map(len, text[text.index("def matmul(") :].splitlines())) <= 120


@pytest.mark.parametrize("parameter", ["group=None", "sizes=None", "out", "out=()"])
def test_host_entry_refuses_clashing_parameters(parameter):
    with pytest.raises(HostEntryError, match=f"parameter `{parameter.partition('=')[0]}`") as caught:
        whole(SOURCE.replace("def matmul(a, b):", f"def matmul(a, b, {parameter}):"))
    assert caught.value.where.line == 33


@pytest.mark.parametrize("parameters", ["a, b, out=None", "a, b, *, out=None"])
def test_an_out_of_the_users_own_is_ours(parameters):
    text = whole(SOURCE.replace("def matmul(a, b):", f"def matmul({parameters}):"))
    assert "def matmul(a, b, *, group=None, sizes=None, out=None):" in text
    assert f"def ol_body_matmul(ol_call, {parameters}):" in text
    assert 'call({"a": a, "b": b}, group=group' in text


def test_host_entry_refuses_stars():
    with pytest.raises(HostEntryError, match=r"\*args"):
        whole(SOURCE.replace("def matmul(a, b):", "def matmul(a, b, *more):"))


def test_imports_become_absolute(tmp_path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    path = package / "user.py"
    text = SOURCE.replace("import torch\n", "import torch\nfrom . import near\nfrom ..far import thing as other\n")
    path.write_text(text)
    unit = SourceUnit.from_file(path)
    program = annotate(unit)
    module = imports.absolute(cst.parse_module(text), program)
    assert "from outer.inner import near\nfrom outer.far import thing as other\n" in module.code


def test_relative_imports_outside_a_package_are_refused(tmp_path):
    text = SOURCE.replace("import torch\n", "import torch\nfrom .helpers import thing\n")
    path = tmp_path / "user.py"
    path.write_text(text)
    with pytest.raises(UnsupportedError, match="outside a package"):
        imports.absolute(cst.parse_module(text), annotate(SourceUnit.from_file(path)))


NESTED = (
    SOURCE[: SOURCE.index("@triton.jit")]
    + "def make(size=32, late=None):\n    width = 32\n\n"
    + textwrap.indent(SOURCE[SOURCE.index("@triton.jit") :], "    ").replace("cdiv(N, 32)", "cdiv(N, width)")
    + "\n    return matmul\n"
)


def test_hoisted_with_what_it_uses():
    text = hoist.lift(cst.parse_module(NESTED), annotate(SourceUnit.from_text(NESTED, "user.py"))).code
    assert "def make" not in text and "\nwidth = 32\n" in text and "\ndef kernel(" in text and "\ndef matmul(" in text
    compile(text, "hoisted", "exec")


def test_hoisting_refuses_what_only_the_call_knows():
    text = NESTED.replace("width = 32", "width = compute()")
    with pytest.raises(UnsupportedError, match="`width`, which is known only when"):
        hoist.lift(cst.parse_module(text), annotate(SourceUnit.from_text(text, "user.py")))


@pytest.mark.parametrize(
    "code,expected",
    [
        ("x = tile // n", "x = T // n"),
        ("x = f(tile=tile).tile", "x = f(tile=T).tile"),
        ("x = tl.cdiv(M, BM) * cdiv(M, BN)", "x = C * cdiv(M, BN)"),
        ("x = (M + BM - 1) // BM", "x = C"),
        ("x = (M + BM - 1) // BN", "x = (M + BM - 1) // BN"),
        ("x = tl.program_id(0) + tl.program_id(axis=1)", "x = P0 + P1"),
        ("x = tl.num_programs(0)", "x = N0"),
    ],
)
def test_substitute(code, expected):
    change = Substitute({"tile": "T"}, {("M", "BM"): "C"}, {0: "P0", 1: "P1"}, {0: "N0"})
    (statement,) = statements(code + "\n")
    assert cst.Module([statement.visit(change)]).code.strip() == expected


REGISTERING = SOURCE.replace(
    "@triton.jit",
    'lib = torch.library.Library("mine", "FRAGMENT")\nlib.define("matmul(Tensor a, Tensor b) -> Tensor")\n'
    "sizes = lib_sizes = [1]\n\n\n"
    '@torch.library.impl(lib, "matmul", "Meta")\ndef _(a, b):\n    return a\n\n\n@triton.jit',
    1,
).replace("def matmul", '@torch.library.impl(lib, "matmul", "CUDA")\n@torch.no_grad()\ndef matmul')


def test_registrations_are_left_out_and_nothing_else():
    text = registrations.without_registrations(cst.parse_module(REGISTERING)).code
    assert "torch.library" not in text and "lib." not in text and "def _(" not in text
    assert "sizes = lib_sizes = [1]" in text and "@torch.no_grad()\ndef matmul(" in text and "@triton.jit" in text


@pytest.mark.parametrize(
    "line,decorator",
    [
        ("from torch.library import custom_op", '@custom_op("mine::matmul", mutates_args=())'),
        ("from torch import library as tlib", '@tlib.custom_op("mine::matmul", mutates_args=())'),
        ("", '@torch.library.custom_op("mine::matmul", mutates_args=())'),
    ],
)
def test_custom_operators_become_plain_functions(line, decorator):
    text = SOURCE.replace("import torch\n", f"import torch\n{line}\n").replace("def matmul", f"{decorator}\ndef matmul")
    text += "\n\n@matmul.register_fake\ndef _(a, b):\n    return a\n"
    left = registrations.without_registrations(cst.parse_module(text)).code
    assert decorator not in left and "register_fake" not in left and "def matmul(a, b):" in left


def test_modules_without_registrations_are_untouched():
    module = cst.parse_module(SOURCE)
    assert registrations.without_registrations(module) is module


def test_kernel_in_a_module_level_if():
    start, end = SOURCE.index("@triton.jit"), SOURCE.index("# @overlap.host_entry")
    text = (
        SOURCE[:start]
        + "if True:\n"
        + textwrap.indent(SOURCE[start:end].rstrip() + "\n", "    ")
        + "\n\n"
        + SOURCE[end:]
    )
    made = whole(text)
    assert made.index("    def kernel(") < made.index("\ndef ol_tile_map(") < made.index("OL_OPERATOR")
    compile(made, "made", "exec")
