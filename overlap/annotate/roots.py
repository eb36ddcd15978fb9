"""Which named tensor an expression of the host function is, or is a view of."""

from __future__ import annotations

import ast
from typing import Literal

from .names import blocks

Order = Literal["same", "reversed", "flat", "unknown"]
"""How the dimensions of a view stand to those of its tensor; flat: all in one."""

_KEEP = frozenset("data detach contiguous view view_as reshape expand expand_as broadcast_to narrow select to".split())
_FLAT = {("view", (-1,)), ("reshape", (-1,)), ("flatten", ()), ("ravel", ())}
_REVERSE = frozenset("T mT H mH t".split())
_OTHER = frozenset(
    "transpose permute squeeze unsqueeze flatten unflatten as_strided movedim swapaxes swapdims chunk".split()
)
_WRAP = frozenset({"TensorDescriptor", "from_tensor", "reinterpret", "make_tensor_descriptor", "as_tensor"})
_SWAPS = {
    ("transpose", (0, 1)),
    ("transpose", (1, 0)),
    ("transpose", (-1, -2)),
    ("transpose", (-2, -1)),
    ("permute", (1, 0)),
}

Root = tuple[str, Order]


class Roots:
    """Follows simple assignments through views, slices and descriptors. A name may stand for several tensors."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._alias: dict[str, frozenset[Root]] = {}
        for _, body in blocks(function):
            for statement in body:
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    self._note(statement.targets[0], statement.value)
                elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                    self._note(statement.target, statement.value)

    def _note(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for t, v in zip(target.elts, value.elts, strict=False):
                self._note(t, v)
        elif isinstance(target, ast.Name):
            roots = self.of(value)
            if roots and roots != {(target.id, "same")}:
                self._alias[target.id] = self._alias.get(target.id, frozenset()) | roots

    def of(self, node: ast.expr) -> frozenset[Root]:
        """The tensors ``node`` may be, with the order of its dimensions; empty for anything else."""
        if isinstance(node, ast.Name):
            return self._alias.get(node.id, frozenset({(node.id, "same")}))
        if isinstance(node, ast.Attribute):
            return self._viewed(node.value, node.attr, ())
        if isinstance(node, ast.Subscript):
            inner = self.of(node.value)
            return inner if isinstance(node.value, (ast.Name, ast.Call, ast.Subscript)) else frozenset()
        if isinstance(node, ast.IfExp):
            return self.of(node.body) | self.of(node.orelse)
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in _WRAP:
                first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "base"), None)
                return self.of(first) if first is not None else frozenset()
            if isinstance(function, ast.Attribute):
                return self._viewed(function.value, name, tuple(_integer(a) for a in node.args))
        return frozenset()

    def _viewed(self, base: ast.expr, name: str, arguments: tuple[int | None, ...]) -> frozenset[Root]:
        if (name, arguments) in _FLAT:
            return frozenset((root, "flat") for root, _ in self.of(base))
        if name in _KEEP:
            return self.of(base)
        if name in _REVERSE or (name, arguments) in _SWAPS:
            flip: dict[Order, Order] = {"same": "reversed", "reversed": "same"}
            return frozenset((root, flip.get(order, order)) for root, order in self.of(base))
        if name in _OTHER:
            return frozenset((root, "unknown") for root, _ in self.of(base))
        return frozenset()


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, int) else None
