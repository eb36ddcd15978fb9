"""Which functions of a file are annotated kernels, and which pragmas belong to which function."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from overlap.errors import HostEntryError, PragmaError, UsageError

from .names import Names, functions
from .pragmas import Pragma, find_pragmas, nearest
from .source import SourceUnit


@dataclass(frozen=True)
class KernelSource:
    """An annotated kernel before analysis: its definition and the pragmas inside it."""

    qualname: str
    node: ast.FunctionDef
    pragmas: tuple[Pragma, ...]


@dataclass(frozen=True)
class HostSource:
    """A host function and the ``host_entry`` over it."""

    qualname: str
    node: ast.FunctionDef
    pragma: Pragma


@dataclass(frozen=True)
class Discovery:
    kernels: tuple[KernelSource, ...]
    hosts: tuple[HostSource, ...]
    names: Names


def discover(unit: SourceUnit) -> Discovery:
    """Finds annotated kernels (nested ones too) and host functions.

    Raises:
        PragmaError: a pragma that stands in no kernel or over no function, or in a function that is not jitted.
    """
    names = Names(unit.tree)
    defined = list(functions(unit.tree))
    inside: dict[int, list[Pragma]] = {}
    hosts: list[HostSource] = []
    for pragma in find_pragmas(unit):
        if pragma.name == "host_entry":
            hosts.append(_host(unit, pragma, defined))
            continue
        owner = _owner(unit, pragma, [node for _, node in defined])
        if owner is None:
            raise PragmaError(
                f"`{pragma.name}` stands in no function",
                where=pragma.span,
                help="put it into the body of the Triton kernel",
            )
        inside.setdefault(id(owner), []).append(pragma)
    kernels = []
    for path, node in defined:
        if pragmas := inside.get(id(node)):
            if not _is_jitted(node, unit.tree, names):
                raise PragmaError(
                    f"`{node.name}` carries kernel pragmas but is not a Triton kernel",
                    where=pragmas[0].span,
                    help="pragmas other than host_entry belong into the body of a function under @triton.jit",
                )
            kernels.append(KernelSource(".".join((*path, node.name)), node, tuple(pragmas)))
    return Discovery(tuple(kernels), tuple(hosts), names)


def choose(unit: SourceUnit, found: Discovery, kernel: str | None) -> KernelSource:
    """The kernel called ``kernel`` (name or dotted path), or the file's only annotated one.

    Raises:
        UsageError: there is none, no such one, or several to choose from.
    """
    candidates = {k.qualname: k for k in found.kernels}
    if kernel is not None:
        kernel = kernel.replace(".<locals>", "")  # as `__qualname__` spells it
        matching = [k for q, k in candidates.items() if kernel in (q, k.node.name)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            listed = ", ".join(k.qualname for k in matching)
            raise UsageError(
                f"{unit.path} has {len(matching)} kernels called `{kernel}`", help=f"write the path: {listed}"
            )
        for path, node in functions(unit.tree):
            if kernel in (node.name, ".".join((*path, node.name))):
                raise PragmaError(
                    f"kernel `{kernel}` has no pragmas",
                    where=unit.span_of(node),
                    help="annotate its tile axes, tile id and dispatch region (axis_count, tile_id, dispatch, pid_map)",
                )
        known = [k.node.name for k in found.kernels]
        raise UsageError(
            f"{unit.path} has no annotated kernel `{kernel}`{nearest(kernel, known)}",
            where=unit.span(1),
            help=f"annotated kernels: {', '.join(known) or 'none'}",
        )
    if not candidates:
        jitted = [node for _, node in functions(unit.tree) if _is_jitted(node, unit.tree, found.names)]
        raise PragmaError(
            f"{unit.path} has no annotated kernel",
            where=unit.span_of(jitted[0]) if jitted else unit.span(1),
            help="annotate a Triton kernel with axis_count, tile_id, dispatch and pid_map comments",
        )
    if len(candidates) > 1:
        raise UsageError(
            f"{unit.path} has {len(candidates)} annotated kernels",
            where=unit.span_of(found.kernels[1].node),
            help=f"name one: {', '.join(f'{unit.path}:{q}' for q in candidates)}",
        )
    return found.kernels[0]


def _is_jitted(node: ast.FunctionDef, tree: ast.Module, names: Names) -> bool:
    if any(names.is_jit(d) for d in node.decorator_list):
        return True
    # `kernel = triton.jit(kernel)` below a plain definition.
    return any(
        isinstance(call, ast.Call)
        and names.is_jit(call.func)
        and any(isinstance(a, ast.Name) and a.id == node.name for a in call.args)
        for call in ast.walk(tree)
    )


def _owner(unit: SourceUnit, pragma: Pragma, defined: list[ast.FunctionDef]) -> ast.FunctionDef | None:
    """The innermost function whose body holds the comment, comments below its last statement included."""
    owner = None
    for node in defined:
        if node.lineno >= pragma.line:
            continue
        end = node.end_lineno or node.lineno
        below = (
            pragma.line > end
            and pragma.span.col - 1 > node.col_offset
            and all(not text.strip() or text.lstrip().startswith("#") for text in unit.lines[end : pragma.line])
        )
        if (pragma.line <= end or below) and (owner is None or node.lineno > owner.lineno):
            owner = node
    return owner


def first_line(node: ast.FunctionDef) -> int:
    """The line of the first decorator, or of ``def``."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _host(unit: SourceUnit, pragma: Pragma, defined: list[tuple[tuple[str, ...], ast.FunctionDef]]) -> HostSource:
    """The function below a ``host_entry``: only comments and blank lines, or its decorators, may stand between."""
    for path, node in defined:
        start = first_line(node)
        between = unit.lines[pragma.line : start - 1]
        above = start > pragma.line and all(not text.strip() or text.lstrip().startswith("#") for text in between)
        if above or start <= pragma.line < node.lineno:
            _refuse_method(unit, pragma, path, node)
            return HostSource(".".join((*path, node.name)), node, pragma)
    raise PragmaError(
        "host_entry stands over no function",
        where=pragma.span,
        help="put it right above the function that launches the kernel",
    )


def _refuse_method(unit: SourceUnit, pragma: Pragma, path: tuple[str, ...], node: ast.FunctionDef) -> None:
    """A method is called on an object or a class, which the distributed function has not."""
    if any(isinstance(owner, ast.ClassDef) and node in owner.body for owner in ast.walk(unit.tree)):
        raise HostEntryError(
            f"host_entry stands over the method `{'.'.join((*path, node.name))}`",
            where=pragma.span,
            help="move the launch into a function of the module, put host_entry over that, and call it from the method",
        )
