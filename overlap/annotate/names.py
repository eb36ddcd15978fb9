"""What names in the user's file mean: import aliases, and calls classified by what they do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Names:
    """Import aliases of a module, wherever the imports stand (``try``, functions included)."""

    def __init__(self, tree: ast.Module) -> None:
        self._alias: dict[str, str] = {}
        self._constants = _constants(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    if item.asname:
                        self._alias[item.asname] = item.name
                    else:
                        self._alias[item.name.split(".")[0]] = item.name.split(".")[0]
            elif isinstance(node, ast.ImportFrom):
                for item in node.names:
                    module = "." * node.level + (node.module or "")
                    self._alias[item.asname or item.name] = f"{module}.{item.name}"
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                # `tl = triton.language` and `jit = triton.jit`.
                path = self.dotted(node.value)
                if path and path.startswith("triton."):
                    self._alias[node.targets[0].id] = path

    def dotted(self, node: ast.expr) -> str | None:
        """``tl.load`` as ``triton.language.load``; None for anything but a dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self._alias.get(node.id, node.id)
        return ".".join([root, *reversed(parts)])

    def constant(self, name: str) -> int | None:
        """The value of a number of the module, ``BLOCK: tl.constexpr = tl.constexpr(64)``; None for anything else."""
        return self._constants.get(name)

    def imported(self, name: str) -> bool:
        return name in self._alias

    def is_jit(self, decorator: ast.expr) -> bool:
        """``@triton.jit``, ``@jit``, ``@triton.jit(...)`` under any alias."""
        if isinstance(decorator, ast.Call):
            decorator = decorator.func
        return self.dotted(decorator) in ("triton.jit", "triton.runtime.jit", "triton.runtime.jit.jit")


def _constants(tree: ast.Module) -> dict[str, int]:
    """Names that the module assigns once, at its top level, a whole number above zero, bare or as a ``constexpr``."""
    found: dict[str, int] = {}
    times = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if (
            isinstance(value, ast.Call)
            and ast.unparse(value.func).split(".")[-1] == "constexpr"
            and len(value.args) == 1
        ):
            value = value.args[0]
        if (
            isinstance(target, ast.Name)
            and isinstance(value, ast.Constant)
            and type(value.value) is int
            and value.value > 0
        ):
            found[target.id] = value.value
    return {name: value for name, value in found.items() if times.count(name) == 1}


@dataclass(frozen=True)
class Callee:
    """What a call calls: ``kind`` function (``name`` is its last component) or method of ``receiver``."""

    kind: str
    name: str
    receiver: ast.expr | None = None


def callee(node: ast.Call, local_names: Iterable[str], names: Names) -> Callee:
    """Splits ``tl.load(p)`` (function load) from ``desc.load(...)`` (method load of a local value)."""
    func = node.func
    if isinstance(func, ast.Name):
        path = names.dotted(func) or func.id
        return Callee("function", path.split(".")[-1])
    if isinstance(func, ast.Attribute):
        root: ast.expr = func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id not in local_names:
            return Callee("function", func.attr)
        return Callee("method", func.attr, func.value)
    return Callee("function", "")


def functions(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef]]:
    """Every function definition with the names of what encloses it, outermost first."""

    def visit(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield path, child
            inside = isinstance(child, (*FUNCTIONS, ast.ClassDef))
            yield from visit(child, (*path, child.name) if inside else path)  # type: ignore[attr-defined]

    return visit(tree, ())


def blocks(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """Every statement list below ``node`` with its owner, outermost first; nested functions are left out."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            yield node, body
            for statement in body:
                if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                    yield from blocks(statement)
    for handler in getattr(node, "handlers", ()):
        yield from blocks(handler)
    for case in getattr(node, "cases", ()):
        yield from blocks(case)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below ``node``, in source order."""
    found = [s for _, body in blocks(node) for s in body]
    return iter(sorted(found, key=lambda s: (s.lineno, s.col_offset)))


def reads(node: ast.AST) -> set[str]:
    """Names a statement or expression reads (an augmented target is read too)."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            found.add(inner.target.id)
    return found


def writes(node: ast.AST) -> set[str]:
    """Names a statement binds."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    args = function.args
    star = [a for a in (args.vararg, args.kwarg) if a]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *star]
