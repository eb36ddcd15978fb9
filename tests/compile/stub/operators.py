"""What calls of the prebuilt operators tell the driver, on a driver that keeps what it is told.

    LD_LIBRARY_PATH=<folder of the stub> python operators.py [--world 4] [--time] [[--given] [--in-place] OPERATOR ...]

Each operator is called again and again, with tensors somewhere else each time, in three ways: by calls of the driver, with lanes
in graphs, and as a graph of the whole call. A graph must do what the calls do: the same kernels with the same parameters, byte
for byte, copies, holds and events, in the same order on the same streams, whatever these are called. Prints how many calls of the
driver a call makes in each way, and how many nodes its graph has: kernels, copies and holds; and when a call becomes a graph by
default. With --time also what calls take the host where the driver does nothing, in microseconds, the best of many rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import time
from functools import partial
from typing import Any

import torch
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver

import overlap.ops
from overlap.build import device, parse_target
from overlap.runtime.cuda.driver import Stream
from overlap.runtime.cuda.lanes import Lanes, own_lane
from overlap.runtime.cuda.runtime import CudaRuntime
from overlap.runtime.faults.faults import FaultRecord
from overlap.runtime.launch import in_place, launch

STUB = ctypes.CDLL("libcuda.so.1")
CAPTURED = ctypes.c_int.in_dll(STUB, "stub_captured")
"""Whether calls are part of somebody's graph."""
torch.cuda.is_current_stream_capturing = lambda: False
TOLD = (ctypes.c_char * (1 << 20)).in_dll(STUB, "stub_told")
WAYS = {"calls": ("0", "0"), "lanes in graphs": ("1", "0"), "one graph": ("0", "2")}
"""The settings ``lane_graphs`` and ``call_graphs``."""
CALLS = 5
ROUNDS = 50
SIZES = {"ag_gemm": (0, 1), "gemm_rs": (1, 0), "gemm_ar": (1, 0), "a2a_gemm": (1, 2), "gemm_a2a": (0, 2)}
"""How x is sharded: by rows or by columns; and w: by rows, by columns or not at all."""


class StubWatch:
    """No wait has given up, until somebody writes to ``word``."""

    def __init__(self) -> None:
        self.word = ctypes.c_int64()
        self.address = ctypes.addressof(self.word)

    def __call__(self) -> Any:
        return FaultRecord(0, 1, 0, 0) if self.word.value else None


class StubRuntime(CudaRuntime):
    """The runtime of GPUs over the stub: tensors are the CPU's, and a peer's memory is this rank's."""

    def __init__(self, world: int) -> None:
        self.world, self.rank, self.sm_count = world, 1 % world, 132
        self.device, self._index = torch.device("cpu"), 0
        self._nodes = (0,) * world
        self._lanes, self._recorder, self._lane_recorder = Lanes(own_lane), None, None
        self.main = Stream(0)
        self.raw_stream = lambda _: 0 + self.main.cuda_stream  # a number of its own, as torch gives

    pes: Any = ()
    linked: Any = {}

    def symmetric(self, shape: Any, dtype: Any, *, zero: bool = False) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def peer(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return tensor

    def agree(self, what: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        return [value] * self.world

    def main_stream(self) -> Stream:
        return self.main

    def capturing(self) -> bool:
        return bool(CAPTURED.value)

    @contextlib.contextmanager
    def in_order(self, key: Any, main: Stream) -> Any:
        with super().in_order(key, main):
            yield self.capturing()

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        return self.sm_count

    def watch(self, state: torch.Tensor, *, packets: bool = False) -> Any:
        return StubWatch()

    def synchronize(self) -> None:
        """Nothing runs."""


class Group:
    def __init__(self, world: int) -> None:
        self.overlap_runtime = StubRuntime(world)

    def rank(self) -> int:
        return self.overlap_runtime.rank

    def size(self) -> int:
        return self.overlap_runtime.world


FUNCTIONS: list[str] = [""]


def load_nothing(made: Any) -> None:
    """A kernel that is loaded has a number, by which the stub knows the sizes of its parameters: those that its PTX says."""
    if made._run is not None:
        return
    made._run = nvidia.CudaLauncher(made.src, made.metadata)
    made.function, made.module, made.n_regs = len(FUNCTIONS), 1, 128
    FUNCTIONS.append(made.name)
    made.__class__.__del__ = lambda self: None
    entry = re.search(r"\.entry \w+\((.*?)\)", made.asm["ptx"], re.DOTALL)
    assert entry is not None
    declared = re.findall(r"\.param [^,]*?\.[bufs](\d+)\b[^,\[]*(?:\[(\d+)\])?", entry[1])
    sizes = [int(bits) // 8 * int(count or 1) for bits, count in declared]
    assert len(sizes) == entry[1].count(".param"), entry[1]
    STUB.stub_kernel(ctypes.c_long(made.function), len(sizes), (ctypes.c_int * len(sizes))(*sizes))


def told() -> str:
    """What was told since the last time."""
    text = TOLD.value.decode()
    TOLD.value = b""
    return text


def work(text: str) -> list[str]:
    """What a call enqueued between the event that it waits for and the one that it leaves, with streams and events called by the
    order in which they come."""
    inner = re.sub(r"launch on \S+?;(.*)launched;", r"\1", text)
    lines = re.sub(r"^behind [^;]*;", "", inner).rstrip(";").split(";")
    assert lines.pop().startswith("record "), text
    names: dict[str, str] = {}
    handles = re.compile(r"(?:(?<= on )|(?<=^record )|(?<=^behind ))(0x[0-9a-f]+|\(nil\))")
    return [handles.sub(lambda n: names.setdefault(n[0], f"#{len(names)}"), line) for line in lines]


def operands(op: str, world: int, m: int, n: int, k: int) -> list[torch.Tensor]:
    by, of = SIZES[op]
    x = (m // world, k) if by == 0 else (m, k // world)
    w = ((k // world, n), (k, n // world), (k, n))[of]
    return [torch.zeros(size, dtype=torch.bfloat16) for size in (x, w)]


GIVEN = {"plan": "all_gather_1d_push"}


def counted(op: str, world: int, options: dict[str, str]) -> dict[str, int]:
    """How many calls of the driver a call makes, by way. Raises AssertionError where a graph does not do what the calls do."""
    found: dict[str, int] = {}
    told_by: dict[str, list[str]] = {}
    group, runs = Group(world), getattr(overlap.ops, op)
    # The same tensors in every way, others in every call but the last, which has those of the one before it.
    sets = [(*operands(op, world, 1024, 1024, 1024), None) for _ in range(CALLS)]
    count, updates = (ctypes.c_int.in_dll(STUB, f"stub_{name}") for name in ("calls", "updates"))
    for way, (lanes, calls) in WAYS.items():
        os.environ["OVERLAP_LANE_GRAPHS"], os.environ["OVERLAP_CALL_GRAPHS"] = lanes, calls
        told_by[way] = []
        for number in range(CALLS + 1):
            x, w, out = sets[min(number, CALLS - 1)]
            group.overlap_runtime.main = Stream(0 if number % 2 else 0x77000)
            told()
            count.value = updates.value = 0
            y = runs(x, w, out=out, group=group, backend="copy_engine", **options)
            told_by[way].append(told())
            if number == CALLS - 1:
                found[way] = count.value
            if out is None:
                sets[number] = (x, w, y)
    # The first call goes the long way, the second by its steps, the third makes the graph.
    assert ["launched;" in text for text in told_by["one graph"][1:3]] == [False, True], "made by the second repetition"
    for number in range(3, CALLS + 1):
        text = told_by["one graph"][number]
        assert "launched;" in text, f"{op}: call {number} is no graph: {text}"
        wanted, got = (work(told_by[way][number]) for way in ("calls", "one graph"))
        differing = [pair for pair in zip(wanted, got, strict=False) if pair[0] != pair[1]]
        assert wanted == got, f"{op}, call {number}: {len(wanted)} and {len(got)}, {differing[:1]}"
        found["nodes"] = sum(not line.startswith(("record ", "behind ")) for line in got)
    assert not updates.value, "a node was given what it has"
    CAPTURED.value = 1
    runs(*sets[-1][:2], out=sets[-1][2], group=group, backend="copy_engine", **options)
    text = told()
    assert "launched;" not in text, f"{op}: a call that is captured itself goes by its steps"
    assert work(text) == work(told_by["calls"][-1]), text
    CAPTURED.value = 0
    if options:
        # Memory that a copy's node does not take: the call goes by its steps, and so do all later ones.
        os.environ["OVERLAP_LANE_GRAPHS"], os.environ["OVERLAP_CALL_GRAPHS"] = WAYS["one graph"]
        elsewhere = torch.zeros_like(sets[-1][0])
        ctypes.c_uint64.in_dll(STUB, "stub_refused").value = elsewhere.data_ptr()
        for x in (elsewhere, sets[-1][0]):
            runs(x, *sets[-1][1:2], out=sets[-1][2], group=group, backend="copy_engine", **options)
            text = told()
            assert "launched;" not in text and f" {x.data_ptr():x} " in text, text
    return found


def graph_from(op: str, world: int, options: dict[str, str]) -> int:
    """Which repetition of a call makes it a graph by default."""
    for name in ("LANE", "CALL"):
        os.environ.pop(f"OVERLAP_{name}_GRAPHS", None)
    group, runs, tensors = Group(world), getattr(overlap.ops, op), operands(op, world, 1024, 1024, 1024)
    for repetition in range(100):
        told()
        runs(*tensors, group=group, backend="copy_engine", **options)
        if "launched;" in told():
            return repetition
    raise AssertionError("no graph")


def timed(op: str, world: int, options: dict[str, Any]) -> float:
    """Microseconds of a call like one ahead of it, over other tensors."""
    group, runs = Group(world), getattr(overlap.ops, op)
    calls = [partial(runs, *operands(op, world, 1024, 1024, 1024), group=group, **options) for _ in range(3)]
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for number in range(ROUNDS):
            TOLD[0] = b"\0"  # the stub looks for the end of it
            calls[number % 3]()
        best = min(best, time.perf_counter() - begin)
    return 1e6 * best / ROUNDS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="*", default=list(SIZES))
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--time", action="store_true", help="times calls as well")
    parser.add_argument("--given", action="store_true", help="pushes out of the caller's tensor")
    parser.add_argument("--in-place", action="store_true", help="fails unless tiles access the call's tensor")
    options = parser.parse_args()
    if options.given:
        os.environ["OVERLAP_GIVEN_BYTES"] = "0"
    if options.in_place:
        made = in_place.own_arguments

        def taken(*launch: Any, **more: Any) -> Any:
            own = made(*launch, **more)
            assert own.taken, "by symmetric memory"
            return own

        launch.own_arguments = taken
    CompiledKernel._init_handles = load_nothing
    device._OnMeta = contextlib.nullcontext  # tensors are the CPU's
    with device.planned_device(parse_target("sm_90")):
        driver._active.utils = nvidia.CudaUtils()
        given = GIVEN if options.given else {}
        for op in options.ops:
            ctypes.c_int.in_dll(STUB, "stub_tell_kernels").value = 1
            found = counted(op, options.world, given)
            shown = f"{op}, {options.world} ranks: " + ", ".join(f"{way} {count}" for way, count in found.items())
            if options.time:
                ctypes.c_int.in_dll(STUB, "stub_tell_kernels").value = 0
                for way, (lanes, calls) in WAYS.items():
                    os.environ["OVERLAP_LANE_GRAPHS"], os.environ["OVERLAP_CALL_GRAPHS"] = lanes, calls
                    shown += f", {way} {timed(op, options.world, {'backend': 'copy_engine'}):.1f} us"
            print(shown, flush=True)
        print(f"by default repetition {graph_from(options.ops[0], options.world, given)} of a call is a graph")


if __name__ == "__main__":
    main()
