"""A gather along a range axis: every load of the tensor stands in a loop whose blocks may come in any order."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.errors import SourceSpan, UnsupportedError

from .model import Access, KernelModel, RangeLoop
from .produced import not_understood


def ranged_loops(kernel: KernelModel, param: str, dim: int) -> tuple[RangeLoop, ...]:
    """The loops, in source order, that a tensor is read in block by block along ``dim``."""
    numbers = {
        taken.loop
        for access in kernel.accesses
        if access.tensor == param and dim < len(access.loops) and (taken := access.loops[dim]) is not None
    }
    return tuple(loop for loop in kernel.loops if loop.number in numbers)


def reads_in_loops(kernel: KernelModel, param: str, dim: int) -> bool:
    """Whether a load's index along ``dim`` changes in a loop, or may: one in a helper that is not followed."""
    accesses = [a for a in kernel.accesses if a.tensor == param]
    indices = [list(a.offsets[dim].leaves()) for a in accesses if dim < len(a.offsets)]
    # What was loaded in a loop, such as the number of a page, may be any index.
    looped = any(leaf.kind == "loop" for leaves in indices for leaf in leaves if all(x.kind != "data" for x in leaves))
    return looped or not accesses or any(a.helper or a.mode != "read" for a in accesses)


def check_ranged(
    kernel: KernelModel, param: str, dim: int, axis: str, on: str, where: SourceSpan, *, by: str = ""
) -> None:
    """Refuses loops whose blocks of ``axis`` cannot be taken as they arrive.

    Args:
        param, dim: the gathered tensor and its dimension along ``axis``.
        on: the gather as the user named it, for messages.
        where: the place of errors that have no line of their own.
        by: a tile axis of the tensor, along whose parts tiles can wait ahead of the loop.

    Raises:
        UnsupportedError: with the line of the load or of the statement in the loop.
    """
    ahead = (
        f"; or gather {on.split('[')[0]}[{axis}/{by}]: tiles wait ahead of the loop, which may then do anything"
        if by
        else ""
    )
    accesses = [a for a in kernel.accesses if a.tensor == param]
    for access in accesses:
        if access.mode != "read":
            raise UnsupportedError(
                f"{on}: `{param}` is gathered and also written",
                where=access.span,
                help="write the result to another tensor",
            )
    if not accesses:
        raise UnsupportedError(
            f"{on}: the kernel never reads `{param}`", where=where, help="gather a tensor that is read"
        )
    for access in accesses:
        if dim >= len(access.loops) or access.loops[dim] is None:
            around = [x for x in kernel.loops if x.axis == axis and x.span.line < access.span.line <= x.end_line]
            if not access.understood and (why := next((x.refusal for x in around if x.refusal), None)) is not None:
                raise UnsupportedError(f"{on}: {why.message}", where=why.span, help=why.help + ahead)
            raise _not_in_a_loop(access, dim, axis, on, kernel, ahead)
    loops = ranged_loops(kernel, param, dim)
    for loop in loops:
        if loop.axis != axis:
            raise UnsupportedError(
                f"{on}: this loop runs over {loop.axis}, and dimension {dim} of `{param}` is {axis}",
                where=loop.span,
                help=f"declare the dimension the loop runs over: # @overlap.tensor {param}[...] read",
            )
        if loop.refusal is not None:
            raise UnsupportedError(
                f"{on}: {loop.refusal.message}", where=loop.refusal.span, help=loop.refusal.help + ahead
            )
        _check_stores(kernel, loop, on)
    check_one_block(loops, on)


def _check_stores(kernel: KernelModel, loop: RangeLoop, on: str) -> None:
    """A place that several iterations write would keep what the last one wrote, whichever that is."""
    for access in kernel.accesses:
        inside = loop.span.line < access.span.line <= loop.end_line
        own = any(taken is not None and taken.loop == loop.number for taken in access.loops)
        replaces = access.mode == "write" or access.operation in ("atomic_xchg", "atomic_cas")
        if inside and replaces and not own:
            raise UnsupportedError(
                f"{on}: this store to `{access.tensor}` stands in the loop over {loop.axis}, and which block writes last "
                "depends on the order in which they arrive",
                where=access.span,
                help=f"store behind the loop, or at block k of {loop.axis}",
            )


def check_one_block(loops: Sequence[RangeLoop], on: str) -> None:
    """Refuses loops over one axis by blocks of different parameters, and over different axes: one table serves all.

    Raises:
        UnsupportedError: with the second loop's line.
    """
    for loop in loops[1:]:
        first = loops[0]
        if (loop.axis, loop.block) != (first.axis, first.block):
            raise UnsupportedError(
                f"{on}: this loop takes {loop.axis} in blocks of {loop.block}, the one on line {first.span.line} takes "
                f"{first.axis} in blocks of {first.block}",
                where=loop.span,
                help="use one block size along one axis in all loops that wait for chunks",
            )


def _not_in_a_loop(access: Access, dim: int, axis: str, on: str, kernel: KernelModel, ahead: str) -> UnsupportedError:
    over = [loop for loop in kernel.loops if loop.axis == axis]
    block = over[0].block if over else "BLOCK"
    what = "" if block.isdecimal() else f"; {block} is a constexpr parameter"
    offset = f" ({access.offsets[dim]})" if dim < len(access.offsets) else ""
    if access.helper:
        return UnsupportedError(
            f"{on}: `{access.tensor}` is handed to `{access.operation}`, so it cannot be seen which block it reads",
            where=access.span,
            help=f"load it in the kernel itself{ahead}",
        )
    if not access.understood:
        return not_understood(access, kernel.tensor(access.tensor).dims, on)
    return UnsupportedError(
        f"{on}: the index of this load of {access.tensor} along {axis}{offset} is not block k of a loop over all of {axis}",
        where=access.span,
        help=f"in `for k in range(0, tl.cdiv({axis}, {block}))` load at k * {block} + tl.arange(0, {block}), or move the "
        f"pointer on by {block} * its stride at the end of each iteration{what}{ahead}",
    )
