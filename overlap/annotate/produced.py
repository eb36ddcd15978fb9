"""What a kernel must do with a result whose chunks are sent while it runs.

A chunk may leave once every tile that makes a part of it has stored that part and counted itself in. So each tile of
the grid stores its own block of the result, wholly, whatever was loaded, and reaches the point behind the last store.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from overlap.errors import HostEntryError, UnsupportedError

from .model import Access, DispatchRegion, ProgramModel
from .names import FUNCTIONS, blocks, functions
from .source import SourceUnit


def check_produced(program: ProgramModel, param: str, dims: Sequence[int], on: str) -> None:
    """Refuses stores that could leave a chunk half written, or that nobody can match to chunks.

    Args:
        param: the kernel parameter.
        dims: dimensions in which the chunks lie; a tile coordinate must span one of them.
        on: the result as the user named it, for messages.

    Raises:
        UnsupportedError: with the line of the access.
        HostEntryError: the host function may pass an input as the result.
    """
    host, kernel = program.host, program.kernel
    assert host is not None
    results = {tensor.name for tensor in host.outputs}
    names = {tensor for tensor, passed in host.tensor_params if passed == param and tensor in results}
    for result, given in host.aliased:
        if result in names:
            raise HostEntryError(
                f"{on}: the result `{result}` may be the input `{given}`, which other tiles still read",
                where=host.span,
                help=f"allocate {result} in `{host.name}`",
            )
    accesses = [a for a in kernel.accesses if a.tensor == param]
    stores = [a for a in accesses if a.mode != "read"]
    for access in accesses:
        if access.helper:
            raise UnsupportedError(
                f"{on}: `{param}` is handed to `{access.operation}`, so it cannot be seen where it is stored",
                where=access.span,
                help="store the tile in the kernel itself",
            )
        if access.mode == "read":
            raise UnsupportedError(
                f"{on}: the kernel reads `{param}` as well as making it",
                where=access.span,
                help="read another tensor: chunks of the result leave, and may be summed, while the kernel runs",
            )
    if not stores:
        raise UnsupportedError(
            f"{on}: no store to `{param}` was found in `{kernel.name}`",
            where=kernel.span,
            help="communicate a result that the kernel stores itself",
        )
    for access in stores:
        _check_store(program, access, dims, on)
    _check_whole(program, stores, on)
    regions = {access.region for access in stores}
    if len(regions) > 1:
        raise UnsupportedError(
            f"{on}: `{param}` is stored with the coordinates of several dispatch regions",
            where=stores[-1].span,
            help="store it with the coordinates of one region",
        )


def _check_store(program: ProgramModel, access: Access, dims: Sequence[int], on: str) -> None:
    param = access.tensor
    if access.guard:
        raise UnsupportedError(
            f"{on}: this store to `{param}` depends on data, by {access.guard}: it may leave a chunk half written",
            where=access.span,
            help="store every element of the tile, with tl.where(condition, value, 0) as the value",
        )
    tile_axes = {a.name for a in program.kernel.axes if a.block is not None}
    spanning = [axis for axis in access.axes if axis in tile_axes]
    if access.mode == "reduce":
        _check_split(access, tile_axes - set(spanning), on)
    if any(access.wraps):
        d = access.wraps.index(True)
        raise UnsupportedError(
            f"{on}: the index of this store wraps around dimension {d} of `{param}`, so two tiles make one element",
            where=access.span,
            help="mask what lies past the edge instead of taking the index modulo the extent",
        )
    if not access.understood:
        raise not_understood(access, program.kernel.tensor(param).dims, on)
    if access.region is None or not any(d < len(access.axes) and access.axes[d] in tile_axes for d in dims):
        shown = ", ".join(str(offset) for offset in access.offsets) or "an unknown index"
        raise UnsupportedError(
            f"{on}: no tile coordinate spans the index of this store to `{param}` ({shown}), so no chunk is ever whole early",
            where=access.span,
            help="store at coordinate * BLOCK + tl.arange(0, BLOCK), with the coordinates of the pid_map",
        )


def _check_whole(program: ProgramModel, stores: Sequence[Access], on: str) -> None:
    """Refuses elements that no tile stores, such as those above a diagonal: what the caller's tensor holds there does not travel.

    Additions leave them as they are. Of several stores each may pick what the others leave out.
    """
    tile_axes = {a.name for a in program.kernel.axes if a.block is not None}
    first = stores[0]
    if any(access.mode == "reduce" for access in stores):
        return
    spanned = {axis for access in stores for axis in access.axes if axis in tile_axes}
    for pick in first.picks:
        if {leaf.axis for leaf in pick.deps} & spanned and all(pick in access.picks for access in stores):
            raise UnsupportedError(
                f"{on}: this store to `{first.tensor}` leaves elements out, by `{pick.name}`; chunks that leave are whole",
                where=first.span,
                help="store every element of the tile, with tl.where(condition, value, 0) as the value",
            )


def not_understood(access: Access, dims: Sequence[str], on: str) -> UnsupportedError:
    """An address that cannot be taken apart into an index a dimension."""
    what = "load" if access.mode == "read" else "store"
    return UnsupportedError(
        f"{on}: the address of this {what} is not seen to be an index * stride for each dimension of "
        f"{access.tensor}[{','.join(dims)}]",
        where=access.span,
        help="add index * stride for each dimension to the pointer, with a stride that is a parameter of the kernel, or a size, "
        "for all but the last",
    )


def _check_split(access: Access, free: set[str], on: str) -> None:
    """Atomics: only the sum of a split-K kernel, whose tiles the schedule can count."""
    param = access.tensor
    if access.operation != "atomic_add":
        raise UnsupportedError(
            f"{on}: `{access.operation}` into `{param}`; chunks that leave are whole, and only sums can be counted whole",
            where=access.span,
            help="store the tile, or add split-K partials with tl.atomic_add",
        )
    if not free:
        raise UnsupportedError(
            f"{on}: atomic additions into `{param}`, but no tile axis says how many programs add to an element",
            where=access.span,
            help="declare the split as a tile axis: # @overlap.axis_count K block=BLOCK_SPLIT, and K=VARIABLE in the pid_map",
        )


def last_store(program: ProgramModel, params: Iterable[str]) -> Access:
    """The store, in source order the last, after which a tile has made its part of all these tensors.

    Raises:
        UnsupportedError: they are stored with the coordinates of different dispatch regions.
    """
    wanted = set(params)
    stores = sorted(
        (a for a in program.kernel.accesses if a.tensor in wanted and a.mode != "read"), key=lambda a: a.span.line
    )
    for access in stores:
        if access.region != stores[-1].region:
            raise UnsupportedError(
                f"`{access.tensor}` and `{stores[-1].tensor}` are stored with the coordinates of different dispatch regions",
                where=stores[-1].span,
                help="store all communicated results with the coordinates of one region",
            )
    return stores[-1]


def refuse_jumps(unit: SourceUnit, program: ProgramModel, params: Iterable[str]) -> None:
    """Refuses what keeps a tile from reaching the place behind the last store, where it is counted.

    Raises:
        UnsupportedError: a ``continue`` between dispatch and store, a ``break`` out of the tile loop, or a store that does
            not stand behind its dispatch region in the same block.
    """
    store = last_store(program, params)
    region = program.kernel.regions[store.region or 0]
    kernel = next(n for path, n in functions(unit.tree) if ".".join((*path, n.name)) == program.kernel.qualname)
    owner, block = _block_of(kernel, region)
    behind = [s for s in block if s.lineno > region.end_line]
    at = next((i for i, s in enumerate(behind) if s.lineno <= store.span.line <= (s.end_lineno or s.lineno)), None)
    if at is None:
        raise UnsupportedError(
            f"this store to `{store.tensor}` does not stand behind its dispatch region, in the same block",
            where=store.span,
            help="compute the coordinates and store the tile in one body of the tile loop",
        )
    for statement in behind[: at + 1]:
        for jump in _jumps(statement):
            word = "continue" if isinstance(jump, ast.Continue) else "break"
            raise UnsupportedError(
                f"`{word}` between the dispatch region and the last store to `{store.tensor}`: "
                "a tile that leaves there is never counted",
                where=unit.span_of(jump),
                help="mask the work with the condition instead of leaving",
            )
    for statement in owner.body if isinstance(owner, (ast.For, ast.While)) else ():
        for jump in _jumps(statement):
            if isinstance(jump, ast.Break):
                raise UnsupportedError(
                    f"`break` out of the tile loop: the tiles of `{store.tensor}` that it leaves out are never counted",
                    where=unit.span_of(jump),
                    help="bound the loop by the number of tiles",
                )


def _block_of(kernel: ast.FunctionDef, region: DispatchRegion) -> tuple[ast.AST, list[ast.stmt]]:
    """The innermost loop (or the kernel) around a region, and the statement list the region stands in."""
    parents: dict[int, ast.AST] = {}
    for owner, block in blocks(kernel):
        for statement in block:
            parents[id(statement)] = owner
        if any(region.begin_line <= s.lineno <= region.end_line for s in block):
            loop = owner
            while not isinstance(loop, (ast.For, ast.While)) and loop is not kernel:
                loop = parents[id(loop)]
            return loop, block
    raise AssertionError("a dispatch region has statements")


def _jumps(statement: ast.stmt) -> Iterator[ast.Continue | ast.Break]:
    """``continue`` and ``break`` of a loop around the statement."""
    if isinstance(statement, (ast.Continue, ast.Break)):
        yield statement
    elif not isinstance(statement, (ast.For, ast.While, ast.ClassDef, *FUNCTIONS)):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _jumps(child)
