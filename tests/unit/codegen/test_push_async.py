"""Stores through descriptors, written into all places of a tile and counted one tile late: before and after, and what is
refused."""

from __future__ import annotations

import libcst as cst
import pytest

from overlap.backends.base import Realization
from overlap.codegen.passes import delay, kernel_signature, produce, push, push_async
from overlap.errors import CodegenError, UnsupportedError

from .test_passes import SOURCE, after, context

POINTERS = "    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))\n"
HOST = "    c.store([i * BM, j * BN], acc)\n"
MADE = "    c_desc = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])\n"
DEVICE = "    c_desc.store([i * BM, j * BN], acc)\n"
NOTE = "    # Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.\n"
LOOP = NOTE + "    for ol_way in ol.static_range(ol_ways):\n"
SPOT = "        ol_high, ol_low = ol.spot(ol_table, ol_run, ol_way, ol_slots)\n"
STORED = "        ol_anywhere.store([ol_high, ol_low, i * BM, j * BN], ol.shaped(acc, ol_anywhere))\n"
TWIN = """\
    ol_anywhere = tl.make_tensor_descriptor(
        c + ol.lowest(ol_slots),
        shape=[ol.steps(ol_slots, 0), ol.steps(ol_slots, 1), M, N],
        strides=[ol.stride(c, 0), ol.stride(c, 1), N, 1],
        block_shape=[1, 1, BM, BN],
    )
"""


def text(store: str, made: str = "") -> str:
    """The kernel with another store, and a descriptor made at its head."""
    assert SOURCE.count(POINTERS) == 1
    return SOURCE.replace(POINTERS, store).replace("    # @overlap.tile_id\n", f"{made}    # @overlap.tile_id\n")


def passed(source: str, *runs, backend: str = "tma_inline", on: str = "c[M]") -> str:
    for run in runs or (push_async.run,):
        source = after(run, source, on=on, realization=Realization(backend))
    return source


def test_a_descriptor_of_the_host():
    assert passed(text(HOST)) == text(LOOP + SPOT + STORED)


@pytest.mark.parametrize(
    "store",
    [
        "    c.store(value=acc, offsets=[i * BM, j * BN])\n",
        "    c.store((i * BM, j * BN), value=acc)\n",
        "    tl.store_tensor_descriptor(c, [i * BM, j * BN], acc)\n",
    ],
)
def test_every_way_to_write_a_store(store):
    assert passed(text(store)) == text(LOOP + SPOT + STORED)


def test_a_descriptor_of_the_kernel_makes_place_for_the_other():
    assert passed(text(DEVICE, MADE)) == text(LOOP + SPOT + STORED, TWIN)


def test_a_descriptor_that_is_read_otherwise_stays():
    store = "    c_desc.store([i * BM, j * BN], acc.to(c_desc.dtype))\n"
    changed = STORED.replace("shaped(acc", "shaped(acc.to(c_desc.dtype)")
    assert passed(text(store, MADE)) == text(LOOP + SPOT + changed, MADE + TWIN)


def test_parts_of_a_tile_share_one_descriptor():
    half = "    c_desc.store([i * BM, j * BN + 16], acc)\n"
    changed = passed(text(DEVICE + half, MADE))
    assert changed.count("make_tensor_descriptor") == 1 and changed.count("ol_anywhere.store(") == 2


@pytest.mark.parametrize(
    ("made", "added"),
    [("", "ol_table, ol_state, ol_anywhere, ol_ways: ol.constexpr, ol_slots"),
     (MADE, "ol_table, ol_state, ol_ways: ol.constexpr, ol_slots")],
)  # fmt: skip
def test_the_parameters_that_it_takes(made, added):
    assert f"BK: tl.constexpr, {added}):" in passed(text(DEVICE if made else HOST, made), kernel_signature.run)


def test_tiles_are_counted_when_they_have_landed():
    assert "    ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)\n" in passed(text(HOST), produce.run)


def test_others_pass_through():
    assert passed(SOURCE, backend="ldst_inline") == SOURCE
    assert passed(text(HOST), push.run) == text(HOST)
    assert passed(text(HOST), backend="copy_engine") == text(HOST)
    assert passed(text(HOST), on="a[M]", backend="copy_engine") == text(HOST)


@pytest.mark.parametrize(
    ("source", "why", "help"),
    [
        (SOURCE, "needs stores through tensor descriptors; this one stores by pointer into `c`", "ldst_inline"),
        (text("    at = [i * BM, j * BN]\n    c.store(at, acc)\n"), "does not list its coordinates", "desc.store"),
        (text("    done = c.store([i * BM, j * BN], acc)\n"), "no statement of its own", "on a line of its own"),
        (text(DEVICE, MADE.replace("shape=[M, N]", "shape=SHAPE")), "is not made once", "block_shape=[...]"),
        (text(DEVICE, MADE + MADE), "is not made once", "shape=[...]"),
    ],
)
def test_what_is_refused(source, why, help):
    with pytest.raises(UnsupportedError, match=why) as caught:
        passed(source)
    assert caught.value.where is not None and caught.value.where.path == "user.py" and help in caught.value.help


def test_more_dimensions_than_descriptors_have():
    source = text("    c.store([0, 0, i * BM, j * BN], acc)\n").replace(
        "    # @overlap.tile_id\n", "    # @overlap.tensor c[B,H,M,N] write\n    # @overlap.tile_id\n"
    )
    with pytest.raises(UnsupportedError, match="up to 3 dimensions, `c` has 4") as caught:
        passed(source.replace("-> c[M,N]", "-> c[B,H,M,N]"))
    assert "copy_engine" in caught.value.help


LOOPED = """\
    for tile in tl.range(0, M):
        run = tile
        if M > 1:
            for ol_way in ol.static_range(ol_ways):
                c.store([ol_way], run)
        ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)
"""
DELAYED = """\
    ol_counted = ol.no_run(ol_table)
    for tile in tl.range(0, M):
        run = tile
        # Count the tile before this one, which has landed meanwhile, into the chunks of c
        # that it is part of; the last of a chunk tells the rank that gets it.
        ol.pushed_async(ol_table, ol_counted, ol_state, ol_slots, ol_ways)
        if M > 1:
            for ol_way in ol.static_range(ol_ways):
                c.store([ol_way], run)
        ol_counted = ol_run
    # Count the last tile.
    ol.pushed_async(ol_table, ol_counted, ol_state, ol_slots, ol_ways)
"""


def delayed(source: str, on: str | list[str] = "c[M]", backend: str = "tma_inline") -> str:
    """Of a kernel, what its descriptor stores have been turned into, ahead of the pass."""
    made = context(text(HOST), on=on, realization=Realization(backend))
    head = "@triton.jit\ndef kernel(c):\n"
    return delay.run(cst.parse_module(head + source), made).code.removeprefix(head)


def test_tiles_of_a_loop_are_counted_one_late():
    assert delayed(LOOPED) == DELAYED


def test_the_one_tile_of_a_program_is_counted_at_once():
    once = "    ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)\n"
    assert delayed(once) == once


def test_tiles_of_a_flattened_loop_are_counted_at_once():
    """Triton 3.6 would count them ahead of their own stores."""
    flattened = LOOPED.replace("tl.range(0, M)", "tl.range(0, M, flatten=True)")
    assert flattened != LOOPED and delayed(flattened) == flattened
    plain = LOOPED.replace("tl.range(0, M)", "tl.range(0, M, flatten=False)")
    assert delayed(plain) == DELAYED.replace("tl.range(0, M)", "tl.range(0, M, flatten=False)")


def test_tiles_that_wait_are_counted_at_once():
    """In the other order ranks that wait for each other's results could do so for ever."""
    assert delayed(LOOPED, on=["a[M]", "c[M]"]) == LOOPED
    assert delayed(LOOPED, backend="ldst_inline") == LOOPED


def test_a_kernel_that_counts_nothing_is_a_mistake():
    with pytest.raises(CodegenError, match="no tile of `kernel` is counted"):
        delayed("    pass\n")
