"""Accesses of the rank's own part through a descriptor of its own: before and after, and which kernels pass through."""

from __future__ import annotations

import libcst as cst
import pytest

from overlap.backends.base import Realization
from overlap.codegen.context import PlanText
from overlap.codegen.passes import dispatch, in_place, kernel_signature, operator, produce

from .test_passes import SOURCE, context

LOAD = "        x = tl.load(a + m[:, None] * K + ks[None, :], mask=(m[:, None] < M) & (ks[None, :] < K), other=0.0)\n"
READ = "        x = a.load([i * BM, k])\n"
STORE = "    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))\n"
STORED = "    c.store([i * BM, j * BN], acc)\n"
CHOICE = """\
    if ol.own(ol_table, ol_run):
        ol_{0} = ol_own
        ol_before = ol_begin
    else:
        ol_{0} = {0}
        ol_before = 0
"""


def text(read: str = READ, stored: str = STORED, more: str = "") -> str:
    assert SOURCE.count(LOAD) == SOURCE.count(STORE) == 1
    made = SOURCE.replace(LOAD, read).replace(STORE, stored)
    return made.replace("    # @overlap.tile_id\n", f"{more}    # @overlap.tile_id\n")


def passed(source: str, on: str = "a[M]", **options) -> str:
    """The kernel behind the passes up to this one."""
    module = cst.parse_module(source)
    found = in_place.marked(module, context(source, on, **options), "kernel")
    for run in (produce.run, kernel_signature.run, dispatch.run, in_place.run):
        module = run(module, found)
    return module.code


def untouched(source: str, on: str = "a[M]", **options) -> bool:
    """Whether the kernel is what it would be without the pass."""
    made = passed(source, on, **options)
    return "ol_own" not in made and "ol_origin" not in made


def test_tiles_side_by_side_along_what_is_gathered():
    made = passed(text())
    assert "ol_table, ol_state, ol_own, ol_origin):" in made
    assert (
        '    """Multiplies."""\n    # Where the rank\'s own part of a begins in what this kernel sees.\n'
        "    ol_begin = ol.own_begin(ol_origin, 0)\n    ol_epoch = ol.now(ol_state)\n"
    ) in made
    note = "    # The rank's own part of a is read where its caller has it.\n"
    assert f"    i = ol.after_async(i, ol_seen)\n{note}{CHOICE.format('a')}" in made
    assert made.count("        x = ol_a.load([i * BM - ol_before, k])\n") == 1 and "a.load([i * BM, k])" not in made


def test_tiles_that_store_what_stays():
    made = passed(text(), "c[M:N]")
    begin = "    ol_begin = ol.own_begin(ol_origin, 1)\n"
    assert f"    # Where the rank's own part of c begins in what this kernel makes.\n{begin}" in made
    note = "    # The rank's own part of c is stored where it belongs.\n"
    assert f"{note}{CHOICE.format('c')}" in made
    assert "    ol_c.store([i * BM, j * BN - ol_before], acc)\n    # Count the tile" in made


@pytest.mark.parametrize("on", ["a[K:M]", "a[K/M]"])
def test_tiles_that_take_all_of_it_block_by_block(on):
    made = passed(text(), on, realization=Realization())
    assert "    ol_begin = ol.own_begin(ol_origin, 1)\n    ol_end = ol.own_end(ol_origin, 1)\n" in made
    block = "".join(f"    {line}\n" for line in CHOICE.format("a").splitlines())
    block = block.replace("ol.own(ol_table, ol_run)", "ol.within(k, ol_begin, ol_end)")
    note = "        # The rank's own part of a is read where its caller has it.\n"
    assert f"{note}{block}        x = ol_a.load([i * BM, k - ol_before])\n" in made


def test_the_operator_says_which_loop_takes_it():
    source = text()
    module = cst.parse_module(source)
    for on, loop in (("a[K:M]", True), ("a[M]", False)):
        found = in_place.marked(module, context(source, on), "kernel")
        lines = "\n".join(operator.operator_lines(found))
        assert ('taken_by=ol_rt.RangeAxis("K", extent="K", block="BK")' in lines) == loop
        assert 'ours=("ol_table", "ol_state", "ol_own", "ol_origin")' in lines


@pytest.mark.parametrize(
    "read",
    [
        "        x = a.load(offsets=[i * BM, k])\n",
        "        x = a.load((i * BM, k))\n",
        "        x = tl.load_tensor_descriptor(a, [i * BM, k])\n",
    ],
)
def test_every_way_to_write_a_load(read):
    made = passed(text(read))
    assert read.replace("i * BM", "i * BM - ol_before").replace(" a.", " ol_a.").replace("(a,", "(ol_a,") in made


def test_a_coordinate_that_binds_less_is_put_in_brackets():
    read = "        x = a.load([i << 5, k])\n"
    source = text(read, more="    # @overlap.tensor a[M,K] read\n")
    module = cst.parse_module(source)
    site = in_place.Site(context(text()).ons[0], 0, 0)
    change = in_place._Accesses(context(text()), site)
    assert "ol_a.load([(i << 5) - ol_before, k])" in module.visit(change).code


def test_attributes_of_the_descriptor_stay_its_own():
    made = passed(text(READ.replace("])", "]).to(a.dtype)")))
    assert "ol_a.load([i * BM - ol_before, k]).to(a.dtype)" in made


@pytest.mark.parametrize(
    ("source", "on"),
    [
        (SOURCE, "a[M]"),
        (SOURCE, "c[M]"),
        (text(), "c[]"),
        (text(more="    d = a\n"), "a[M]"),
        (text("        x = helper(a, i * BM, k)\n", more="    # @overlap.tensor a[M,K] read\n"), "a[M]"),
        (text().replace("    i = pid % rows\n", "    own = pid % rows\n    i = own\n"), "a[M]"),
    ],
    ids=["pointers", "pointers, a result", "an all-reduce", "another name", "a helper", "a name of ours"],
)
def test_kernels_that_pass_through(source, on):
    assert untouched(source, on)


LOOP = text()[text().index("    for k in ") : text().index(STORED)]
"""A tile's loop over K."""


@pytest.mark.parametrize(
    "loop",
    [
        "    for k in range(0, K, BK): acc = tl.dot(a.load([i * BM, k]), b.load([k, j * BN]), acc)\n",
        "    for k in range(0, K, BK):\n        if tl.sum(a.load([i * BM, k])) > 0:\n            acc += 1\n",
    ],
    ids=["in the line of its loop", "in a condition"],
)
def test_loads_with_no_line_of_their_own_are_read_as_they_are_in_a_loop_that_takes_all(loop):
    """Which block is whose would have to be asked ahead of each. Tiles of one rank's rows have chosen before."""
    source = text().replace(LOOP, loop)
    assert untouched(source, "a[K:M]", realization=Realization()) and not untouched(source)


@pytest.mark.parametrize("backend", ["ldst_reserved", "tma_inline", "ldst_inline"])
def test_kernels_whose_programs_move_or_store_pass_through(backend):
    source = text()
    for on in ("a[M]", "c[M:N]"):
        found = in_place.marked(
            cst.parse_module(source), context(source, on, realization=Realization(backend)), "kernel"
        )
        assert not found.in_place
    beside = PlanText(
        "mixed",
        "plan: x\nbefore: shard(rank)\nafter: whole\nops:\n- push: shard(rank)\n  to: 0\n  backend: ldst_reserved\n",
    )
    assert not in_place.marked(cst.parse_module(source), context(source, plans=(beside,)), "kernel").in_place


def test_two_communicated_tensors_pass_through():
    source = text()
    assert not in_place.marked(cst.parse_module(source), context(source, ["a[M]", "c[M]"]), "kernel").in_place
