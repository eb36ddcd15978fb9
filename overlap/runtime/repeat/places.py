"""Where the arguments of a launch lie in the tensors of a call, so that it can be made ready once for all calls alike.

    call            x [512, 64]             w               y
    launch          src = x + 0 bytes       b_ptr = w + 0   out = y + 4096

A prepared launch keeps no tensor of any call. It keeps places; each call brings the tensors that they are places in.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..kernels.stage import as_words


class Carried:
    """The tensors of one call, in the order that its places number them by, and their addresses."""

    __slots__ = ("addresses", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int] | None = None) -> None:
        self.tensors = tensors
        self.addresses = [t.data_ptr() for t in tensors] if addresses is None else addresses


NOTHING = Carried(())


class Place(NamedTuple):
    """A view of one of a call's tensors.

    ``number``: which; ``offset``: bytes from its first element to the view's; ``shape``, ``strides``: in elements of the
    call's tensor; ``words``: the dtype as which a kernel takes the view's address, None for the tensor's own.
    """

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    words: torch.dtype | None = None

    def address(self, carried: Carried) -> int:
        """Of the view in a call, in bytes."""
        return carried.addresses[self.number] + self.offset

    def view(self, carried: Carried) -> torch.Tensor:
        """The view in a call; of ``words``, as much of it as shows a kernel its address."""
        tensor = carried.tensors[self.number]
        start = tensor.storage_offset() + self.offset // tensor.element_size()
        found = tensor.as_strided(self.shape, self.strides, start)
        return found if self.words is None else as_words(found, self.words)


def within(place: Place, tensor: torch.Tensor, view: torch.Tensor, words: torch.dtype | None = None) -> Place:
    """The place of ``view``, a view of ``tensor``, which lies at ``place``."""
    offset = place.offset + view.data_ptr() - tensor.data_ptr()
    return Place(place.number, offset, tuple(view.shape), tuple(view.stride()), words)


def numbered(tensors: Sequence[torch.Tensor]) -> tuple[Place, ...]:
    """The places of tensors that a call carries as they are."""
    return tuple(Place(i, 0, tuple(t.shape), tuple(t.stride())) for i, t in enumerate(tensors))


def place_of(view: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Place | None:
    """Where a view lies among the tensors of a call; None: in none of them, or in the memory of two.

    Which of two is meant nobody could tell in a call that passes them apart.
    """
    storage = view.untyped_storage().data_ptr()
    holders = [i for i, tensor in enumerate(tensors) if tensor.untyped_storage().data_ptr() == storage]
    if len(holders) != 1 or not storage or tensors[holders[0]].dtype != view.dtype:
        return None
    offset = view.data_ptr() - tensors[holders[0]].data_ptr()
    return Place(holders[0], offset, tuple(view.shape), tuple(view.stride()))


def without_base(descriptor: Any) -> Any:
    """A tensor descriptor that keeps no tensor, to be put over one by `over_base`."""
    return over_base(descriptor, None)


def over_base(descriptor: Any, base: Any) -> Any:
    """The same tensor descriptor over other memory."""
    made = copy.copy(descriptor)
    made.base = base
    return made
