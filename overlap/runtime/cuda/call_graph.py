"""`CallGraph`: all that a repeated call enqueues, in one CUDA graph whose nodes are given the addresses of each call.

    recorded, once   entry | fork  lanes  kernel  join | sum      on streams that nobody else uses; what takes addresses is kept
    each call        addresses that are new -> the nodes that take them | one launch of the graph

Addresses are given, and the graph is launched, in C (`overlap.runtime.native`). What a node is given holds for launches that come
later; launches in flight keep what they were given, and two launches of one graph run one behind the other (CUDA driver API,
``cuGraphExecKernelNodeSetParams``, ``cuGraphLaunch``). Kernels of the main stream, sums beside it and copies out of the caller's
tensor take addresses. Of copies only those of one piece may be given another (``cuGraphExecMemcpyNodeSetParams``), so calls that
copy rows go by calls of the driver.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from triton.runtime import _allocation

from overlap.errors import RuntimeContractError

from ..launch.prepared import Enqueue
from ..native.build import CAPTURED, IN_COPY, WHAT, native
from ..repeat.places import Carried
from .bound_launch import Varying
from .driver import CopyOut, Event, OwnStream, Stream, check, ends_with, libcuda, one_by_one, recorded
from .lanes import Lanes, own_lane
from .launchers import watched
from .scratch import scratch

MOST = 128
"""Graphs that a runtime has at a time, of some hundred KB each; calls that come later go by calls of the driver."""
_ADDRESS_BYTES, _MAP_BYTES = 8, 128
_ALIGNMENT = 128
"""Of what holds a kernel's parameters; tensor maps ask for 64."""
_NO_CONTEXT = 201


class _KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2`` of the driver API."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        *[(f"{what}Dim{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "XYZ"],
        ("sharedMemBytes", ctypes.c_uint),
        ("kernelParams", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    ]


def _end(which: str) -> list[tuple[str, Any]]:
    """One end of a copy, in the order of the driver's fields."""
    return [
        *[(f"{which}{name}", ctypes.c_size_t) for name in ("XInBytes", "Y", "Z", "LOD")],
        (f"{which}MemoryType", ctypes.c_int),
        *[(f"{which}{name}", ctypes.c_void_p) for name in ("Host", "Device", "Array", "Reserved")],
        *[(f"{which}{name}", ctypes.c_size_t) for name in ("Pitch", "Height")],
    ]


class _Copy3D(ctypes.Structure):
    """``CUDA_MEMCPY3D`` of the driver API."""

    _fields_ = [
        *_end("src"),
        *_end("dst"),
        *[(name, ctypes.c_size_t) for name in ("WidthInBytes", "Height", "Depth")],
    ]


class Recorder:
    """Makes graphs of calls, one at a time, on streams of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mains: dict[int, Stream] = {}
        self._lanes = Lanes(own_lane)
        self._scratch: dict[tuple[int, int, int], Any] = {}
        """By number in a call, size and alignment."""
        self._made: weakref.WeakSet[CallGraph] = weakref.WeakSet()

    def record(self, steps: Callable[[Recording], None], main: Stream, last: Event) -> CallGraph:
        """A graph of what ``steps`` enqueues, whose kernels have the priority of ``main``, and those of lanes theirs.

        Args:
            last: the end of the last call.

        Raises:
            RuntimeContractError: it holds what no graph can, or what cannot be given to a node; there are enough graphs; or what
                enqueues them cannot be built.
        """
        native()  # ahead of all else, so that nothing is recorded in vain
        with self._lock:
            if len(self._made) >= MOST:
                raise RuntimeContractError(f"{MOST} calls are graphs already")
            priority = ctypes.c_int()
            check(libcuda().cuStreamGetPriority(main.argument, ctypes.byref(priority)), "a stream's priority")
            stream = self._mains.get(priority.value)
            if stream is None:
                stream = self._mains[priority.value] = OwnStream(priority.value)
            recording = Recording(stream, self._lanes)
            with self._scratch_kept():
                graph, made = recorded(lambda _: steps(recording), stream, "a call", node_priorities=True)
            found = CallGraph(graph, made, recording, last)
            self._made.add(found)
            return found

    @contextmanager
    def _scratch_kept(self) -> Iterator[None]:
        """Kernels that are launched meanwhile are given scratch memory that stays.

        Of all graphs one is in flight at a time, so they share it.
        """
        given = count()
        with scratch():
            allocate: Any = _allocation._allocator.get()

            def kept(size: int, alignment: int, stream: int | None) -> Any:
                place = next(given), size, alignment
                if place not in self._scratch:
                    self._scratch[place] = allocate(size, alignment, stream)
                return self._scratch[place]

            token = _allocation._allocator.set(kept)
            try:
                yield
            finally:
                _allocation._allocator.reset(token)


class Recording:
    """The streams that one call is recorded on, and the nodes of its kernels."""

    def __init__(self, main: Stream, lanes: Lanes) -> None:
        self.main = main
        self.nodes: list[_Node | _CopyNode] = []
        self._lanes = lanes

    def forks(self, lanes: Sequence[int]) -> list[Stream]:
        """As `Runtime.forks`."""
        return self._lanes.forks(self.main, lanes)

    def join(self, stream: Stream) -> None:
        """As `Runtime.join`."""
        self._lanes.join(self.main, stream)

    def behind(self, stream: Stream, other: Stream) -> None:
        """As `Runtime.behind`."""
        self._lanes.behind(stream, other)

    def launch(self, enqueue: Enqueue, carried: Carried, lane: Stream | None = None) -> None:
        """Records one of the launches that may take something from a call, on the main stream or ``lane``.

        Raises:
            RuntimeContractError: nobody knows where it takes what it takes from a call.
        """
        varying: Sequence[Varying] | None = getattr(enqueue, "varying", None)
        if varying is None:
            raise RuntimeContractError("a launch through Triton's own launcher")
        stream = lane or self.main
        enqueue(stream, carried)
        if varying:
            self.nodes.append(_Node(self._last_node(stream), varying, carried))

    def on_lane(self, enqueue: Callable[..., None], carried: Carried, lane: Stream) -> None:
        """Records work of a lane that is no such launch.

        Raises:
            RuntimeContractError: a copy of rows out of a tensor of the call, to which no other address can be given.
        """
        for part, copy in one_by_one(enqueue):
            part(lane, carried)
            if copy is not None:
                self.nodes.append(_CopyNode(self._last_node(lane), copy, carried))

    def _last_node(self, stream: Stream) -> int:
        """What a stream's next work would depend on: the kernel or copy that was recorded last."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        graph, found = ctypes.c_void_p(), ctypes.c_size_t()
        nodes = ctypes.POINTER(ctypes.c_void_p)()
        told = map(ctypes.byref, (status, number, graph, nodes, found))
        error = libcuda().cuStreamGetCaptureInfo_v2(stream.argument, *told)
        check(error, "a recorded node")
        if found.value != 1 or not nodes[0]:
            raise RuntimeContractError(f"what was recorded last is {found.value} nodes")
        return int(nodes[0])


class _Node:
    """A recorded kernel: its parameters as the driver has them, and those of them that a call brings.

    Args:
        node: its handle.
        varying: what its launch takes from a call.
        carried: the call that was recorded.
    """

    def __init__(self, node: int, varying: Sequence[Varying], carried: Carried) -> None:
        cuda = libcuda()
        self._told = _KernelNode()
        check(cuda.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(self._told)), "a kernel's node")
        if not self._told.kernelParams or not self._told.func:
            raise RuntimeContractError("the node of a kernel does not show its parameters")
        extents = list(_extents(self._told.func))
        start, self._memory = _aligned(max((at + size for at, size in extents), default=0))
        for number, (at, size) in enumerate(extents):
            ctypes.memmove(start + at, self._told.kernelParams[number], size)
        self._pointers = (ctypes.c_void_p * len(extents))(*(start + at for at, _ in extents))
        self._told.kernelParams = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_void_p))
        self._told.extra = None
        places = []
        for number, described, place in varying:
            address = place.address(carried)
            at, size = extents[number] if number < len(extents) else (0, 0)
            found = ctypes.c_uint64.from_address(start + at).value
            if size != (_MAP_BYTES if described else _ADDRESS_BYTES) or not described and found != address:
                raise RuntimeContractError(f"parameter {number} of a recorded kernel is another than was thought")
            places.append((place.number, place.offset, address, start + at, described))
        self.told = node, ctypes.addressof(self._told), 0, places
        """As graph.c takes it; this object keeps the memory."""


class _CopyNode:
    """A recorded copy out of a tensor of a call.

    Args:
        node: its handle.
        copy: what was recorded.
        carried: the call that was recorded.
    """

    def __init__(self, node: int, copy: CopyOut, carried: Carried) -> None:
        cuda = libcuda()
        if not copy.flat:
            raise RuntimeContractError("a copy of rows out of a tensor of the call")
        self._told, source = _Copy3D(), copy.place.address(carried)
        check(cuda.cuGraphMemcpyNodeGetParams(ctypes.c_void_p(node), ctypes.byref(self._told)), "a copy's node")
        if self._told.srcDevice != source:
            raise RuntimeContractError("the node of a copy does not show where it reads")
        where = ctypes.addressof(self._told)
        slot = where + _Copy3D.srcDevice.offset
        self.told = node, where, _context().value, [(copy.place.number, copy.place.offset, source, slot, False)]
        """As of `_Node`."""


def _context() -> ctypes.c_void_p:
    """The current one."""
    found = ctypes.c_void_p()
    check(libcuda().cuCtxGetCurrent(ctypes.byref(found)), "the current context")
    return found


def _aligned(size: int) -> tuple[int, Any]:
    """The address of memory for parameters, and what keeps it."""
    memory = ctypes.create_string_buffer(size + _ALIGNMENT)
    return -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT, memory


def _extents(function: int) -> Iterator[tuple[int, int]]:
    """Offset and bytes of each parameter of a kernel."""
    number, at, size = 0, ctypes.c_size_t(), ctypes.c_size_t()
    handle = ctypes.c_void_p(function)
    while not libcuda().cuFuncGetParamInfo(handle, ctypes.c_size_t(number), ctypes.byref(at), ctypes.byref(size)):
        yield at.value, size.value
        number += 1


class CallGraph:
    """A recorded call.

    Args:
        graph: what was recorded, which its nodes belong to; ``made``: that, made ready to be launched. Both are its own.
        last: the end of the last call, behind which each call stands, and which it moves to its own end.
    """

    def __init__(self, graph: Any, made: Any, recording: Recording, last: Event) -> None:
        cuda = libcuda()
        ends_with(self, (cuda.cuGraphExecDestroy, made), (cuda.cuGraphDestroy, graph))
        self._context, self.last, self._event = _context(), last, last.handle
        nodes = recording.nodes
        self.recorded = native().Recorded(made.value, [node.told for node in nodes], (tuple(nodes), made))
        self._launch = self.recorded.launch

    def __call__(self, stream: Stream, carried: Carried) -> bool:
        """Enqueues a call; of two on whatever streams the second waits for the first. False: it must go by its steps, nothing
        was enqueued: somebody captures the stream or watches kernels, or a copy's node does not take an address.

        Raises:
            RuntimeContractError: the driver refuses.
        """
        if watched():
            return False  # of kernels in a graph no hook is told
        handle, last = stream.cuda_stream, self.last
        # On one stream calls are in order anyway (`lanes.InOrder`).
        call = handle, self._event, last.recorded_on or handle, carried.addresses
        stopped = self._launch(*call)
        if stopped is not None and stopped[1] == _NO_CONTEXT:  # a thread that has not done anything yet
            check(libcuda().cuCtxSetCurrent(self._context), "a context for this thread")
            stopped = self._launch(*call)
        if stopped is None:
            last.recorded_on = handle
            return True
        where, error = stopped
        if where in (IN_COPY, CAPTURED):
            return False
        check(error, WHAT[where])
        return False
