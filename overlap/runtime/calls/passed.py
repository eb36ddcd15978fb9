"""What a launch passes for a communicated tensor must be that tensor: its memory from the start, by its own strides, and once.

The schedule says which rows a tile reads and makes by the names of the tensor's dimensions. A kernel that gets ``x[1:]``,
``x[::2]`` or another stride reads other rows, perhaps before they have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from overlap.errors import HostEntryError, SourceSpan

from ..operator import Comm, Operator
from .shapes import overlapping

_AS_IT_IS = "pass the tensor as it is, once, with its own strides, and choose rows in the kernel"


def check_strides(
    operator: Operator,
    comm: Comm,
    arguments: Mapping[str, Any],
    seen: torch.Tensor,
    where: Callable[[], SourceSpan | None],
) -> None:
    """Refuses strides of the launch that are not those of the tensor, and columns that begin outside of a row.

    Args:
        seen: the tensor, or another of its shape and strides.

    Raises:
        HostEntryError: at the host function's line.
    """
    known = {name: v for name, v in arguments.items() if not isinstance(v, torch.Tensor)}

    def number(text: str, what: str) -> int:
        try:
            return int(eval(_code(text), {"__builtins__": {}}, known))
        except Exception:
            raise HostEntryError(
                f"the launch gives no number for `{text}`, {what} of `{comm.tensor}`",
                where=where(),
                help="pass integers, and strides as TENSOR.stride(DIMENSION)",
            ) from None

    for texts in operator.strides.get(comm.tensor, ()) if seen.numel() else ():
        for d, (text, own, extent) in enumerate(zip(texts, seen.stride(), seen.shape, strict=False)):
            if text is not None and extent > 1 and (given := number(text, "a stride")) != own:
                raise HostEntryError(
                    f"the kernel indexes dimension {d} of `{comm.tensor}` by `{text}`, which is {given}; the tensor's stride is "
                    f"{own}",
                    where=where(),
                    help=f"pass {comm.tensor}.stride({d}); to skip rows, multiply the index in the kernel",
                )
    for d, text in operator.starts.get(comm.tensor, ()) if seen.numel() else ():
        if abs(given := number(text, "a column")) >= seen.shape[d]:
            raise HostEntryError(
                f"the kernel begins at `{text}`, {given}, in rows of `{comm.tensor}`, which have {seen.shape[d]} elements: it "
                "means other rows than a tile's own",
                where=where(),
                help="add to the index of a row what goes to another row, ahead of its stride",
            )


def check_input(
    operator: Operator,
    comm: Comm,
    arguments: Mapping[str, Any],
    seen: torch.Tensor,
    where: Callable[[], SourceSpan | None],
) -> None:
    """Refuses a view of a communicated input that has other rows, and its memory a second time.

    Raises:
        HostEntryError: at the host function's line.
    """
    value = arguments[comm.param]
    base = getattr(value, "base", value)
    if not isinstance(base, torch.Tensor) or not seen.numel():
        return
    if base.data_ptr() != seen.data_ptr():
        raise HostEntryError(
            f"`{comm.param}` is given a part of `{comm.tensor}` that does not begin where it does",
            where=where(),
            help=_AS_IT_IS,
        )
    steps = tuple(value.strides) if base is not value else base.stride()
    if len(steps) == seen.dim():
        wrong = any(n > 1 and s != t for n, s, t in zip(seen.shape, steps, seen.stride(), strict=True))
    else:
        wrong = not (base.is_contiguous() and seen.is_contiguous() and base.numel() == seen.numel())
    if wrong:
        raise HostEntryError(
            f"`{comm.param}` is given a view of `{comm.tensor}` with strides {tuple(steps)}, not its own {tuple(seen.stride())}",
            where=where(),
            help=_AS_IT_IS,
        )
    for name, other in arguments.items():
        tensor = getattr(other, "base", other)
        if name == comm.param or not isinstance(tensor, torch.Tensor) or not tensor.numel():
            continue
        if overlapping(tensor, seen) and not (
            name in operator.alike.get(comm.tensor, ())
            and (tensor.data_ptr(), tensor.stride()) == (seen.data_ptr(), seen.stride())
        ):
            raise HostEntryError(
                f"the launch passes the memory of `{comm.tensor}` a second time, as `{name}`",
                where=where(),
                help=f"read it through `{comm.param}` alone, or pass a copy that is an argument of its own",
            )


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    return compile(text, "<stride>", "eval")
