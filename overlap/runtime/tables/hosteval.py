"""Evaluates a kernel's tile map on the host.

The generated module holds the map as a plain function, ``ol_tile_map``, whose helpers may be jitted
functions and whose arithmetic may call `triton.language`. Here the same code objects run on
Python integers: jitted helpers give way to their plain functions, the language to a small stand-in.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from overlap.errors import UnsupportedError


class Number(int):
    """A Python integer with what kernels call on scalars: ``pid.to(tl.int64)`` is the same number."""

    def to(self, dtype: Any, *args: Any, **kwargs: Any) -> Number:
        return self


def _number(name: str) -> Callable[..., Any]:
    function = getattr(int, name)

    def method(self: int, *others: Any) -> Any:
        made = function(self, *others)
        return Number(made) if type(made) is int else made

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Number, f"__{_name}__", _number(f"__{_name}__"))
    setattr(Number, f"__r{_name}__", _number(f"__r{_name}__"))
for _name in ("neg", "abs", "invert", "pos"):
    setattr(Number, f"__{_name}__", _number(f"__{_name}__"))


class _HostLanguage:
    """The integer part of `triton.language` on Python integers (all values are non-negative)."""

    constexpr = staticmethod(lambda value: value)
    int8 = int16 = int32 = int64 = uint8 = uint16 = uint32 = uint64 = staticmethod(lambda value: Number(value))

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(
            f"the dispatch region calls `tl.{name}`, which cannot be evaluated on the host to prove that no tile is left out",
            help="compute the coordinates with integer arithmetic, tl.cdiv, tl.where, tl.minimum and tl.maximum",
        )

    @staticmethod
    def cdiv(x: int, div: int) -> int:
        return -(-x // div)

    minimum = staticmethod(min)
    maximum = staticmethod(max)
    abs = staticmethod(abs)

    @staticmethod
    def where(condition: bool, x: int, y: int) -> int:
        return x if condition else y

    @staticmethod
    def cast(value: int, dtype: Any) -> int:
        return value

    @staticmethod
    def swizzle2d(i: int, j: int, size_i: int, size_j: int, size_g: int) -> tuple[int, int]:
        """As documented for ``tl.swizzle2d``: column-major order inside groups of ``size_g`` rows."""
        linear = i * size_j + j
        group, inside = divmod(linear, size_g * size_j)
        first = group * size_g
        rows = min(size_i - first, size_g)
        return first + inside % rows, inside // rows

    @staticmethod
    def assume(condition: bool) -> None:
        return None

    static_assert = device_assert = static_print = device_print = staticmethod(lambda *args, **kwargs: None)

    @staticmethod
    def multiple_of(value: int, values: Any) -> int:
        return value

    max_contiguous = max_constancy = multiple_of


_LANGUAGE = _HostLanguage()
_MODULES = {"triton.language", "triton", "triton.language.core", "triton.language.standard"}


def on_host(function: Any) -> Callable[..., Any]:
    """A plain function (or jitted one, unwrapped) that runs on Python integers.

    Args:
        function: the function; names it uses are looked up in its own globals.
    """
    seen: dict[int, Any] = {}
    twin = _twin(function, seen)
    if not any("to" in each.__code__.co_names for each in seen.values()):
        return twin

    def with_methods(*args: int, **constants: Any) -> Any:
        return twin(*map(Number, args), **{k: Number(v) if type(v) is int else v for k, v in constants.items()})

    return with_methods


def _twin(function: Any, seen: dict[int, Any]) -> Callable[..., Any]:
    while not isinstance(function, types.FunctionType):
        function = function.fn
    if id(function) in seen:
        return seen[id(function)]
    namespace: dict[str, Any] = {"__builtins__": __builtins__}
    twin = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    seen[id(function)] = twin
    for name in function.__code__.co_names:
        if name in function.__globals__:
            namespace[name] = _substitute(function.__globals__[name], seen)
    return twin


def _substitute(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, types.ModuleType):
        return _LANGUAGE if value.__name__ in _MODULES else value
    module = getattr(value, "__module__", None) or ""
    name = getattr(value, "__name__", "")
    if module in _MODULES and name in vars(_HostLanguage):
        return getattr(_LANGUAGE, name)
    if type(value).__name__ == "constexpr":
        return value.value
    if hasattr(value, "fn") and callable(getattr(value, "fn", None)):
        inner = value.fn
        if getattr(inner, "__module__", "") in _MODULES and inner.__name__ in vars(_HostLanguage):
            return getattr(_LANGUAGE, inner.__name__)
        return _twin(inner, seen)
    if isinstance(value, types.FunctionType):
        return _twin(value, seen)
    return value
