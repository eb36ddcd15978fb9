"""Runs a kernel of scalars from what Triton printed of it, TTIR or TTGIR: what a pass changed is then a difference in memory."""

from __future__ import annotations

import re
from collections.abc import Callable

from overlap.build import ttir

_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
}
_COMPUTED: dict[str, Callable[..., int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.divsi": lambda a, b: int(a / b),
    "arith.remsi": lambda a, b: a - b * int(a / b),
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.select": lambda c, a, b: a if c else b,
    "arith.extsi": lambda a: a,
    "arith.extui": lambda a: a,
    "arith.trunci": lambda a: a,
    "tt.addptr": lambda pointer, step: pointer + step,
}

_POISON = -(1 << 40)
"""What is not to be used: no address, and far from any number."""


def run(text: str, arguments: dict[str, int], memory: dict[int, int]) -> dict[int, int]:
    """Runs a kernel; returns the memory behind it.

    Args:
        arguments: by the source's names; those of pointers are addresses, in elements.
        memory: elements by address.

    Raises:
        NotImplementedError: an operation that no scalar kernel has.
    """
    function = ttir.parse(text)
    made = dict(memory)
    known = {value: arguments[name] for name, value in function.params.items()}
    _region(function.body.regions[0], known, made)
    return made


def _region(ops: list[ttir.Op], known: dict[ttir.Value, int], memory: dict[int, int]) -> list[int]:
    """Runs a block; what its terminator hands out."""
    for op in ops:
        given = [known[value] for value in op.operands]
        if op.name in ("scf.yield", "tt.return"):
            return given
        results = _operation(op, given, known, memory)
        known.update(zip(op.results, results, strict=True))
    return []


def _operation(op: ttir.Op, given: list[int], known: dict[ttir.Value, int], memory: dict[int, int]) -> list[int]:
    if op.name == "scf.for":
        low, high, step, *carried = given
        for i in range(low, high, step):
            known.update(zip(op.arguments, [i, *carried], strict=True))
            carried = _region(op.regions[0], known, memory)
        return carried
    if op.name == "scf.if":
        region = 0 if given[0] else 1
        return _region(op.regions[region], known, memory) if region < len(op.regions) else []
    if op.name == "arith.constant":
        word = op.text.split()[1]
        return [{"true": 1, "false": 0}.get(word, int(word) if word.lstrip("-").isdigit() else 0)]
    if op.name == "arith.cmpi":
        return [int(_COMPARED[op.text.split()[1].rstrip(",")](*given))]
    if op.name == "tt.load":
        return [memory[given[0]]] if len(given) == 1 or given[1] else [given[2] if len(given) > 2 else 0]
    if op.name == "tt.store":
        if len(given) < 3 or given[2]:
            memory[given[0]] = given[1]
        return []
    if op.name == "ub.poison":
        return [_POISON]
    if op.name in _COMPUTED:
        return [_COMPUTED[op.name](*given)]
    if re.match(r"llvm\.intr\.assume|tt\.assert", op.name):
        return []
    raise NotImplementedError(op.text)
