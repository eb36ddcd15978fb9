"""Short ways through `triton.language` for what kernels do most: integer and pointer arithmetic, and making tensors.

Triton checks and wraps every operand of every operation; a simulation spends most of its time there. The operators
below give the same results for same-signed integers, float32 and pointers, and leave everything else to Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from .dtypes import convert, numpy_of
from .interpreter import BUILDER, Handle

_shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
_types: dict[tuple[str, tuple[int, ...]], Any] = {}


def _shape(extents: tuple[int, ...]) -> tuple[Any, Any]:
    """A tensor's ``shape`` and ``numel`` objects, shared by all tensors of that shape."""
    found = _shapes.get(extents)
    if found is None:
        found = _shapes[extents] = (tl.core.tuple([tl.constexpr(n) for n in extents]), tl.constexpr(math.prod(extents)))
    return found


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    """``tl.tensor.__init__`` with shared shapes."""
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    self.shape, self.numel = _shape(tuple(type.shape) if type.is_block() else ())


_blocks: dict[tuple[tuple[int, ...], str], tuple[Any, int, str]] = {}
_block_init = tl.block_type.__init__


def block_init(self: Any, element_ty: Any, shape: Any) -> None:
    """``tl.block_type.__init__``, its checks made once a shape."""
    extents = tuple(getattr(n, "value", n) for n in shape)
    key = (extents, element_ty.name)
    found = _blocks.get(key)
    if found is None:
        _block_init(self, element_ty, list(shape))
        _blocks[key] = (self.shape, self.numel, self.name)
    else:
        self.element_ty = element_ty
        self.shape, self.numel, self.name = found


def make(data: np.ndarray, scalar: Any, block: bool) -> Any:
    """A tensor around ``data``; of block type if ``block``."""
    handle = object.__new__(Handle)
    handle.data, handle.dtype, handle.attr = data, scalar, {}
    made = object.__new__(tl.tensor)
    made.handle = handle
    made.dtype = scalar
    if block:
        key = (scalar.name, data.shape)
        found = _types.get(key)
        if found is None:
            found = _types[key] = tl.block_type(scalar, list(data.shape))
        made.type = found
        made.shape, made.numel = _shape(data.shape)
    else:
        made.type = scalar
        made.shape, made.numel = _shape(())
    return made


_RESULT = {
    ("int32", "int32"): tl.int32,
    ("int32", "int64"): tl.int64,
    ("int64", "int32"): tl.int64,
    ("int64", "int64"): tl.int64,
    ("fp32", "fp32"): tl.float32,
}
_INTS = {"int32": tl.int32, "int64": tl.int64}


def _divide(x: np.ndarray, y: Any) -> np.ndarray:
    return np.floor_divide(np.subtract(x, np.fmod(x, y)), y)


_ARITHMETIC: dict[str, tuple[Callable[..., Any], bool, bool]] = {
    # name: operation, also on floats, gives int1
    "add": (np.add, True, False),
    "sub": (np.subtract, True, False),
    "mul": (np.multiply, True, False),
    "floordiv": (_divide, False, False),
    "mod": (np.fmod, False, False),
    "lt": (np.less, True, True),
    "le": (np.less_equal, True, True),
    "gt": (np.greater, True, True),
    "ge": (np.greater_equal, True, True),
    "eq": (np.equal, True, True),
    "ne": (np.not_equal, True, True),
    "and": (np.bitwise_and, False, False),
    "or": (np.bitwise_or, False, False),
}
_REFLECTED = frozenset({"add", "sub", "mul", "floordiv", "mod"})


def _quick(name: str, slow: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
    operation, floats, compares = _ARITHMETIC[name]
    logical = name in ("and", "or")
    pointers = name == "add"
    divides = name in ("floordiv", "mod")

    def call(self: Any, other: Any) -> Any:
        kind = type(other)
        mine = self.handle.data
        scalar = self.dtype
        if kind is tl.tensor:
            theirs = other.handle.data
            block, other_block = self.type.is_block(), other.type.is_block()
            if block and other_block and mine.ndim != theirs.ndim:
                return slow(self, other)
            result = _RESULT.get((scalar.name, other.dtype.name))
            if result is None or (result is tl.float32 and not floats):
                if logical and scalar.name == other.dtype.name == "int1":
                    result = tl.int1
                elif pointers and not reflected and isinstance(scalar, tl.pointer_type) and other.dtype.name in _INTS:
                    width = max(1, scalar.element_ty.primitive_bitwidth // 8)
                    return make(
                        np.add(mine, np.multiply(theirs.astype(np.uint64), np.uint64(width))),
                        scalar,
                        block or other_block,
                    )
                else:
                    return slow(self, other)
            if divides and not theirs.all():
                return slow(self, other)
            data = operation(theirs, mine) if reflected else operation(mine, theirs)
            return make(data, tl.int1 if compares else result, block or other_block)
        if kind is int and -(2**31) <= other < 2**31:
            result = _INTS.get(scalar.name)
            if result is not None and not (divides and (reflected or other == 0)):
                data = operation(other, mine) if reflected else operation(mine, other)
                return make(data, tl.int1 if compares else result, self.type.is_block())
            if pointers and isinstance(scalar, tl.pointer_type):
                step = other * max(1, scalar.element_ty.primitive_bitwidth // 8)
                return make(mine + np.uint64(step % 2**64), scalar, self.type.is_block())
        return slow(self, other)

    return call


def quick_load(slow: Callable[..., Any]) -> Callable[..., Any]:
    """``tl.load`` of one unmasked scalar without Triton's checks; ``slow`` is the interpreted one."""

    def load(pointer: Any, mask: Any = None, other: Any = None, *args: Any, **kwargs: Any) -> Any:
        if mask is None and other is None and type(pointer) is tl.tensor:
            kind = pointer.type
            if type(kind) is tl.pointer_type and not kind.element_ty.is_block():
                element = kind.element_ty
                dtype = _SCALARS.get(element.name)
                if dtype is not None:
                    return make(
                        BUILDER.world.kernel_memory.load_one(int(pointer.handle.data.reshape(-1)[0]), dtype),
                        element,
                        False,
                    )
        return slow(pointer, mask, other, *args, **kwargs)

    return load


_NUMBERS = {
    kind.name: kind
    for kind in (
        tl.int8,
        tl.int16,
        tl.int32,
        tl.int64,
        tl.uint8,
        tl.uint32,
        tl.float16,
        tl.bfloat16,
        tl.float32,
        tl.float64,
    )
}


def quick_to(slow: Callable[..., Any]) -> Callable[..., Any]:
    """``x.to(dtype)`` between numbers."""

    def to(self: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            not args
            and not kwargs
            and type(dtype) is tl.dtype
            and dtype.name in _NUMBERS
            and self.dtype.name in _NUMBERS
        ):
            return make(convert(self.handle.data, numpy_of(dtype)), dtype, self.type.is_block())
        return slow(self, dtype, *args, **kwargs)

    return to


def quick_index(slow: Callable[..., Any]) -> Callable[..., Any]:
    """``x[:, None]`` and its like."""
    whole = slice(None)

    def index(self: Any, places: Any, *args: Any, **kwargs: Any) -> Any:
        if type(places) is tuple and self.type.is_block() and all(p is None or p == whole for p in places):
            if sum(p is not None for p in places) == self.handle.data.ndim:
                return make(self.handle.data[places], self.dtype, True)
        return slow(self, places, *args, **kwargs)

    return index


_SCALARS = {kind.name: numpy_of(kind) for kind in (tl.int32, tl.int64, tl.float32)}


def operators(slow: Callable[[str], Callable[..., Any] | None]) -> list[tuple[Any, str, Any]]:
    """(class, attribute, quick operator); ``slow(attribute)`` is the interpreted operator of Triton."""
    found: list[tuple[Any, str, Any]] = [
        (tl.tensor, "__init__", tensor_init),
        (tl.block_type, "__init__", block_init),
    ]
    for attribute, quick in (("to", quick_to), ("__getitem__", quick_index)):
        original = slow(attribute)
        if original is not None:
            found.append((tl.tensor, attribute, quick(original)))
    for name in _ARITHMETIC:
        forms = [(f"__{name}__", False)] + ([(f"__r{name}__", True)] if name in _REFLECTED else [])
        for attribute, reflected in forms:
            original = slow(attribute)
            if original is not None:
                found.append((tl.tensor, attribute, _quick(name, original, reflected)))
    return found
