"""A compiled kernel's launch with its arguments bound, those excepted that each call finds in what it carries.

Arguments that stay are converted once: tensors to addresses, descriptors to what the driver encodes. A launch then copies a
list and puts a few addresses in. A descriptor is encoded for each address that it is put over, and kept for the last few, since
operands and results of a training step come round again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..repeat.places import NOTHING, Carried, Place, over_base, without_base
from .launchers import At, bare_launcher, descriptors_of, direct_launch, encoder, watched
from .scratch import scratch

KEPT = 32
"""Addresses for which a launch keeps an encoded descriptor, of each parameter."""


class Varying(NamedTuple):
    """A parameter of the compiled kernel that lies in what a call carries: its number among those of the kernel, whether it is
    a tensor map, and where it lies."""

    number: int
    described: bool
    place: Place


def bound_launch(
    kernel: Any,
    made: Any,
    grid: tuple[int, int, int],
    kwargs: Mapping[str, Any],
    later: Mapping[str, Place | None] = {},
) -> Callable[..., None]:
    """A launch of the compiled kernel ``made`` that skips Triton's argument analysis (`Runtime.warm`).

    Args:
        kwargs: arguments by name, launch options among them, which are part of ``made``.
        later: those that each launch brings, by name or (with a place) in what its call carries.
    """
    named = any(place is None for place in later.values())
    slow = _ByTriton(kernel, made, grid, kwargs, later)
    launcher = None if named else bare_launcher(made)
    return slow if launcher is None else _ByAddress(kernel, made, grid, kwargs, later, launcher, slow)


class _ByTriton:
    """Hands tensors to Triton's own launcher, which asks the launch hooks as well."""

    def __init__(
        self,
        kernel: Any,
        made: Any,
        grid: tuple[int, int, int],
        kwargs: Mapping[str, Any],
        later: Mapping[str, Place | None],
    ) -> None:
        self._numbers = {name: i for i, name in enumerate(kernel.arg_names)}
        self._values = [None if name in later else kwargs.get(name) for name in kernel.arg_names]
        self._places = [
            (self._numbers[name], place, None if isinstance(kwargs[name], torch.Tensor) else without_base(kwargs[name]))
            for name, place in later.items()
            if place is not None
        ]
        self.varying: tuple[Varying, ...] | None = None if later else ()
        """Where it takes what a call carries; nobody knows where Triton's launcher puts it."""
        self._run = made[grid]
        if getattr(made.metadata, "global_scratch_size", 0):
            self._run = scratch()(self._run)

    def __call__(self, stream: Any, carried: Carried = NOTHING, **replaced: Any) -> None:
        values = self._values.copy()
        for number, place, descriptor in self._places:
            view = place.view(carried)
            values[number] = view if descriptor is None else over_base(descriptor, view)
        for name, value in replaced.items():
            values[self._numbers[name]] = value
        self._run(*values, stream=stream.cuda_stream)


class _Encoded:
    """Encoded forms of a descriptor over an address of each call; ``kept``: by address, the last few."""

    __slots__ = ("_descriptor", "_encode", "kept")

    def __init__(self, descriptor: Any, encode: Callable[[Any], list[Any]]) -> None:
        self._descriptor = without_base(descriptor)
        self._encode = encode
        self.kept: dict[int, Any] = {}

    def first(self, address: int) -> Any:
        """The argument that depends on an address that is not kept; shape and strides behind it do not."""
        found = self._encode(over_base(self._descriptor, At(address)))[0]
        if len(self.kept) >= KEPT:
            del self.kept[next(iter(self.kept))]
        self.kept[address] = found
        return found


class _ByAddress:
    """Puts addresses into a list that the launcher below Triton's takes; where hooks watch, Triton's own launches."""

    def __init__(
        self,
        kernel: Any,
        made: Any,
        grid: tuple[int, int, int],
        kwargs: Mapping[str, Any],
        later: Mapping[str, Place | None],
        launcher: Callable[..., None],
        slow: _ByTriton,
    ) -> None:
        self._grid = grid
        self._slow = slow
        """Keeps the tensors whose addresses stand in the list."""
        self._arguments: list[Any] = []
        self._addresses: list[tuple[int, int, int]] = []
        self._encoded: list[tuple[int, int, int, dict[int, Any], _Encoded]] = []
        self._parameters = 0
        self.varying: list[Varying] = []
        """Where the kernel takes what a call carries."""
        described = descriptors_of(made)
        for name in kernel.arg_names:
            self._bind(made, name, kwargs.get(name), later.get(name), name in described)
        head = (made.function, made.packed_metadata, None, None, None)
        direct = direct_launch(launcher, head, len(self._arguments))
        if direct is not None:
            self._launch, self._head, self._packed = direct
        else:
            self._launch = scratch()(launcher) if getattr(made.metadata, "global_scratch_size", 0) else launcher
            self._head, self._packed = head, False

    def _bind(self, made: Any, name: str, value: Any, place: Place | None, described: bool) -> None:
        at = len(self._arguments)
        if described:
            encode = encoder(made, name)
            address = value.base.data_ptr()
            encoded = encode(over_base(value, At(address)))
            self._arguments += encoded
            if place is not None:
                self.varying.append(Varying(self._parameters, not isinstance(encoded[0], int), place))
                each = _Encoded(value, encode)
                self._encoded.append((at, place.number, place.offset, each.kept, each))
            self._parameters += len(encoded)
            return
        if isinstance(value, torch.Tensor):
            value = value.data_ptr()
            if place is not None:
                self.varying.append(Varying(self._parameters, False, place))
                self._addresses.append((at, place.number, place.offset))
        self._arguments.append(value)
        self._parameters += made.src.signature.get(name, "constexpr") != "constexpr"

    def __call__(self, stream: Any, carried: Carried = NOTHING) -> None:
        if watched():
            self._slow(stream, carried)
            return
        arguments, addresses = self._arguments.copy(), carried.addresses
        for at, number, offset in self._addresses:
            arguments[at] = addresses[number] + offset
        for at, number, offset, kept, encoded in self._encoded:
            address = addresses[number] + offset
            arguments[at] = kept.get(address) or encoded.first(address)
        if self._packed:
            self._launch(*self._grid, stream.cuda_stream, *self._head, tuple(arguments))
        else:
            self._launch(*self._grid, stream.cuda_stream, *self._head, *arguments)
