"""Adds the plan's text and the `Operator` literal: all that the runtime must know of this module."""

from __future__ import annotations

import libcst as cst

from overlap.annotate.model import Access

from ..context import Context
from ..locate import statements
from ..placement import insert_behind
from .dispatch import ASYNC_KINDS


def run(module: cst.Module, context: Context) -> cst.Module:
    names, host = context.names, context.program.host
    assert host is not None
    above = [context.program.kernel.name, names.local("tile_map"), names.local(f"body_{host.name}")]
    added = statements(f'{names.plan} = """\\\n{_escape(context.plan_text)}"""\n')
    added[0] = added[0].with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine()])
    added += [
        s.with_changes(leading_lines=[cst.EmptyLine()]) for s in statements("\n".join(operator_lines(context)) + "\n")
    ]
    return insert_behind(module, above, added)


def operator_lines(context: Context) -> list[str]:
    """The `Operator(...)` assignment, one field a line."""
    program, names, host = context.program, context.names, context.program.host
    assert host is not None
    rt = names.runtime
    lines = [f"{names.operator} = {rt}.Operator("]

    def field(name: str, value: str) -> None:
        lines.extend(fitted(f"    {name}={value},"))

    field("name", repr_(host.name))
    field("kernel", program.kernel.name)
    direct = context.layout is not None
    field("body", "None" if direct else names.local(f"body_{host.name}"))
    field("tile_map", names.local("tile_map"))
    field(
        "source",
        f"{rt}.Source({repr_(context.source_path)}, host_line={context.host_line}, kernel_line={program.kernel.span.line})",
    )
    field("plan", names.plan)
    field("on", repr_(f"{context.on.tensor}[{context.on.axis}]"))
    field("realization", f"{rt}.{context.realization!r}".replace("'", '"'))
    field("inputs", _dims(host.inputs))
    field("outputs", _dims(host.outputs))
    field("params", _mapping(dict(host.tensor_params)))
    lines.append("    axes=(")
    for axis in context.axes:
        lines.append(
            f"        {rt}.TileAxis({repr_(axis.name)}, extent={repr_(axis.extent)}, block={repr_(axis.block or '')}),"
        )
    lines.append("    ),")
    lines.append("    reads=(")
    for axes, wraps in _reads(context):
        lines.append(f"        {rt}.Read({repr_(context.on.tensor)}, axes={_tuple(axes)}, wraps={_tuple(wraps)}),")
    lines.append("    ),")
    if context.layout is not None:
        field("extents", _mapping({a.name: a.extent for a in program.kernel.axes}))
        field("layout", _tuple(context.layout))
    descriptors = {a.tensor: a.span.line for a in program.kernel.accesses if a.kind in ASYNC_KINDS}
    if descriptors:
        field("descriptors", "{" + ", ".join(f"{repr_(k)}: {v}" for k, v in descriptors.items()) + "}")
    if context.world is not None:
        field("world", str(context.world))
    if names.prefix != "ol":
        field("ours", _tuple((names.local("table"), names.local("state"))))
    lines.append(")")
    return lines


def fitted(line: str, width: int = 120) -> list[str]:
    """A line, or, where it is too long, its outermost bracket opened with one element a line."""
    if len(line) <= width:
        return [line]
    opening = min((i for i in (line.find(c) for c in "({[") if i >= 0), default=-1)
    closing = max(line.rfind(c) for c in ")}]")
    if opening < 0 or closing < opening:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    lines, depth, start = [line[: opening + 1]], 0, opening + 1
    for i in range(opening + 1, closing):
        depth += (line[i] in "({[") - (line[i] in ")}]")
        if line[i] == "," and depth == 0:
            lines += fitted(f"{indent}    {line[start : i + 1].strip()}", width)
            start = i + 1
    last = line[start:closing].strip()
    if last:
        lines += fitted(f"{indent}    {last},", width)
    return [*lines, indent + line[closing:]]


def _reads(context: Context) -> list[tuple[tuple[str | None, ...], tuple[bool, ...]]]:
    """Distinct ways the communicated tensor is read; a range axis, an in-tile loop, reads the whole dimension."""
    tile_axes = {a.name for a in context.axes}
    found: list[tuple[tuple[str | None, ...], tuple[bool, ...]]] = []
    for access in context.guarded:
        read = (tuple(a if a in tile_axes else None for a in access.axes), _wraps(access))
        if read not in found:
            found.append(read)
    return found


def _wraps(access: Access) -> tuple[bool, ...]:
    return access.wraps or (False,) * len(access.axes)


def repr_(value: object) -> str:
    """A literal with double quotes, as formatters write it."""
    if not isinstance(value, str):
        return repr(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tuple(values: tuple[object, ...]) -> str:
    inner = ", ".join(repr_(v) for v in values)
    return f"({inner},)" if len(values) == 1 else f"({inner})"


def _dims(tensors: tuple) -> str:  # type: ignore[type-arg]
    return "{" + ", ".join(f"{repr_(t.name)}: {_tuple(t.dims)}" for t in tensors) + "}"


def _mapping(values: dict[str, str]) -> str:
    return "{" + ", ".join(f"{repr_(k)}: {repr_(v)}" for k, v in values.items()) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
