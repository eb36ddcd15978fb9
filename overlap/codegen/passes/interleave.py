"""Has the programs that compute move chunks as well, a part each, between their tiles.

Before::

        ol_epoch = ol.now(ol_state)
        ...
        for tile in tl.range(start, num_tiles, NUM_SMS):
            ...
            ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
            ...

After::

        ol_epoch = ol.now(ol_state)
        ol_step = 0
        ...
        for tile in tl.range(start, num_tiles, NUM_SMS):
            ...
            # This program's parts of moves: what is due, and all that must have begun before it waits.
            ol_step = ol.move_some(ol_moves, ol_state, ol_epoch, ol_step, ol_table, ol_run)
            ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
            ...
        # What is left of them.
        ol.move_rest(ol_moves, ol_state, ol_epoch, ol_step)

The same stands ahead of every wait, those between the parts of an in-tile loop too, and ahead of every ``return``. Kernels whose
moves others make pass through. By TMA `move_some_boxes` and `move_rest_boxes` are also given the memory that boxes are copied
through, taken once, behind the first step: ``ol_boxes = ol.box_memory()``.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.errors import CodegenError

from ..context import Context
from ..ends import at_every_end
from ..locate import comment, find_function, replaced, statements
from .dispatch import ASYNC_KINDS
from .produce import asks_to_flatten

SOME = "This program's parts of moves: what is due, and all that must have begun before it waits."
BOXES = "Shared memory of this program, which boxes of what it moves are copied through."
REST = "What is left of them."


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.interleaving:
        return module
    kernel = find_function(module, context.program.kernel.name)
    form = "_boxes" if context.mover.writer == "tma store" else "_async" if _asynchronous(kernel, context) else ""
    insert = _Insert(context, form)
    changed = kernel.visit(insert)
    assert isinstance(changed, cst.FunctionDef)
    if not insert.begun or not insert.waits:
        raise CodegenError(f"`{kernel.name.value}` has no wait that moves could stand ahead of")
    return replaced(module, kernel, at_every_end(changed, insert.rest(), comment(REST)))


def _asynchronous(kernel: cst.FunctionDef, context: Context) -> bool:
    """Whether the barrier behind a part must not be a plain one: in flattened loops, and with stores by TMA in flight."""
    stores = (a for a in context.program.kernel.accesses if a.mode != "read" and a.kind in ASYNC_KINDS)
    return any(stores) or any(asks_to_flatten(loop) for loop in m.findall(kernel, m.For()) if isinstance(loop, cst.For))


class _Insert(cst.CSTTransformer):
    """Puts `move_some` ahead of every wait, and the first step behind the epoch."""

    def __init__(self, context: Context, form: str) -> None:
        super().__init__()
        self.waits = 0
        self.begun = False
        names = context.names
        self._ol, self._form = names.language, form
        self._step, self._epoch = names.local("step"), names.local("epoch")
        self._boxes = names.local("boxes") if form == "_boxes" else ""
        given = (names.local("moves"), names.local("state"), self._epoch, self._step, self._boxes)
        self._given = ", ".join(filter(None, given))

    def rest(self) -> cst.SimpleStatementLine:
        (made,) = statements(f"{self._ol}.move_rest{self._form}({self._given})\n")
        assert isinstance(made, cst.SimpleStatementLine)
        return made

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.Assign):
            return updated_node
        target, value = original_node.body[0].targets[0].target, original_node.body[0].value
        if isinstance(target, cst.Name) and target.value == self._epoch:
            self.begun = True
            memory = f"# {BOXES}\n{self._boxes} = {self._ol}.box_memory()\n" if self._boxes else ""
            return cst.FlattenSentinel([updated_node, *statements(f"{self._step} = 0\n{memory}")])
        if not m.matches(value, m.Call(func=m.Attribute(value=m.Name(self._ol), attr=m.Name("wait_run")))):
            return updated_node
        assert isinstance(value, cst.Call)
        self.waits += 1
        table, run = (cst.Module([]).code_for_node(arg.value) for arg in value.args[:2])
        (some,) = statements(f"{self._step} = {self._ol}.move_some{self._form}({self._given}, {table}, {run})\n")
        return cst.FlattenSentinel([some.with_changes(leading_lines=[comment(SOME)]), updated_node])
