"""Pragma comments are found wherever Python lets a comment stand."""

# ruff: noqa: E501  (tables of edits, one a line)

from __future__ import annotations

import pytest

from overlap.annotate import SourceUnit, annotate
from overlap.annotate.pragmas import TensorRef, find_pragmas, nearest
from overlap.errors import PragmaError


def test_found_in_every_place():
    text = """\
# @overlap.num_tiles
@decorate
# @overlap.tensor a[M]
def f(
    x,  # @overlap.tensor b[M]
):
    # @overlap.tensor c[M]

    # a note
    if x:
        pass
        # @overlap.tensor d[M]
    # @overlap.tensor e[M]
    elif y:  # @overlap.tensor f[M]
        pass
    # @overlap.tensor g[M]
    else:
        try:
            z = "# @overlap.tensor no[M]"
        # @overlap.tensor h[M]
        except E:
            w = (1,
                 # @overlap.tensor i[M]
                 2)
        #@overlap.tensor j[M]
    x = 1; y = 2  # @sy.tensor k[M]
    # @overlap.tensor l[M]
# @overlap.num_tiles
"""
    found = find_pragmas(SourceUnit.from_text(text, "x.py"))
    assert [p.inputs[0].name for p in found if p.inputs] == list("abcdefghijkl")
    assert [p.name for p in found].count("num_tiles") == 2
    assert {p.inputs[0].name for p in found if p.trailing} == {"b", "f", "k"}
    lines = text.splitlines()
    for pragma in found:
        covered = lines[pragma.line - 1][pragma.span.col - 1 :][: pragma.span.width]
        assert covered.startswith("#") and covered == lines[pragma.line - 1].strip()[-len(covered) :]
        assert pragma.span.text == lines[pragma.line - 1]


def test_both_spellings_and_spacing():
    text = (
        "#   @overlap.axis_count   M   block = BM\n# @sy.axis_count M block=BM\n# @overlap . axis_count M, block=BM\n"
    )
    assert {(p.axis, p.block) for p in find_pragmas(SourceUnit.from_text(text))} == {("M", "BM")}


def test_extent_of_another_name():
    (first, second) = find_pragmas(
        SourceUnit.from_text("# @overlap.axis_count M=n_rows block=B\n# @overlap.axis_count K=range extent=depth\n")
    )
    assert (first.axis, first.extent, first.block, first.range) == ("M", "n_rows", "B", False)
    assert (second.axis, second.extent, second.block, second.range) == ("K", "depth", None, True)


def test_host_entry():
    (pragma,) = find_pragmas(SourceUnit.from_text("# @overlap.host_entry a[M, K], s[] b[_,N] -> c[M,N] d[M]\n"))
    assert pragma.inputs == (TensorRef("a", ("M", "K")), TensorRef("s", ()), TensorRef("b", ("_", "N")))
    assert pragma.outputs == (TensorRef("c", ("M", "N")), TensorRef("d", ("M",)))


@pytest.mark.parametrize(
    "text",
    ["# overlap.dispatch begin", "# see @overlap for more", "# @overlapping.thing x", "# @param tile_id", "# @sync"],
)
def test_prose_is_left_alone(text):
    assert find_pragmas(SourceUnit.from_text(text + "\n")) == ()


def test_nearest():
    assert nearest("axes_count", ["axis_count", "tile_id"]) == "; did you mean `axis_count`?"
    assert nearest("zzz", ["axis_count"]) == ""


def test_trailing_pragmas(model):
    """Behind a statement a pragma belongs to that statement, and region edges fall where they stand."""
    moved = model(
        ("    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n", "    pid = tl.program_id(axis=0)  # @overlap.tile_id\n"),
        ("    # @overlap.axis_count M block=BM\n    rows = tl.cdiv(M, BM)\n", "    rows = tl.cdiv(M, BM)  # @overlap.axis_count M block=BM\n"),
        ("    width = G * cols\n    # @overlap.dispatch begin\n", "    width = G * cols  # @overlap.dispatch begin\n"),
        ("    pid_n = (pid % width) // size\n    # @overlap.dispatch end\n", "    pid_n = (pid % width) // size  # @overlap.dispatch end\n"),
    ).kernel  # fmt: skip
    plain = model().kernel
    assert [t.name for t in moved.tile_ids] == ["pid"] and moved.axis("M").count_name == "rows"
    assert [(s.text, s.inside) for s in moved.regions[0].slice] == [(s.text, s.inside) for s in plain.regions[0].slice]


def test_pragma_below_the_last_statement(model):
    kernel = model(
        ("    # @overlap.axis_count K=range\n", ""),
        ("\n\n\n# @overlap.host_entry", "\n    # @overlap.axis_count K=range\n\n\n# @overlap.host_entry"),
    ).kernel
    assert kernel.axis("K").block is None


def test_user_names_like_ours(grouped):
    text = grouped.replace("width", "rank").replace("size", "flag").replace("group", "wait").replace("left", "ol")
    text = text.replace("num_flag", "num_size")
    kernel = annotate(SourceUnit.from_text(text, "x.py")).kernel
    assert {"rank", "flag", "wait"} <= {t for s in kernel.regions[0].slice for t in s.targets}


def test_first_error_of_a_file_is_the_first_line():
    with pytest.raises(PragmaError) as caught:
        find_pragmas(SourceUnit.from_text("x = 1\n    \n# @overlap.dispach begin\n# @overlap.nothing\n", "x.py"))
    assert caught.value.render().startswith("x.py:3:1: unknown pragma `dispach`; did you mean `dispatch`?\n")
