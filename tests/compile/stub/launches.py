"""Launches one kernel through Triton's launcher, through ours and as a node of a graph, on a driver that keeps what it is given.

    LD_LIBRARY_PATH=<folder of the stub> python launches.py

Prints what differs, and fails; or how many launches were alike. It is a process of its own, so that nobody else finds the
stub in the place of a driver.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.build import parse_target
from overlap.build.device import planned_device
from overlap.errors import RuntimeContractError
from overlap.runtime.cuda import call_graph
from overlap.runtime.cuda.bound_launch import _ByAddress, _ByTriton, bound_launch
from overlap.runtime.cuda.call_graph import Recorder
from overlap.runtime.cuda.compiled import compiled
from overlap.runtime.cuda.driver import Event, Stream
from overlap.runtime.repeat.places import Carried, numbered, place_of

STUB = ctypes.CDLL("libcuda.so.1")
SIZES = [128, 4, 4, 8, 8, 8, 8, 4, 8, 4, 8, 8]
"""Bytes of what the kernel takes: descriptor (map, shape, strides), b, c, n, wide, scale, and two places for scratch."""
ROWS, COLUMNS = 64, 64


@triton.jit
def kernel(a_desc, b_ptr, c_ptr, n, wide, scale, bias_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    b = tl.load(b_ptr + i + wide, mask=i < n, other=0.0)
    if bias_ptr is not None:
        b += tl.load(bias_ptr + i)
    tl.store(c_ptr + i, (tl.sum(a_desc.load([0, 0]).to(tl.float32), 0) + b) * scale)


CALLERS = Stream(77)


def load_nothing(made: Any) -> None:
    """What is loaded onto a device has a launcher and a function."""
    if made._run is None:
        made._run = nvidia.CudaLauncher(made.src, made.metadata)
        made.function, made.module = 4242, 1
        made.__class__.__del__ = lambda self: None


def kept() -> tuple[Any, ...]:
    """What the driver was given since the last time, but for its address of the descriptor."""
    words = [ctypes.c_uint.in_dll(STUB, f"stub_{name}").value for name in ("shared",)]
    shapes = [tuple((ctypes.c_uint * 3).in_dll(STUB, f"stub_{name}")) for name in ("grid", "block")]
    stream, function = (ctypes.c_void_p.in_dll(STUB, f"stub_{name}").value for name in ("stream", "function"))
    count = ctypes.c_int.in_dll(STUB, "stub_launches")
    launches, count.value = count.value, 0
    return bytes((ctypes.c_ubyte * sum(SIZES)).in_dll(STUB, "stub_bytes")), words, shapes, function, launches, stream


def call(shift: int) -> list[torch.Tensor]:
    """Tensors of a call, in memory of their own, which begins ``shift`` elements into an allocation."""
    a = torch.zeros(ROWS * COLUMNS + shift, dtype=torch.bfloat16)[shift:].view(ROWS, COLUMNS)
    return [a, torch.zeros(2, 512)[:, :256], torch.zeros(COLUMNS)]


def refuses(ours: _ByAddress, theirs: _ByTriton) -> None:
    """No graph is made where a parameter is not what it was taken for, of what Triton launches, or where there are enough."""
    right, recorder = ours.varying, Recorder()
    wrong = [[v._replace(number=v.number + 1) for v in right], [v._replace(described=not v.described) for v in right]]
    for varying in (*wrong, theirs.varying):
        ours.varying = varying  # type: ignore[assignment]
        _refused(recorder, ours)
    ours.varying = right
    kept, call_graph.MOST = call_graph.MOST, 0
    _refused(recorder, ours)
    call_graph.MOST = kept


def _refused(recorder: Recorder, launch: _ByAddress) -> None:
    try:
        recorder.record(lambda recording: recording.launch(launch, Carried(call(8))), CALLERS, Event())
    except RuntimeContractError:
        return
    raise AssertionError(f"a graph of {launch.varying}")


def main() -> None:
    ctypes.c_int.in_dll(STUB, "stub_count").value = len(SIZES)
    for i, size in enumerate(SIZES):
        (ctypes.c_int * 256).in_dll(STUB, "stub_sizes")[i] = size
    CompiledKernel._init_handles = load_nothing
    with planned_device(parse_target("sm_90")):
        driver._active.utils = nvidia.CudaUtils()
        first = call(0)
        described = TensorDescriptor(first[0], [ROWS, COLUMNS], [COLUMNS, 1], [32, COLUMNS])
        # Of the second tensor the kernel is given the second row.
        kwargs = {"a_desc": described, "b_ptr": first[1][1], "c_ptr": first[2], "n": 64, "wide": 1 << 40, "scale": 0.5}
        kwargs |= {"bias_ptr": None, "BLOCK": COLUMNS, "num_warps": 4}
        places = numbered(first)
        later = {"a_desc": places[0], "b_ptr": place_of(first[1][1], first), "c_ptr": places[2]}
        made = compiled(kernel, (3, 1, 1), kwargs)
        ours, theirs = (
            bound_launch(kernel, made, (3, 1, 1), kwargs, later),
            _ByTriton(kernel, made, (3, 1, 1), kwargs, later),
        )
        assert isinstance(ours, _ByAddress), "no bare launcher is known for this Triton"
        assert not isinstance(ours._launch, nvidia.CudaLauncher), (
            "what calls the driver was not found in this Triton's launcher"
        )
        recorded = Recorder().record(lambda recording: recording.launch(ours, Carried(call(16))), CALLERS, Event())
        refuses(ours, theirs)
        ways = (theirs, ours, recorded)
        seen, alive = set(), []  # what is freed could come back as the next call's memory
        for shift in (0, 8, 0, 64):
            tensors = call(shift)
            alive.append(tensors)
            given = []
            for launch in ways:
                launch(CALLERS, Carried(tensors))
                given.append(kept())
            # A node tells the stream that it was recorded on.
            graph = (*given[2][:-1], CALLERS.cuda_stream)
            if not given[0] == given[1] == graph or given[0][-2] != 1:
                sys.exit(f"Triton {triton.__version__} launches {given[0]}, ours {given[1]}, a graph {given[2]}")
            seen.add(given[1][0])
        hooked: list[Any] = []
        knobs.runtime.launch_enter_hook.add(hooked.append)
        assert not recorded(CALLERS, Carried(tensors)), "a graph tells no hook"
        ours(CALLERS, Carried(tensors))
        assert kept() == given[1] and hooked[0].get()["name"] == "kernel", hooked
        knobs.runtime.launch_enter_hook.remove(hooked.append)
    print(f"Triton {triton.__version__}: {len(seen)} launches alike")


if __name__ == "__main__":
    main()
