"""Cuts in-tile loops into parts, one a chunk of the gathered axis, taken in the order in which chunks arrive.

Before::

    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, ...)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak

After::

    # The chunks of a along K, in the order in which they arrive.
    ol_a_ptrs_start = a_ptrs
    for ol_part in range(ol.runs(ol_parts)):
        ol_piece = ol.run_at(ol_parts, ol_part)
        ol_part_seen = ol.wait_run(ol_parts, ol_piece, ol_state, ol_epoch)
        # Blocks of the part; the loads below depend on the wait through the first.
        ol_first = ol.after(ol.origin(ol_parts, ol_piece, 0), ol_part_seen)
        a_ptrs = ol.advanced(ol_a_ptrs_start, ol_first, BLOCK_K * stride_ak)
        for k in range(ol_first, ol_first + ol.count(ol_parts, ol_piece, 0)):
            ...                                                     # the user's body, untouched

No wait stands inside the loop that Triton pipelines, so it keeps its stages. Kernels without such a gather pass through.
"""

from __future__ import annotations

import libcst as cst

from overlap.annotate.model import RangeLoop
from overlap.errors import CodegenError

from ..context import Context
from ..locate import comment, find_function, replaced, statements
from .dispatch import ASYNC_KINDS

_BOUNDS = frozenset({"start", "stop", "end", "step", "arg1", "arg2"})


def run(module: cst.Module, context: Context) -> cst.Module:
    loops = context.ranged_loops
    if not loops:
        return module
    kernel = find_function(module, context.program.kernel.name)
    found = _Loops()
    kernel.visit(found)
    there = [(i, loop) for i, loop in enumerate(loops) if loop.number < len(found.loops)]
    rewriter = _Rewrite(context, {id(found.loops[loop.number]): (i, loop) for i, loop in there})
    changed = kernel.visit(rewriter)
    if rewriter.done != len(loops):
        raise CodegenError(
            f"found {rewriter.done} loops over {loops[0].axis} to cut into parts, the kernel has {len(loops)}"
        )
    return replaced(module, kernel, changed)


class _Loops(cst.CSTVisitor):
    """Every ``for`` of a kernel in source order."""

    def __init__(self) -> None:
        self.loops: list[cst.For] = []

    def visit_For(self, node: cst.For) -> None:
        self.loops.append(node)


class _Rewrite(cst.CSTTransformer):
    def __init__(self, context: Context, loops: dict[int, tuple[int, RangeLoop]]) -> None:
        super().__init__()
        self.context = context
        self.loops = loops
        self.done = 0

    def leave_For(
        self, original_node: cst.For, updated_node: cst.For
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        found = self.loops.get(id(original_node))
        if found is None:
            return updated_node
        self.done += 1
        return cst.FlattenSentinel(_parts(self.context, found[1], found[0], updated_node))


def _parts(context: Context, loop: RangeLoop, number: int, node: cst.For) -> list[cst.BaseStatement]:
    """What takes a loop's place: saved starts, then the loop over parts around the loop itself."""
    names = context.names
    ol, table = names.language, names.local("parts")
    part, piece, first = (names.local(n, number) for n in ("part", "piece", "first"))
    seen = names.local("part_seen", number)
    starts = {a.name: names.local(f"{a.name}_start", number) for a in loop.advances}
    tensors = " and ".join(on.tensor for on in context.ranged if loop in context.loops_of(on))
    word = "after_async" if _by_descriptor(context, loop) else "after"

    lines = [f"{start} = {name}" for name, start in starts.items()]
    lines += [
        f"for {part} in range({ol}.runs({table})):",
        f"    {piece} = {ol}.run_at({table}, {part})",
        f"    {seen} = {ol}.wait_run({table}, {piece}, {names.local('state')}, {names.local('epoch')})",
        "    # Blocks of the part; the loads below depend on the wait through the first.",
        f"    {first} = {ol}.{word}({ol}.origin({table}, {piece}, 0), {seen})",
    ]
    for advance in loop.advances:
        start = starts[advance.name]
        if advance.function:
            moves = ", ".join(_times(first, step) for step in advance.steps)
            moves = f"({moves},)" if len(advance.steps) == 1 else f"({moves})"
            method = advance.function.startswith(".")
            call = f"{start}.advance({moves})" if method else f"{advance.function}({start}, {moves})"
        else:
            call = f"{ol}.advanced({start}, {first}, {' '.join(advance.steps[0].split())})"
        lines.append(f"    {advance.name} = {call}")
    added = statements("\n".join([*lines, "    pass"]) + "\n")
    outer = added[-1]
    assert isinstance(outer, cst.For) and isinstance(outer.body, cst.IndentedBlock)

    end = f"{first} + {ol}.count({table}, {piece}, 0)"
    bounds = f"{first} * {loop.block}, ({end}) * {loop.block}, {loop.block}" if loop.elements else f"{first}, {end}"
    inner = node.with_changes(iter=_with_bounds(node.iter, bounds), leading_lines=[])
    block = outer.body.with_changes(body=[*outer.body.body[:-1], inner])
    added[-1] = outer.with_changes(body=block)
    said = comment(f"The chunks of {tensors} along {loop.axis}, in the order in which they arrive.")
    head = added[0]
    added[0] = head.with_changes(leading_lines=[*node.leading_lines, said])  # type: ignore[call-arg]
    return added


def _times(first: str, step: str) -> str:
    """``step`` taken ``first`` times."""
    if step == "0":
        return step
    return f"{first} * {step}" if step.isidentifier() else f"{first} * ({step})"


def _with_bounds(call: cst.BaseExpression, bounds: str) -> cst.BaseExpression:
    """``range(...)`` or ``tl.range(..., num_stages=3)`` with other bounds; options stay."""
    assert isinstance(call, cst.Call)
    options = [a for a in call.args if a.keyword is not None and a.keyword.value not in _BOUNDS]
    template = cst.parse_expression(f"f({bounds})")
    assert isinstance(template, cst.Call)
    arguments = [*template.args, *options]
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    spaced = [a.with_changes(comma=comma) for a in arguments[:-1]]
    return call.with_changes(args=[*spaced, arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _by_descriptor(context: Context, loop: RangeLoop) -> bool:
    """Whether a load that waits in this loop goes by TMA."""
    return any(
        access.kind in ASYNC_KINDS and (taken := access.loops[on.dim]) is not None and taken.loop == loop.number
        for on in context.ranged
        for access in context.program.kernel.accesses
        if access.tensor == on.param
    )
