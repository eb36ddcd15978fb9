"""What Triton compiles a kernel anew for, of the arguments of a launch.

Triton specialises on types, on addresses and integers that are multiples of 16, on the integer 1, and on every value of a
``tl.constexpr`` parameter or a launch option. Telling more variants apart than it does costs a look-up, fewer a wrong kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ..calls.resolve import parameters_of, python_function

INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)
PLAIN = (bool, str, type(None))


class Variant(NamedTuple):
    """``exact``: launches of an equal ``key`` need no Triton; ``guessed``: whether theirs is one kernel, only Triton can tell."""

    key: tuple[Any, ...]
    exact: bool
    guessed: bool = False


def variant_of(kernel: Any, arguments: Mapping[str, Any]) -> Variant:
    """The variant of ``kernel``, a jitted function, that a launch runs.

    Args:
        arguments: by name; those that are no parameters are launch options.
    """
    plain = _plain_parameters(python_function(kernel))
    seen: list[Any] = []
    exact = True
    for name, value in arguments.items():
        if name not in plain or isinstance(value, PLAIN):
            if not isinstance(value, Hashable):
                exact, value = False, None
            seen.append((type(value), value))
        elif isinstance(value, torch.Tensor):
            seen.append((value.dtype, value.data_ptr() % 16 == 0))
        elif isinstance(value, int):
            seen.append((value == 1, value % 16 == 0, 32 if value in INT32 else 64 if value in INT64 else 65))
        elif isinstance(value, float):
            seen.append(float)
        elif hasattr(value, "block_shape") and hasattr(value, "base"):
            further = (tuple(value.block_shape), len(value.shape), getattr(value, "padding", None))
            seen.append((type(value), value.base.dtype, *further))
        else:
            exact = False
            seen.append(type(value))
    return Variant(tuple(seen), exact and not getattr(kernel, "pre_run_hooks", ()), not exact)


@lru_cache(maxsize=256)
def _plain_parameters(function: FunctionType) -> frozenset[str]:
    """Names of the parameters that are no ``tl.constexpr``."""
    annotations = function.__annotations__
    return frozenset(name for name in parameters_of(function) if "constexpr" not in str(annotations.get(name)))
