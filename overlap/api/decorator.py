"""`overlap.compile`, the decorator.

    @overlap.compile(plan="all_gather_1d", on="a[M]")
    @triton.autotune(...)
    @triton.jit
    def matmul_kernel(a_ptr, ...): ...

It stands above `triton.jit` and whatever else the kernel has, or is applied to a kernel like a function. The source is
read and hashed when it runs; compiling waits for the first launch, when everything the kernel names exists.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from overlap.annotate.source import SourceUnit
from overlap.backends.base import Realization
from overlap.chunkplan.cuts import split_of, split_text
from overlap.errors import SourceError, UsageError
from overlap.runtime.calls.resolve import parameters_of, python_function

from .compiled import CompiledKernel
from .fallback import KNOWN, check_backend
from .kernel_source import KernelSource
from .made import Made

_KEYS = ("split", "comm_sms", "num_warps", "num_stages", "machine", "strided", "sum_sms", "tile_sums", "trace")


def compile(
    plan: str | Sequence[str],
    on: str | Sequence[str],
    *,
    world: int | None = None,
    backend: str | None = None,
    realization: Realization | None = None,
    path: str | None = None,
    links: str | None = None,
    sizes: Mapping[str, int] | None = None,
    **keys: int | str | tuple[Any, ...],
) -> KernelCompiler:
    """A decorator that fuses the communication of ``plan`` into an annotated `triton.jit` kernel.

    Args:
        plan: a plan template's name (``all_gather_1d``), or the path of a YAML file; one for each entry of ``on``.
        on: the communicated tensor, a kernel parameter whose ``_ptr`` or ``_desc`` may be dropped, and its axis: ``a[M]``
            gathers an input, ``c[M]`` reduce-scatters a result, ``c[]`` all-reduces it, ``a[K:M]`` exchanges. Or several.
        world: pins the kernel to groups of this size.
        backend: what moves chunks (docs/backends.md says which can), ``serial``, or ``auto``, what is predicted to take
            least; by default fused by copy engine, and serial where that is impossible or slower.
        realization: a `Realization` to start from.
        path: makes the plan of a collective, which ``plan`` names then (``all_gather``): by a ``template``, or made for the
            links (``synth``). It takes ``world``.
        links: a link file; without, the links are the machine's.
        sizes: extents of the axes of ``on``'s tensors, to which a plan by ``synth`` is pinned: ``{"M": 8192, "K": 4096}``.
        keys: keys of `Realization` (``split=2`` or ``split=(1, 2, 1)``, ``num_warps=8``, ``machine="h800"``) and constexpr
            parameters (``BLOCK_M=128``).

    Raises:
        UsageError: an unknown backend, links or sizes without a path, or used without arguments.
    """
    plans, ons = ((plan,) if isinstance(plan, str) else plan), ((on,) if isinstance(on, str) else on)
    if not all(isinstance(g, (list, tuple)) and g and all(isinstance(t, str) for t in g) for g in (plans, ons)):
        raise UsageError(
            "overlap.compile takes a plan and a tensor", help='@overlap.compile(plan="all_gather_1d", on="a[M]")'
        )
    if not (world is None or type(world) is int):
        raise UsageError(f"world={world!r}", help="the number of ranks")
    options: dict[str, str] = {}
    if realization is not None:
        if not isinstance(realization, Realization):
            raise UsageError(
                f"realization={realization!r} is no Realization", help='overlap.Realization(backend="copy_engine")'
            )
        backend = backend or realization.backend
        values = {key: getattr(realization, key) for key in _KEYS}
        options = {
            key: _text(v)
            for key, v in values.items()
            if v is not None and (v or key in ("split", "sum_sms", "tile_sums"))
        }
        options.update({name: str(v) for name, v in realization.meta})
    options.update({key: _text(value) for key, value in keys.items()})
    if path is None and (links is not None or sizes is not None):
        raise UsageError(
            f"{'links' if links is not None else 'sizes'} without a path", help='path="synth" makes a plan for them'
        )
    if not isinstance(plan, str) or not isinstance(on, str):
        plan, on = tuple(plans), tuple(ons)
    made = None if path is None else Made(path, links, tuple(sorted((sizes or {}).items())))
    return KernelCompiler(plan, on, world, check_backend(backend, KNOWN), options, made)


def _text(value: Any) -> str:
    """A key's value as the command line has it."""
    return split_text(split_of(value)) if isinstance(value, (tuple, list)) else str(value)


class KernelCompiler:
    """What `compile` returns: applied to a kernel it gives a `CompiledKernel`."""

    def __init__(
        self,
        plan: str | Sequence[str],
        on: str | Sequence[str],
        world: int | None,
        backend: str | None,
        options: dict[str, str],
        made: Made | None = None,
    ) -> None:
        self.plan = plan
        self.made = made
        self.on = on
        self.world = world
        self.backend = backend
        self.options = options

    def __call__(self, kernel: Any) -> CompiledKernel:
        """Takes the kernel's source as it is now.

        Raises:
            SourceError: it has none.
            UsageError: no jitted function.
        """
        if isinstance(kernel, CompiledKernel):
            raise UsageError(f"`{kernel.__name__}` is compiled already", help="decorate a kernel once")
        if not hasattr(kernel, "fn"):
            name = getattr(kernel, "__name__", type(kernel).__name__)
            raise UsageError(f"`{name}` is not a Triton kernel", help="overlap.compile stands above @triton.jit")
        if "group" in parameters_of(python_function(kernel)):
            raise UsageError(
                f"`{python_function(kernel).__name__}` has a parameter `group`, which launches of a compiled kernel add",
                help="give the parameter another name",
            )
        frame = sys._getframe(1)
        source = kernel_source(kernel, {**frame.f_globals, **frame.f_locals})
        return CompiledKernel(
            source,
            plan=self.plan,
            on=self.on,
            world=self.world,
            backend=self.backend,
            options=self.options,
            made=self.made,
        )


def kernel_source(kernel: Any, scope: dict[str, Any]) -> KernelSource:
    """The source of a kernel as it is now.

    Args:
        scope: names where it is decorated, to tell our own decorator from others and for what decorators name.

    Raises:
        SourceError: there is no source, or it changed since the kernel was defined.
    """
    function = python_function(kernel)
    unit = SourceUnit.from_function(kernel)
    line = function.__code__.co_firstlineno
    node = next(
        (
            n
            for n in ast.walk(unit.tree)
            if isinstance(n, ast.FunctionDef)
            and n.name == function.__name__
            and line == min([n.lineno, *(d.lineno for d in n.decorator_list)])
        ),
        None,
    )
    if node is None:
        raise SourceError(
            f"`{function.__name__}` does not begin on line {line} of its file any more",
            where=unit.span(min(line, max(1, len(unit.lines)))),
            help="the file changed since it was imported: import it again",
        )
    ours = [i for i, d in enumerate(node.decorator_list) if _is_ours(d, scope)]
    above = ours[-1] + 1 if ours else 0
    kept = node.decorator_list[above:]
    used = {n.id for d in (*kept, node.args) for n in ast.walk(d) if isinstance(n, ast.Name)}
    used |= set(function.__code__.co_names)
    return KernelSource(
        kernel,
        unit,
        function.__qualname__.replace(".<locals>", ""),
        len(kept),
        {name: scope[name] for name in used if name in scope},
    )


def _is_ours(decorator: ast.expr, scope: dict[str, Any]) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    value: Any = _lookup(target, scope)
    return value is compile or isinstance(value, KernelCompiler)


def _lookup(node: ast.expr, scope: dict[str, Any]) -> Any:
    """The object a dotted name stands for, or None."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _lookup(node.value, scope)
        return getattr(base, node.attr, None) if base is not None else None
    return None
