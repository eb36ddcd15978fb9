"""Leaves out what registers operators with torch.library: the distributed module must not define the original's operators again.

Dropped: ``lib = torch.library.Library(...)``, ``lib.define(...)``, ``@torch.library.impl(...)``, ``@custom_op(...)``,
``@op.register_fake``, and functions named ``_`` that existed only for such a decorator. The functions themselves stay, as plain
functions. Modules that register nothing pass through.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..context import Context


def run(module: cst.Module, context: Context) -> cst.Module:
    return without_registrations(module)


def without_registrations(module: cst.Module) -> cst.Module:
    """The module without registrations."""
    found = _Registrars()
    module.visit(found)
    return module.visit(_Drop(found.names)) if found.names else module


def dotted(node: cst.BaseExpression) -> str:
    """``a.b.c`` of a name, attribute or call of one; empty for anything else."""
    if isinstance(node, cst.Call):
        return dotted(node.func)
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return node.value if isinstance(node, cst.Name) else ""


class _Registrars(cst.CSTVisitor):
    """Names whose attributes or calls register: what comes from torch.library, libraries made by it, operators."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._library = {"torch.library"}

    def registers(self, node: cst.BaseExpression) -> bool:
        path = dotted(node)
        return _under(path, self._library) or _under(path, self.names)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        origin = dotted(node.module) if node.module else ""
        if origin in ("torch", "torch.library") and not node.relative and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                local = alias.evaluated_alias or alias.evaluated_name
                if origin == "torch.library" or alias.evaluated_name == "library":
                    self._library.add(local)
        return False

    def visit_Assign(self, node: cst.Assign) -> bool:
        if isinstance(node.value, cst.Call) and self.registers(node.value):
            self.names.update(t.target.value for t in node.targets if isinstance(t.target, cst.Name))
        return True

    def visit_Expr(self, node: cst.Expr) -> bool:
        if isinstance(node.value, cst.Call) and self.registers(node.value):
            self.names.update(self._library)
        return True

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        if any(self.registers(d.decorator) for d in node.decorators):
            self.names.update({node.name.value} | self._library)
        return True


def _under(path: str, roots: set[str]) -> bool:
    return any(path == root or path.startswith(root + ".") for root in roots)


class _Drop(cst.CSTTransformer):
    def __init__(self, registrars: set[str]) -> None:
        super().__init__()
        self.registrars = registrars | {"torch.library"}

    def _registers(self, node: cst.BaseExpression) -> bool:
        return _under(dotted(node), self.registrars)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        kept = [s for s in updated_node.body if not self._is_registration(s)]
        if len(kept) == len(updated_node.body):
            return updated_node
        return updated_node.with_changes(body=kept) if kept else cst.RemoveFromParent()

    def _is_registration(self, statement: cst.BaseSmallStatement) -> bool:
        if isinstance(statement, cst.Expr):
            return (
                isinstance(statement.value, cst.Call)
                and "." in dotted(statement.value)
                and self._registers(statement.value)
            )
        if isinstance(statement, cst.Assign) and isinstance(statement.value, cst.Call):
            targets: Sequence[cst.AssignTarget] = statement.targets
            named = all(isinstance(t.target, cst.Name) and t.target.value in self.registrars for t in targets)
            return named and self._registers(statement.value)
        return False

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.RemovalSentinel:
        kept = [d for d in updated_node.decorators if not self._registers(d.decorator)]
        if len(kept) == len(updated_node.decorators):
            return updated_node
        if updated_node.name.value == "_" and not kept:
            return cst.RemoveFromParent()
        return updated_node.with_changes(decorators=kept)
