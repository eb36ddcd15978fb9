"""The host entry: its tensors, the one launch, and which tensor is passed as which kernel parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlap.errors import HostEntryError, UnsupportedError

from .discover import HostSource, KernelSource
from .grid import read_params
from .model import HostEntry, HostTensor
from .names import FUNCTIONS, Names, parameters, writes
from .pragmas import nearest
from .roots import Roots
from .source import SourceUnit


@dataclass(frozen=True)
class Launch:
    """A call ``kernel[grid](...)`` and the statements around it, outermost first."""

    call: ast.Call
    parents: tuple[ast.AST, ...]


def find_launches(function: ast.FunctionDef, kernel: str) -> list[Launch]:
    """Every launch of ``kernel`` in a function, through local aliases of its name."""
    aliases = {kernel}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            aliases |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    found: list[Launch] = []

    def visit(node: ast.AST, parents: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            target = node.func.value
            name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", None)
            if name in aliases:
                found.append(Launch(node, parents))
        for child in ast.iter_child_nodes(node):
            visit(child, (*parents, node))

    for statement in function.body:
        visit(statement, (function,))
    return found


def read_host(
    unit: SourceUnit, kernel: KernelSource, hosts: Sequence[HostSource], names: Names, *, only_kernel: bool
) -> HostEntry | None:
    """The host entry that launches ``kernel``, or None where no pragma names one.

    ``only_kernel``: the file has no other annotated kernel, so a host entry without a launch is a mistake.

    Raises:
        HostEntryError: no launch, two launches, two host entries, or a tensor the function does not have.
        UnsupportedError: a launch with ``num_ctas`` above 1.
    """
    launching = [(h, ls) for h in hosts if (ls := find_launches(h.node, kernel.node.name))]
    if not launching:
        if hosts and only_kernel:
            raise HostEntryError(
                f"`{hosts[0].node.name}` never launches `{kernel.node.name}`",
                where=unit.span_of(hosts[0].node),
                help=f"host_entry stands over the function with `{kernel.node.name}[grid](...)` in it",
            )
        return None
    if len(launching) > 1:
        raise HostEntryError(
            f"two host entries launch `{kernel.node.name}` (the first on line {launching[0][0].node.lineno})",
            where=launching[1][0].pragma.span,
            help="keep one host_entry a kernel",
        )
    host, launches = launching[0]
    _check_launches(unit, kernel, host, launches)
    launch = launches[0].call
    arguments = _arguments(kernel, host, launch)
    for keyword in launch.keywords:
        if keyword.arg == "num_ctas" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value == 1):
            raise UnsupportedError(
                "num_ctas above 1: only the first program of a cluster would wait",
                where=unit.span_of(keyword.value),
                help="launch with num_ctas=1",
            )
    roots = Roots(host.node)
    tensor_params = _tensor_params(unit, host, roots, launch, arguments)
    return HostEntry(
        name=host.node.name,
        params=read_params(host.node),
        inputs=tuple(HostTensor(r.name, r.dims) for r in host.pragma.inputs),
        outputs=tuple(HostTensor(r.name, r.dims) for r in host.pragma.outputs),
        kernel_args=tuple((p, ast.unparse(e)) for p, e in arguments.items()),
        tensor_params=tensor_params,
        param_dims=_param_dims(host, roots, arguments, tensor_params),
        launch_line=launch.lineno,
        span=host.pragma.span,
        aliased=_aliased(host, roots, arguments, tensor_params),
    )


def _check_launches(unit: SourceUnit, kernel: KernelSource, host: HostSource, launches: list[Launch]) -> None:
    name = kernel.node.name
    for launch in launches:
        loop = next((p for p in launch.parents if isinstance(p, (ast.For, ast.While))), None)
        if loop is not None:
            raise HostEntryError(
                f"`{name}` is launched in a loop",
                where=unit.span_of(launch.call),
                help="the host function launches the kernel exactly once",
            )
        inner = next((p for p in launch.parents[1:] if isinstance(p, (*FUNCTIONS, ast.Lambda))), None)
        if inner is not None:
            raise HostEntryError(
                f"`{name}` is launched from a function inside `{host.node.name}`",
                where=unit.span_of(launch.call),
                help="put host_entry over the function that launches the kernel",
            )
    for i, second in enumerate(launches):
        for first in launches[:i]:
            if not _exclusive(host.node, first, second):
                raise HostEntryError(
                    f"`{name}` is launched twice (first on line {first.call.lineno})",
                    where=unit.span_of(second.call),
                    help="the host function launches the kernel exactly once; split it into two functions",
                )


def _exclusive(function: ast.FunctionDef, first: Launch, second: Launch) -> bool:
    """Whether at most one of two launches runs: other branches of one ``if``, or the first one's branch returns."""
    for parent in first.parents:
        if not isinstance(parent, ast.If):
            continue
        in_body = _within(parent.body, first.call)
        branch, other = (parent.body, parent.orelse) if in_body else (parent.orelse, parent.body)
        if _within(other, second.call):
            return True
        if branch and isinstance(branch[-1], (ast.Return, ast.Raise)) and not _within(branch, second.call):
            return True
    return False


def _within(body: Iterable[ast.AST], node: ast.AST) -> bool:
    return any(inner is node for statement in body for inner in ast.walk(statement))


def _arguments(kernel: KernelSource, host: HostSource, launch: ast.Call) -> dict[str, ast.expr]:
    """Kernel parameter to the expression passed for it; ``*x.stride()`` of a named tensor is spread."""
    ranks = {r.name: len(r.dims) for r in (*host.pragma.inputs, *host.pragma.outputs)}
    positional: list[ast.expr] = []
    for argument in launch.args:
        if not isinstance(argument, ast.Starred):
            positional.append(argument)
            continue
        spread = _spread(argument.value, ranks)
        if spread is None:
            break  # what follows cannot be matched by position
        positional += spread
    params = [p.arg for p in parameters(kernel.node)]
    found = dict(zip(params, positional, strict=False))
    found |= {k.arg: k.value for k in launch.keywords if k.arg in params}
    return found


def _spread(value: ast.expr, ranks: dict[str, int]) -> list[ast.expr] | None:
    if isinstance(value, (ast.Tuple, ast.List)):
        return list(value.elts)
    base: ast.expr | None = None
    form = ""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
        base, form = value.func.value, value.func.attr
    elif isinstance(value, ast.Attribute):
        base, form = value.value, value.attr
    if not isinstance(base, ast.Name) or base.id not in ranks or form not in ("stride", "size", "shape"):
        return None
    text = {"stride": "{0}.stride({1})", "size": "{0}.size({1})", "shape": "{0}.shape[{1}]"}[form]
    return [ast.parse(text.format(base.id, d), mode="eval").body for d in range(ranks[base.id])]


def _tensor_params(
    unit: SourceUnit, host: HostSource, roots: Roots, launch: ast.Call, arguments: dict[str, ast.expr]
) -> tuple[tuple[str, str], ...]:
    """Host tensor to the kernel parameter it is passed as."""
    own = {a.arg for a in parameters(host.node)}
    local = own | {n for s in host.node.body for n in writes(s)}
    for ref in host.pragma.inputs:
        if ref.name not in own:
            raise HostEntryError(
                f"host_entry: `{ref.name}` is no parameter of `{host.node.name}`{nearest(ref.name, own)}",
                where=host.pragma.span,
                help=f"the parameters are {', '.join(sorted(own))}",
            )
    for ref in host.pragma.outputs:
        if ref.name not in local:
            raise HostEntryError(
                f"host_entry: `{host.node.name}` has no variable `{ref.name}`{nearest(ref.name, local)}",
                where=host.pragma.span,
                help="name the variable that is passed to the kernel as its result",
            )
    found: list[tuple[str, str]] = []
    for ref in (*host.pragma.inputs, *host.pragma.outputs):
        takers = [p for p, e in arguments.items() if _same_tensor(roots, ref.name, e)]
        # `residual if residual is not None else c` may be c, but another parameter is c for certain.
        certain = [p for p in takers if len({r for r, _ in roots.of(arguments[p])}) == 1]
        if (taker := next(iter(certain or takers), None)) is not None:
            found.append((ref.name, taker))
        elif ref in host.pragma.outputs and (packed := _packed(ref.name, arguments)) is not None:
            raise HostEntryError(
                f"host_entry: `{ref.name}` is passed to the kernel in a tuple",
                where=unit.span_of(packed),
                help="pass every tensor of the host entry as an argument of its own",
            )
        elif ref in host.pragma.outputs:
            raise HostEntryError(
                f"host_entry: the result `{ref.name}` is not passed to the kernel",
                where=unit.span_of(launch),
                help="name the tensor that the launch writes into",
            )
    return tuple(found)


def _packed(name: str, arguments: dict[str, ast.expr]) -> ast.expr | None:
    """The tuple or list among the launch's arguments that holds the tensor ``name``."""
    for argument in arguments.values():
        held = argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else []
        if any(isinstance(each, ast.Name) and each.id == name for each in held):
            return argument
    return None


def _same_tensor(roots: Roots, name: str, argument: ast.expr) -> bool:
    """Whether an argument is the tensor ``name`` or may be a view of it, or both are views of one tensor."""
    mine = {r for r, _ in roots.of(ast.Name(name, ast.Load()))} | {name}
    return any(r in mine for r, _ in roots.of(argument))


def _aliased(
    host: HostSource, roots: Roots, arguments: dict[str, ast.expr], tensor_params: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """(result, input) pairs that may be one tensor at the launch."""
    passed = dict(tensor_params)
    inputs = [r.name for r in host.pragma.inputs]
    found: list[tuple[str, str]] = []
    for ref in host.pragma.outputs:
        mine = {root for root, _ in roots.of(arguments[passed[ref.name]])} | {ref.name}
        for name in inputs:
            theirs = {root for root, _ in roots.of(ast.Name(name, ast.Load()))} | {name}
            if mine & theirs:
                found.append((ref.name, name))
    return tuple(found)


def _param_dims(
    host: HostSource, roots: Roots, arguments: dict[str, ast.expr], tensor_params: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Kernel parameter to the dimensions it is passed with, where the view between keeps or reverses them."""
    dims = {r.name: r.dims for r in (*host.pragma.inputs, *host.pragma.outputs)}
    found: list[tuple[str, tuple[str, ...]]] = []
    for name, param in tensor_params:
        orders = {order for _, order in roots.of(arguments[param])}
        if orders == {"same"}:
            found.append((param, dims[name]))
        elif orders == {"reversed"}:
            found.append((param, dims[name][::-1]))
    return tuple(found)


def stride_params(host: HostEntry | None) -> dict[str, tuple[str, int]]:
    """Stride parameter to (tensor parameter, dimension), where the launch passes ``x.stride(d)`` of a host tensor."""
    if host is None:
        return {}
    owner = dict(host.tensor_params)
    expressions = dict(host.kernel_args)
    by_text = {expressions[p]: p for p in owner.values() if p in expressions}
    found: dict[str, tuple[str, int]] = {}
    for param, text in host.kernel_args:
        node = ast.parse(text, mode="eval").body
        d: ast.expr | None = None
        base: ast.expr | None = None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "stride"
            and len(node.args) == 1
        ):
            base, d = node.func.value, node.args[0]
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            if node.value.func.attr == "stride" and not node.value.args:
                base, d = node.value.func.value, node.slice
        if base is None or d is None:
            continue
        # The strides of the very expression that is passed, so that a transposed view is not taken for its base.
        tensor = by_text.get(ast.unparse(base))
        try:
            dim = ast.literal_eval(d)
        except ValueError:
            continue
        if tensor is not None and isinstance(dim, int):
            found[param] = (tensor, dim)
    return found
