"""Addresses taken apart into an index a dimension: strides of every kind, and messages where they are not seen."""

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate, column_starts, compared_strides, parse_on
from overlap.errors import UnsupportedError
from overlap.pipeline import Request, compile_source

A = "    pa = a_ptr + rm[:, None] * sam + rk[None, :] * sak\n"
C = "    pc = c_ptr + rm[:, None] * scm + rn[None, :] * scn\n"
HEADS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scaled(x_ptr, s_ptr, y_ptr, ids_ptr, strides, HZ, H, G, S, D, stride_z, stride_h, stride_s,
           BS: tl.constexpr, BD: tl.constexpr):
    # @overlap.axis_count S block=BS
    # @overlap.axis_count HZ block=1
    # @overlap.dispatch begin
    # @overlap.pid_map S=ps HZ=hz
    ps = tl.program_id(0)
    hz = tl.program_id(1)
    # @overlap.dispatch end
    z, h = hz // H, hz % H
    s = ps * BS + tl.arange(0, BS)
    d = tl.arange(0, BD)
    keep = (s < S)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + z * stride_z + h * stride_h + s[:, None] * stride_s + d[None, :], mask=keep, other=0.0)
    f = tl.load(s_ptr + hz)
    tl.store(y_ptr + z * stride_z + h * stride_h + s[:, None] * stride_s + d[None, :], x * f, mask=keep)


# @overlap.host_entry x[Z,H,S,D] s[HZ] ids[HZ] -> y[Z,H,S,D]
def scale(x, s, ids):
    Z, H, S, D = x.shape
    y = torch.empty_like(x)
    grid = (triton.cdiv(S, 16), Z * H)
    scaled[grid](x, s, y, ids, x.stride(), Z * H, H, 2, S, D, x.stride(0), x.stride(1), x.stride(2), BS=16, BD=16)
    return y
"""


def accesses(text, param, name="user.py"):
    kernel = annotate(SourceUnit.from_text(text, name)).kernel
    return [a for a in kernel.accesses if a.tensor == param]


def seen(text, param):
    (access,) = accesses(text, param)
    return access.axes, [str(o) for o in access.offsets], access.strides


X = "x_ptr + z * stride_z + h * stride_h + s[:, None] * stride_s + d[None, :]"
AXES = (None, None, "S", None)
INDICES = ["hz // H", "(hz) % H", "ps * BS", "0"]


@pytest.mark.parametrize("param", ["x_ptr", "y_ptr"])
def test_rows_by_numbers_that_a_tile_computes(param):
    """The strides of x serve y as well, which the host passes nobody's."""
    assert seen(HEADS, param) == (AXES, INDICES, ("stride_z", "stride_h", "stride_s", "1"))


def test_strides_in_a_tuple(edit):
    text = edit(
        HEADS, (X, "x_ptr + z * strides[0] + h * strides[1] + s[:, None] * strides[2] + d[None, :] * strides[-1]")
    )
    assert seen(text, "x_ptr")[:2] == (AXES, INDICES)
    assert seen(text, "x_ptr")[2][:3] == ("strides[0]", "strides[1]", "strides[2]")


def test_strides_in_a_tuple_that_leave_a_dimension_out(edit):
    """The host says which dimension an item is of."""
    text = edit(HEADS, (X, "x_ptr + z * strides[0] + s[:, None] * strides[2] + d[None, :] * strides[3]"))
    assert seen(text, "x_ptr")[1] == ["hz // H", "0", "ps * BS", "0"]


def test_strides_in_a_tuple_that_a_helper_takes(edit):
    helper = "@triton.jit\ndef at(base, st, z, h, s, d):\n    return base + z * st[0] + h * st[1] + s * st[2] + d\n\n\n"
    text = edit(
        HEADS, (X, "at(x_ptr, strides, z, h, s[:, None], d[None, :])"), ("@triton.jit\n", helper + "@triton.jit\n")
    )
    assert seen(text, "x_ptr") == (AXES, INDICES, ("strides[0]", "strides[1]", "strides[2]", "1"))


E = "tl.load(ids_ptr + hz)"
ROW = "s[:, None]"
PICKED = {
    "the rows of a matrix": (f"x_ptr + {E} * S * D + {ROW} * D + d[None, :]", "entry x[Z,S,D]", (None, "S", None)),
    "rows of a stride": (f"x_ptr + {E} * stride_z + {ROW} * D + d[None, :]", "entry x[Z,S,D]", (None, "S", None)),
    "other rows of it": (f"x_ptr + {E} * G * D + {ROW} * D + d[None, :]", "entry x[Z,S,D]", (None, None, None)),
    "of one column": (f"x_ptr + {E} * G * D + {ROW} * D", "entry x[S,D]", (None, None)),
    "of one that is named": (f"x_ptr + {E} * S * D + {ROW} * D", "entry x[S,D]", (None, None)),
    "a dimension too many": (f"x_ptr + {E} * G * D + {ROW} * D + d[None, :]", "entry x[S,D]", (None, None)),
    "rows as far apart as memory says": (f"x_ptr + {ROW} * {E} + d[None, :] * stride_s", "entry x[S,D]", (None, None)),
}


@pytest.mark.parametrize("name", PICKED)
def test_what_a_picked_row_leaves_as_it_is(edit, name):
    """A segment that begins within an axis moves the index along it, whatever the tile's own index is."""
    address, host, axes = PICKED[name]
    text = edit(HEADS, (X, address), ("entry x[Z,H,S,D]", host))
    assert seen(text, "x_ptr")[0] == axes


def test_rows_of_segments_are_rows_where_no_dimension_is_left(edit):
    address = f"x_ptr + {E} * G * D + s[:, None] * D + d[None, :]"
    text = edit(HEADS, (X, address), ("entry x[Z,H,S,D]", "entry x[S,D]"))
    assert seen(text, "x_ptr")[1] == ["ps * BS + tl.load(ids_ptr + hz) * G", "0"]


def test_one_row_of_every_tile_that_a_loop_reads(edit):
    """The stride of what a loop counts is its own, not 1."""
    loop = "    f = 0.0\n    for i in range(G):\n        f += tl.load(s_ptr + hz * stride_z + i * stride_h)\n"
    text = edit(HEADS, ("    f = tl.load(s_ptr + hz)\n", loop), ("s[HZ] ids", "s[HZ,G] ids"))
    assert seen(text, "s_ptr") == (("HZ", "G"), ["hz", "i"], ("stride_z", "stride_h"))


def test_an_unknown_number_beside_a_row_is_no_column(edit):
    text = edit(HEADS, (X, "x_ptr + s[:, None] * stride_s + G"), ("entry x[Z,H,S,D]", "entry x[S,D]"))
    assert seen(text, "x_ptr")[0] == (None, None)


def test_items_of_strides_in_their_order(edit):
    """However the sum is written: a dimension without an axis is told by its item."""
    address = "x_ptr + d[None, :] * strides[-1] + s[:, None] * strides[2] + z * BS * strides[1] + h * strides[0]"
    text = edit(HEADS, (X, address), ("x.stride(), ", "strides, "))
    assert seen(text, "x_ptr")[2] == ("strides[0]", "strides[1]", "strides[2]", "strides[-1]")


def test_a_tensor_of_a_tuple_is_not_lost(edit):
    text = edit(HEADS, ("    f = tl.load(s_ptr + hz)\n", "    f = tl.load(s_ptr[0] + hz)\n"))
    assert seen(text, "s_ptr")[0] == (None,)


def test_strides_made_of_sizes(edit):
    """Of a row of groups, which is `cdiv(D, BD)` of them."""
    text = edit(HEADS, ("s_ptr + hz", "s_ptr + hz * tl.cdiv(D, BD) + ps"), ("s[HZ] ids", "s[HZ,groups] ids"))
    assert seen(text, "s_ptr") == (("HZ", None), ["hz", "ps"], (None, "1"))


def test_a_row_picked_by_an_index_and_one_by_a_loop(edit):
    loop = "    f = 0.0\n    for i in range(G):\n        f += tl.load(s_ptr + tl.load(ids_ptr + hz) * G + i)\n"
    text = edit(HEADS, ("    f = tl.load(s_ptr + hz)\n", loop), ("s[HZ] ids", "s[rows,G] ids"))
    assert seen(text, "s_ptr")[1] == ["tl.load(ids_ptr + hz)", "i"]


def test_rows_within_a_page_are_one_dimension(edit):
    """A constexpr that multiplies is a block of rows, a size is a stride."""
    page = "    page = tl.load(ids_ptr + hz)\n    x = tl.load(x_ptr + (page * BS + tl.arange(0, BS))[:, None] * D + d[None, :])\n"
    text = edit(HEADS, (f"    x = tl.load({X}, mask=keep, other=0.0)\n", page), ("entry x[Z,H,S,D]", "entry x[S,D]"))
    assert seen(text, "x_ptr")[:2] == ((None, None), ["tl.load(ids_ptr + hz) * BS", "0"])


def test_a_block_pointer_into_a_matrix_of_a_batch(edit):
    made = (
        "tl.make_block_ptr(x_ptr + z * stride_z + h * stride_h, (S, D), (stride_s, 1), (ps * BS, 0), (BS, BD), (1, 0))"
    )
    text = edit(HEADS, (f"tl.load({X}, mask=keep, other=0.0)", f"tl.load({made}, boundary_check=(0, 1))"))
    assert seen(text, "x_ptr") == (AXES, INDICES, ("stride_z", "stride_h", "stride_s", "1"))


def test_a_descriptor_of_a_matrix_of_a_batch(edit):
    made = "tl.make_tensor_descriptor(x_ptr + z * stride_z + h * stride_h, [S, D], [stride_s, 1], [BS, BD])"
    text = edit(HEADS, (f"tl.load({X}, mask=keep, other=0.0)", f"{made}.load([ps * BS, 0])"))
    assert seen(text, "x_ptr") == (AXES, INDICES, ("stride_z", "stride_h", "stride_s", "1"))


UNKNOWN = ("x.stride(0), x.stride(1), x.stride(2)", "z, h, s")
MATRIX = "tl.make_block_ptr({base}, (S, D), (stride_s, 1), ({row}, 0), (BS, BD), (1, 0))"
BASES = {
    "a matrix": ("x_ptr + hz * stride_z", "ps * BS", "entry x[HZ,S,D]", ("HZ", "S", None)),
    "its first row": ("x_ptr + tl.load(ids_ptr + hz) * stride_s", "ps * BS", "entry x[Z,S,D]", (None, None, None)),
    "its first column": ("x_ptr + z * BD", "ps * BS", "entry x[Z,S,D]", (None, None, None)),
    "the tile's rows": ("x_ptr + ps * BS * stride_z", "G", "entry x[Z,S,D]", (None, None, None)),
    "a segment": ("x_ptr + z * G * stride_s", "ps * BS", "entry x[Z,S,D]", (None, None, None)),
    "a number of heads": ("x_ptr + hz * stride_z", "ps * BS", "entry x[Z,H,S,D]", (None, None, None, None)),
}


@pytest.mark.parametrize("name", BASES)
def test_where_the_base_of_a_block_pointer_is(edit, name):
    """Only what cannot go on along the block's own dimensions says which matrix it is."""
    base, row, host, axes = BASES[name]
    made = MATRIX.format(base=base, row=row)
    load = (f"tl.load({X}, mask=keep, other=0.0)", f"tl.load({made}, boundary_check=(0, 1))")
    assert seen(edit(HEADS, load, ("entry x[Z,H,S,D]", host), UNKNOWN), "x_ptr")[0] == axes


def test_a_transposed_block_of_a_matrix_of_a_batch(edit):
    made = "tl.make_block_ptr(x_ptr + hz * stride_z, (D, S), (1, stride_s), (0, 0), (BD, BS), (0, 1))"
    text = edit(
        HEADS,
        (f"tl.load({X}, mask=keep, other=0.0)", f"tl.trans(tl.load({made}, boundary_check=(0, 1)))"),
        ("entry x[Z,H,S,D]", "entry x[HZ,S,D]"),
        UNKNOWN,
    )
    assert seen(text, "x_ptr")[2] == ("stride_z", "stride_s", "1")


CHOSEN = {
    "by a constexpr": ("scn if HALF else 1", ("M", "N")),
    "by a size": ("scn if M > N else 1", ("M", "N")),
    "by memory": ("tl.load(a_ptr)", (None, None)),
    "by the tile": ("scn if pid_m > 1 else 1", (None, None)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_strides_that_are_chosen(model, name):
    """For a whole launch, or nothing says how far the columns of a tile are apart."""
    stride, axes = CHOSEN[name]
    made = (C, f"    step = {stride}\n    pc = c_ptr + rm[:, None] * scm + rn[None, :] * step\n")
    (access,) = [
        a
        for a in model(made, ("BK: tl.constexpr,", "BK: tl.constexpr, HALF: tl.constexpr,")).kernel.accesses
        if a.tensor == "c_ptr"
    ]
    assert access.axes == axes and access.strides in (("scm", None), (None, None))


HALVES = """\
    dc = tl.make_tensor_descriptor(c_ptr, [M, N], [scm, 1], [BM, {block}])
    if {test}:
        dc.store([pid_m * BM, pid_n * BN], acc[:, : BN // 2])
        dc.store([pid_m * BM, pid_n * BN + BN // 2], acc[:, BN // 2 :])
    else:
        dc.store([pid_m * BM, pid_n * BN], acc)
"""
STORE = "    tl.store(pc, acc.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))\n"
EITHER = [
    ("BN // 2 if HALF else BN", "HALF", "N"),
    ("BN if not HALF else BN // 2", "HALF", "N"),
    ("BN // 2 if HALF else BN", "not not HALF", "N"),
    ("BN // 2 if G > 1 else BN", "G > 1", "N"),
    ("BN // 2 if HALF else BN", "not HALF", None),
    ("BN // 2 if HALF else BN", "G > 1", None),
]


@pytest.mark.parametrize("block,test,axis", EITHER)
def test_a_block_by_a_constexpr_condition(model, block, test, axis):
    """Halves of a tile where the condition holds, whole tiles where not; under another condition a half may be a whole block."""
    program = model(
        (STORE, HALVES.format(block=block, test=test)), ("BK: tl.constexpr,", "BK: tl.constexpr, HALF: tl.constexpr,")
    )
    found = [a.axes for a in program.kernel.accesses if a.tensor == "c_ptr"]
    assert found == [("M", "N"), ("M", axis), ("M", "N")]


def test_a_block_where_the_condition_does_not_hold(model):
    store = HALVES.format(block="BN if HALF else BN // 2", test="not HALF").splitlines()
    store[1:] = ["    if HALF:", store[-1], "    else:", *store[2:4]]
    program = model((STORE, "\n".join(store) + "\n"), ("BK: tl.constexpr,", "BK: tl.constexpr, HALF: tl.constexpr,"))
    assert {a.axes for a in program.kernel.accesses if a.tensor == "c_ptr"} == {("M", "N")}


def test_a_condition_that_changes_is_none(model):
    edits = (
        ("    pc = c_ptr", "    HALF = HALF and N > 5\n    pc = c_ptr"),
        ("BK: tl.constexpr,", "BK: tl.constexpr, HALF: tl.constexpr,"),
    )
    program = model((STORE, HALVES.format(block="BN // 2 if HALF else BN", test="HALF")), *edits)
    assert {a.axes for a in program.kernel.accesses if a.tensor == "c_ptr"} == {("M", None)}


NOT_SEEN = {
    "a result": (
        (C, "    pc = c_ptr + rm[:, None] * tl.load(b_ptr) + rn[None, :] * tl.load(a_ptr)\n"),
        "c[M]",
        "store",
        "c_ptr[M,N]",
    ),
    "a gather by a loop": (
        (A, "    pa = a_ptr + (rm[:, None] ^ 1) * (sam ^ 0) + rk[None, :] * (sak ^ 0)\n"),
        "a[K]",
        "load",
        "a_ptr[M,K]",
    ),
}


@pytest.mark.parametrize("name", NOT_SEEN)
def test_addresses_that_are_not_seen_through(model, name):
    edit, on, what, tensor = NOT_SEEN[name]
    with pytest.raises(UnsupportedError) as caught:
        parse_on(on, model(edit))
    assert (
        f"{on}: the address of this {what} is not seen to be an index * stride for each dimension of {tensor}"
        in str(caught.value)
    )
    assert "a stride that is a parameter of the kernel" in caught.value.help


def test_flat_views(edit):
    """They have one dimension; other tensors may be communicated, but not what was flattened."""
    text = edit(HEADS, ("scaled[grid](x, s,", "scaled[grid](x, s.reshape(-1),"))
    flat = edit(text, ("x[Z,H,S,D] s[HZ] ids", "x[Z,H,S,D] s[Z,H] ids"))
    assert seen(text, "s_ptr") == seen(flat, "s_ptr") == (("HZ",), ["hz"], ("1",))
    picked = edit(text, ("s_ptr + hz", "s_ptr + tl.load(ids_ptr + hz)"))
    assert annotate(SourceUnit.from_text(picked, "user.py")).kernel.tensor("s_ptr").dims == ("HZ",)
    compile_source(Request(SourceUnit.from_text(flat, "user.py"), "all_gather_1d", "x[S]"))
    with pytest.raises(UnsupportedError, match=r"s\[H\]: the kernel sees s_ptr\[HZ\], a view of s\[Z,H\]"):
        parse_on("s[H]", annotate(SourceUnit.from_text(flat, "user.py")))


def test_an_axis_that_is_called_otherwise_than_its_dimension(refusal, edit):
    """What to write where a view was meant is said as well."""
    error = refusal(("a[M,K] b[K,N] -> c", "a[M,K] b[K,columns] -> c"))
    assert "b_ptr[K,columns] contradicts the kernel, which indexes it in dimension 1 by axis N" in str(error)
    assert "N among them" in error.help and "# @overlap.tensor b_ptr[...]" in error.help


def test_the_number_of_a_block_is_no_index_along_its_axis(model):
    """What a loop over blocks of K counts are rows of a table, such as scales."""
    edits = (
        (
            C,
            "    s = tl.zeros((BM,), tl.float32)\n    for i in range(tl.cdiv(K, BK)):\n        s += tl.load(b_ptr + i * N + rn)\n"
            + C,
        ),
        ("b[K,N] -> c", "b[blocks,N] -> c"),
        (
            "    pb = b_ptr + rk[:, None] * sbk + rn[None, :] * sbn\n",
            "    pb = a_ptr + rm[:, None] * sam + rk[None, :] * sak\n",
        ),
        ("        pb += BK * sbk\n", ""),
    )
    program = model(*edits)
    (access,) = [a for a in program.kernel.accesses if a.tensor == "b_ptr"]
    assert (access.axes, access.loops) == ((None, "N"), (None, None))


HIDDEN = {
    "lanes less lanes": X.replace("s[:, None]", "(s[:, None] - tl.arange(0, BS)[None, :])"),
    "lanes less lanes, twice as many": X.replace("s[:, None]", "((s + tl.arange(0, BS))[:, None] - tl.arange(0, BS)[None, :])"),
    "a stride by a condition": X + " + (stride_s if G > 1 else 0)",
    "a stride by a constexpr": X + " + (stride_s if BD > 16 else 0)",
    "a stride where a number says": X + " + tl.where(G > 1, stride_s, 0)",
    "a stride wrapped": X + " + (G * stride_s) % (S * stride_s)",
    "the pointer by a constexpr": X.replace("x_ptr", "(x_ptr + stride_s if BD > 16 else x_ptr)"),
    "columns from where memory says": X + " + tl.load(ids_ptr)",
    "a number too large for its type": X.replace("s[:, None]", "s.to(tl.uint8)[:, None]"),
    "columns behind the last": X + " + D",
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_what_may_move_a_tile_on_by_rows(edit, name):
    """Its rows are not the tile's own, or nobody knows."""
    axes = {a.axes[2] for a in accesses(edit(HEADS, (X, HIDDEN[name])), "x_ptr")}
    assert axes == {None}


SHOWN = {
    "half a row": X + " + D // 2",
    "columns that a mask keeps": X.replace("d[None, :]", "tl.where(d < D, d, 0)[None, :]"),
    "a label": X.replace("d[None, :]", "tl.load(ids_ptr + hz)"),
    "a number of columns": X + " + G",
}


@pytest.mark.parametrize("name", SHOWN)
def test_columns_leave_rows_as_they_are(edit, name):
    assert seen(edit(HEADS, (X, SHOWN[name])), "x_ptr")[0] == AXES


@pytest.mark.parametrize("jump", ["continue", "break"])
def test_what_a_jump_out_of_an_iteration_leaves_behind(edit, jump):
    loop = f"    for i in range(3):\n        if i == 1:\n            s += 1\n            {jump}\n        f = i + 1.0\n"
    text = edit(HEADS, ("    f = tl.load(s_ptr + hz)\n", loop + f"    x += tl.load({X})\n"))
    assert [a.axes[2] for a in accesses(text, "x_ptr")] == ["S", None]


def test_a_view_by_other_strides_than_those_that_are_told_to_nobody(edit):
    """A stride that no argument says is no row of the tensor."""
    text = edit(HEADS, (X, X.replace("stride_s", "tl.abs(stride_s)")))
    assert seen(text, "x_ptr")[0][2] is None


def test_strides_that_a_launch_compares(edit):
    """All but those that it takes of the tensor that it passes."""
    text = edit(HEADS, (X, X.replace("stride_s", "(G * D)") + " + G"))
    program = annotate(SourceUnit.from_text(text, "user.py"))
    assert compared_strides(program, "x_ptr") == ((None, None, "D * G", None),)
    assert column_starts(program, "x_ptr") == ((3, "G"),)
    assert compared_strides(program, "y_ptr") == (("stride_z", "stride_h", "stride_s", None),)
