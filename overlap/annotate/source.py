"""`SourceUnit`: one module's text, read once and hashed.

Analysis reads the `ast` tree (exact lines, cheap), rewriting in `codegen` works on the libcst module, which
keeps every byte of the user's file. Both are built on first use.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import libcst as cst

from overlap.errors import SourceError, SourceSpan

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class SourceUnit:
    """A whole module as text.

    ``path`` is what error messages print, ``text`` the source with its own line ends (a byte order mark is dropped),
    ``sha256`` the hash of the bytes on disk (of the UTF-8 text where there is no file).
    """

    path: str
    text: str
    sha256: str

    @classmethod
    def from_file(cls, path: str | Path) -> SourceUnit:
        """Reads a Python file.

        Raises:
            SourceError: there is no such file, it is not text in its declared encoding, or not valid Python.
        """
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise SourceError(
                f"cannot read {path}: {error.strerror or error}", where=SourceSpan(str(path), 1)
            ) from None
        return cls._checked(str(path), _decode(raw, str(path)), hashlib.sha256(raw).hexdigest())

    @classmethod
    def from_text(cls, text: str, name: str = "<text>") -> SourceUnit:
        """Takes source text. ``name`` stands for the path in messages.

        Raises:
            SourceError: the text is not valid Python.
        """
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return cls._checked(name, text.removeprefix("\ufeff"), digest)

    @classmethod
    def from_function(cls, function: Any) -> SourceUnit:
        """The module around a function, jitted or plain, below autotune, heuristics and foreign decorators.

        Functions without a file (exec, REPL, notebook cells) are read through `linecache`, as tracebacks are.

        Raises:
            SourceError: there is no source text for the function.
        """
        plain = unwrap(function)
        code = getattr(plain, "__code__", None)
        if code is None:
            raise SourceError(
                f"{function!r} is not a Python function", help="pass the decorated kernel or the file's path"
            )
        name = inspect.getsourcefile(plain) or code.co_filename
        if Path(name).is_file():
            return cls.from_file(name)
        lines = linecache.getlines(name, getattr(plain, "__globals__", None))
        if not lines:
            raise SourceError(
                f"the source of {plain.__qualname__} is not available ({name})",
                where=SourceSpan(name, code.co_firstlineno),
                help="put the kernel into a file",
            )
        return cls.from_text("".join(lines), name)

    @classmethod
    def _checked(cls, path: str, text: str, sha256: str) -> SourceUnit:
        unit = cls(path, text, sha256)
        unit.tree  # noqa: B018  a syntax error is reported where the text comes in
        return unit

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Source lines without line ends, cut as Python cuts them."""
        return tuple(_LINE_END.split(self.text))

    @cached_property
    def tree(self) -> ast.Module:
        """The module as Python's own syntax tree."""
        try:
            return ast.parse(self.text, filename=self.path)
        except SyntaxError as error:
            line = error.lineno or 1
            raise SourceError(f"syntax error: {error.msg}", where=self.span(line, error.offset or 1)) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise SourceError(f"not Python source: {error}", where=self.span(1)) from None

    @cached_property
    def module(self) -> cst.Module:
        """The module as a libcst tree, byte for byte."""
        try:
            return cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            where = self.span(error.raw_line, error.raw_column + 1)
            raise SourceError(f"syntax error: {error.message}", where=where) from None

    def span(self, line: int, col: int = 1, width: int = 1) -> SourceSpan:
        """A place by line and column, both from 1."""
        line = min(max(1, line), len(self.lines))
        text = self.lines[line - 1]
        return SourceSpan(self.path, line, min(max(1, col), len(text) + 1), text, width)

    def span_of(self, node: ast.AST) -> SourceSpan:
        """The place of a syntax node: its first line, and its width there."""
        line = node.lineno  # type: ignore[attr-defined]
        text = self.lines[line - 1]
        start = _chars(text, node.col_offset)  # type: ignore[attr-defined]
        same = getattr(node, "end_lineno", line) == line
        end = _chars(text, node.end_col_offset) if same else len(text)  # type: ignore[attr-defined]
        return SourceSpan(self.path, line, start + 1, text, max(1, end - start))

    def text_of(self, node: ast.AST) -> str:
        """A statement or expression as written, dedented to its own column, comments dropped."""
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        lines = list(self.lines[first - 1 : last])
        lines[-1] = lines[-1][: _chars(lines[-1], node.end_col_offset)]  # type: ignore[attr-defined]
        margin = _chars(lines[0], node.col_offset)  # type: ignore[attr-defined]
        lines = [lines[0][margin:], *(line[margin:] if not line[:margin].strip() else line for line in lines[1:])]
        if len(lines) == 1:
            return lines[0]
        return _without_comments(lines)


def unwrap(function: Any) -> Callable[..., Any]:
    """The plain Python function inside jit, autotune, heuristics and other wrappers (``.fn``, ``__wrapped__``)."""
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        inner = getattr(function, "fn", None)
        if inner is None:
            inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return function


def _decode(raw: bytes, path: str) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(raw).readline)
        return raw.decode(encoding)  # a byte order mark shows as utf-8-sig, which drops it
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceError(f"cannot decode {path}: {error}", where=SourceSpan(path, 1)) from None


def _without_comments(lines: list[str]) -> str:
    kept = list(lines)
    try:
        for token in tokenize.generate_tokens(StringIO("\n".join(lines) + "\n").readline):
            if token.type == tokenize.COMMENT:
                kept[token.start[0] - 1] = kept[token.start[0] - 1][: token.start[1]].rstrip()
    except (tokenize.TokenError, IndentationError):
        return "\n".join(lines)  # an expression that ends in the middle of a bracketed line
    return "\n".join(text for text, was in zip(kept, lines, strict=True) if text or not was.strip())


def _chars(text: str, byte_offset: int) -> int:
    """Characters before a UTF-8 byte offset (what `ast` counts in)."""
    return len(text.encode("utf-8", "surrogatepass")[:byte_offset].decode("utf-8", "ignore"))
