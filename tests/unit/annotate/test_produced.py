"""Results whose chunks leave while the kernel runs: what a kernel must not do with them, by name and line."""

# ruff: noqa: E501  (tables of edits, one a line)

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate, last_store, parse_on, parse_ons, refuse_jumps
from overlap.errors import HostEntryError, OverlapError, UnsupportedError

from .conftest import GROUPED, edited

STORE = "    tl.store(pc, acc.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))\n"
ADD = "    tl.atomic_add(pc, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))\n"
INDENTED = "    " + STORE

REFUSED = {
    "a mask that was loaded": (STORE, STORE.replace("(rn[None, :] < N)", "(tl.load(b_ptr + rn)[None, :] > 0)"), "tl.store", "by mask `(rm[:, None] < M) & (tl.load(b_ptr + rn)[None, :] > 0)`", "tl.where"),
    "a mask by position": (STORE, "    keep = tl.load(a_ptr + rm) > 0\n    tl.store(pc, acc, keep[:, None])\n", "tl.store", "by mask `keep[:, None]`", "tl.where"),
    "a mask made by a helper that loads": (STORE, "    tl.store(pc, acc, mask=rows_kept(a_ptr, rm))\n", "tl.store", "by mask `rows_kept(a_ptr, rm)`", "tl.where"),
    "a store under a loaded condition": (STORE, "    if tl.load(a_ptr) > 0:\n" + INDENTED, "tl.store", "by `if tl.load(a_ptr) > 0`", "half written"),
    "a store in the other branch": (STORE, "    if tl.load(a_ptr) > 0:\n        acc += 1\n    else:\n" + INDENTED, "tl.store", "by `if tl.load(a_ptr) > 0`", "half written"),
    "a store in a loop of loaded length": (STORE, "    for i in range(tl.load(a_ptr)):\n" + INDENTED, "tl.store", "by `for i in range(tl.load(a_ptr))`", "half written"),
    "a store while something is loaded": (STORE, "    left = tl.load(a_ptr)\n    while left > 0:\n        left -= 1\n" + INDENTED, "tl.store", "by `while left > 0`", "half written"),
    "tiles left out by what was loaded": ("    width = G * cols\n", "    width = G * cols\n    if tl.load(a_ptr + rows) == 0:\n        return\n", "tl.store", "by `if tl.load(a_ptr + rows) == 0`", "half written"),
    "a helper that stores": (STORE, "    put(pc, acc)\n", "put(pc, acc)", "`c_ptr` is handed to `put`", "in the kernel itself"),
    "a result that is also read": (STORE, "    acc += tl.load(pc)\n" + STORE, "tl.load(pc)", "the kernel reads `c_ptr` as well as making it", "another tensor"),
    "another atomic": (STORE, ADD.replace("atomic_add", "atomic_max"), "tl.atomic_max", "`atomic_max` into `c_ptr`", "tl.atomic_add"),
    "additions nobody counts": (STORE, ADD, "tl.atomic_add", "no tile axis says how many programs add to an element", "axis_count K block=BLOCK_SPLIT"),
    "an index that wraps": ("pc = c_ptr + rm[:, None]", "pc = c_ptr + (rm % M)[:, None]", "tl.store", "wraps around dimension 0 of `c_ptr`", "mask what lies past"),
    "an index without coordinates": ("pc = c_ptr + rm[:, None] * scm + rn[None, :] * scn", "pc = c_ptr + tl.arange(0, BM)[:, None] * scm + rn[None, :] * scn", "tl.store", "no tile coordinate spans the index", "coordinate * BLOCK"),
    "an index of shifted rows": ("pc = c_ptr + rm[:, None]", "pc = c_ptr + (rm + 1)[:, None]", "tl.store", "no tile coordinate spans the index", "coordinate * BLOCK"),
}  # fmt: skip

HELPERS = """

@triton.jit
def put(p, x):
    tl.store(p, x)


@triton.jit
def rows_kept(p, r):
    return (tl.load(p + r) > 0)[:, None]


@triton.jit
def gemm("""


def refused(text: str, on: str = "c[M]") -> OverlapError:
    """The error of a kernel that is understood, but may not make ``on``."""
    program = annotate(SourceUnit.from_text(text, "gemm.py"))
    with pytest.raises(OverlapError) as caught:
        parse_on(on, program)
    assert caught.value.where is not None and caught.value.help
    return caught.value


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("on", ["c[M]", "c[]"])
def test_refused(case, on):
    old, new, line, message, help_text = REFUSED[case]
    if "no tile coordinate spans" in message:
        on = "c[M]"  # chunks of c[] may lie in the other dimension
    error = refused(edited(GROUPED, (old, new)).replace("\n\n@triton.jit\ndef gemm(", HELPERS), on)
    assert type(error) is UnsupportedError
    assert line in error.where.text
    assert message in error.message and error.message.startswith(on)
    assert help_text in error.help + error.message


ALLOCATION = "    c = torch.empty((M, N), device=a.device, dtype=a.dtype)\n"
ALIASED = {
    "in place": (("(a, b):", "(a, b, c):"), (ALLOCATION, ""), ("b[K,N] ->", "b[K,N] c[M,N] ->")),
    "an input by another name": (("(a, b):", "(a, b, r):"), (ALLOCATION, "    c = r\n"), ("b[K,N] ->", "b[K,N] r[M,N] ->")),
    "a view of an input": (("(a, b):", "(a, b, r):"), (ALLOCATION, "    c = r.view(M, N) if M == K else torch.empty((M, N))\n"), ("b[K,N] ->", "b[K,N] r[M,N] ->")),
}  # fmt: skip


@pytest.mark.parametrize("case", ALIASED)
def test_an_input_as_the_result(case):
    error = refused(edited(GROUPED, *ALIASED[case]))
    assert type(error) is HostEntryError and "host_entry" in error.where.text
    given = "c" if case == "in place" else "r"
    assert f"the result `c` may be the input `{given}`" in error.message and "allocate c in `matmul`" in error.help


def test_a_result_that_callers_may_give(model):
    program = model(("(a, b):", "(a, b, c=None):"), (ALLOCATION, f"    if c is None:\n    {ALLOCATION}"))
    assert parse_on("c[M]", program).produced


@pytest.mark.parametrize("case", ["a mask that was loaded", "a result that is also read", "an index that wraps"])
def test_what_is_refused_for_a_result_stays_allowed_beside_a_gather(case):
    old, new, *_ = REFUSED[case]
    program = annotate(SourceUnit.from_text(edited(GROUPED, (old, new)), "gemm.py"))
    assert parse_on("b[N]", program).kind == "gather"


def test_masks_and_conditions_of_coordinates_are_no_data(model):
    text = STORE.replace("tl.store", "    tl.store")
    program = model(
        (STORE, f"    if pid_m * BM + BM <= M:\n        tl.store(pc, acc, mask=rn[None, :] < N)\n    else:\n{text}")
    )
    assert parse_on("c[M]", program).kind == "reduce_scatter"
    assert {a.guard for a in program.kernel.accesses if a.tensor == "c_ptr"} == {""}


SPLIT = [
    ("BK: tl.constexpr, G", "BK: tl.constexpr, BS: tl.constexpr, G"),
    ("    # @overlap.axis_count K=range\n    steps = tl.cdiv(K, BK)\n", "    # @overlap.axis_count K block=BS\n    parts = tl.cdiv(K, BS)\n"),
    ("    width = G * cols\n", "    width = G * cols * parts\n"),
    ("    # @overlap.pid_map M=pid_m N=pid_n\n", "    # @overlap.pid_map M=pid_m N=pid_n K=pid_k\n"),
    ("    pid_n = (pid % width) // size\n", "    rest = (pid % width) // size\n    pid_n = rest // parts\n    pid_k = rest % parts\n"),
    ("    rk = tl.arange(0, BK)\n", "    rk = pid_k * BS + tl.arange(0, BK)\n"),
    ("    for k in range(0, steps):\n", "    for k in range(0, BS // BK):\n"),
    ("        left = K - k * BK\n", "        left = K - k * BK\n"),
    (STORE, ADD),
    ("BK=16)", "BK=16, BS=32)"),
]  # fmt: skip


def test_split_k_with_its_axis_declared(model):
    program = model(*SPLIT)
    on = parse_on("c[M]", program)
    (store,) = (a for a in program.kernel.accesses if a.tensor == on.param)
    assert (store.mode, store.operation, store.axes) == ("reduce", "atomic_add", ("M", "N"))
    assert {a.name for a in program.kernel.axes if a.block} == {"M", "N", "K"}


JUMPS = {
    "continue between dispatch and store": ("        rm = pid_m * BM", "        if pid_m > 3:\n            continue\n        rm = pid_m * BM", "continue", "`continue` between the dispatch region and the last store to `c_ptr`"),
    "continue beside the store": ("        tl.store(pc", "        if K == 0:\n            continue\n        tl.store(pc", "continue", "is never counted"),
    "break between dispatch and store": ("        rm = pid_m * BM", "        if pid_m > 3:\n            break\n        rm = pid_m * BM", "break", "`break` between the dispatch region"),
}  # fmt: skip


def jumps(text: str) -> None:
    unit = SourceUnit.from_text(text, "gemm.py")
    program = annotate(unit)
    refuse_jumps(unit, program, [on.param for on in parse_ons(["c[M]"], program)])


@pytest.mark.parametrize("case", JUMPS)
def test_jumps_past_the_place_where_tiles_are_counted(persistent, case):
    old, new, line, message = JUMPS[case]
    with pytest.raises(UnsupportedError) as caught:
        jumps(edited(persistent, (old, new)))
    assert message in caught.value.message and line in caught.value.where.text and caught.value.help


def test_a_break_behind_the_store(persistent):
    at = persistent.index("        tl.store(pc")
    end = persistent.index("\n", at) + 1
    text = persistent[:end] + "        if K == 0:\n            break\n" + persistent[end:]
    with pytest.raises(UnsupportedError, match="`break` out of the tile loop: the tiles of `c_ptr`") as caught:
        jumps(text)
    assert "break" in caught.value.where.text


def test_a_continue_before_the_dispatch_region_or_of_an_inner_loop_is_allowed(persistent):
    jumps(persistent)
    jumps(edited(persistent, ("            left = K - k * BK\n", "            left = K - k * BK\n            if left < 0:\n                continue\n")))  # fmt: skip


def test_a_store_outside_the_block_of_its_dispatch_region(grouped):
    head, tail = grouped.split("    # @overlap.dispatch begin\n")
    region, rest = tail.split("    # @overlap.dispatch end\n")
    inside = "".join(f"    {line}\n" for line in ("    # @overlap.dispatch begin\n" + region).splitlines())
    text = f"{head}    if M > 0:\n{inside}        # @overlap.dispatch end\n{rest}"
    with pytest.raises(
        UnsupportedError, match="does not stand behind its dispatch region, in the same block"
    ) as caught:
        jumps(text)
    assert "tl.store" in caught.value.where.text


def test_the_last_store_of_several_results(grouped):
    text = edited(
        grouped,
        ("c_ptr, M, N, K,", "c_ptr, d_ptr, M, N, K,"),
        (STORE, STORE + STORE.replace("pc,", "d_ptr + rm[:, None] * scm + rn[None, :] * scn,")),
        ("-> c[M,N]", "-> c[M,N] d[M,N]"),
        ("    grid = (triton", "    d = torch.empty_like(c)\n    grid = (triton"),
        ("(a, b, c, M", "(a, b, c, d, M"),
    )
    program = annotate(SourceUnit.from_text(text, "gemm.py"))
    ons = parse_ons(["c[M]", "d[N]"], program)
    assert [str(on) for on in ons] == ["c[M]", "d[N]"]
    assert last_store(program, ["c_ptr", "d_ptr"]).tensor == "d_ptr"
    assert last_store(program, ["c_ptr"]).tensor == "c_ptr"
