"""Kernels and helpers as the simulator calls them: rewritten source in a namespace of its own.

The namespace is a copy of the module's, so the user's module stays as it is: constants lose their ``constexpr``
wrapper, ``range`` yields tensors as the compiler's does, and functions imported by name from `triton.language` or
libdevice are replaced by the interpreted ones.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.errors import SourceError, SourceSpan

from . import pynames
from .interpreter import BUILDER, SEMANTIC, Handle
from .rewrite import compile_function


class KernelFunction:
    """A jitted function, ready to be called with interpreted values."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.signature = inspect.signature(fn)
        self.params = tuple(self.signature.parameters)
        self.constexprs = frozenset(name for name, kind in fn.__annotations__.items() if _is_constexpr(kind))
        try:
            lines, first = inspect.getsourcelines(fn)
        except (OSError, TypeError) as error:
            where = SourceSpan(fn.__code__.co_filename, fn.__code__.co_firstlineno)
            raise SourceError(f"no source text for {fn.__name__}", where=where) from error
        linecache.checkcache(fn.__code__.co_filename)
        module_code, self._heads = compile_function(fn, lines, first)
        self._namespace: dict[str, Any] = {}
        self.refresh(0)
        scratch = self._namespace
        shadowed = scratch.get(fn.__name__)
        exec(module_code, scratch)
        self.call: Callable[..., Any] = scratch.pop(fn.__name__)
        if shadowed is not None:
            scratch[fn.__name__] = shadowed
        self.call.__defaults__ = tuple(map(unwrap, fn.__defaults__)) if fn.__defaults__ else None
        self.code = self.call.__code__

    def refresh(self, generation: int) -> None:
        """Takes over the module's names as they are now; once a run."""
        self.generation = generation
        names = dict(self.fn.__globals__)
        cells = self.fn.__closure__ or ()
        for name, cell in zip(self.fn.__code__.co_freevars, cells, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # a name the enclosing function has not assigned yet
                continue
        space = self._namespace
        for name, value in names.items():
            space[name] = pynames.REPLACED.get(id(value), value) if not isinstance(value, tl.constexpr) else value.value
        for name, value in pynames.BUILTINS.items():
            space.setdefault(name, value)
        space.update(pynames.HELPERS)
        space["ol_sim_lookahead"] = lambda values: Lookahead(values, self._heads, space)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name; launch options that are no parameters are dropped."""
        known = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        bound = self.signature.bind(*args, **known)
        bound.apply_defaults()
        return dict(bound.arguments)

    def values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as kernel values: pointers, scalars and descriptors become interpreted tensors."""
        return {
            name: unwrap(value) if name in self.constexprs else to_value(value) for name, value in arguments.items()
        }


class Lookahead:
    """A loop's values with the next one known, so that its head can be run before this iteration's stores."""

    def __init__(self, values: Any, heads: list[Any], namespace: dict[str, Any]) -> None:
        self._values = values
        self._heads = heads
        self._namespace = namespace
        self._next: list[Any] = []
        self._made: dict[str, Any] | None = None
        self._taken: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        values = iter(self._values)
        self._next = [value for value in (next(values, _END),) if value is not _END]
        while self._next:
            current = self._next.pop()
            following = next(values, _END)
            if following is not _END:
                self._next.append(following)
            yield current

    def ahead(self, head: int, target: str, variables: dict[str, Any]) -> None:
        """Runs the head of the next iteration on copies of the variables, if loops are flattened in this run."""
        wanted = BUILDER.world.flattened
        if wanted is None:
            wanted = getattr(self._values, "flatten", False)
        if wanted and self._next:
            copied = dict(variables)
            copied[target] = self._next[0]
            self._made = {**self._namespace, **copied}
            exec(self._heads[head], self._made)

    def fresh(self) -> bool:
        """Whether the head of the iteration that begins has not been run ahead; asked once an iteration."""
        self._taken, self._made = self._made, None
        return self._taken is None

    def taken(self, name: str) -> Any:
        """What the head that was run ahead made of a variable; None where it did not come to that."""
        assert self._taken is not None
        return self._taken.get(name)


_END = object()
_cache: dict[Callable[..., Any], KernelFunction] = {}
_CACHED = 256
"""Prepared functions kept; a process that checks thousands of modules forgets the oldest."""


def kernel_function(fn: Callable[..., Any], generation: int) -> KernelFunction:
    """The prepared form of a raw function, its namespace fresh for this run."""
    found = _cache.get(fn)
    if found is None:
        if len(_cache) >= _CACHED:
            del _cache[next(iter(_cache))]
        found = _cache[fn] = KernelFunction(fn)
    if found.generation != generation:
        found.refresh(generation)
    return found


def unwrap(value: Any) -> Any:
    """The value inside a ``constexpr``."""
    while isinstance(value, tl.constexpr):
        value = value.value
    return value


def _is_constexpr(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.strip().split(".")[-1] == "constexpr"
    return annotation is tl.constexpr or isinstance(annotation, tl.constexpr)


_POINTERS: dict[torch.dtype, Any] = {}


def to_value(value: Any) -> Any:
    """A launch argument as an interpreted value."""
    if isinstance(value, bool):
        return tl.tensor(Handle(np.array([value]), tl.int1), tl.int1)
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            kind = tl.int32
        else:
            kind = tl.int64 if value < 2**63 else tl.uint64
        return tl.tensor(Handle(np.array([value], pynames.numpy_of(kind)), kind), kind)
    if isinstance(value, float):
        return tl.tensor(Handle(np.array([value], np.float32), tl.float32), tl.float32)
    if hasattr(value, "data_ptr"):
        kind = _POINTERS.get(value.dtype)
        if kind is None:
            from triton.runtime.jit import mangle_type

            kind = _POINTERS[value.dtype] = tl.str_to_ty(mangle_type(value), None)
        return tl.tensor(Handle(np.array([value.data_ptr()], np.uint64), kind), kind)
    if isinstance(value, tuple):
        parts = [to_value(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tl.tuple(parts)
    if isinstance(value, TensorDescriptor):
        strides = [to_value(stride) for stride in value.strides[:-1]]
        made = SEMANTIC.make_tensor_descriptor(
            base=to_value(value.base),
            shape=[to_value(extent) for extent in value.shape],
            strides=[*strides, tl.constexpr(1)],
            block_shape=[tl.constexpr(block) for block in value.block_shape],
            padding_option=value.padding,
        )
        if getattr(value, "round_f32_to_tf32", False):
            made.handle.round_f32_to_tf32 = True
        return made
    return unwrap(value)
