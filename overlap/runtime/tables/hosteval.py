"""Evaluates a kernel's tile map on the host.

The generated module holds the map as a plain function, ``ol_tile_map``, whose helpers may be jitted
functions and whose arithmetic may call `triton.language`. Here the same code objects run on
Python integers: jitted helpers give way to their plain functions, the language to a small stand-in.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


class _HostLanguage:
    """The integer part of `triton.language` on Python integers (all values are non-negative)."""

    constexpr = staticmethod(lambda value: value)
    int32 = int64 = staticmethod(int)

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

    static_assert = assume
    device_assert = assume


_LANGUAGE = _HostLanguage()
_MODULES = {"triton.language", "triton", "triton.language.core", "triton.language.standard"}


def on_host(function: Any, _seen: dict[int, Any] | None = None) -> Callable[..., Any]:
    """A plain function (or jitted one, unwrapped) that runs on Python integers.

    Args:
        function: the function; names it uses are looked up in its own globals.
    """
    seen = {} if _seen is None else _seen
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
    if module in _MODULES and hasattr(_LANGUAGE, name):
        return getattr(_LANGUAGE, name)
    if type(value).__name__ == "constexpr":
        return value.value
    if hasattr(value, "fn") and callable(getattr(value, "fn", None)):
        inner = value.fn
        if getattr(inner, "__module__", "") in _MODULES and hasattr(_LANGUAGE, inner.__name__):
            return getattr(_LANGUAGE, inner.__name__)
        return on_host(inner, seen)
    if isinstance(value, types.FunctionType):
        return on_host(value, seen)
    return value
