"""Calls of compiled host functions that are like an earlier one but for where their tensors lie.

Where the host function is plain (`plain_body`), a call is known by the values of its arguments, the layouts of its tensors, and
the globals that its body reads. The first call runs the body and leaves its launch made ready; later ones enqueue that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..calls.between_graphs import untraced
from ..calls.call import Call
from ..operator import Operator
from .known_calls import PLAIN, Asked, apart, repeated_call, unwatched
from .plain_body import VALUES, plain_globals


def call(operator: Operator, arguments: dict[str, Any], *, group: Any, sizes: dict[str, int] | None, out: Any) -> Any:
    """As `Operator.call`."""
    if torch.compiler.is_dynamo_compiling():
        return _apart(operator, arguments, group=group, sizes=sizes, out=out)
    asked = _repeated(operator, arguments, group, sizes, out)
    if isinstance(asked, list):
        return asked[0] if len(asked) == 1 else tuple(asked)
    made = Call(operator, arguments, group=group, sizes=sizes, out=out, asked=asked)
    result = made.run()
    if asked is not None and _as_made(result, made.asked_for):
        asked.keep(made.asked_for, None, forced=False)
    return result


_apart = untraced(call, "calls of compiled host functions are made between graphs")


def _repeated(
    operator: Operator, arguments: dict[str, Any], group: Any, sizes: dict[str, int] | None, out: Any
) -> list[torch.Tensor] | Asked | None:
    if not unwatched(group):
        return None
    group = dist.group.WORLD if group is None else group
    if not (hasattr(group, "overlap_runtime") or isinstance(group, dist.ProcessGroup)):
        return None
    if not (sizes is None or hasattr(sizes, "items")):
        return None  # the long way says so
    head: list[Any] = [operator, None if sizes is None else tuple(sizes.items())]
    tensors: list[torch.Tensor] = []
    for name, value in arguments.items():
        kind = type(value)
        if kind in VALUES:
            head += (name, kind, value)
        elif kind in PLAIN:
            head.append(name)
            tensors.append(value)
        else:
            return None
    if out is not None and type(out) not in PLAIN:
        return None
    given = tuple(name for name, value in arguments.items() if type(value) in PLAIN)
    names = _plain(operator, given)
    if names is None:
        return None
    if not operator.inputs.keys() >= set(given) and not apart(tensors):
        return None  # what is no declared input may be the kernel's to write
    head += map(operator.body.__globals__.get, names)
    return repeated_call(tuple(head), group, tensors, () if out is None else (out,), _nobody, _nowhere, grads=True)


def _plain(operator: Operator, tensors: tuple[str, ...]) -> tuple[str, ...] | None:
    """`plain_globals` of an operator's body, read once; None where a hook of its kernel runs at each launch, too."""
    found: dict[tuple[str, ...], tuple[str, ...] | None] = operator.__dict__.setdefault("_plain_globals", {})
    if tensors not in found:
        found[tensors] = plain_globals(operator.body, tensors)
    return None if hooked(operator.kernel) else found[tensors]


def hooked(layer: Any) -> bool:
    """Whether an autotuner's configuration of a kernel has a hook, which does its work at every launch, on data too."""
    while layer is not None:
        configs = getattr(layer, "configs", None)
        if configs and configs[0].pre_hook is not None:
            return True
        layer = getattr(layer, "fn", None)
    return False


def _as_made(result: Any, results: Sequence[torch.Tensor]) -> bool:
    """Whether a host function returned its results as they are, in their order."""
    given = result if isinstance(result, tuple) and len(results) != 1 else (result,)
    return (
        type(given) is tuple
        and len(given) == len(results) > 0
        and all(a is b and b.is_contiguous() for a, b in zip(given, results, strict=True))
    )


def _nobody(said: Any, forced: bool) -> None:
    """Of calls of generated functions no report is kept."""


def _nowhere() -> None:
    """Errors name what they are about; the line that calls a generated function is its own."""
