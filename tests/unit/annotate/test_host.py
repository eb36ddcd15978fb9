"""Host entries: which tensor reaches the kernel as which parameter, and that one launch runs."""

# ruff: noqa: E501  (tables of edits, one a line)

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate

LAUNCH = "    gemm[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), c.stride(0), c.stride(1), BM=32, BN=32, BK=16)\n"
PASSED = (("a", "a_ptr"), ("b", "b_ptr"), ("c", "c_ptr"))

LAUNCHES = {
    "as written": LAUNCH,
    "keywords": "    gemm[grid](c_ptr=c, a_ptr=a, b_ptr=b, M=M, N=N, K=K, sam=a.stride(0), sak=a.stride(1), BM=32, num_warps=4)\n",
    "views": "    x = a.contiguous().view(M, K)\n    y = b.detach()\n    gemm[grid](x, y, c[:], M, N, K, BM=32)\n",
    "annotated alias": "    x: torch.Tensor = a\n    gemm[grid](x, b, c, M, N, K)\n",
    "tuple alias": "    x, y = a, b\n    gemm[grid](x, y, c, M, N, K)\n",
    "conditional": "    x = a if M > 1 else a.contiguous()\n    gemm[grid](x, b, c, M, N, K)\n",
    "reassigned": "    a = a.contiguous()\n    gemm[grid](a, b, c, M, N, K)\n",
    "descriptors": "    da = TensorDescriptor(a, a.shape, a.stride(), [32, 16])\n    db = TensorDescriptor.from_tensor(b, [16, 32])\n"
    "    gemm[grid](da, db, TensorDescriptor(base=c, shape=[M, N], strides=[N, 1], block_shape=[32, 32]), M, N, K)\n",
    "kernel alias": "    run = gemm\n    run[grid](a, b, c, M, N, K)\n",
    "inline grid": "    gemm[lambda meta: (1,)](a, b, c, M, N, K)\n",
    "in a with": "    with device(a.device):\n        gemm[grid](a, b, c, M, N, K)\n",
    "branches": "    if M > 4:\n        gemm[grid](a, b, c, M, N, K, BM=32)\n    else:\n        gemm[grid](a, b, c, M, N, K, BM=64)\n",
    "elif": "    if M > 4:\n        gemm[grid](a, b, c, M, N, K)\n    elif M > 2:\n        gemm[grid](a, b, c, M, N, K)\n",
    "early return": "    if M > 4:\n        gemm[grid](a, b, c, M, N, K)\n        return c\n    gemm[grid](a, b, c, M, N, K)\n",
    "spread tuple": "    gemm[grid](*(a, b, c), M, N, K)\n",
    "unknown spread behind": "    gemm[grid](a, b, c, *sizes_of(a, b), BM=32)\n",
    "result viewed afterwards": LAUNCH + "    c = c.view(M, N)\n",
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(model, name):
    host = model((LAUNCH, LAUNCHES[name])).host
    assert host.tensor_params == PASSED
    assert host.name == "matmul" and [p.name for p in host.params] == ["a", "b"]


def test_arguments_as_text(model):
    host = model().host
    arguments = dict(host.kernel_args)
    assert arguments["sam"] == "a.stride(0)" and arguments["sbn"] == "b.stride(1)" and arguments["BM"] == "32"
    assert "G" not in arguments and host.launch_line == 48
    assert host.tensor("b").dims == ("K", "N") and [t.name for t in host.outputs] == ["c"]
    assert host.param_dims == (("a_ptr", ("M", "K")), ("b_ptr", ("K", "N")), ("c_ptr", ("M", "N")))


@pytest.mark.parametrize(
    ("view", "dims"),
    [
        ("b.t()", ("N", "K")),
        ("b.T", ("N", "K")),
        ("b.transpose(0, 1)", ("N", "K")),
        ("b.transpose(-1, -2).contiguous()", ("N", "K")),
        ("b.permute(1, 0)", ("N", "K")),
        ("b.t().T", ("K", "N")),
        ("b.squeeze(0)", None),
        ("b.transpose(0, 2)", None),
    ],
)
def test_dimensions_of_views(grouped, edit, view, dims):
    text = edit(
        grouped,
        ("gemm[grid](a, b, c", f"gemm[grid](a, {view}, c"),
        ("*b.stride()", "1, 1"),
        ("K=range\n", "K=range\n    # @overlap.tensor b_ptr[K,N]\n"),
        ("b[K,N] ->", "b[N,K] ->" if dims == ("N", "K") else "b[K,N] ->"),
    )
    host = annotate(SourceUnit.from_text(text)).host
    assert dict(host.param_dims).get("b_ptr") == (None if dims is None else ("K", "N"))


def test_no_host_entry(model):
    assert model(("# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]\n", "")).host is None


@pytest.mark.parametrize("between", ["", "@decorated\n", "@first\n# a note\n@second(1)\n", "\n# a note\n\n"])
def test_pragma_over_decorators(model, between):
    assert model(("def matmul", between + "def matmul")).host.name == "matmul"


def test_pragma_between_decorators(model):
    line = "# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]\n"
    assert model((line, "@first\n" + line + "@second\n")).host.name == "matmul"


def test_result_that_is_a_parameter(model):
    host = model(
        ("def matmul(a, b):", "def matmul(a, b, *, c: torch.Tensor = None):"),
        ("    c = torch.empty((M, N), device=a.device, dtype=a.dtype)\n", ""),
    ).host
    assert host.tensor_params == PASSED and host.params[-1].default == "None"


def test_input_that_is_not_passed(model):
    host = model(("def matmul(a, b):", "def matmul(a, b, s):"), ("b[K,N] ->", "b[K,N] s[M] ->")).host
    assert host.tensor_params == PASSED and host.tensor("s").dims == ("M",)


def test_two_kernels_and_their_hosts(grouped):
    both = grouped + grouped.replace("gemm", "other").replace("matmul", "second")
    for kernel, name in (("gemm", "matmul"), ("other", "second")):
        assert annotate(SourceUnit.from_text(both), kernel).host.name == name
