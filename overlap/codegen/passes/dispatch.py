"""Rewrites every dispatch region: the user's own mapping, on a run's counts, then the wait.

Before::

    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m, pid_n = get_pid_mn(tile, width, num_pid_m)
    # @overlap.dispatch end

After::

    # The run that holds this tile, and the kernel's own mapping on the run's counts.
    ol_run = ol.find_run(ol_table, tile)
    ol_tile = ol.rebase(ol_table, ol_run, tile)
    ol_num_pid_m = ol.count(ol_table, ol_run, 0)
    ol_width = GROUP * ol_num_pid_n
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m, pid_n = get_pid_mn(ol_tile, ol_width, ol_num_pid_m)
    # @overlap.dispatch end
    pid_m = ol.place(ol_table, ol_run, ol_tile, 0, pid_m)
    ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
    pid_m = ol.after(pid_m, ol_seen)
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from overlap.annotate.model import Access, DispatchRegion
from overlap.annotate.on import OnSpec
from overlap.errors import CodegenError

from ..context import Context
from ..locate import comment, find_function, names_in, pragma_of, replaced, statements
from ..rebase import Rebase

ASYNC_KINDS = ("device_descriptor", "host_descriptor")


def run(module: cst.Module, context: Context) -> cst.Module:
    kernel = find_function(module, context.program.kernel.name)
    rewriter = _Blocks(context)
    changed = kernel.visit(rewriter)
    if rewriter.done != len(context.program.kernel.regions):
        raise CodegenError(
            f"found {rewriter.done} dispatch regions to rewrite, the kernel has {len(context.program.kernel.regions)}"
        )
    return replaced(module, kernel, changed)


class _Blocks(cst.CSTTransformer):
    """Finds regions in statement lists: pragmas stand among a statement's leading lines or in a block's footer."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.done = 0

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        body: list[cst.BaseStatement] = []
        footer = list(updated_node.footer)
        pending = list(updated_node.body)
        while pending:
            statement = pending.pop(0)
            begin = _find(statement, "begin")
            if begin is None:
                body.append(statement)
                continue
            region = [statement]
            closing: list[cst.EmptyLine] = []
            while True:
                if not pending:
                    at = _find_lines(footer, "end")
                    if at is None:
                        raise CodegenError("a dispatch region does not end in the block it begins in")
                    closing, footer = footer[: at + 1], footer[at + 1 :]
                    break
                end = _find(pending[0], "end")
                if end is not None:
                    lines = _lines(pending[0])
                    closing = lines[: end + 1]
                    pending[0] = pending[0].with_changes(leading_lines=lines[end + 1 :])
                    break
                region.append(pending.pop(0))
            body += self._rewrite(region, begin, closing)
        return updated_node.with_changes(body=body, footer=footer)

    def _rewrite(
        self, region: list[cst.BaseStatement], begin: int, closing: list[cst.EmptyLine]
    ) -> list[cst.BaseStatement]:
        context = self.context
        model = context.program.kernel.regions[self.done]
        self.done += 1
        rebase = Rebase(context, model)
        lines = _lines(region[0])
        region[0] = region[0].with_changes(leading_lines=lines[begin:])
        substitute = rebase.substitute()
        inside = [s if rebase.keeps(s) else s.visit(substitute) for s in region]
        if not substitute.changes:
            raise CodegenError(
                f"the dispatch region at line {model.begin_line} uses neither a tile id nor a tile count"
            )
        used = set().union(*(names_in(s) for s in inside))  # type: ignore[arg-type]
        head = statements("\n".join(rebase.prologue(used)) + "\n")
        head[0] = head[0].with_changes(
            leading_lines=[
                *lines[:begin],
                comment("The run that holds this tile, and the kernel's own mapping on its counts."),
            ]
        )
        tail = statements("\n".join(epilogue(context, model, rebase)) + "\n")
        tail[0] = tail[0].with_changes(leading_lines=[*closing, *_lines(tail[0])])
        return [*head, *inside, *tail]  # type: ignore[list-item]


def epilogue(context: Context, region: DispatchRegion, rebase: Rebase) -> list[str]:
    """Statements behind a region: coordinates in the whole grid, then the wait that the guarded loads depend on."""
    ol, table = context.names.language, context.names.local("table")
    waits = context.waits_in(region)
    run, tile = rebase.run, rebase.tile
    pids = dict(region.pid_map)
    lines = ["# From the run to the whole grid."]
    for axis in context.axes:
        pid = pids[axis.name]
        lines.append(f"{pid} = {ol}.place({table}, {run}, {tile}, {context.axis_index(axis.name)}, {pid})")
    if waits:
        seen = context.names.local("seen", region.index)
        words = _dependent(context, waits)
        tensors = " and ".join(on.tensor for on, _ in waits)
        through = " and ".join(pids[axis] for axis in words)
        whose = "its" if len(waits) == 1 else "their"
        lines += [
            f"# Wait for the run's chunks of {tensors}; {whose} loads depend on the wait through {through}.",
            f"{seen} = {ol}.wait_run({table}, {run}, {context.names.local('state')}, {context.names.local('epoch')})",
            *(f"{pids[axis]} = {ol}.{word}({pids[axis]}, {seen})" for axis, word in words.items()),
        ]
    return lines


def _dependent(context: Context, waits: Sequence[tuple[OnSpec, tuple[Access, ...]]]) -> dict[str, str]:
    """Tile axis to the word that makes its coordinate depend on the wait: together every guarded load uses one of them."""
    names = [a.name for a in context.axes]
    words: dict[str, str] = {}
    for on, reads in waits:
        order = [axis for axis in (on.to, on.axis) if axis in names] + names
        for access in reads:
            used = {leaf.axis for offset in access.offsets for leaf in offset.leaves() if leaf.kind == "coord"}
            axis = next((a for a in order if a in used), order[0])
            asynchronous = access.kind in ASYNC_KINDS or words.get(axis) == "after_async"
            words[axis] = "after_async" if asynchronous else "after"
    return {axis: words[axis] for axis in names if axis in words}


def _lines(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    return list(getattr(statement, "leading_lines", ()))


def _find(statement: cst.BaseStatement, which: str) -> int | None:
    return _find_lines(_lines(statement), which)


def _find_lines(lines: Sequence[cst.EmptyLine], which: str) -> int | None:
    for index, line in enumerate(lines):
        if pragma_of(line) == ("dispatch", which):
            return index
    return None
