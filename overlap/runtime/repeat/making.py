"""How the results of a repeated call are made: contiguous, uninitialised, on the device of the first call's."""

from __future__ import annotations

from typing import Any

import torch

CPU, CUDA = 1, 2
"""Types of devices as DLPack numbers them."""


class Making:
    """Makes a result like ``like``.

    ``make``, ``arguments``, ``named``: a function and what it is given; ``kind``, ``index``: the device that its result must be
    on, as DLPack has it.

    On GPUs that is what Inductor's code allocates with, torch.empty below the dispatcher, which takes the current device.
    """

    __slots__ = ("arguments", "index", "kind", "make", "named")

    def __init__(self, like: torch.Tensor) -> None:
        shape, device = tuple(like.shape), like.device
        self.kind, self.index = CUDA if device.type == "cuda" else CPU, device.index or 0
        direct = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None) if self.kind == CUDA else None
        self.make: Any = direct or torch.empty
        strides = torch.empty(shape, device="meta").stride()
        self.arguments: tuple[Any, ...] = (shape, strides, like.dtype) if direct is not None else (shape,)
        self.named: dict[str, Any] | None = None if direct is not None else {"dtype": like.dtype, "device": device}

    def __call__(self) -> torch.Tensor:
        if self.named is not None:
            return self.make(*self.arguments, **self.named)
        made: torch.Tensor = self.make(*self.arguments)
        if made.get_device() != self.index:
            shape, _, dtype = self.arguments
            made = torch.empty(shape, dtype=dtype, device=torch.device("cuda", self.index))
        return made
