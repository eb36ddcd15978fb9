"""`--on`: names of tensors and axes, kinds, and what is refused."""

from __future__ import annotations

import re

import pytest

from overlap.annotate import OnSpec, parse_on, parse_ons
from overlap.errors import OnError, UnsupportedError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a[M]", OnSpec("a", "a_ptr", 0, "M", "gather")),
        (" a [ M ] ", OnSpec("a", "a_ptr", 0, "M", "gather")),
        ("a_ptr[M]", OnSpec("a", "a_ptr", 0, "M", "gather")),
        ("b[N]", OnSpec("b", "b_ptr", 1, "N", "gather")),
        ("b_ptr[N]", OnSpec("b", "b_ptr", 1, "N", "gather")),
        ("c[M]", OnSpec("c", "c_ptr", 0, "M", "reduce_scatter", produced=True)),
        ("c_ptr[ N ]", OnSpec("c", "c_ptr", 1, "N", "reduce_scatter", produced=True)),
        ("c[]", OnSpec("c", "c_ptr", 0, "", "all_reduce", produced=True)),
        ("a[K:M]", OnSpec("a", "a_ptr", 1, "K", "all_to_all", "M", 0)),
        ("c[M:N]", OnSpec("c", "c_ptr", 0, "M", "all_to_all", "N", 1, produced=True)),
    ],
)
def test_kinds(model, text, spec):
    assert parse_on(text, model()) == spec
    assert str(spec) == re.sub(r"_ptr|\s", "", text)


def test_parameter_names_without_their_ending(model, grouped):
    text = grouped.replace("def matmul(a, b)", "def matmul(left, right)").replace(
        "a[M,K] b[K,N]", "left[M,K] right[K,N]"
    )
    text = text.replace("M, K = a.shape", "M, K = left.shape\n    a, b = left, right")
    program = model(text=text)
    assert parse_on("a[M]", program) == parse_on("left[M]", program) == OnSpec("left", "a_ptr", 0, "M", "gather")


@pytest.mark.parametrize(
    ("text", "message", "help_text"),
    [
        ("d[M]", "no tensor `d`", "the tensors are a, b, c"),
        ("a_pt[M]", "no tensor `a_pt`; did you mean `a_ptr`?", "a, b, c"),
        ("a[N]", "`a` has no axis N", "a[M,K]"),
        ("c[K]", "`c` has no axis K", "c[M,N]"),
        ("a[m]", "`a` has no axis m", "M, K"),
        ("a[]", "`a` is an input", "a[M]"),
        ("a[K:N]", "`a` has no axis N", "M, K"),
        ("a", "cannot read `a`", "TENSOR[AXIS]"),
        ("c[M:M]", "moves the sharding from M to M", "another axis of c[M,N]"),
        ("c[K:N]", "`c` has no axis K", "c[M,N]"),
        ("a[M,K]", "cannot read `a[M,K]`", "TENSOR[AXIS]"),
        ("a[:M]", "cannot read `a[:M]`", "TENSOR[AXIS]"),
        ("a[/M]", "cannot read `a[/M]`", "TENSOR[AXIS]"),
        ("a[K:M/M]", "cannot read", "a[K/M] along K"),
        ("a[K/N]", "`a` has no axis N", "M, K"),
        ("a[K/K]", "has parts along K, in which tiles do not differ", "leave /K out"),
        ("a[M/K]", "is gathered along M, in which tiles differ", "leave /K out"),
        ("c[M/N]", "is a result", "leave /N out"),
        ("", "cannot read ``", "TENSOR[AXIS]"),
    ],
)
def test_errors(model, text, message, help_text):
    with pytest.raises(OnError) as caught:
        parse_on(text, model())
    assert message in caught.value.message and help_text in caught.value.help
    if "cannot read" not in message:
        assert caught.value.where.text.startswith("# @overlap.host_entry")


def test_a_gather_of_what_tiles_read_all_of_in_parts_along_another_axis(model):
    on = parse_on("a[ K / M ]", model())
    assert (str(on), on.ranged, on.dim, on.by_dim) == ("a[K/M]", False, 1, 0)
    whole = parse_on("a[K]", model())
    assert (whole.ranged, whole.by, whole.by_dim) == (True, "", None)


def test_several_tensors_keep_their_order(model):
    assert list(map(str, parse_ons(["c[M]", "a[M]"], model()))) == ["c[M]", "a[M]"]
    assert list(map(str, parse_ons(["a[K:M]", "c[M:N]"], model()))) == ["a[K:M]", "c[M:N]"]


@pytest.mark.parametrize(
    ("texts", "message", "help_text"),
    [
        ([], "nothing is communicated", "c[M] reduce-scatters"),
        (["a[M]", "a[M]"], "a is communicated twice, as a[M] and as a[M]", "one --on a tensor"),
        (["c[M]", "c[]"], "c is communicated twice, as c[M] and as c[]", "keep c[M] or c[]"),
        (["a[M]", "a_ptr[K:M]"], "a is communicated twice", "one --on a tensor"),
        (["a[M]", "c[M:N]"], "c[M:N] runs the kernel on the rank's part of M, a[M] on all of M", "communicate a"),
        (["a[K:M]", "c[M]"], "a[K:M] runs the kernel on the rank's part of M, c[M] on all of M", "communicate c"),
        (["a[K:M]", "c[]"], "a[K:M] runs the kernel on the rank's part of M, c[] on all of M", "communicate c"),
    ],
)
def test_several_tensors_that_do_not_fit_each_other(model, texts, message, help_text):
    with pytest.raises(OnError) as caught:
        parse_ons(texts, model())
    assert message in caught.value.message and help_text in caught.value.help
    assert caught.value.where.text.startswith("# @overlap.host_entry")


def test_without_a_host_entry(model):
    program = model(("# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]\n", ""))
    with pytest.raises(OnError, match="has no host entry") as caught:
        parse_on("a[M]", program)
    assert caught.value.where == program.kernel.span


def test_a_load_that_cannot_wait(model):
    program = model(("    acc = tl.zeros", "    first = tl.load(a_ptr)\n    acc = tl.zeros"))
    with pytest.raises(UnsupportedError, match="does not depend on the tile coordinates") as caught:
        parse_on("a[M]", program)
    assert "first = tl.load(a_ptr)" in caught.value.where.text


def test_a_transposed_view(model, grouped):
    text = grouped.replace("a[M,K] b[K,N]", "a[M,K] w[N,K]").replace(
        "def matmul(a, b):", "def matmul(a, w):\n    b = w.t()"
    )
    with pytest.raises(UnsupportedError, match=r"the kernel sees b_ptr\[K,N\], a view of w\[N,K\]"):
        parse_on("w[N]", model(text=text))


def test_a_tensor_that_is_not_passed_or_not_read(model):
    program = model(("def matmul(a, b):", "def matmul(a, b, s):"), ("b[K,N] ->", "b[K,N] s[M] ->"))
    with pytest.raises(OnError, match="`s` is not passed to the kernel"):
        parse_on("s[M]", program)
