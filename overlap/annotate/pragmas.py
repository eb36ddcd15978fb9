"""Pragma comments: ``# @overlap.NAME ...``, or ``# @sy.NAME ...`` as the paper spells them.

The text is tokenized, so every comment is found wherever it stands: at the head or end of a block, above ``else``,
between decorators, behind a statement. What a pragma is attached to is decided later, by line.
"""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from overlap.errors import PragmaError, SourceSpan

from .source import SourceUnit

_HEAD = re.compile(r"#+\s*@\s*(?P<prefix>\w+)(?P<dot>\s*\.\s*|\s+)(?P<name>[A-Za-z_]\w*)?(?P<rest>.*)$")
_PREFIXES = ("overlap", "sy")
_TENSOR = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*\[(?P<dims>[^\]]*)\]\s*,?")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_SIZE = re.compile(r"[1-9]\d*\Z")

USAGE = {
    "axis_count": "axis_count M block=BLOCK_M, axis_count M block=1, or axis_count K=range",
    "tile_id": "tile_id, tile_id persistent, or tile_id persistent left=LEFT_OUT",
    "num_tiles": "num_tiles",
    "dispatch": "dispatch begin, or dispatch end",
    "pid_map": "pid_map M=pid_m N=pid_n",
    "tensor": "tensor a_ptr[M,K] read, write or reduce",
    "host_entry": "host_entry a[M,K] b[K,N] -> c[M,N]",
}


@dataclass(frozen=True)
class TensorRef:
    """``a[M,K]``: a tensor and its named dimensions."""

    name: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Pragma:
    """A pragma, parsed.

    ``span`` covers the comment from its ``#``; ``trailing`` says that code stands before it on the line. The others by
    name: ``axis_count``: axis, extent, block, range; ``tile_id``: persistent, left; ``dispatch``: edge; ``pid_map``: pairs;
    ``tensor``: inputs[0], mode; ``host_entry``: inputs, outputs.
    """

    name: str
    span: SourceSpan
    trailing: bool = False
    axis: str = ""
    extent: str | None = None
    block: str | None = None
    range: bool = False
    persistent: bool = False
    left: str = ""
    edge: Literal["begin", "end", ""] = ""
    pairs: tuple[tuple[str, str], ...] = ()
    inputs: tuple[TensorRef, ...] = ()
    outputs: tuple[TensorRef, ...] = ()
    mode: Literal["read", "write", "reduce"] | None = None

    @property
    def line(self) -> int:
        return self.span.line


def nearest(name: str, valid: Iterable[str]) -> str:
    """``; did you mean X?`` for the closest valid name, or nothing."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else ""


def find_pragmas(unit: SourceUnit) -> tuple[Pragma, ...]:
    """Every pragma of the file, in source order.

    Raises:
        PragmaError: an unknown or misspelt name or key, or words that the pragma does not take.
    """
    found = []
    for token in tokenize.generate_tokens(io.StringIO("\n".join(unit.lines) + "\n").readline):
        if token.type == tokenize.COMMENT and (head := _HEAD.match(token.string)):
            line, col = token.start
            span = unit.span(line, col + 1, len(token.string.rstrip()))
            if _is_meant(head, span):
                trailing = bool(unit.lines[line - 1][:col].strip())
                found.append(_parse(head["name"], head["rest"], span, trailing))
    return tuple(found)


def _is_meant(head: re.Match[str], span: SourceSpan) -> bool:
    """Whether a comment that starts with ``@word`` is a pragma; a slip in the spelling of one is an error."""
    prefix, name, dot = head["prefix"], head["name"], head["dot"].strip()
    if prefix in _PREFIXES and dot:
        return True
    if name in USAGE and (prefix in _PREFIXES or difflib.get_close_matches(prefix, _PREFIXES, cutoff=0.6)):
        wrong = f"`@{prefix}{dot or ' '}{name}` is no pragma"
        raise PragmaError(wrong, where=span, help=f"write: # @overlap.{name}{head['rest']}")
    return False


def _parse(name: str | None, rest: str, span: SourceSpan, trailing: bool) -> Pragma:
    if name is None:
        raise PragmaError("a pragma without a name", where=span, help=f"one of: {', '.join(USAGE)}")
    if name not in USAGE:
        hint = nearest(name, USAGE)
        raise PragmaError(f"unknown pragma `{name}`{hint}", where=span, help=f"the pragmas are {', '.join(USAGE)}")
    if rest and not rest[0].isspace():
        raise _usage(name, f"`{name}` is followed by `{rest.strip()}`", span)
    parser = _PARSERS[name]
    return parser(Pragma(name, span, trailing), rest.strip())


def _usage(name: str, message: str, span: SourceSpan) -> PragmaError:
    return PragmaError(message, where=span, help=f"write: # @overlap.{USAGE[name]}")


def _words(pragma: Pragma, text: str) -> list[tuple[str, str | None]]:
    """``M block=B`` as [("M", None), ("block", "B")]."""
    text = re.sub(r"\s*=\s*", "=", text.replace(",", " "))
    words: list[tuple[str, str | None]] = []
    for word in text.split():
        key, eq, value = word.partition("=")
        for part in (key, value) if eq else (key,):
            if not (_NAME.match(part) or (key == "block" and part is value and _SIZE.match(part))):
                raise _usage(pragma.name, f"`{word}` is not a name or a NAME=NAME pair", pragma.span)
        words.append((key, value if eq else None))
    return words


def _with(pragma: Pragma, **changes: Any) -> Pragma:
    return replace(pragma, **changes)


def _axis_count(pragma: Pragma, text: str) -> Pragma:
    words = _words(pragma, text)
    if not words:
        raise _usage(pragma.name, "axis_count names no axis", pragma.span)
    (axis, first), *others = words
    if others and axis in ("block", "extent"):
        raise _usage(pragma.name, "axis_count starts with the axis name", pragma.span)
    keys: dict[str, str] = {}
    for key, value in others:
        if key not in ("block", "extent") or value is None:
            what = f"unknown key `{key}`{nearest(key, ('block', 'extent'))}" if value else f"`{key}` needs a value"
            raise _usage(pragma.name, f"axis_count: {what}", pragma.span)
        if key in keys:
            raise _usage(pragma.name, f"axis_count: `{key}` is given twice", pragma.span)
        keys[key] = value
    is_range = first == "range"
    extent = keys.get("extent", None if is_range else first)
    block = keys.get("block")
    if is_range and block:
        raise _usage(pragma.name, f"axis {axis} is a range: it takes no block", pragma.span)
    if not is_range and not block:
        close = f"{nearest(first, ('range',))}" if first else ""
        raise _usage(pragma.name, f"axis_count {axis} needs block=PARAMETER or {axis}=range{close}", pragma.span)
    return _with(pragma, axis=axis, extent=extent, block=block, range=is_range)


def _tile_id(pragma: Pragma, text: str) -> Pragma:
    left = re.fullmatch(r"persistent\s+left\s*=\s*([A-Za-z_]\w*)", text)
    if left is None and text not in ("", "persistent"):
        raise _usage(
            pragma.name,
            "tile_id takes `persistent`, `persistent left=PARAMETER` or nothing, not "
            f"`{text}`{nearest(text, ('persistent',))}",
            pragma.span,
        )
    return _with(pragma, persistent=bool(text), left=left.group(1) if left else "")


def _num_tiles(pragma: Pragma, text: str) -> Pragma:
    if text:
        raise _usage(pragma.name, f"num_tiles takes nothing, not `{text}`", pragma.span)
    return pragma


def _dispatch(pragma: Pragma, text: str) -> Pragma:
    if text not in ("begin", "end"):
        raise _usage(
            pragma.name, f"dispatch takes `begin` or `end`, not `{text}`{nearest(text, ('begin', 'end'))}", pragma.span
        )
    return _with(pragma, edge=text)


def _pid_map(pragma: Pragma, text: str) -> Pragma:
    pairs = _words(pragma, text)
    if not pairs or any(value is None for _, value in pairs):
        raise _usage(pragma.name, "pid_map takes AXIS=VARIABLE pairs", pragma.span)
    for position in (0, 1):
        names = [pair[position] for pair in pairs]
        for name in names:
            if names.count(name) > 1:
                raise _usage(pragma.name, f"pid_map names `{name}` twice", pragma.span)
    return _with(pragma, pairs=tuple(pairs))


def _tensors(pragma: Pragma, text: str) -> tuple[tuple[TensorRef, ...], str]:
    """The leading ``name[dims]`` items and what follows them."""
    refs: list[TensorRef] = []
    while match := _TENSOR.match(text):
        dims = tuple(d.strip() for d in match["dims"].split(",")) if match["dims"].strip() else ()
        bad = next((d for d in dims if not _NAME.match(d)), None)
        if bad is not None:
            raise _usage(pragma.name, f"`{bad}` is no axis name", pragma.span)
        named = [d for d in dims if d != "_"]
        if len(set(named)) != len(named):
            raise _usage(pragma.name, f"{match['name']}[{match['dims']}] names an axis twice", pragma.span)
        if any(ref.name == match["name"] for ref in refs):
            raise _usage(pragma.name, f"`{match['name']}` is given twice", pragma.span)
        refs.append(TensorRef(match["name"], dims))
        text = text[match.end() :]
    return tuple(refs), text.strip()


def _tensor(pragma: Pragma, text: str) -> Pragma:
    refs, rest = _tensors(pragma, text)
    if len(refs) != 1:
        raise _usage(pragma.name, "tensor takes one NAME[AXIS,...]", pragma.span)
    modes = ("read", "write", "reduce")
    if rest and rest not in modes:
        raise _usage(pragma.name, f"unknown mode `{rest}`{nearest(rest, modes)}", pragma.span)
    return _with(pragma, inputs=refs, mode=rest or None)


def _host_entry(pragma: Pragma, text: str) -> Pragma:
    left, arrow, right = text.partition("->")
    inputs, rest = _tensors(pragma, left)
    outputs, tail = _tensors(pragma, right)
    if rest or tail:
        raise _usage(pragma.name, f"host_entry: cannot read `{rest or tail}`", pragma.span)
    if not arrow or not outputs:
        raise _usage(pragma.name, "host_entry needs `->` and the result", pragma.span)
    if not inputs:
        raise _usage(pragma.name, "host_entry names no input", pragma.span)
    return _with(pragma, inputs=inputs, outputs=outputs)


_PARSERS = {
    "axis_count": _axis_count,
    "tile_id": _tile_id,
    "num_tiles": _num_tiles,
    "dispatch": _dispatch,
    "pid_map": _pid_map,
    "tensor": _tensor,
    "host_entry": _host_entry,
}
