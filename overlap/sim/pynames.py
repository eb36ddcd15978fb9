"""What plain Python names mean inside a simulated kernel: ``range``, ``min``, ``and``, libdevice functions."""

from __future__ import annotations

import builtins
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl

from .dtypes import convert, is_narrow_float, numpy_of
from .interpreter import SEMANTIC, Handle


def tensor(value: Any) -> Any:
    """An assigned value: numbers become tensors, everything else stays."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, bool | int | float):
        return SEMANTIC.to_tensor(value, False)
    return value


def _number(value: Any) -> int:
    if isinstance(value, tl.constexpr):
        value = value.value
    return int(value.handle.data.reshape(-1)[0]) if isinstance(value, tl.tensor) else int(value)


class Range:
    """``range`` and ``tl.range``: yields int32 scalars, or int64 where a bound is one."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = 1, **options: Any) -> None:
        start, end = (0, arg1) if arg2 is None else (arg1, arg2)
        step = 1 if step is None else step
        self.flatten = bool(getattr(options.get("flatten"), "value", options.get("flatten")))
        wide = any(isinstance(v, tl.tensor) and v.dtype.primitive_bitwidth > 32 for v in (start, end, step))
        self._type = tl.int64 if wide else tl.int32
        self._values = builtins.range(_number(start), _number(end), _number(step))

    def __iter__(self) -> Iterator[Any]:
        kind = self._type
        numpy = numpy_of(kind)
        for value in self._values:
            yield tl.tensor(Handle(np.array([value], numpy), kind), kind)


def static_range(arg1: Any, arg2: Any = None, step: Any = None) -> Iterator[int]:
    """``tl.static_range``: an unrolled loop, its index a constant."""
    start, end = (0, arg1) if arg2 is None else (arg1, arg2)
    yield from builtins.range(_number(start), _number(end), 1 if step is None else _number(step))


def _is_block(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.type.is_block()


def both(*thunks: Callable[[], Any]) -> Any:
    """``and``: element by element as soon as a block takes part."""
    value = thunks[0]()
    for thunk in thunks[1:]:
        if _is_block(value):
            value = value & thunk()
        elif not value:
            return value
        else:
            following = thunk()
            value = value & following if _is_block(following) and isinstance(value, tl.tensor) else following
    return value


def either(*thunks: Callable[[], Any]) -> Any:
    """``or``: element by element as soon as a block takes part."""
    value = thunks[0]()
    for thunk in thunks[1:]:
        if _is_block(value):
            value = value | thunk()
        elif value:
            return value
        else:
            following = thunk()
            value = value | following if _is_block(following) and isinstance(value, tl.tensor) else following
    return value


def negation(value: Any) -> Any:
    """``not``, element by element on blocks."""
    return value.__not__() if _is_block(value) else not value


def _extreme(plain: Callable[..., Any], word: str) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        values = [a.value if isinstance(a, tl.constexpr) else a for a in args]
        if not any(isinstance(v, tl.tensor) for v in values):
            return plain(*values, **kwargs)
        result = values[0]
        for value in values[1:]:
            result = getattr(tl, word)(result, value)
        return result

    return extreme


HELPERS: dict[str, Any] = {"ol_sim_tensor": tensor, "ol_sim_and": both, "ol_sim_or": either, "ol_sim_not": negation}
BUILTINS: dict[str, Any] = {
    "range": Range,
    "min": _extreme(builtins.min, "minimum"),
    "max": _extreme(builtins.max, "maximum"),
}
REPLACED: dict[int, Any] = {}
"""Interpreted stand-ins for functions that a module imported by name, by the id of the original."""

# libdevice

_UNARY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("abs", "fabs"), np.abs),
    **dict.fromkeys(("exp", "fast_expf"), np.exp),
    **dict.fromkeys(("log", "fast_logf"), np.log),
    **dict.fromkeys(("log2", "fast_log2f"), np.log2),
    **dict.fromkeys(("sin", "fast_sinf"), np.sin),
    **dict.fromkeys(("cos", "fast_cosf"), np.cos),
    **dict.fromkeys(("tan", "fast_tanf"), np.tan),
    **dict.fromkeys(("tanh", "fast_tanhf"), np.tanh),
    **dict.fromkeys(("exp10", "fast_exp10f"), lambda x: np.power(np.float32(10.0), x)),
    **dict.fromkeys(("rint", "nearbyint"), np.rint),
    **dict.fromkeys(("isfinited", "finitef"), np.isfinite),
    **{
        name: getattr(np, name)
        for name in "cbrt ceil cosh exp2 expm1 floor log10 log1p sinh sqrt trunc isnan isinf".split()
    },
    **{f"a{name}": getattr(np, f"arc{name}") for name in "cos cosh sin sinh tan tanh".split()},
    "round": lambda x: np.copysign(np.floor(np.add(np.abs(x), 0.5)), x),
    "rsqrt": lambda x: np.divide(1.0, np.sqrt(x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
}
_BINARY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("pow", "fast_powf"), np.power),
    **dict.fromkeys(("div_rn", "fast_dividef", "fast_fdividef"), np.divide),
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "copysign": np.copysign,
    "hypot": np.hypot,
    "max": np.maximum,
    "min": np.minimum,
    "add_rn": np.add,
    "mul_rn": np.multiply,
    "sub_rn": np.subtract,
}
_PREDICATES = frozenset({"isnan", "isinf", "isfinited", "finitef"})


def _twin(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    def twin(*args: Any, _semantic: Any = None) -> Any:
        tensors = [SEMANTIC.to_tensor(a) for a in args]
        shaped = SEMANTIC.broadcast_impl_value(*tensors) if len(tensors) == 2 else tensors
        data = [t.handle.data for t in shaped]
        wide = [d.astype(np.float32) if is_narrow_float(d.dtype) else d for d in data]
        result = op(*wide)
        kind = tl.int32 if name in _PREDICATES else shaped[0].dtype
        return tl.tensor(
            Handle(convert(np.asarray(result), numpy_of(kind)), kind), shaped[0].type.with_element_ty(kind)
        )

    return twin


def libdevice_twins() -> list[tuple[Any, str, Any]]:
    """(module, name, twin) of every libdevice function that has one."""
    found = []
    for path in (
        "triton.language.extra.libdevice",
        "triton.language.extra.cuda.libdevice",
        "triton.language.extra.hip.libdevice",
    ):
        try:
            module = importlib.import_module(path)
        except ImportError:
            continue
        for table in (_UNARY, _BINARY):
            found += [(module, name, _twin(name, op)) for name, op in table.items() if hasattr(module, name)]
    return found
