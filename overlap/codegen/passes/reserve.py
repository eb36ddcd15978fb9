"""Has the first programs of a launch move chunks; the others compute, under the ids they would have without them.

Before::

    def kernel(a_ptr, M, BLOCK: tl.constexpr, NUM_SMS: tl.constexpr, ol_table, ol_state, ol_moves):
        ol_epoch = ol.now(ol_state)
        start = tl.program_id(0)
        for tile in tl.range(start, num_tiles, NUM_SMS):
            ...

After::

        ol_epoch = ol.now(ol_state)
        # Programs that move chunks come first in the launch; the others are counted from 0.
        if ol.moving(ol_moves):
            ol.move_chunks(ol_moves, ol_state, ol_epoch)
            return
        ol_programs = ol.computing_programs(ol_moves)
        start = ol.computing_id(ol_moves, 0)
        for tile in tl.range(start, num_tiles, ol_programs):
            ...

A tile loop steps by the number of computing programs, whatever it stepped by; where that was a parameter, everything else
that the kernel computes from it follows. Kernels that move nothing, or that do so between their tiles, pass through.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import TileId
from overlap.errors import CodegenError, UnsupportedError

from ..context import Context
from ..locate import comment, find_function, replaced, statements

NOTE = "Programs that move chunks come first in the launch; the others are counted from 0."
_EPOCH = "epoch"
_WORD = {"load/store": "move_chunks", "tma store": "move_chunks_async", "nvshmem put": "move_chunks_far"}
"""By who writes, the word that moves."""


_IDS = frozenset({"program_id", "num_programs"})


def _calls_in(node: cst.FunctionDef) -> set[str]:
    """Last components of what a function calls."""
    functions = [call.func for call in m.findall(node, m.Call()) if isinstance(call, cst.Call)]
    return {f.attr.value if isinstance(f, cst.Attribute) else getattr(f, "value", "") for f in functions}


def _refuse_helpers(module: cst.Module, kernel: cst.FunctionDef, context: Context) -> None:
    """Refuses helpers that read program ids: theirs would count the programs that move chunks too.

    Raises:
        UnsupportedError: with the kernel's line.
    """
    helpers = {f.name.value: f for f in m.findall(module, m.FunctionDef()) if isinstance(f, cst.FunctionDef)}
    seen: set[str] = set()
    pending = _calls_in(kernel) & set(helpers)
    while pending:
        name = pending.pop()
        seen.add(name)
        called = _calls_in(helpers[name])
        if called & _IDS:
            raise UnsupportedError(
                f"helper `{name}` reads program ids, which count the programs that {context.realization.backend} reserves too",
                where=context.program.kernel.span,
                help='read tl.program_id in the kernel and pass it to the helper, or backend="copy_engine"',
            )
        pending |= called & set(helpers) - seen


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.moving or context.interleaving:
        return module
    names = context.names
    kernel = find_function(module, context.program.kernel.name)
    persistent = [tile for tile in context.program.kernel.tile_ids if tile.form != "assign"]
    _refuse_helpers(module, kernel, context)
    steps = _Steps(context, persistent)
    kernel.visit(steps)
    shift = _Shift(context, steps)
    changed = kernel.visit(shift)
    assert isinstance(changed, cst.FunctionDef) and isinstance(changed.body, cst.IndentedBlock)
    if not shift.ids:
        raise CodegenError(f"`{kernel.name.value}` reads no program id")
    ol, moves = names.language, names.local("moves")
    writer = context.mover.writer
    lines = [
        f"if {ol}.moving({moves}):",
        f"    {ol}.{_WORD[writer]}({moves}, {names.local('state')}, {names.local(_EPOCH)})",
        "    return",
    ]
    if shift.counts:
        lines.append(f"{names.local('programs')} = {ol}.computing_programs({moves})")
    branch = statements("\n".join(lines) + "\n")
    branch[0] = branch[0].with_changes(leading_lines=[comment(NOTE)])
    body = list(changed.body.body)
    at = next((i for i, s in enumerate(body) if _assigns(s, names.local(_EPOCH))), None)
    if at is None:
        raise CodegenError(f"`{kernel.name.value}` reads no epoch, so nothing it could move is waited for")
    body = [*body[: at + 1], *branch, *body[at + 1 :]]
    return replaced(module, kernel, changed.with_changes(body=changed.body.with_changes(body=body)))


def counted_by(module: cst.Module, context: Context) -> tuple[str, ...] | None:
    """Parameters of a kernel with results that stand for the number of its programs, which walk over tiles.

    None where nobody may give it fewer: a tile a program, steps of another kind, or chunks that programs move or store.
    """
    if not context.produced or not context.persistent or context.moving or (context.pushing and not context.sending):
        return None
    kernel = find_function(module, context.program.kernel.name)
    steps = _Steps(context, [tile for tile in context.program.kernel.tile_ids if tile.form != "assign"])
    try:
        kernel.visit(steps)
    except UnsupportedError:
        return None
    for step in steps.loops:
        origin = steps.origin(step)
        if isinstance(origin, cst.Name) and steps.takes(origin.value):
            steps.params.add(origin.value)
        elif not (isinstance(origin, cst.Call) and _called(origin) == "num_programs"):
            return None
    return tuple(sorted(steps.params))


def _assigns(statement: cst.BaseStatement, name: str) -> bool:
    target = m.AssignTarget(target=m.Name(name))
    return m.matches(statement, m.SimpleStatementLine(body=[m.Assign(targets=[target])]))


def _called(node: cst.Call) -> str:
    """Last name of what a call calls."""
    return node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", "")


class _Steps(cst.CSTVisitor):
    """By what persistent tile ids advance: ``params``, parameters that stand for the number of programs."""

    def __init__(self, context: Context, persistent: list[TileId]) -> None:
        super().__init__()
        self.params: set[str] = set()
        self.loops: list[cst.BaseExpression] = []
        self._all = {p.name for p in context.program.kernel.params}
        self._tiles = {tile.name: tile for tile in persistent}
        self._values: dict[str, list[cst.BaseExpression]] = {}
        self._advances: list[tuple[TileId, cst.BaseExpression]] = []

    def visit_For(self, node: cst.For) -> None:
        tile = self._tiles.get(getattr(node.target, "value", ""))
        if tile is not None and tile.form == "persistent_for":
            bounds = bounds_of(node)
            if bounds is None:
                raise UnsupportedError(
                    f"the loop over `{tile.name}` has no start, end and step of its own, and its programs cannot be told "
                    "from those that move chunks",
                    where=tile.span,
                    help=f"for {tile.name} in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0))",
                )
            self.loops.append(bounds[2])
            if isinstance(bounds[2], cst.Name) and bounds[2].value in self._all:
                self.params.add(bounds[2].value)

    def visit_Assign(self, node: cst.Assign) -> None:
        if len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            self._take(node.targets[0].target.value, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if isinstance(node.target, cst.Name) and node.value is not None:
            self._take(node.target.value, node.value)

    def _take(self, name: str, value: cst.BaseExpression) -> None:
        self._values.setdefault(name, []).append(value)
        # x = x + step
        if name in self._tiles and isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            for one, other in ((value.left, value.right), (value.right, value.left)):
                if isinstance(one, cst.Name) and one.value == name:
                    self._advances.append((self._tiles[name], other))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        tile = self._tiles.get(getattr(node.target, "value", ""))
        if tile is not None and isinstance(node.operator, cst.AddAssign):
            self._advances.append((tile, node.value))

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        for tile, step in self._advances:
            origin = self.origin(step)
            if isinstance(origin, cst.Name) and origin.value in self._all:
                self.params.add(origin.value)
            elif not (isinstance(origin, cst.Call) and _called(origin) == "num_programs"):
                shown = cst.Module([]).code_for_node(step)
                raise UnsupportedError(
                    f"`{tile.name}` advances by `{shown}`, and programs that move chunks are no part of that number",
                    where=tile.span,
                    help=f"{tile.name} += tl.num_programs(0), or a parameter that holds the number of programs; or "
                    "backend copy_engine",
                )

    def takes(self, name: str) -> bool:
        """Whether the kernel has such a parameter."""
        return name in self._all

    def origin(self, step: cst.BaseExpression) -> cst.BaseExpression:
        """What a step is, behind variables that are assigned once."""
        seen: set[str] = set()
        while isinstance(step, cst.Name) and step.value not in self._all and step.value not in seen:
            seen.add(step.value)
            values = self._values.get(step.value, [])
            if len(values) != 1:
                break
            step = values[0]
        return step


def bounds_of(loop: cst.For) -> tuple[cst.BaseExpression, ...] | None:
    """Start, end and step of a ``range`` that gives all three by position."""
    if not isinstance(loop.iter, cst.Call) or _called(loop.iter) not in ("range", "static_range"):
        return None
    given = [arg.value for arg in loop.iter.args if arg.keyword is None and not arg.star]
    return tuple(given) if len(given) == 3 else None


class _Shift(cst.CSTTransformer):
    """Program ids and numbers of programs become those among the computing programs."""

    def __init__(self, context: Context, steps: _Steps) -> None:
        super().__init__()
        self.params = steps.params
        self.ids = 0
        self.counts = 0
        self._names = context.names
        self._loops = {t.name for t in context.program.kernel.tile_ids if t.form == "persistent_for"}

    def visit_Param(self, node: cst.Param) -> bool:
        return False

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        return original_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._count() if original_node.value in self.params else updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = _called(original_node)
        if name == "position" and m.matches(original_node.func, m.Attribute(value=m.Name(self._names.language))):
            self.ids += 1
            return self._word("computing_position")
        if name not in ("program_id", "num_programs") or len(original_node.args) > 1:
            return updated_node
        axis = original_node.args[0].value if original_node.args else cst.Integer("0")
        if name == "program_id":
            self.ids += 1
            return self._word("computing_id", axis)
        return self._word("computing_programs", axis)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        if getattr(original_node.target, "value", "") not in self._loops or bounds_of(original_node) is None:
            return updated_node
        call = updated_node.iter
        assert isinstance(call, cst.Call)
        step = [i for i, arg in enumerate(call.args) if arg.keyword is None][2]
        args = list(call.args)
        args[step] = args[step].with_changes(value=self._count())
        return updated_node.with_changes(iter=call.with_changes(args=args))

    def _word(self, name: str, axis: cst.BaseExpression | None = None) -> cst.BaseExpression:
        given = [cst.Name(self._names.local("moves")), *([axis] if axis is not None else [])]
        words = ", ".join(cst.Module([]).code_for_node(node) for node in given)
        return cst.parse_expression(f"{self._names.language}.{name}({words})")

    def _count(self) -> cst.BaseExpression:
        self.counts += 1
        return cst.Name(self._names.local("programs"))
