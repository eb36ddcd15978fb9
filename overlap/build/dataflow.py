"""Where a TTIR value comes from: backward slices, and the tensor a pointer was made of.

A slice follows data, not control: that a load stands behind a loop does not order it, that its address
is computed from what the loop returned does.
"""

from __future__ import annotations

from collections.abc import Iterable

from .ttir import Function, Op, Value

_POINTER_STEPS = {
    "tt.addptr", "tt.advance", "tt.bitcast", "tt.broadcast", "tt.expand_dims", "tt.make_tensor_descriptor",
    "tt.make_tensor_ptr", "tt.reshape", "tt.reinterpret_tensor_descriptor", "tt.splat", "tt.trans",
}  # fmt: skip


def sources(value: Value, entering: frozenset[Op] = frozenset()) -> list[Value]:
    """The values that ``value`` is computed from in one step.

    Args:
        entering: loops whose carried values are followed to what enters the loop only, not to the previous iteration.
    """
    if value.role == "param":
        return []
    loop = value.owner if value.op is None else value.op
    assert loop is not None
    if loop.name == "scf.for":
        if value.role == "induction":
            return [loop.operands[0], loop.operands[2]]
        came = [loop.operands[3 + value.index]]
        return came if value.role == "carried" and loop in entering else came + _yielded(loop, 0, value.index)
    if loop.name == "scf.while":
        if value.role == "before":
            came = [loop.operands[value.index]]
            return came if loop in entering else came + _yielded(loop, 1, value.index)
        condition = loop.terminator(0)
        return [condition.operands[1 + value.index]] if condition else []
    if loop.name == "scf.if":
        return [v for region in range(len(loop.regions)) for v in _yielded(loop, region, value.index)]
    if value.op is None:
        return list(loop.operands)
    inside = [v for region in loop.regions if region for v in region[-1].operands]
    return [*loop.operands, *inside]


def _yielded(op: Op, region: int, index: int) -> list[Value]:
    last = op.terminator(region)
    return [last.operands[index]] if last is not None and index < len(last.operands) else []


def backward_slice(values: Iterable[Value], entering: frozenset[Op] = frozenset()) -> set[Value]:
    """Everything ``values`` are computed from, themselves included."""
    seen: set[Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            todo += sources(value, entering)
    return seen


def ops_of(values: Iterable[Value]) -> set[Op]:
    """The operations whose results are among ``values``."""
    return {value.op for value in values if value.op is not None}


def bases(pointer: Value) -> set[Value]:
    """What a pointer or descriptor was made of: function parameters, loaded or cast addresses."""
    seen: set[Value] = set()
    found: set[Value] = set()
    todo = [pointer]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        op = value.op
        if value.role == "param":
            found.add(value)
        elif op is None or op.name in ("scf.for", "scf.while", "scf.if"):
            todo += sources(value)
        elif op.name in _POINTER_STEPS and op.operands:
            todo.append(op.operands[0])
        elif op.name == "arith.select":
            todo += op.operands[1:]
        else:
            found.add(value)
    return found


def constant(value: Value) -> int | None:
    """The integer that a value, or every element of it, is known to be, through constants and casts."""
    op = value.op
    if op is None:
        return None
    if op.name == "arith.constant":
        word = op.text.split()[1].removeprefix("dense<").removesuffix(">")
        return {"true": 1, "false": 0}.get(word, int(word) if word.lstrip("-").isdigit() else None)
    if op.name in ("arith.extsi", "arith.extui", "arith.trunci"):
        return constant(op.operands[0])
    return None


def constant_offset(pointer: Value, base: Value) -> int | None:
    """Elements between ``base`` and ``pointer``, or all pointers of a block; None when the offset is computed at run time."""
    total = 0
    while pointer is not base:
        op = pointer.op
        if op is not None and op.name == "tt.splat":
            pointer = op.operands[0]
            continue
        if op is None or op.name != "tt.addptr":
            return None
        step = constant(op.operands[1])
        if step is None:
            return None
        total += step
        pointer = op.operands[0]
    return total


def parameter_of(function: Function, value: Value) -> str | None:
    """The source name of a function parameter's value."""
    return next((name for name, param in function.params.items() if param is value), None)
