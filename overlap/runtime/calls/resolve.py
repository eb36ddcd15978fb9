"""From a decorated kernel and a launch's arguments to the innermost jitted function and everything bound.

Block sizes are known only below `autotune` and `heuristics`, and the schedule table depends on them, so the
chain is walked here instead of calling the decorators: each would launch the kernel on its own.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from overlap.backends.base import Realization
from overlap.errors import UsageError


@dataclass(frozen=True)
class Bound:
    """One launch, fully bound.

    ``kernel``: the innermost jitted function. ``arguments``: every parameter by name, defaults filled in, without ours.
    ``options``: launch options such as ``num_warps``.
    """

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """What a callable grid is given."""
        return {**self.arguments, **self.options}


def python_function(kernel: Any) -> types.FunctionType:
    """The plain function under any stack of decorators."""
    while not isinstance(kernel, types.FunctionType):
        kernel = kernel.fn
    return kernel


@lru_cache(maxsize=256)
def parameters_of(function: types.FunctionType) -> dict[str, Any]:
    """Parameter names of a plain function with their defaults (`inspect.Parameter.empty` for none)."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


def resolve(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], *, ours: tuple[str, ...], realization: Realization
) -> Bound:
    """Binds a launch.

    Args:
        kernel: the kernel as the module holds it, under any of autotune, heuristics and foreign decorators.
        args, kwargs: the launch's arguments as the host function wrote them.
        ours: parameters that generated code added; the host function does not pass them.
        realization: its ``meta``, ``num_warps`` and ``num_stages`` override the launch's and the configuration's.

    Raises:
        UsageError: arguments that do not fit the kernel.
    """
    function = python_function(kernel)
    defaults = parameters_of(function)
    names = [n for n in defaults if n not in ours]
    if len(args) > len(names):
        raise UsageError(f"{function.__name__} takes {len(names)} arguments, {len(args)} were given")
    bound: dict[str, Any] = dict(zip(names, args, strict=False))
    options: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in bound:
            raise UsageError(f"{function.__name__} got two values for {key!r}")
        (bound if key in names else options)[key] = value

    overrides: dict[str, Any] = dict(realization.meta)
    for key in ("num_warps", "num_stages"):
        if getattr(realization, key) is not None:
            overrides[key] = getattr(realization, key)

    def override() -> None:
        for key, value in overrides.items():
            (bound if key in names else options)[key] = value

    override()
    layer = kernel
    while True:
        inner = getattr(layer, "fn", None)
        if inner is None or isinstance(inner, types.FunctionType):
            break
        configs = getattr(layer, "configs", None)
        values = getattr(layer, "values", None)
        if configs:
            config = configs[0]
            for key, value in config.all_kwargs().items():
                (bound if key in names else options).setdefault(key, value)
            override()
            if config.pre_hook is not None:
                config.pre_hook({**bound, **options})
        elif isinstance(values, dict):
            for key, compute in values.items():
                if key not in overrides:
                    bound[key] = compute({**bound, **options})
        layer = inner
    for name in names:
        default = defaults[name]
        if name not in bound and default is not inspect.Parameter.empty:
            bound[name] = default
    missing = [n for n in names if n not in bound]
    if missing:
        raise UsageError(f"the launch of {function.__name__} gives no value for {', '.join(missing)}")
    return Bound(layer, {n: bound[n] for n in names}, options)


def evaluate_grid(grid: Any, bound: Bound) -> tuple[int, int, int]:
    """The launch grid as three integers."""
    if callable(grid):
        grid = grid(bound.meta)
    try:
        sizes = tuple(int(g) for g in (grid if isinstance(grid, (tuple, list)) else (grid,)))
    except (TypeError, ValueError):
        raise UsageError(
            f"the grid is {grid!r}",
            help="one to three numbers, or a function of the launch's arguments that gives them",
        ) from None
    if not 1 <= len(sizes) <= 3:
        raise UsageError(f"a grid has one to three dimensions, not {len(sizes)}")
    return (*sizes, *(1,) * (3 - len(sizes)))  # type: ignore[return-value]
