"""Which host functions are plain (`overlap.runtime.repeat.plain_body`), so that a call like an earlier one is only its launch."""

import linecache

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.codegen.module_io import load_module
from overlap.runtime.repeat.plain_body import plain_globals

pytestmark = pytest.mark.one_triton


def kernel():
    """Stands for one."""


def body_of(text: str, **names):
    """A host function of ``a``, ``b`` and ``n`` with these lines before its launch and the return of ``c``."""
    lines = ["    " + line for line in text.splitlines()]
    if "return" not in text:
        lines += ["    call.kernel(kernel)[grid](a, b, c, a.shape[0], n, BLOCK=64)", "    return c"]
    source = "\n".join(["def body(call, a, b, n):", *lines, ""])
    path = f"<body {hash(source)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    scope = {"torch": torch, "triton": triton, "TensorDescriptor": TensorDescriptor, "kernel": kernel, **names}
    exec(compile(source, path, "exec"), scope)
    return scope["body"]


MADE = "M, K = a.shape\nc = torch.empty((M, b.shape[1]), device=a.device, dtype=a.dtype)\n"
GRID = 'grid = lambda meta: (triton.cdiv(M, meta["BLOCK"]) * n,)\n'
PLAIN = {
    "allocation, grid, launch": MADE + GRID,
    "a grid that is a function": MADE + "def grid(meta):\n    if n > 3:\n        return (n,)\n    return (M, 1)\n",
    "refusals": MADE
    + GRID
    + 'assert a.is_contiguous(), f"{a.shape}"\nif K != b.size(0):\n    raise ValueError(undefined)\n',
    "views": MADE + GRID + "b = b.t()\na = a.contiguous().view(M, K)\n",
    "descriptors": MADE
    + GRID
    + "d = TensorDescriptor(b, [M, K], [K, 1], [32, n])\nb = TensorDescriptor.from_tensor(a, [32, 32])\n",
    "an argument that is none": MADE + GRID + "step = 1 if b is None else b.stride(0)\n",
    "multiprocessors and an allocator": MADE
    + "sms = torch.cuda.get_device_properties(a.device).multi_processor_count\ngrid = (min(sms, M),)\n"
    + "triton.set_allocator(lambda size, align, stream: torch.empty(size, device=a.device, dtype=torch.int8))\n",
    "two results": MADE + GRID + "d = torch.empty_like(c)\ncall.kernel(kernel)[grid](a, b, c, d)\nreturn c, d",
}
OTHER = {
    "a loop": "for i in range(n):\n    M = i\n",
    "a number that is data": "M = int(b)\n",
    "a number that is an element": "M = b[0]\n",
    "data behind a name": "x = b\nM = int(x)\n",
    "data behind a function": "def f():\n    return b\nM = int(f())\n",
    "data behind a lambda": "f = lambda: b\nM = int(f())\n",
    "data as a size": "d = torch.empty((b, 3), device=a.device, dtype=a.dtype)\n",
    "a condition on data": "if b:\n    M = 1\n",
    "a choice by data": "M = 1 if a.shape and b else 2\n",
    "data in a text": 'assert M, f"{b}"\n',
    "a tensor or a number": "x = b\nif n:\n    x = 3\n",
    "work on a tensor": "b = b * 2\n",
    "in place": "b += 1\n",
    "a method that writes": "c.zero_()\n",
    "zeros": "c = torch.zeros((M, 4), device=a.device, dtype=a.dtype)\n",
    "memory of a tensor's": "d = torch.empty((M,), device=a.device, dtype=a.dtype, out=b)\n",
    "a default of torch's": "d = torch.empty((M,), device=a.device)\n",
    "a setting of torch's": "M = torch.backends.cudnn.benchmark\n",
    "a global": "global count\ncount = 1\n",
    "a list of the module's": "M = TABLE[0]\n",
    "a function of the module's": "M = helper(n)\n",
    "a function of a module's": "M = random.randint(0, 3)\n",
    "a constant of a module's": "M = random.BPF\n",
    "print": "print(M)\n",
    "an attribute that is set": "a.seen = 1\n",
    "an element that is set": "b[0] = 1\n",
    "a walrus": "M = (K := 3)\n",
    "a second name for the call": "again = call\n",
    "a with": "with torch.no_grad():\n    M = 1\n",
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name):
    assert plain_globals(body_of(PLAIN[name]), ("a", "b")) == ()


@pytest.mark.parametrize("name", OTHER)
def test_not_plain(name):
    import random

    found = body_of(MADE + GRID + OTHER[name], TABLE=[3], helper=kernel, random=random)
    assert plain_globals(found, ("a", "b")) is None


def test_globals_that_are_values_are_told():
    names = {"BLOCK": 64, "WIDE": torch.float32, "UNUSED": 3}
    assert plain_globals(body_of(MADE + GRID + "size = BLOCK * 2\nwide = WIDE\n", **names), ("a", "b")) == (
        "BLOCK",
        "WIDE",
    )


def test_an_argument_is_a_number_where_it_is_no_tensor():
    body = body_of(MADE + GRID + "M = int(n)\n")
    assert plain_globals(body, ("a", "b")) == () and plain_globals(body, ("a", "b", "n")) is None


def test_wrapped_closed_over_or_without_source():
    scale = 3

    def closed(call, a):
        return scale

    assert plain_globals(closed, ("a",)) is None
    assert plain_globals(torch.no_grad()(body_of(MADE + GRID)), ("a", "b")) is None
    assert plain_globals(eval("lambda call, a: a"), ("a",)) is None


def test_a_source_that_has_changed_since():
    body = body_of(MADE + GRID)
    path = body.__code__.co_filename
    size, at, lines, name = linecache.cache[path]
    for old, new in (("BLOCK=64", "BLOCK=32"), ("* n", "+ n")):
        linecache.cache[path] = size, at, [line.replace(old, new) for line in lines], name
        assert plain_globals(body, ("a", "b")) is None
    linecache.cache[path] = size, at, lines, name
    assert plain_globals(body, ("a", "b")) == ()


@pytest.mark.parametrize("name", ["grouped_gemm", "gemm_2d", "persistent_gemm"])
def test_templates_are_plain(name, repo, tmp_path):
    from overlap.annotate.source import SourceUnit
    from overlap.pipeline import Request, compile_source

    unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / f"{name}.py"))
    path = tmp_path / "module.py"
    path.write_text(compile_source(Request(unit, plan="all_gather_1d", on="a[M]", backend=None)).module.text)
    assert plain_globals(load_module(str(path)).OL_OPERATOR.body, ("a", "b")) == ()
