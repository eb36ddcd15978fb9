"""Adds the plans' texts and the `Operator` literal: all that the runtime must know of this module."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.annotate import column_starts, compared_strides, read_alike
from overlap.annotate.model import Access
from overlap.annotate.on import OnSpec

from ..context import Context
from ..locate import find_function, statements
from ..placement import insert_behind
from . import in_place
from .dispatch import ASYNC_KINDS
from .reserve import counted_by


def run(module: cst.Module, context: Context) -> cst.Module:
    names, host = context.names, context.program.host
    assert host is not None
    above = [context.program.kernel.name, names.local("tile_map"), names.local(f"body_{host.name}")]
    texts = {name: plan.text for name, plan in zip(context.plan_names, context.plans, strict=True)}
    added: list[cst.BaseStatement] = []
    for number, (name, plan) in enumerate(texts.items()):
        (constant,) = statements(f'{name} = """\\\n{_escape(plan)}"""\n')
        blank = [cst.EmptyLine()] if number else [cst.EmptyLine(), cst.EmptyLine()]
        added.append(constant.with_changes(leading_lines=blank))
    added += [
        s.with_changes(leading_lines=[cst.EmptyLine()])
        for s in statements(
            "\n".join(operator_lines(context, counted_by(module, context), each=_each(module, context))) + "\n"
        )
    ]
    return insert_behind(module, above, added)


def _each(module: cst.Module, context: Context) -> bool:
    """Whether every program of the kernel makes a tile: none walks over tiles or leaves, which a surplus one would."""
    kernel = find_function(module, context.program.kernel.name)
    ours = int(context.moving and not context.interleaving)  # programs that only move leave by one of their own
    return not context.persistent and len(m.findall(kernel, m.Return())) == ours


def operator_lines(context: Context, programs: tuple[str, ...] | None = None, *, each: bool = False) -> list[str]:
    """The `Operator(...)` assignment, one field a line.

    ``programs``: as `reserve.counted_by` finds them; ``each``: every program makes a tile.
    """
    program, names, host = context.program, context.names, context.program.host
    assert host is not None
    rt = names.runtime
    lines = [f"{names.operator} = {rt}.Operator("]

    def field(name: str, value: str) -> None:
        lines.extend(fitted(f"    {name}={value},"))

    field("name", repr_(host.name))
    field("kernel", program.kernel.name)
    direct = context.layouts is not None
    field("body", "None" if direct else names.local(f"body_{host.name}"))
    field("tile_map", names.local("tile_map"))
    field(
        "source",
        f"{rt}.Source({repr_(context.source_path)}, host_line={context.host_line}, kernel_line={program.kernel.span.line})",
    )
    plans, ons = context.plan_names, tuple(str(on) for on in context.ons)
    field("plan", plans[0] if len(plans) == 1 else f"({', '.join(plans)})")
    field("on", repr_(ons[0]) if len(ons) == 1 else _tuple(ons))
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
    reads = [
        f"{rt}.Read({repr_(on.tensor)}, axes={_tuple(axes)}, wraps={_tuple(wraps)}),"
        for on in context.awaited
        for axes, wraps in _reads(context, on)
    ]
    writes = [
        f"{rt}.Write({repr_(on.tensor)}, axes={_tuple(axes)}{', adds=True' if context.adds(on) else ''}),"
        for on in context.produced
        for axes in context.writes(on)
    ]
    lines += ["    reads=(", *(f"        {read}" for read in reads), "    ),"] if reads else ["    reads=(),"]
    if writes:
        lines += ["    writes=(", *(f"        {write}" for write in writes), "    ),"]
    if context.layouts is not None:
        field("extents", _mapping({a.name: a.extent for a in program.kernel.axes}))
        first, *others = context.layouts.items()
        field("layout", _tuple(first[1]))
        if others:
            field("layouts", "{" + ", ".join(f"{repr_(k)}: {_tuple(v)}" for k, v in others) + "}")
    compared = {on.tensor: _compared(context, on) for on in context.ons}
    if any(compared.values()):
        lines.append("    strides={")
        for tensor, strides in compared.items():
            if strides:
                lines.append(f"        {repr_(tensor)}: ({', '.join(map(_tuple, strides))},),")
        lines.append("    },")
    starts = {on.tensor: column_starts(program, on.param) for on in context.ons}
    if any(starts.values()):
        field("starts", repr({k: v for k, v in starts.items() if v}).replace("'", '"'))
    alike = {on.tensor: tuple(read_alike(program, on.tensor, on.param)) for on in context.awaited if not direct}
    if any(alike.values()):
        field("alike", repr({k: v for k, v in alike.items() if v}).replace("'", '"'))
    descriptors = {a.tensor: a.span.line for a in program.kernel.accesses if a.kind in ASYNC_KINDS}
    if descriptors:
        field("descriptors", "{" + ", ".join(f"{repr_(k)}: {v}" for k, v in descriptors.items()) + "}")
    if context.world is not None:
        field("world", str(context.world))
    if context.ranged_loops:
        loop = context.ranged_loops[0]
        extent = program.kernel.axis(loop.axis).extent
        lines.append("    ranges=(")
        lines.append(f"        {rt}.RangeAxis({repr_(loop.axis)}, extent={repr_(extent)}, block={repr_(loop.block)}),")
        lines.append("    ),")
    site = in_place.site_of(context) if context.in_place else None
    if site is not None and site.loop is not None:
        extent = program.kernel.axis(site.loop.axis).extent
        inner = f"{repr_(site.loop.axis)}, extent={repr_(extent)}, block={repr_(site.loop.block)}"
        field("taken_by", f"{rt}.RangeAxis({inner})")
    if context.realization.trace and len(context.ranged_loops) > 1:
        field("logged", str(len(context.ranged_loops)))
    if each:
        field("tile_a_program", "True")
    if context.moving and context.persistent:
        field("persistent", "True")
    if programs is not None:
        field("programs", _tuple(programs))
    if names.prefix != "ol" or len(context.ours) > 2:
        field("ours", _tuple(context.ours))
    lines.append(")")
    return lines


def _compared(context: Context, on: OnSpec) -> list[tuple[str | None, ...]]:
    """Strides that a launch compares, but for those that say how the memory of a kernel launched directly is laid out."""
    layout = (context.layouts or {}).get(on.tensor, ())
    left = [
        tuple(None if d < len(layout) and layout[d] is not None else text for d, text in enumerate(texts))
        for texts in compared_strides(context.program, on.param)
    ]
    if context.layouts is None and not on.produced:
        left += [row for rows in read_alike(context.program, on.tensor, on.param).values() for row in rows]
    return [texts for texts in left if any(texts)]


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


def _reads(context: Context, on: OnSpec) -> list[tuple[tuple[str | None, ...], tuple[bool, ...]]]:
    """Distinct ways a communicated input is read; a range axis, an in-tile loop, reads the whole dimension."""
    tile_axes = {a.name for a in context.axes}
    found: list[tuple[tuple[str | None, ...], tuple[bool, ...]]] = []
    for access in context.guarded(on):
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
