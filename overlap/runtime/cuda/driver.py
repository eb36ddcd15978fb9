"""Calls of the CUDA driver made ready: functions of libcuda with arguments that are converted once.

A launch of four ranks makes some twenty such calls, so what each costs besides the driver's own time counts. Arguments that
ctypes objects hold already are passed on as they are; a stream holds its handle in that form.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from overlap.errors import RuntimeContractError

from ..memory.copies import CopyPiece
from ..repeat.places import NOTHING, Carried, Place

_DISABLE_TIMING = 2
_WAIT_GEQ = 0
_DEVICE_MEMORY = 2
_RELAXED = 2
"""A capture that forbids nobody else's calls."""
_NON_BLOCKING = 1
_NODE_PRIORITIES = 8
"""Kernels of a graph keep the priority of the stream that they were recorded on."""

Call = tuple[Callable[..., int], tuple[Any, ...], tuple[Any, ...]]
"""A function, and its arguments ahead of and behind a stream's handle. It gives 0, or what went wrong."""


class _Copy2D(ctypes.Structure):
    """``CUDA_MEMCPY2D`` of the driver API."""

    _fields_ = [
        *[(f"src{name}", kind) for name, kind in (("XInBytes", ctypes.c_size_t), ("Y", ctypes.c_size_t))],
        ("srcMemoryType", ctypes.c_int),
        *[(f"src{name}", ctypes.c_void_p) for name in ("Host", "Device", "Array")],
        ("srcPitch", ctypes.c_size_t),
        *[(f"dst{name}", kind) for name, kind in (("XInBytes", ctypes.c_size_t), ("Y", ctypes.c_size_t))],
        ("dstMemoryType", ctypes.c_int),
        *[(f"dst{name}", ctypes.c_void_p) for name in ("Host", "Device", "Array")],
        ("dstPitch", ctypes.c_size_t),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
    ]


@cache
def libcuda() -> Any:
    """The driver's library.

    Raises:
        RuntimeContractError: there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeContractError(f"no CUDA driver: {error}", help="`overlap doctor` says what is missing") from None


class Stream:
    """A CUDA stream by its handle; whoever made it keeps it alive."""

    __slots__ = ("argument", "cuda_stream")

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.argument = ctypes.c_void_p(handle)


class OwnStream(Stream):
    """A stream that is made here and that nobody else has, as torch's may be; it ends with this object.

    Args:
        priority: the lower, the sooner; 0 is the ordinary one.
    """

    def __init__(self, priority: int) -> None:
        made = ctypes.c_void_p()
        check(libcuda().cuStreamCreateWithPriority(ctypes.byref(made), _NON_BLOCKING, priority), "a stream")
        super().__init__(made.value or 0)
        ends_with(self, (libcuda().cuStreamDestroy_v2, made))


class Event:
    """A CUDA event without timing, made in the current context; ``recorded_on``: the handle of the stream that was last."""

    def __init__(self) -> None:
        made = ctypes.c_void_p()
        check(libcuda().cuEventCreate(ctypes.byref(made), _DISABLE_TIMING), "an event")
        self._argument = made
        self.recorded_on = 0
        self._record, self._wait = libcuda().cuEventRecord, libcuda().cuStreamWaitEvent
        ends_with(self, (libcuda().cuEventDestroy_v2, made))

    @property
    def handle(self) -> int:
        """What the driver calls it."""
        return int(self._argument.value or 0)

    def record(self, stream: Stream) -> None:
        """Stands for what ``stream`` holds so far."""
        self.recorded_on = stream.cuda_stream
        error = self._record(self._argument, stream.argument)
        if error:
            check(error, "recording an event")

    def hold(self, stream: Stream) -> None:
        """Orders ``stream`` behind what the event stands for."""
        error = self._wait(stream.argument, self._argument, 0)
        if error:
            check(error, "waiting for an event")


def copy_call(piece: CopyPiece) -> Call:
    """A copy by copy engine."""
    if piece.rows == 1:
        ends = ctypes.c_void_p(piece.dst), ctypes.c_void_p(piece.src)
        return libcuda().cuMemcpyDtoDAsync_v2, (*ends, ctypes.c_size_t(piece.width)), ()
    request = _Copy2D(
        srcMemoryType=_DEVICE_MEMORY,
        dstMemoryType=_DEVICE_MEMORY,
        srcDevice=piece.src,
        dstDevice=piece.dst,
        srcPitch=piece.src_pitch,
        dstPitch=piece.dst_pitch,
        WidthInBytes=piece.width,
        Height=piece.rows,
    )
    return libcuda().cuMemcpy2DAsync_v2, (ctypes.pointer(request),), ()


class CopyOut:
    """A copy by copy engine out of a tensor of each call.

    Args:
        piece: the copy, from where one call has its source.
        place: where every call has it.
    """

    def __init__(self, piece: CopyPiece, place: Place) -> None:
        self.place = place
        self.flat = piece.rows == 1
        """Whether it is one-dimensional."""
        self._function, arguments, _ = copy_call(piece)
        if self.flat:
            self._to, _, self._bytes = arguments
        else:
            self._request = arguments[0].contents

    def call(self, carried: Carried) -> Call:
        """Its call of the driver in a call, which shares nothing with that of another: two threads may be making theirs."""
        address = self.place.address(carried)
        if self.flat:
            return self._function, (self._to, ctypes.c_void_p(address), self._bytes), ()
        request = _Copy2D.from_buffer_copy(self._request)
        request.srcDevice = address
        return self._function, (ctypes.pointer(request),), ()


def hold_call(address: int, value: int) -> Call:
    """Holds a stream until the 32-bit word at ``address`` is at least ``value``."""
    arguments = ctypes.c_void_p(address), ctypes.c_uint32(value), ctypes.c_uint(_WAIT_GEQ)
    return libcuda().cuStreamWaitValue32_v2, (), arguments


class Calls:
    """Calls of the driver, enqueued on a stream one behind the other.

    Args:
        calls: in their order, each with what it is, for messages.
    """

    def __init__(self, calls: Sequence[tuple[Call | CopyOut, str]]) -> None:
        self.calls = tuple(calls)
        self._bare = tuple(call for call, _ in calls)
        self.brought = any(isinstance(call, CopyOut) for call in self._bare)
        """Whether some of them take something from a call."""
        self._bound: tuple[Stream | None, Sequence[tuple[Callable[..., int], tuple[Any, ...]]]] = (None, ())
        """For the stream that was last: a lane's calls find theirs here."""

    def __call__(self, stream: Stream, carried: Carried = NOTHING) -> None:
        """Raises RuntimeContractError when the driver refuses one."""
        last, bound = self._bound
        if last is not stream or self.brought:
            bound = self._on(stream, carried)
        for call, arguments in bound:
            error = call(*arguments)
            if error:
                number = next(number for number, each in enumerate(bound) if each[1] is arguments)
                check(error, self.calls[number][1])

    def _on(self, stream: Stream, carried: Carried) -> Sequence[tuple[Callable[..., int], tuple[Any, ...]]]:
        """Functions and all of their arguments."""
        bare = [call.call(carried) if isinstance(call, CopyOut) else call for call in self._bare]
        bound = [(call, (*before, stream.argument, *behind)) for call, before, behind in bare]
        if not self.brought:
            self._bound = stream, bound
        return bound


def chain(enqueues: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """Functions of a stream, and of what a call carries, as one; neighbours that are calls of the driver become one list."""
    merged: list[Callable[..., None]] = []
    for enqueue in enqueues:
        last = merged[-1] if merged else None
        if isinstance(enqueue, Calls) and isinstance(last, Calls):
            merged[-1] = Calls((*last.calls, *enqueue.calls))
        else:
            merged.append(enqueue)
    return merged[0] if len(merged) == 1 else _Chain(merged)


class _Chain:
    """Functions of a stream and of what a call carries, called one behind the other."""

    def __init__(self, parts: Sequence[Callable[..., None]]) -> None:
        self.parts = tuple(parts)

    def __call__(self, stream: Stream, carried: Carried = NOTHING) -> None:
        for enqueue in self.parts:
            enqueue(stream, carried)


def recorded(
    enqueue: Callable[[Stream], None], stream: Stream, what: str, *, node_priorities: bool = False
) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """A graph of work, and the graph made ready to be launched and on its device; both are the caller's to destroy.

    Args:
        enqueue: enqueues it on the stream, and on those that it orders behind the stream and the stream behind them.
        stream: one that nobody else uses.
        what: is recorded, for messages.
        node_priorities: kernels keep the priority of the stream that they are recorded on, wherever the graph is launched.

    Raises:
        RuntimeContractError: the driver cannot record it.
    """
    cuda = libcuda()
    graph, made = ctypes.c_void_p(), ctypes.c_void_p()
    flags = ctypes.c_ulonglong(_NODE_PRIORITIES if node_priorities else 0)
    with _unwatched():
        check(cuda.cuStreamBeginCapture_v2(stream.argument, _RELAXED), f"recording {what}")
        try:
            enqueue(stream)
        except BaseException:
            cuda.cuStreamEndCapture(stream.argument, ctypes.byref(graph))
            if graph:
                cuda.cuGraphDestroy(graph)
            raise
        check(cuda.cuStreamEndCapture(stream.argument, ctypes.byref(graph)), f"{what}, recorded")
        try:
            check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, flags), f"a graph of {what}")
            check(cuda.cuGraphUpload(made, stream.argument), f"a graph of {what} on its device")
        except RuntimeContractError:
            if made:
                cuda.cuGraphExecDestroy(made)
            cuda.cuGraphDestroy(graph)
            raise
    return graph, made


@contextmanager
def _unwatched() -> Iterator[None]:
    """What is made meanwhile, memory included, is no fault of a capture that somebody has begun elsewhere."""
    mode = ctypes.c_int(_RELAXED)
    check(libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "a mode of captures")
    try:
        yield
    finally:
        libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


class Graph:
    """Work of one stream in a graph: launched by one call of the driver, however much there is.

    Args:
        enqueue: enqueues the work.
        stream: a stream that nobody else uses; what is recorded has its priority.

    Raises:
        RuntimeContractError: the driver cannot record it.
    """

    def __init__(self, enqueue: Callable[[Stream], None], stream: Stream) -> None:
        cuda = libcuda()
        graph, made = recorded(enqueue, stream, "a lane")
        cuda.cuGraphDestroy(graph)
        self._argument, self._launch = made, cuda.cuGraphLaunch
        ends_with(self, (cuda.cuGraphExecDestroy, made))

    def __call__(self, stream: Stream, _: Carried = NOTHING) -> None:
        """Enqueues all of it. Of two launches the second waits for the first, on whatever streams."""
        error = self._launch(self._argument, stream.argument)
        if error:
            check(error, "launching a lane's graph")


def ends_with(owner: object, *ends: tuple[Callable[[Any], int], Any]) -> None:
    """Calls of the driver at the end of an object, whenever that is.

    A capture that this thread has begun would end by what is destroyed meanwhile, were it not for the mode.
    """
    weakref.finalize(owner, _end, libcuda(), ends).atexit = False


def _end(cuda: Any, ends: Sequence[tuple[Callable[[Any], int], Any]]) -> None:
    mode = ctypes.c_int(_RELAXED)
    cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    for call, argument in ends:
        call(argument)
    cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def brings(enqueue: Callable[..., None]) -> bool:
    """Whether any of what `chain` made one of takes something from a call."""
    parts = enqueue.parts if isinstance(enqueue, _Chain) else (enqueue,)
    return any(getattr(part, "brought", False) for part in parts)


def one_by_one(enqueue: Callable[..., None]) -> Iterator[tuple[Callable[..., None], CopyOut | None]]:
    """What `chain` made one of, cut behind each copy that takes its source from a call, which comes with its part."""
    for part in enqueue.parts if isinstance(enqueue, _Chain) else (enqueue,):
        if not isinstance(part, Calls) or not part.brought:
            yield part, None
            continue
        for call, what in part.calls:
            yield Calls([(call, what)]), call if isinstance(call, CopyOut) else None


def length(enqueue: Callable[..., None]) -> int:
    """How many calls of the driver `chain` made one of."""
    if isinstance(enqueue, Calls):
        return len(enqueue.calls)
    return sum(map(length, enqueue.parts)) if isinstance(enqueue, _Chain) else 1


def check(error: int, what: str) -> None:
    """Raises RuntimeContractError, naming the driver's error, unless it is none."""
    if error:
        name = ctypes.c_char_p()
        libcuda().cuGetErrorName(error, ctypes.byref(name))
        told = name.value.decode() if name.value else f"error {error}"
        raise RuntimeContractError(f"{what}: the CUDA driver answers {told}")
