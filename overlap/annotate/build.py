"""`annotate`: from a `SourceUnit` to a `ProgramModel`, stage by stage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from overlap.errors import PragmaError

from .access import AccessContext, Declared, pointer_params, resolve
from .checks import check_launch_options, check_regions_agree, check_taint, check_tile_ids
from .discover import KernelSource, choose, discover
from .evaluate import Walk
from .expressions import Evaluator
from .grid import read_axes, read_params, read_tile_ids
from .grid_nd import grid_axes
from .host import read_host, stride_params
from .index import Atom, IndexExpr
from .model import Access, Axis, DispatchRegion, HostEntry, KernelModel, ProgramModel, RangeLoop, TensorDecl
from .names import functions, writes
from .pragmas import nearest
from .range_loop import loop_blocks, read_range_loops
from .regions import check_placement, read_regions
from .slice import SliceContext, check_leaks, slice_region
from .source import SourceUnit
from .strides import stride_expression, stride_text, strides_of
from .values import RawAccess


def annotate(unit: SourceUnit, kernel: str | None = None) -> ProgramModel:
    """Understands the annotated kernel ``kernel`` (name or dotted path; by default the only one) and its host function.

    Raises:
        PragmaError: a pragma that is misspelt, misplaced or contradicts the code.
        HostEntryError: the host function does not launch the kernel exactly once, or lacks a named tensor.
        UnsupportedError: split-K, stream-K and other valid code that is not compiled yet, by name.
        UsageError: no such kernel, or several to choose from.
    """
    found = discover(unit)
    source = choose(unit, found, kernel)
    host = read_host(unit, source, found.hosts, found.names, only_kernel=len(found.kernels) == 1)
    host_axes = [(d, host.span) for t in (*host.inputs, *host.outputs) for d in t.dims] if host else []
    axes, counts = read_axes(unit, source, found.names, host_axes)
    tile_ids = read_tile_ids(unit, source)
    regions = read_regions(unit, source, axes, tile_ids)
    check_launch_options(unit, source, found.names, host)

    ordered = tuple(p.name for p in read_params(source.node))
    params = frozenset(ordered)
    helpers = {node.name: node for _, node in functions(unit.tree) if node is not source.node}
    constexprs = frozenset(p.name for p in read_params(source.node) if p.is_constexpr)
    written = frozenset(n for s in source.node.body for n in writes(s))
    evaluator = Evaluator(found.names, written | params, params, helpers, constexprs - written)
    evaluator.env.update({name: IndexExpr.of(Atom("param", name)) for name in params})
    tile_names = frozenset(t.name for t in tile_ids)
    walk = Walk(evaluator, tile_names, counts, {id(r.body[-1]): (r.index, r.pid_map.pairs) for r in regions})
    walk.block(source.node.body)

    check_tile_ids(unit, axes, tile_ids, regions, walk)
    count_names = frozenset(name for name, _ in counts)
    check_placement(unit, regions, params | count_names | walk.invariant_names())
    context = SliceContext(unit, source.node, params, written | params, axes, tile_names, count_names, evaluator)
    slices = [slice_region(context, region) for region in regions]
    check_leaks(context, regions, slices)
    check_regions_agree(unit, regions)

    declared = _declared(unit, source, axes, host)
    access_context = AccessContext(
        params=ordered,
        constexprs=constexprs,
        axes=axes,
        strides=stride_params(host),
        unit=unit,
        pointers=pointer_params(source.node, [n for n in ordered if n not in constexprs], declared),
        known=frozenset(declared),
        declared=declared,
    )
    loops = read_range_loops(unit, source, axes, walk, tile_names)
    accesses = _accesses(unit, access_context, walk.accesses, axes, loops, written)
    nouns = tuple(
        DispatchRegion(
            index=region.index,
            pid_map=region.pid_map.pairs,
            tile_id=region.tile_id,
            slice=sliced,
            grid_axes=() if tile_ids else grid_axes(region.pid_map, walk.region_values[region.index]),
            begin_line=region.begin.line,
            end_line=region.end.line,
            span=region.begin.span,
        )
        for region, sliced in zip(regions, slices, strict=True)
    )
    model = KernelModel(
        name=source.node.name,
        qualname=source.qualname,
        params=read_params(source.node),
        decorators=tuple(unit.text_of(d) for d in source.node.decorator_list),
        style=_style([t.form for t in tile_ids]),
        axes=axes,
        tile_ids=tile_ids,
        regions=nouns,
        tensors=_tensors(unit, source, declared, accesses),
        accesses=accesses,
        span=unit.span_of(source.node),
        loops=loops,
    )
    return ProgramModel(unit.path, unit.sha256, model, host)


def _style(forms: Sequence[str]) -> Literal["grid_1d", "grid_nd", "persistent"]:
    if not forms:
        return "grid_nd"
    return "grid_1d" if all(f == "assign" for f in forms) else "persistent"


def _declared(
    unit: SourceUnit, kernel: KernelSource, axes: Sequence[Axis], host: HostEntry | None
) -> dict[str, Declared]:
    """Dimensions of tensor parameters: the ``tensor`` pragmas, then ``host_entry``; both must agree."""
    params = [p.name for p in read_params(kernel.node)]
    host_dims = {d for t in (*host.inputs, *host.outputs) for d in t.dims} if host else set()
    namespace = {a.name for a in axes} | host_dims
    declared: dict[str, Declared] = {}
    for pragma in (p for p in kernel.pragmas if p.name == "tensor"):
        ref = pragma.inputs[0]
        if ref.name not in params:
            raise PragmaError(
                f"tensor: `{ref.name}` is no parameter of `{kernel.node.name}`{nearest(ref.name, params)}",
                where=pragma.span,
            )
        if ref.name in declared:
            raise PragmaError(f"tensor: `{ref.name}` is declared twice", where=pragma.span)
        for dim in ref.dims:
            if dim != "_" and dim not in namespace:
                raise PragmaError(
                    f"tensor: nobody declares axis {dim}{nearest(dim, namespace)}",
                    where=pragma.span,
                    help=f"add: # @overlap.axis_count {dim}=range",
                )
        declared[ref.name] = Declared(ref.dims, pragma.span)
    for param, dims in host.param_dims if host else ():
        mine = declared.setdefault(param, Declared(dims, host.span))  # type: ignore[union-attr]
        if mine.dims != dims and "_" not in mine.dims:
            raise PragmaError(
                f"tensor {param}[{','.join(mine.dims)}]: host_entry passes it with dimensions [{','.join(dims)}]",
                where=mine.span,
                help=f"correct this pragma or host_entry (line {host.span.line})",  # type: ignore[union-attr]
            )
    return declared


def _accesses(
    unit: SourceUnit,
    context: AccessContext,
    raws: Sequence[RawAccess],
    axes: Sequence[Axis],
    loops: Sequence[RangeLoop],
    assigned: Collection[str],
) -> tuple[Access, ...]:
    accesses: list[Access] = []
    by_line = {loop.span.line: loop for loop in loops}
    for raw in raws:
        check_taint(unit, raw, raws, axes)
        strides = strides_of(context, raw)
        taken = loop_blocks(context, raw, by_line)
        for access, by, loop in zip(resolve(context, raw), strides, taken, strict=True):
            texts = tuple(stride_text(context.params, stride) for stride in by)
            # What no launch can tell the length of is not known to be a row of the tensor.
            told = [s is None or stride_expression(context.params, axes, s, assigned) is not None for s in by]
            spanning = tuple(axis if known else None for axis, known in zip(access.axes, told, strict=True))
            taking = tuple(block if known else None for block, known in zip(loop, told, strict=True))
            by = tuple(stride if known else None for stride, known in zip(by, told, strict=True))
            accesses.append(replace(access, axes=spanning, strides=texts, by=by, loops=taking))
    return tuple(accesses)


def _tensors(
    unit: SourceUnit, kernel: KernelSource, declared: dict[str, Declared], accesses: Sequence[Access]
) -> tuple[TensorDecl, ...]:
    """Every tensor parameter with dimensions and mode; a tensor both read and written counts as written."""
    modes = {p.inputs[0].name: p for p in kernel.pragmas if p.name == "tensor"}
    order = [p.name for p in read_params(kernel.node)]
    touched = {a.tensor for a in accesses} | set(declared)
    found: list[TensorDecl] = []
    for param in sorted(touched, key=order.index):
        mine = [a for a in accesses if a.tensor == param]
        used = {a.mode for a in mine}
        mode = next((m for m in ("reduce", "write", "read") if m in used), None)
        pragma = modes.get(param)
        if pragma and pragma.mode:
            if used and pragma.mode not in used and not (pragma.mode == "reduce" and "write" in used):
                raise PragmaError(
                    f"tensor: `{param}` is declared {pragma.mode}, but the kernel {_DOES[mode or 'read']} it "
                    f"(line {mine[0].span.line})",
                    where=pragma.span,
                    help=f"write {mode}, or leave the mode out",
                )
            mode = pragma.mode
        if mode is None:
            continue  # passed but never used
        where = declared[param].span if param in declared else mine[0].span
        dims = declared[param].dims if param in declared else _inferred(mine)
        found.append(TensorDecl(param, dims, mode, where))
    return tuple(found)


_DOES = {"read": "reads", "write": "writes", "reduce": "adds into"}


def _inferred(accesses: Sequence[Access]) -> tuple[str, ...]:
    """Dimension names from the accesses alone; ``_`` where no axis spans a dimension."""
    longest = max(accesses, key=lambda a: len(a.axes))
    return tuple(axis or "_" for axis in longest.axes)
