"""The pass that cuts in-tile loops into parts: by before / after text, with what stays untouched."""

# ruff: noqa: E501  (a table, one case a line)

from __future__ import annotations

import ast
import textwrap

import libcst as cst
import pytest

from overlap.codegen.passes import kernel_signature, operator, range_loop, unused
from overlap.errors import CodegenError

from .test_passes import SOURCE, context

LOOP = """\
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + ks[None, :], mask=(m[:, None] < M) & (ks[None, :] < K), other=0.0)
        y = tl.load(b + ks[:, None] * N + n[None, :], mask=(ks[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y)
"""
HEAD = """\
    for ol_part in range(ol.runs(ol_parts)):
        ol_piece = ol.run_at(ol_parts, ol_part)
        ol_part_seen = ol.wait_run(ol_parts, ol_piece, ol_state, ol_epoch)
        # Blocks of the part; the loads below depend on the wait through the first.
        ol_first = ol.after(ol.origin(ol_parts, ol_piece, 0), ol_part_seen)
"""
BLOCKS = "ol_first, ol_first + ol.count(ol_parts, ol_piece, 0)"
ELEMENTS = "ol_first * BK, (ol_first + ol.count(ol_parts, ol_piece, 0)) * BK, BK"
assert SOURCE.count(LOOP) == 1


def after(run=range_loop.run, text=SOURCE, on="a[K]", **options):
    found = context(text, on=on, **options)
    return run(cst.parse_module(text), found).code


def pointers(loop: str, body: str = "") -> str:
    """The kernel with pointers that the loop moves on."""
    lines = f"""\
    pa = a + m[:, None] * K + tl.arange(0, BK)[None, :]
    pb = b + tl.arange(0, BK)[:, None] * N + n[None, :]
    {loop}
        x = tl.load(pa, mask=m[:, None] < M, other=0.0)
        y = tl.load(pb, mask=n[None, :] < N, other=0.0)
        acc = tl.dot(x, y, acc)
{body}        pa += BK
        pb += (BK
               * N)
"""
    return SOURCE.replace(LOOP, lines)


def test_the_loop_of_elements():
    said = "    # The chunks of a along K, in the order in which they arrive.\n"
    body = textwrap.indent(LOOP, "    ").replace("range(0, K, BK)", f"range({ELEMENTS})")
    assert after() == SOURCE.replace(LOOP, said + HEAD + body)


def test_the_loop_of_blocks_with_pointers():
    text = after(text=pointers("for k in range(tl.cdiv(K, BK)):"))
    assert f"        for k in range({BLOCKS}):\n" in text
    saved = "    ol_pa_start = pa\n    ol_pb_start = pb\n" + HEAD
    set_again = (
        "        pa = ol.advanced(ol_pa_start, ol_first, BK)\n        pb = ol.advanced(ol_pb_start, ol_first, BK * N)\n"
    )
    assert saved + set_again in text
    ast.parse(text)


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        ("for k in tl.range(0, K, BK, num_stages=3):", f"tl.range({ELEMENTS}, num_stages=3)"),
        ("for k in tl.range(0, tl.cdiv(K, BK), flatten=False, loop_unroll_factor=1):", f"tl.range({BLOCKS}, flatten=False, loop_unroll_factor=1)"),
        ("for k in tl.range(tl.cdiv(K, BK),\n             num_stages=2):", f"tl.range({BLOCKS}, num_stages=2)"),
    ],
)  # fmt: skip
def test_options_of_the_loop_stay(loop, wanted):
    assert f"        for k in {wanted}:\n" in after(text=pointers(loop))


def test_comments_and_the_body_stay_as_they_are():
    loop = LOOP.replace("    for k", "    # Along K.\n    for k").replace(
        "        acc +=", "        # Adds up.\n        acc +="
    )
    text = after(text=SOURCE.replace(LOOP, loop))
    assert "    # Along K.\n    # The chunks of a along K, in the order in which they arrive.\n    for ol_part" in text
    assert "            # Adds up.\n            acc += tl.dot(x, y)\n" in text


def test_descriptor_loads_wait_with_the_proxy_fence():
    descriptor = "    d = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])\n"
    load = "        x = d.load([i * BM, k])\n"
    lines = LOOP.splitlines(keepends=True)
    text = SOURCE.replace(LOOP, descriptor + lines[0] + lines[1] + load + lines[3] + lines[4])
    assert "ol_first = ol.after_async(ol.origin(" in after(text=text)
    assert "ol_first = ol.after(ol.origin(" in after(text=text, on="b[K]")


def test_block_pointers_are_advanced_from_their_start():
    block = "    pa = tl.make_block_ptr(a, (M, K), (K, 1), (i * BM, 0), (BM, BK), (1, 0))\n"
    lines = LOOP.splitlines(keepends=True)
    load = "        x = tl.load(pa)\n"
    for call, wanted in (
        ("tl.advance(pa, (0, BK))", "tl.advance(ol_pa_start, (0, ol_first * BK))"),
        ("pa.advance((0, BK))", "ol_pa_start.advance((0, ol_first * BK))"),
    ):
        loop = block + lines[0] + lines[1] + load + lines[3] + lines[4] + f"        pa = {call}\n"
        assert f"        pa = {wanted}\n" in after(text=SOURCE.replace(LOOP, loop))


def test_every_loop_that_reads_the_tensor_is_cut_and_no_other():
    before = LOOP.replace("k in", "k1 in").replace("k +", "k1 +").replace("tl.dot(x, y)", "tl.dot(x, y) * 2")
    alone = "    for k2 in range(0, K, BK):\n        acc += tl.load(b + (k2 + tl.arange(0, BK))[:, None] * N + n[None, :])\n"
    text = after(text=SOURCE.replace(LOOP, before + alone + LOOP))
    assert f"for k1 in range({ELEMENTS}):" in text
    assert alone in text
    second = ELEMENTS.replace("ol_first", "ol_first_1").replace("ol_piece", "ol_piece_1")
    assert f"for k in range({second}):" in text
    assert text.count("ol.wait_run(ol_parts, ol_piece, ") == text.count("ol.wait_run(ol_parts, ol_piece_1, ") == 1


def test_each_loop_waits_for_what_it_reads_as_it_reads_it():
    """One loop reads a by TMA, the other a and b by pointers."""
    lines = LOOP.splitlines(keepends=True)
    descriptor = "    d = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])\n"
    first = f"{descriptor}{lines[0]}        x = d.load([i * BM, k])\n        acc += tl.sum(x, axis=1)[:, None]\n"
    text = after(text=SOURCE.replace(LOOP, first + LOOP), on=["a[K]", "b[K]"])
    assert "# The chunks of a along K, in the order" in text and "# The chunks of a and b along K, in the order" in text
    assert "ol_first = ol.after_async(ol.origin(" in text and "ol_first_1 = ol.after(ol.origin(" in text


def test_two_tensors_share_the_loop():
    text = after(on=["a[K]", "b[K]"])
    assert "# The chunks of a and b along K, in the order in which they arrive.\n" in text
    assert text.count("ol.wait_run(") == 1


def test_the_kernel_gets_a_third_parameter_and_the_module_says_so():
    assert "BK: tl.constexpr, ol_table, ol_state, ol_parts):" in after(kernel_signature.run)
    lines = "\n".join(operator.operator_lines(context(on="a[K]")))
    assert 'ranges=(\n        ol_rt.RangeAxis("K", extent="K", block="BK"),\n    ),' in lines
    assert 'ours=("ol_table", "ol_state", "ol_parts"),' in lines
    assert "    reads=(),\n" in lines


def test_a_count_that_only_the_loop_read_is_marked():
    counted = "    steps = tl.cdiv(K, BK)\n" + LOOP.replace("range(0, K, BK)", "range(steps)").replace(
        "k + ", "k * BK + "
    )
    text = SOURCE.replace(LOOP, counted)
    found = context(text, on="a[K]")
    module = unused.run(range_loop.run(cst.parse_module(text), found), found)
    assert "    steps = tl.cdiv(K, BK)  # noqa: F841\n" in module.code


def test_a_kernel_without_such_a_gather_passes_through():
    assert after(on="a[M]") == SOURCE


def test_a_loop_that_is_gone_is_an_error():
    found = context(on="a[K]")
    with pytest.raises(CodegenError, match="0 loops over K"):
        range_loop.run(cst.parse_module(SOURCE.replace(LOOP, "    acc += 1\n")), found)
