"""Which axis spans which dimension: exact where it is exact, the whole dimension (None) everywhere else."""

from __future__ import annotations

import pytest

from overlap.annotate import merged_read

A = "    pa = a_ptr + rm[:, None] * sam + rk[None, :] * sak\n"
LOAD = "tl.load(pa, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)"
MK = (("M", "K"), (False, False))


def reads(program, param="a_ptr"):
    found = {(a.axes, a.wraps) for a in program.kernel.accesses if a.tensor == param and a.mode == "read"}
    assert len(found) == 1, found
    return found.pop()


EXACT = {
    "as written": (A, A),
    "casts": (A, "    pa = a_ptr + rm[:, None].to(tl.int64) * sam + tl.cast(rk, tl.int64)[None, :] * sak\n"),
    "hints": (
        A,
        "    rm2 = tl.max_contiguous(tl.multiple_of(rm, BM), BM)\n"
        "    pa = a_ptr + rm2[:, None] * sam + rk[None, :] * sak\n",
    ),
    "stride first": (A, "    pa = a_ptr + sam * rm[:, None] + sak * rk[None, :]\n"),
    "base per tile": (A, "    pa = a_ptr + pid_m * BM * sam + tl.arange(0, BM)[:, None] * sam + rk[None, :] * sak\n"),
    "expand_dims": (A, "    pa = a_ptr + tl.expand_dims(rm, 1) * sam + tl.expand_dims(rk, 0) * sak\n"),
    "in two steps": (A, "    pa = a_ptr\n    pa += rm[:, None] * sam\n    pa = pa + rk[None, :] * sak\n"),
    "shadowed parameter": (A, "    a_ptr = a_ptr + rm[:, None] * sam\n    pa = a_ptr + rk[None, :] * sak\n"),
    "recomputed in the loop": (LOAD, "tl.load(a_ptr + rm[:, None] * sam + (k * BK + rk)[None, :] * sak)"),
    "annotated assignment": (A, "    pa: tl.tensor = a_ptr + rm[:, None] * sam + rk[None, :] * sak\n"),
    "walrus": (A, "    tl.static_assert((q := BK) > 0)\n    pa = a_ptr + rm[:, None] * sam + rk[None, :] * sak\n"),
}

WHOLE = {
    "shifted": (A, "    pa = a_ptr + (rm[:, None] + 1) * sam + rk[None, :] * sak\n", (None, "K")),
    "strided twice": (A, "    pa = a_ptr + 2 * rm[:, None] * sam + rk[None, :] * sak\n", (None, "K")),
    "other block": (
        A,
        "    r2 = pid_m * BN + tl.arange(0, BM)\n    pa = a_ptr + r2[:, None] * sam + rk[None, :] * sak\n",
        (None, "K"),
    ),
    "other width": (
        A,
        "    r2 = pid_m * BM + tl.arange(0, BN)\n    pa = a_ptr + r2[:, None] * sam + rk[None, :] * sak\n",
        (None, "K"),
    ),
    "divided": (A, "    pa = a_ptr + (rm // 2)[:, None] * sam + rk[None, :] * sak\n", (None, "K")),
    "mod of another extent": (A, "    pa = a_ptr + (rm % N)[:, None] * sam + rk[None, :] * sak\n", (None, "K")),
    "wrapped and shifted": (A, "    pa = a_ptr + (rm % M + 1)[:, None] * sam + rk[None, :] * sak\n", (None, "K")),
    "gathered rows": (
        A,
        "    ids = tl.load(c_ptr + rm)\n    pa = a_ptr + ids[:, None] * sam + rk[None, :] * sak\n",
        (None, "K"),
    ),
    "unknown function": (A, "    pa = a_ptr + hash_of(rm)[:, None] * sam + rk[None, :] * sak\n", (None, "K")),
    "next block": (
        "pa += BK * sak",
        "pa = a_ptr + rm[:, None] * sam + ((k + 1) * BK + rk)[None, :] * sak",
        (None, None),
    ),
    "advance by data": ("pa += BK * sak", "pa += tl.load(c_ptr + rm) * sak", (None, None)),
    "advance by the coordinate": ("pa += BK * sak", "pa += pid_m * sak", (None, None)),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact(model, name):
    assert reads(model(EXACT[name])) == MK


@pytest.mark.parametrize("name", WHOLE)
def test_whole(model, name):
    old, new, axes = WHOLE[name]
    program = model((old, new))
    assert reads(program) == (axes, (False, False))
    assert {a.region for a in program.kernel.accesses if a.tensor == "a_ptr"} == {0}


def test_growing_steps_are_no_steps(model):
    """A pointer that moves by a variable that moves itself."""
    program = model(
        ("    for k in", "    hop = BK\n    for k in"), ("pa += BK * sak", "pa += hop * sak\n        hop += BK")
    )
    assert reads(program) == ((None, None), (False, False))


def test_values_of_a_branch_that_returns_are_gone(model):
    early = "    shift = 0\n    if G > 9:\n        shift = pid\n        return\n    pc = c_ptr + shift + rm"
    kernel = model(("    pc = c_ptr + rm", early)).kernel
    assert [a.axes for a in kernel.accesses if a.tensor == "c_ptr"] == [("M", "N")]


def test_range_axis_beside_a_dimension_of_its_own(model):
    """A dimension that the host entry gives another name is not spanned by the loop's axis."""
    program = model(("host_entry a[M,K]", "host_entry a[M,groups]"))
    assert reads(program) == (("M", None), (False, False))


def test_wrapped(model):
    program = model((A, "    pa = a_ptr + (rm % M)[:, None] * sam + rk[None, :] * sak\n"))
    assert reads(program) == (("M", "K"), (True, False))
    (access,) = [a for a in program.kernel.accesses if a.tensor == "a_ptr"]
    assert [str(o) for o in access.offsets] == ["(pid_m * BM) % M", "k * BK"]


def test_loops_of_k(model):
    """Ascending by block, descending, by a count, with the pointer recomputed."""
    for loop, step in (
        ("for k in range(0, K, BK):\n        left = K - k", "pa += BK * sak"),
        ("for left in range(K, 0, -BK):", "pa += BK * sak"),
        ("for left in tl.range(0, steps, num_stages=3):", "pa += BK * sak"),
        ("k = 0\n    while k < K:\n        left = K - k\n        k += BK", "pa += BK * sak"),
    ):
        program = model(("for k in range(0, steps):\n        left = K - k * BK", loop), ("pa += BK * sak", step))
        assert reads(program)[0][0] == "M" and reads(program) == MK, loop


def test_different_reads_are_merged(model):
    shifted = "        a += tl.load(a_ptr + (rm + 1)[:, None] * sam + (k * BK + rk)[None, :] * sak)\n"
    program = model(("        pa += BK * sak\n", shifted + "        pa += BK * sak\n"))
    assert [a.axes for a in program.kernel.accesses if a.tensor == "a_ptr"] == [("M", "K"), (None, "K")]
    assert merged_read(program.kernel.accesses, "a_ptr") == ((None, "K"), (False, False))
    assert merged_read(program.kernel.accesses, "nothing") == ((), ())


def test_rows_without_k(model):
    """One dimension, contiguous, and a bias added along N."""
    text_edits = (
        ("c_ptr, M, N, K", "c_ptr, bias_ptr, M, N, K"),
        ("    pc = ", "    acc += tl.load(bias_ptr + rn, mask=rn < N)[None, :]\n    pc = "),
        ("# @overlap.host_entry a[M,K] b[K,N] ->", "# @overlap.host_entry a[M,K] b[K,N] bias[N] ->"),
        ("def matmul(a, b):", "def matmul(a, b, bias):"),
        ("gemm[grid](a, b, c, M", "gemm[grid](a, b, c, bias, M"),
    )
    program = model(*text_edits)
    assert reads(program, "bias_ptr") == (("N",), (False,))
    assert program.kernel.tensor("bias_ptr").dims == ("N",)


def test_extents_as_strides(model, grouped):
    """Contiguous tensors whose strides are the extents themselves."""
    text = grouped.replace("* sam + rk[None, :] * sak", "* K + rk[None, :]").replace("pa += BK * sak", "pa += BK")
    text = text.replace("c_ptr, M, N, K, sam, sak,", "c_ptr, M, N, K,").replace("*a.stride(), ", "")
    assert reads(model(text=text)) == MK


def test_transposed_host_tensor(model, grouped):
    """`w.t()` reaches the kernel with reversed dimensions."""
    text = grouped.replace("a[M,K] b[K,N]", "a[M,K] w[N,K]").replace(
        "def matmul(a, b):", "def matmul(a, w):\n    b = w.t()"
    )
    program = model(text=text)
    assert program.host.tensor_params == (("a", "a_ptr"), ("w", "b_ptr"), ("c", "c_ptr"))
    assert program.host.param_dims[1] == ("b_ptr", ("K", "N"))
    assert reads(program, "b_ptr") == (("K", "N"), (False, False))


def test_block_pointers(model):
    new = "    pa = tl.make_block_ptr(a_ptr, (M, K), (sam, sak), (pid_m * BM, 0), (BM, BK), (1, 0))\n"
    for advance in ("pa = tl.advance(pa, (0, BK))", "pa = pa.advance([0, BK])"):
        program = model((A, new), (LOAD, "tl.load(pa, boundary_check=(0, 1))"), ("pa += BK * sak", advance))
        (access,) = [a for a in program.kernel.accesses if a.tensor == "a_ptr"]
        assert (access.kind, access.axes) == ("block_pointer", ("M", "K"))
        assert [str(o) for o in access.offsets] == ["pid_m * BM", "k * BK"]


def test_descriptors_with_an_offset_base_read_everything(model):
    program = model(
        (A, "    da = tl.make_tensor_descriptor(a_ptr + pid_m * sam, [M, K], [sam, 1], [BM, BK])\n"),
        (LOAD, "da.load([0, k * BK])"),
        ("        pa += BK * sak\n", ""),
    )
    assert reads(program) == ((None, None), (False, False))


def test_epilogue_subtiles(model):
    """Two halves of a tile, each within its block; a third half is not."""
    store = "    tl.store(pc, acc.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))\n"
    halves = "    dc = tl.make_tensor_descriptor(c_ptr, [M, N], [scm, 1], [BM, BN // 2])\n"
    for part, axis in ((0, "N"), (1, "N"), (2, None)):
        edits = (store, f"{halves}    dc.store([pid_m * BM, pid_n * BN + BN // 2 * {part}], acc)\n")
        kernel = model(edits).kernel
        assert [a.axes for a in kernel.accesses if a.tensor == "c_ptr"] == [("M", axis)]


def test_reduce_mode(model):
    kernel = model(("tl.store(pc, acc.to(c_ptr.dtype.element_ty), mask", "tl.atomic_add(pc, acc, mask")).kernel
    assert kernel.tensor("c_ptr").mode == "reduce"


def test_pointer_given_to_a_helper(model):
    """A helper may read anything: the whole tensor, in the region its arguments come from."""
    helper = "@triton.jit\ndef fetch(p, r):\n    return tl.load(p + r)\n\n\n@triton.jit\ndef gemm"
    program = model(("@triton.jit\ndef gemm", helper), (LOAD, "fetch(pa, rm)"))
    (access,) = [a for a in program.kernel.accesses if a.tensor == "a_ptr"]
    assert (access.axes, access.region, access.mode) == ((None, None), 0, "read")


def test_helper_that_only_computes(model):
    helper = "@triton.jit\ndef twice(p):\n    return p * 2\n\n\n@triton.jit\ndef gemm"
    program = model(("@triton.jit\ndef gemm", helper), ("    pc =", "    z = twice(rm)\n    pc ="))
    assert reads(program) == MK


def test_program_id_hidden_in_a_helper(refusal):
    helper = "@triton.jit\ndef batch():\n    return tl.program_id(1)\n\n\n@triton.jit\ndef gemm"
    error = refusal(("@triton.jit\ndef gemm", helper), ("c_ptr + rm", "c_ptr + batch() * 64 + rm"))
    assert "program_id(1) is used in an address" in error.message


def test_helper_that_reads_program_ids_in_the_map(refusal):
    helper = "@triton.jit\ndef batch():\n    return tl.program_id(1)\n\n\n@triton.jit\ndef gemm"
    error = refusal(("@triton.jit\ndef gemm", helper), ("group = pid // width", "group = (pid + batch()) // width"))
    assert "helper `batch` reads program ids" in error.message


def test_inferred_without_a_host(model):
    """Dimensions stand in the order of their stride parameters."""
    kernel = model(("# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]\n", "")).kernel
    assert {t.param: t.dims for t in kernel.tensors} == {"a_ptr": ("M", "K"), "b_ptr": ("K", "N"), "c_ptr": ("M", "N")}
