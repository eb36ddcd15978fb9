"""In-tile loops over a range axis: what is understood, and what is refused, with the line it is about."""

# ruff: noqa: E501  (tables, one case a line)

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate, parse_ons
from overlap.annotate.model import Advance, LoopBlock
from overlap.annotate.ranged import ranged_loops
from overlap.errors import OverlapError, UnsupportedError

FOR = "    for k in range(0, steps):\n"
DOT = "        acc = tl.dot(a, b, acc)\n"
STEP_A = "        pa += BK * sak\n"
STEP_B = "        pb += BK * sbk\n"
LOAD_A = "        a = tl.load(pa, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)\n"
LOAD_B = "        b = tl.load(pb, mask=(rk[:, None] < left) & (rn[None, :] < N), other=0.0)\n"
ACC = "    acc = tl.zeros((BM, BN), dtype=tl.float32)\n"
STORE = "    pc = c_ptr"
BY_INDEX_A = (
    "        a = tl.load(a_ptr + rm[:, None] * sam + (k * BK + rk)[None, :] * sak, mask=rm[:, None] < M, other=0.0)\n"
)


def loop_of(program):
    (loop,) = program.kernel.loops
    return loop


@pytest.mark.parametrize(
    ("edits", "elements"),
    [
        ([], False),
        ([("range(0, steps)", "range(steps)")], False),
        ([("range(0, steps)", "range(0, tl.cdiv(K, BK))")], False),
        ([("range(0, steps)", "range(0, (K + BK - 1) // BK, 1)")], False),
        ([("range(0, steps)", "tl.range(0, steps, num_stages=3)")], False),
        ([("range(0, steps)", "range(0, K, BK)"), ("left = K - k * BK", "left = K - k")], True),
        (
            [("range(0, steps)", "tl.range(0, K, BK, loop_unroll_factor=2)"), ("left = K - k * BK", "left = K - k")],
            True,
        ),
    ],
)
def test_forms_of_the_loop(model, edits, elements):
    program = model(*edits)
    loop = loop_of(program)
    assert (loop.axis, loop.block, loop.elements, loop.number, loop.refusal) == ("K", "BK", elements, 0, None)
    assert loop.advances == (Advance("pa", ("BK * sak",)), Advance("pb", ("BK * sbk",)))
    blocks = {a.tensor: a.loops for a in program.kernel.accesses}
    taken = LoopBlock(0, "BK")
    assert blocks == {"a_ptr": (None, taken), "b_ptr": (taken, None), "c_ptr": (None, None)}
    (on,) = parse_ons(["a[K]"], program)
    assert on.ranged and (on.kind, on.axis, on.dim) == ("gather", "K", 1)
    assert ranged_loops(program.kernel, on.param, on.dim) == (loop,)


def test_a_gather_along_a_tile_axis_is_not_ranged(model):
    (on,) = parse_ons(["a[M]"], model())
    assert not on.ranged


def test_two_tensors_of_one_loop(model):
    ons = parse_ons(["a[K]", "b[K]"], model())
    assert [(on.tensor, on.dim, on.ranged) for on in ons] == [("a", 1, True), ("b", 0, True)]


ACCEPTED = {
    "sum by +=": ((DOT, "        acc += tl.dot(a, b)\n"),),
    "sum by + on the left": ((DOT, "        acc = acc + tl.dot(a, b)\n"),),
    "sum by + on the right": ((DOT, "        acc = tl.dot(a, b) + acc\n"),),
    "sum by keyword": ((DOT, "        acc = tl.dot(a, b, acc=acc)\n"),),
    "difference": ((DOT, "        acc = acc - tl.dot(a, b)\n"),),
    "maximum": ((DOT, "        acc = tl.maximum(acc, tl.dot(a, b))\n"),),
    "sum under a condition of parameters": (
        (
            DOT,
            "        if G > 4:\n            acc = tl.dot(a, b, acc)\n        else:\n            acc += tl.dot(a, b)\n",
        ),
    ),
    "two sums": (
        (ACC, ACC + "    norm = tl.zeros((BM,), dtype=tl.float32)\n"),
        (DOT, DOT + "        norm += tl.sum(a * a, axis=1)\n"),
        ("acc.to(", "(acc + norm[:, None]).to("),
    ),
    "index by the loop's variable": ((LOAD_A, BY_INDEX_A), (STEP_A, "")),
    "a temporary": ((DOT, "        scaled = a * 2\n        acc = tl.dot(scaled, b, acc)\n"),),
    "an inner loop": ((DOT, "        for j in range(2):\n            acc += tl.dot(a, b) * j\n"),),
    "advance written out": ((STEP_A, "        pa = pa + BK * sak\n"),),
    "a name of the loop bound again behind it": ((STORE, "    a = 0\n    left = a\n" + STORE),),
    "a counter that is only counted": (
        (ACC, ACC + "    n = 0\n"),
        (DOT, DOT + "        n += 1\n"),
        ("acc.to(", "(acc + n).to("),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_orders_that_do_not_matter(model, name):
    program = model(*ACCEPTED[name])
    assert loop_of(program).refusal is None
    parse_ons(["a[K]"], program)


def test_an_advanced_number(model):
    """An index that grows in the loop: its value in a block is known as a pointer's is."""
    program = model(
        (ACC, ACC + "    ks = tl.arange(0, BK)\n"),
        (
            LOAD_A,
            "        a = tl.load(a_ptr + rm[:, None] * sam + ks[None, :] * sak, mask=ks[None, :] < K, other=0.0)\n",
        ),
        (STEP_A, "        ks += BK\n"),
    )
    assert loop_of(program).advances == (Advance("ks", ("BK",)), Advance("pb", ("BK * sbk",)))
    parse_ons(["a[K]"], program)


@pytest.mark.parametrize(
    ("call", "function"), [("tl.advance(pa, (0, BK))", "tl.advance"), ("pa.advance([0, BK])", ".advance")]
)
def test_block_pointers(model, call, function):
    program = model(
        (
            "    pa = a_ptr + rm[:, None] * sam + rk[None, :] * sak\n",
            "    pa = tl.make_block_ptr(a_ptr, (M, K), (sam, sak), (pid_m * BM, 0), (BM, BK), (1, 0))\n",
        ),
        (LOAD_A, "        a = tl.load(pa, boundary_check=(0, 1))\n"),
        (STEP_A, f"        pa = {call}\n"),
    )
    assert loop_of(program).advances[0] == Advance("pa", ("0", "BK"), function)
    parse_ons(["a[K]"], program)


REFUSED = {
    # name: edits, text under the caret, message, help
    "value of the last iteration": (((STORE, "    last = a\n" + STORE),), "a", "`a` is read here as the last iteration of the loop over K", "compute it again"),
    "pointer behind the loop": (((STORE, "    edge = pa\n" + STORE),), "pa", "`pa` is read here as the last iteration", "compute it again"),
    "the loop's variable behind it": (((STORE, "    edge = k\n" + STORE),), "k", "`k` is read here", "compute it again"),
    "bound again on one path only": (((STORE, "    if G > 4:\n        left = 0\n    edge = left\n" + STORE),), "left", "`left` is read here as the last iteration", "compute it again"),
    "a sum that is scaled on the way": (((DOT, "        acc = tl.dot(a, b, acc * 2)\n"),), "acc = tl.dot(a, b, acc * 2)", "`acc` goes from one iteration", "carry sums"),
    "recurrence": (((DOT, "        acc = acc * 2 + tl.dot(a, b)\n"),), "acc = acc * 2 + tl.dot(a, b)", "`acc` goes from one iteration of the loop over K", "carry sums"),
    "overwritten": (((DOT, "        acc = tl.where(k > 0, acc, tl.dot(a, b))\n"),), "acc = tl.where(k > 0, acc, tl.dot(a, b))", "`acc` goes from one iteration", "carry sums"),
    "operand of the product": (((DOT, "        acc = tl.dot(acc, b, a)\n"),), "acc = tl.dot(acc, b, a)", "`acc` goes from one iteration", "carry sums"),
    "sum and maximum": (((DOT, DOT + "        acc = tl.maximum(acc, 0.0)\n"),), "acc = tl.dot(a, b, acc)", "`acc` goes from one iteration", "carry sums"),
    "a sum that is looked at": (((DOT, DOT + "        seen = acc * 2\n        tl.store(c_ptr + rm[:, None] * scm + rn[None, :] * scn, seen)\n"),), "acc = tl.dot(a, b, acc)", "`acc` goes from one iteration", "carry sums"),
    "value of the iteration before": (((ACC, ACC + "    before = 0.0\n"), (DOT, "        acc += before\n        before = tl.sum(a)\n" + DOT)), "before = tl.sum(a)", "`before` goes from one iteration", "carry sums"),
    "advance that varies": (((STEP_A, "        pa += k * sak\n"),), "pa += k * sak", "`pa` goes from one iteration", "carry sums"),
    "advance under a condition": (((STEP_B, "        if G > 4:\n            pb += BK * sbk\n"),), "pb += BK * sbk", "`pb` goes from one iteration", "carry sums"),
    "break": (((DOT, DOT + "        if k > 3:\n            break\n"),), "break", "`break` in the loop over K", "mask the work"),
    "continue": (((DOT, "        if k > 3:\n            continue\n" + DOT),), "continue", "`continue` in the loop over K", "mask the work"),
    "else": (((STORE, "    else:\n        acc += 1\n" + STORE),), "acc += 1", "has an `else`", "behind the loop"),
    "unrolled": (((FOR, "    for k in tl.static_range(0, steps):\n"),), "tl.static_range(0, steps)", "is unrolled", "tl.range"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_orders_that_matter_are_refused_with_their_line(model, name):
    edits, under, message, help = REFUSED[name]
    program = model(*edits)
    with pytest.raises(UnsupportedError) as refusal:
        parse_ons(["b[K]" if name == "advance that varies" else "a[K]"], program)
    error = refusal.value
    assert message in error.message and error.message.startswith(("a[K]: ", "b[K]: ")) and help in error.help
    assert error.where.text[error.where.col - 1 :][: error.where.width] == under
    parse_ons(["a[M]"], program)  # nobody else minds


INDICES = {
    "loop from elsewhere": ((FOR, "    for k in range(1, steps):\n"),),
    "part of the loop": ((FOR, "    for k in range(0, steps - 1):\n"),),
    "every other block": ((FOR, "    for k in range(0, steps, 2):\n"),),
    "a while loop": ((FOR, "    k = 0\n    while k < steps:\n"), (STEP_A, STEP_A + "        k += 1\n")),
    "a block that is a number": ((FOR, "    for k in range(0, K, 16):\n"),),
    "a block that is no constant": (("BK: tl.constexpr", "BK"),),
    "another step": ((STEP_A, "        pa += BK * sak * 2\n"),),
    "an index that lags": ((LOAD_A, BY_INDEX_A.replace("k * BK", "(k + 1) * BK")), (STEP_A, "")),
    "an index that wraps": ((LOAD_A, BY_INDEX_A.replace("(k * BK + rk)", "((k * BK + rk) % K)")), (STEP_A, "")),
    "wider than the block": ((LOAD_A, BY_INDEX_A.replace("+ rk", "+ tl.arange(0, 2 * BK)")), (STEP_A, "")),
    "one load outside": ((ACC, ACC + "    head = tl.load(pa)\n    acc += tl.sum(head)\n"),),
    "a step before the load": ((STEP_A, ""), (LOAD_A, STEP_A + LOAD_A)),
}


@pytest.mark.parametrize("name", INDICES)
def test_loads_that_are_no_block_of_the_loop_are_refused(model, name):
    program = model(*INDICES[name])
    with pytest.raises(UnsupportedError, match="is not block k of a loop over all of K") as refusal:
        parse_ons(["a[K]"], program)
    assert "a[K]: the index of this load of a_ptr along K" in refusal.value.message
    assert "tl.load(" in refusal.value.where.text
    block = "16" if "number" in name else "B"
    assert f"for k in range(0, tl.cdiv(K, {block}" in refusal.value.help


@pytest.mark.parametrize("call", ["tl.store(c_ptr + rm, b_sum)", "tl.atomic_xchg(c_ptr + rm, b_sum)"])
def test_a_store_that_every_block_repeats_is_refused(model, call):
    program = model((DOT, DOT + f"        b_sum = tl.sum(a, axis=1)\n        {call}\n"))
    with pytest.raises(UnsupportedError, match="this store to `c_ptr` stands in the loop over K") as refusal:
        parse_ons(["a[K]"], program)
    assert refusal.value.where.text.strip() == call and "behind the loop" in refusal.value.help


@pytest.mark.parametrize(
    "call", ["tl.store(a_ptr + rm[:, None] * sam + (k * BK + rk)[None, :] * sak, a)", "tl.atomic_add(c_ptr + rm, 1.0)"]
)
def test_stores_in_any_order(model, call):
    program = model((DOT, DOT + f"        {call}\n"))
    parse_ons(["b[K]"], program)


def test_a_load_in_a_helper_of_the_module_is_followed(model, grouped):
    helper = "@triton.jit\ndef fetch(p):\n    return tl.load(p)\n\n\n@triton.jit\ndef gemm("
    program = model(("@triton.jit\ndef gemm(", helper), (LOAD_A, "        a = fetch(pa)\n"))
    (on,) = parse_ons(["a[K]"], program)
    assert on.ranged


def test_a_load_in_a_helper_of_another_module_is_refused(model, grouped):
    program = model(
        ("import triton\n", "import triton\nfrom loads import fetch\n"), (LOAD_A, "        a = fetch(pa)\n")
    )
    with pytest.raises(UnsupportedError, match="is handed to `fetch`"):
        parse_ons(["a[K]"], program)


def test_blocks_of_two_sizes_are_refused(model):
    """Two loops over K that both wait share one table."""
    again = """\
    pa2 = a_ptr + rm[:, None] * sam + tl.arange(0, BN)[None, :] * sak
    for k2 in range(0, tl.cdiv(K, BN)):
        acc += tl.sum(tl.load(pa2), axis=1)[:, None]
        pa2 += BN * sak
"""
    program = model((STORE, again + STORE))
    assert [loop.number for loop in program.kernel.loops] == [0, 1]
    with pytest.raises(UnsupportedError, match="takes K in blocks of BN, the one on line 31 takes K in blocks of BK"):
        parse_ons(["a[K]"], program)
    parse_ons(["b[K]"], program)


def test_what_the_loop_leaves_for_the_next_tile_is_refused(persistent):
    loop = "    # @overlap.tile_id persistent\n"
    head = "        # @overlap.dispatch begin\n"
    text = persistent.replace(loop, "    left = 0\n" + loop).replace(head, "        before = left * 2\n" + head)
    program = annotate(SourceUnit.from_text(text, "gemm.py"))
    with pytest.raises(OverlapError, match="`left` is read here as the last iteration of the loop over K") as refusal:
        parse_ons(["a[K]"], program)
    assert refusal.value.where.text == "        before = left * 2"
