"""Source units: where text comes from, what is hashed, odd bytes, syntax errors."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import linecache

import pytest

from overlap.annotate import SourceUnit, annotate
from overlap.annotate.pragmas import find_pragmas
from overlap.errors import SourceError


def test_file_text_and_hash(tmp_path, grouped):
    path = tmp_path / "gemm.py"
    path.write_bytes(grouped.encode())
    unit = SourceUnit.from_file(path)
    assert unit.text == grouped and unit.path == str(path)
    assert unit.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert unit.module.code == grouped


@pytest.mark.parametrize("form", ["crlf", "cr", "bom", "latin-1", "tabs", "no final newline", "two statements a line"])
def test_every_form_gives_the_same_model(tmp_path, grouped, edit, form):
    plain = annotate(SourceUnit.from_text(grouped, "x")).kernel
    text, encode = grouped, "utf-8"
    if form == "crlf":
        text = grouped.replace("\n", "\r\n")
    if form == "cr":
        text = grouped.replace("\n", "\r")
    if form == "bom":
        encode = "utf-8-sig"
    if form == "latin-1":
        text, encode = "# -*- coding: latin-1 -*-\n" + grouped.replace("    rk =", "    # größer\n    rk ="), "latin-1"
    if form == "tabs":
        text = grouped.replace("    ", "\t")
    if form == "no final newline":
        text = grouped.rstrip("\n")
    if form == "two statements a line":
        text = edit(
            grouped, ("    rm = pid_m * BM + tl.arange(0, BM)\n    rn", "    rm = pid_m * BM + tl.arange(0, BM); rn")
        )
    path = tmp_path / "gemm.py"
    path.write_bytes(text.encode(encode))
    unit = SourceUnit.from_file(path)
    model = annotate(unit).kernel
    assert [[s.text for s in r.slice] for r in model.regions] == [[s.text for s in r.slice] for r in plain.regions]
    assert [(a.tensor, a.axes, *map(str, a.offsets)) for a in model.accesses] == [
        (a.tensor, a.axes, *map(str, a.offsets)) for a in plain.accesses
    ]
    for pragma in find_pragmas(unit):
        assert unit.lines[pragma.line - 1][pragma.span.col - 1 :].startswith("# @overlap.")
    if form in ("crlf", "tabs", "no final newline", "two statements a line"):
        assert unit.module.code == text


def test_syntax_error_has_line_and_caret():
    with pytest.raises(SourceError) as caught:
        SourceUnit.from_text("a = 1\nb = (2 +\nc = 3\n", "bad.py")
    first, text, caret = caught.value.render().splitlines()[:3]
    assert first.startswith("bad.py:2:5: syntax error: ")
    assert text.strip() == "b = (2 +" and caret.strip() == "^"


def test_missing_file_and_bad_bytes(tmp_path):
    with pytest.raises(SourceError, match="cannot read .*nothing.py"):
        SourceUnit.from_file(tmp_path / "nothing.py")
    with pytest.raises(SourceError, match="cannot read"):
        SourceUnit.from_file(tmp_path)
    (tmp_path / "bad.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(SourceError, match="cannot decode"):
        SourceUnit.from_file(tmp_path / "bad.py")
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")
    with pytest.raises(SourceError):
        SourceUnit.from_file(tmp_path / "null.py")


class _Jitted:
    """As Triton's wrappers: the function is `fn`."""

    def __init__(self, fn):
        self.fn = fn


def test_from_function_below_wrappers(tmp_path, grouped):
    path = tmp_path / "module_with_kernel.py"
    path.write_text("def plain(x):\n    return x\n")
    spec = importlib.util.spec_from_file_location("module_with_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    @functools.wraps(module.plain)
    def foreign(*args):
        return module.plain(*args)

    for function in (module.plain, _Jitted(module.plain), _Jitted(_Jitted(module.plain)), foreign, _Jitted(foreign)):
        unit = SourceUnit.from_function(function)
        assert unit.path == str(path) and unit.text == path.read_text()


def test_from_a_cell(grouped):
    name = "<cell 7>"
    linecache.cache[name] = (len(grouped), None, grouped.splitlines(keepends=True), name)
    scope = {}
    exec(compile("def gemm(a_ptr):\n    pass\n", name, "exec"), scope)
    unit = SourceUnit.from_function(scope["gemm"])
    assert unit.path == name and unit.text == grouped
    assert annotate(unit, "gemm").kernel.name == "gemm"


def test_source_that_nobody_kept():
    scope = {}
    exec(compile("def lost():\n    pass\n", "<nowhere>", "exec"), scope)
    with pytest.raises(SourceError) as caught:
        SourceUnit.from_function(scope["lost"])
    assert "the source of lost is not available" in caught.value.message and caught.value.help
    with pytest.raises(SourceError, match="not a Python function"):
        SourceUnit.from_function(len)


def test_text_of_a_statement_is_dedented_without_comments():
    body = "    if x:  # why\n        y = (1 +  # one\n             2)\n        # alone\n    else:\n        y = 3\n"
    text = f"def f():\n{body}"
    unit = SourceUnit.from_text(text)
    branch = unit.tree.body[0].body[0]
    assert unit.text_of(branch) == "if x:\n    y = (1 +\n         2)\nelse:\n    y = 3"
    assert unit.text_of(branch.body[0]) == "y = (1 +\n     2)"
