"""Simulated memory: every byte that a kernel or a copy may touch lies in a registered `Buffer`.

Buffers made by the simulator stand apart in an `Arena`, so that an index past the end of one never lands in the
next. Each buffer carries its shadow: per element the last writer and the readers since, as interned ids.
"""

from __future__ import annotations

import bisect
import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .clocks import SyncWord
from .dtypes import numpy_of_torch

NEVER_WRITTEN, BEFORE_ALL = 0, 1
"""The two writer ids that no access has: uninitialised memory, and data that was there before the run began."""

_ALIGN = 256
_CHUNK = 1 << 26
_POISON = 0xFF
"""Fills uninitialised memory: NaN in every float format, -1 in every integer."""


class Buffer:
    """One allocation of one rank.

    ``itemsize`` is the granule of the shadow in bytes; ``shape`` that of the tensor, for messages. ``copies`` are the
    same allocation on every rank, in rank order (symmetric memory only). ``label`` names a word by element index.
    """

    __slots__ = (
        "start",
        "end",
        "rank",
        "name",
        "shape",
        "strides",
        "offset",
        "itemsize",
        "bytes",
        "writer",
        "readers",
        "copies",
        "label",
        "words",
        "sleepers",
        "storage",
        "_views",
        "shift",
        "named",
    )

    def __init__(
        self, start: int, nbytes: int, raw: np.ndarray, rank: int, itemsize: int, storage: Any, written: bool
    ) -> None:
        self.start = start
        self.end = start + nbytes
        self.rank = rank
        self.name = "memory"
        self.named = False
        self.shape: tuple[int, ...] = (nbytes // itemsize,)
        self.strides: tuple[int, ...] = (1,)
        self.offset = 0
        self.itemsize = itemsize
        self.shift = itemsize.bit_length() - 1
        self.bytes = raw
        self.storage = storage
        granules = -(-nbytes // itemsize)
        self.writer = np.full(granules, BEFORE_ALL, np.int32) if written else np.zeros(granules, np.int32)
        self.readers = np.zeros(granules, np.int32)
        self.copies: tuple[Buffer, ...] | None = None
        self.label: Callable[[int], str] | None = None
        self.words: dict[int, SyncWord] = {}
        self.sleepers: dict[int, list[Any]] = {}
        self._views: dict[np.dtype, np.ndarray] = {}

    def view(self, dtype: np.dtype) -> np.ndarray:
        """The whole buffer as a 1-D array of ``dtype``."""
        view = self._views.get(dtype)
        if view is None:
            whole = len(self.bytes) // dtype.itemsize * dtype.itemsize
            view = self._views[dtype] = self.bytes[:whole].view(dtype)
        return view

    def word(self, offset: int) -> SyncWord:
        """The synchronisation state of the word at byte ``offset``."""
        found = self.words.get(offset)
        if found is None:
            found = self.words[offset] = SyncWord()
        return found

    def granules(self, offsets: np.ndarray, itemsize: int) -> np.ndarray:
        """Shadow indices of accesses of ``itemsize`` bytes at byte ``offsets``."""
        if itemsize < self.itemsize:
            self._refine(itemsize)
        first = offsets >> self.shift
        if itemsize == self.itemsize and not (offsets & (itemsize - 1)).any():
            return first
        last = (offsets + itemsize - 1) >> self.shift
        width = int((last - first).max()) + 1 if len(first) else 1
        spread = first[:, None] + np.arange(width)
        return np.minimum(spread, last[:, None]).reshape(-1)

    def _refine(self, itemsize: int) -> None:
        """Splits the shadow's granule for narrower accesses than any before."""
        factor = self.itemsize // itemsize
        self.writer = np.repeat(self.writer, factor)
        self.readers = np.repeat(self.readers, factor)
        self.itemsize = itemsize
        self.shift = itemsize.bit_length() - 1

    def describe(self, tensor: torch.Tensor, name: str | None, *, weak: bool = False) -> None:
        """Takes name and shape for messages from a tensor passed to a kernel; a ``weak`` name gives way to others."""
        if name is not None and not self.named:
            self.name, self.named = name, not weak
        better = tensor.numel() >= math.prod(self.shape) or (tensor.dim() > 1 and len(self.shape) == 1)
        if tensor.dim() and tensor.element_size() == self.itemsize and better:
            self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
            self.offset = tensor.storage_offset()

    def elements(self, low: int, high: int) -> str:
        """The elements between two granules, in words."""
        first = self.element(low)
        if low == high:
            return first
        named = getattr(self.label, "span", None)
        if named is not None and (text := named(low, high)):
            return f"{text} on rank {self.rank}"
        last = self.element(high)
        own, rank = f"{self.name}[", f" of rank {self.rank}"
        if first.startswith(own) and last.startswith(own):
            return f"{first.removesuffix(rank)} to {last.removeprefix(self.name)}"
        return f"{first} to {last}"

    def element(self, granule: int) -> str:
        """``name[i, j]`` of a granule, or the label of a word."""
        if self.label is not None:
            text = self.label(granule)
            if text:
                return f"{text} on rank {self.rank}"
        position = granule - self.offset
        index: list[int] = []
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True), reverse=True):
            index.append(min(position // stride, extent - 1) if stride else 0)
            position -= index[-1] * stride
        if position or len(self.shape) == 1 or any(i < 0 for i in index):
            return f"{self.name}[{granule - self.offset}] of rank {self.rank}"
        order = sorted(range(len(self.shape)), key=lambda d: (self.strides[d], self.shape[d]), reverse=True)
        places = [0] * len(index)
        for dim, value in zip(order, index, strict=True):
            places[dim] = value
        return f"{self.name}[{', '.join(map(str, places))}] of rank {self.rank}"


class Arena:
    """Address space of one run: zero cost until touched, with gaps around every allocation."""

    def __init__(self) -> None:
        self._chunk = np.empty(0, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> np.ndarray:
        """``nbytes`` bytes at an aligned address, at least a page and its own size away from any other."""
        gap = max(4096, min(nbytes, 1 << 20))
        need = nbytes + 2 * gap + _ALIGN
        if self._used + need > len(self._chunk):
            self._chunk = np.empty(max(_CHUNK, need), np.uint8)
            self._used = 0
        base = self._chunk.ctypes.data
        begin = self._used + gap
        begin += -(base + begin) % _ALIGN
        self._used = begin + nbytes + gap
        return self._chunk[begin : begin + nbytes]


class Memory:
    """All registered buffers, by address."""

    def __init__(self) -> None:
        self._arena = Arena()
        self._starts: list[int] = []
        self._buffers: list[Buffer] = []

    def allocate(
        self,
        rank: int,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        stride: Sequence[int] | None = None,
        zero: bool = False,
    ) -> tuple[torch.Tensor, Buffer]:
        """A tensor of ``rank``; poisoned and marked as never written unless ``zero``."""
        shape = tuple(int(n) for n in shape)
        itemsize = dtype.itemsize
        if stride is None:
            elements = math.prod(shape)
        else:
            elements = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        raw = self._arena.take(max(1, elements) * itemsize)
        raw.fill(0 if zero else _POISON)
        flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype)
        tensor = flat[:elements].view(shape) if stride is None else flat.as_strided(shape, tuple(stride))
        buffer = Buffer(raw.ctypes.data, len(raw), raw, rank, itemsize, flat, written=zero)
        buffer.describe(tensor, None)
        self._insert(buffer)
        return tensor, buffer

    def of(self, tensor: torch.Tensor) -> Buffer | None:
        """The buffer whose storage ``tensor`` views, if registered."""
        return self.at(tensor.untyped_storage().data_ptr())

    def register(self, tensor: torch.Tensor, rank: int) -> Buffer:
        """The buffer of ``tensor``; an unknown one is taken in as ``rank``'s, holding data from before the run."""
        found = self.of(tensor)
        if found is not None:
            return found
        storage = tensor.untyped_storage()
        start, nbytes = storage.data_ptr(), storage.nbytes()
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(start)) if nbytes else np.empty(0, np.uint8)
        buffer = Buffer(start, nbytes, raw, rank, tensor.element_size(), storage, written=True)
        buffer.describe(tensor, None)
        if nbytes:
            self._insert(buffer)
        return buffer

    def _insert(self, buffer: Buffer) -> None:
        place = bisect.bisect_left(self._starts, buffer.start)
        self._starts.insert(place, buffer.start)
        self._buffers.insert(place, buffer)

    def at(self, address: int) -> Buffer | None:
        """The buffer that holds ``address``."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._buffers[place].end:
            return self._buffers[place]
        return None

    def nearest(self, address: int) -> Buffer | None:
        """The buffer whose edge is closest to ``address``."""
        place = bisect.bisect_right(self._starts, address) - 1
        near = self._buffers[max(0, place) : place + 2]
        return min(near, key=lambda b: min(abs(address - b.start), abs(address - b.end)), default=None)

    def offsets(self, tensor: torch.Tensor) -> np.ndarray:
        """Byte offsets in its storage of all elements of ``tensor``, in row-major order.

        By functions, since of operators numpy reuses temporaries of 256 KiB and more, and walks the stack to find out whether it
        may: below a fibre's frames lies what other fibres left, and it dies there.
        """
        places = np.full((1,) * max(1, tensor.dim()), tensor.storage_offset(), np.int64)
        for dim, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            shape = [1] * tensor.dim()
            shape[dim] = extent
            places = np.add(places, np.multiply(np.arange(extent, dtype=np.int64), stride).reshape(shape))
        return np.multiply(places.reshape(-1), tensor.element_size())


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a tensor as a numpy array that shares its memory, in the format that computes right."""
    dtype = numpy_of_torch(tensor.dtype)
    unsigned = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().view(unsigned).numpy().view(dtype)
