"""What a call of an operator costs the host: microseconds until it has enqueued everything.

    python -m torch.distributed.run --nproc-per-node 4 bench/host_cost.py --out FILE
    python -m torch.distributed.run --nproc-per-node 4 bench/host_cost.py --shapes 8192,8192,8192 --profile
    python -m torch.distributed.run --nproc-per-node 4 bench/host_cost.py --ops gemm_rs --parts
    python -m torch.distributed.run --nproc-per-node 4 bench/host_cost.py --ops gemm_ar --shapes 16,4096,4096 \
        --backend default --ways calls torch --cold
    python bench/host_cost.py --null --world 4 --profile

Every call has the same shapes, as in a loop over layers or steps; operands of --layers take turns, and results of each stay
until its next call, so that every call has other addresses than the one before it. Around it the GPU is

    idle    all ranks have met and their GPUs are done; one call is timed at a time
    busy    a GPU has work for as long as the host enqueues; --calls of them are timed in a row, and one is the quotient
    cold    with --cold: as idle, but the host has done other work meanwhile (`other_work`), as in a loop that does more than
            call operators

A number is the median over --rounds on the rank where it is highest. In result files ``ms`` is that in milliseconds, and
``how`` says which of these it is. With --null nothing is enqueued: the operators run on tensors of the CPU over a runtime
whose methods do nothing (`null_runtime`), so that anybody can measure and profile the Python part, and calls of functions of
Python are counted. No GPU is as fast as that. With ``--backend default`` calls are there what small ones are on GPUs: a
product of torch's, which the CPU computes, and words of our own.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
from common import DTYPES, Session
from driver import shape
from driver_parts import DriverParts
from null_runtime import NullGroup
from other_work import OtherWork

OPS = ("ag_gemm", "gemm_rs", "gemm_ar", "a2a_gemm", "gemm_a2a")
SHAPES = ("512,4096,4096", "8192,8192,8192")
BUSY_CYCLES = 400_000_000
"""Of `torch.cuda._sleep`: a fifth of a second or more, longer than the calls of a round take to enqueue."""
WARM_CALLS = 20
PROFILED = 25
"""Functions that a profile on GPUs shows."""
WAYS = {
    "calls": ("ours", None, ""),
    "lane_graphs": ("ours", None, "lane_graphs"),
    "call_graphs": ("ours", None, "call_graphs"),
    "serial": ("serial", "serial", ""),
    "torch": ("torch", "torch", ""),
}
"""Contender, its backend (None: as the command line says), and the setting that is on, if one is. ``torch``: the product and the
collective without this library."""
SETTINGS = ("lane_graphs", "call_graphs")
BY_TORCH = ("ag_gemm", "gemm_rs", "gemm_ar")


def operands(op: str, m: int, n: int, k: int, world: int, make: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """A rank's x and w for global sizes, where the ranks share them evenly."""
    shapes = {
        "ag_gemm": ((m // world, k), (k, n // world)),
        "gemm_rs": ((m, k // world), (k // world, n)),
        "gemm_ar": ((m, k // world), (k // world, n)),
        "a2a_gemm": ((m, k // world), (k, n)),
        "gemm_a2a": ((m // world, k), (k, n)),
    }[op]
    return [make(*sizes) for sizes in shapes]


class Layers:
    """Calls of an operator on pairs of operands in turn, whose results are new memory."""

    def __init__(self, op: str, layers: Sequence[Sequence[torch.Tensor]], group: Any, backend: str) -> None:
        import overlap.ops

        runs = partial(by_torch, op, world=_world()) if backend == "torch" else getattr(overlap.ops, op)
        self._calls = [partial(runs, *layer, group=group, backend=backend) for layer in layers]
        self._results: list[Any] = [None] * len(layers)
        self._next = 0

    def __call__(self) -> None:
        now = self._next
        self._next = (now + 1) % len(self._calls)
        self._results[now] = self._calls[now]()


def by_torch(op: str, x: torch.Tensor, w: torch.Tensor, *, world: int = 1, **_: Any) -> torch.Tensor:
    """What one of `BY_TORCH` stands for, by two calls of torch's."""
    if op == "ag_gemm":
        whole = torch.empty(world * x.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(whole, x)
        return whole @ w
    y = x @ w
    if op == "gemm_ar":
        dist.all_reduce(y)
        return y
    out = torch.empty(y.shape[0] // world, y.shape[1], dtype=y.dtype, device=y.device)
    dist.reduce_scatter_tensor(out, y)
    return out


def idle(call: Callable[[], Any], rounds: int, settle: Callable[[], None]) -> float:
    """Seconds of one call when the GPU has nothing to do, behind what else ``settle`` does."""
    times = []
    for _ in range(rounds):
        settle()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    settle()
    return statistics.median(times)


def busy(call: Callable[[], Any], calls: int, rounds: int, settle: Callable[[], None]) -> float:
    """Seconds of a call when the GPU is busy with something else."""
    times = []
    for _ in range(rounds):
        settle()
        torch.cuda._sleep(BUSY_CYCLES)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls)
    settle()
    return statistics.median(times)


def profiled(call: Callable[[], Any], calls: int, *, functions: bool = False) -> Iterator[str]:
    """Lines: each module's own microseconds in a call, or each function's, the most first; the profiler slows all down.

    What a function of Python calls through ctypes, as it calls the driver, is its own time.
    """
    profile = cProfile.Profile(time.thread_time)  # others on the machine do not count
    profile.enable()
    for _ in range(calls):
        call()
    profile.disable()
    spent: dict[str, float] = defaultdict(float)
    for (path, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        place = path.partition(f"{os.sep}overlap{os.sep}")[2]
        module = place or (f"{path}" if path.startswith("<") else Path(path).name) if path != "~" else "built in"
        spent[f"{module} {name}" if functions else module] += own
    for place, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        if seconds > 0:
            yield f"      {1e6 * seconds / calls:8.1f}  {place}"


def python_calls(call: Callable[[], Any]) -> int:
    """Functions of Python that a call calls."""
    seen = []
    sys.setprofile(lambda frame, event, _: seen.append(frame) if event == "call" else None)
    call()
    sys.setprofile(None)
    return len(seen) - 1


class ByWords:
    """Calls on a `NullGroup` meanwhile are serial, by low-latency words."""

    def __init__(self, group: NullGroup) -> None:
        from overlap.api import small
        from overlap.api.fallback import Choice
        from overlap.ops import arguments, gather_call
        from overlap.runtime.packets.low_latency import low_latency_of

        words, serial = low_latency_of(group.overlap_runtime), Choice("serial", "small")  # type: ignore[arg-type]
        small._WORDS[group] = words
        self._patches = [
            (small, "words_of", lambda *_: words),
            (arguments, "choose", lambda *_: serial),
            (gather_call, "_choose", lambda *_: serial),
        ]

    def __enter__(self) -> None:
        self._before = [getattr(module, name) for module, name, _ in self._patches]
        for module, name, stands in self._patches:
            setattr(module, name, stands)

    def __exit__(self, *_: object) -> None:
        for (module, name, _), before in zip(self._patches, self._before, strict=True):
            setattr(module, name, before)


def null(options: argparse.Namespace) -> None:
    """Measures the Python part of every operator and shape, and prints it."""
    world = options.world
    for op in options.ops:
        for m, n, k in options.shapes:
            make = partial(torch.empty, dtype=DTYPES[options.dtype])
            layers = [operands(op, m, n, k, world, make) for _ in range(options.layers)]
            group = NullGroup(world)
            with ByWords(group) if options.backend is None else nullcontext():
                null_call(Layers(op, layers, group, options.backend), f"{op:10} {m:6} {n:6} {k:6}", options)


def null_call(call: Callable[[], Any], what: str, options: argparse.Namespace) -> None:
    """Measures the Python part of a call, and prints it."""
    for _ in range(WARM_CALLS):
        call()
    times = sorted(idle(call, options.calls, lambda: None) for _ in range(options.rounds))
    cold = f", {1e6 * idle(call, options.rounds, OtherWork()):.0f} cold" if options.cold else ""
    print(
        f"  {what}  {options.world} ranks  {1e6 * times[0]:7.1f} us in the best of {len(times)} rounds, "
        f"{1e6 * statistics.median(times):.1f} in the median{cold}, {python_calls(call)} Python calls"
    )
    if options.profile:
        print("\n".join(profiled(call, 10 * options.calls)))


def measure(options: argparse.Namespace) -> None:
    """Measures on GPUs, prints what it finds and writes the result file."""
    session, other = Session(), OtherWork()
    parts = DriverParts() if options.parts else None
    clocks, rows = [record.clocks("start")], []

    def settle() -> None:
        session.everywhere(True)
        session.synchronize()

    def settle_cold() -> None:
        settle()
        other()

    for op in options.ops:
        for m, n, k in options.shapes:
            make = partial(torch.randn, device=session.device, dtype=DTYPES[options.dtype])
            layers = [operands(op, m, n, k, session.world, make) for _ in range(options.layers)]
            for contender, backend, setting in (WAYS[way] for way in options.ways):
                if contender == "torch" and op not in BY_TORCH:
                    continue
                backend = backend or options.backend
                for each in SETTINGS:
                    os.environ[f"OVERLAP_{each.upper()}"] = str(int(each == setting))
                call = Layers(op, layers, None, backend)
                for _ in range(WARM_CALLS):
                    call()
                found = {
                    "idle": idle(call, options.rounds * options.calls, settle),
                    "busy": busy(call, options.calls, options.rounds, settle),
                }
                if options.cold:
                    found["cold"] = idle(call, options.rounds * options.calls, settle_cold)
                worst = dict(zip(found, session.largest(list(found.values())), strict=True))
                shown = ", ".join(f"{1e6 * seconds:.1f} us {state}" for state, seconds in worst.items())
                said = f"{contender} {setting}"
                session.say(f"  {op:10} {m:6} {n:6} {k:6}  {session.world} ranks  {said:16} {shown}")
                if options.profile and contender == "ours":
                    settle()
                    torch.cuda._sleep(BUSY_CYCLES)
                    found_in = list(profiled(call, options.calls, functions=True))
                    settle()
                    session.say("\n".join(found_in[:PROFILED]))
                if parts is not None and contender == "ours":
                    for how_ready in (settle, settle_cold) if options.cold else (settle,):
                        session.say("\n".join(parts.of(call, options.rounds * options.calls, how_ready)))
                for state, seconds in worst.items():
                    sizes = {"M": m, "N": n, "K": k, "world": session.world, "dtype": options.dtype}
                    how = {"gpu": state, "backend": backend, **{each: each == setting for each in SETTINGS}}
                    row = {"op": op, **sizes, "contender": contender, "ms": round(1e3 * seconds, 5)}
                    rows.append({**row, "device": session.name, "how": how})
            session.free()
    clocks.append(record.clocks("end"))
    if session.rank == 0 and options.out is not None:
        made_by = {"commit": options.commit or record.commit(), "command": record.command(session.world)}
        kept = {"hardware": record.hardware(session.world), "versions": record.versions(), "clocks": clocks, **made_by}
        record.write(options.out, {**kept, "date": record.now(), "rows": rows})
    session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=OPS, default=list(OPS))
    parser.add_argument("--shapes", nargs="+", type=shape, default=[shape(s) for s in SHAPES], metavar="M,N,K")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument(
        "--backend",
        default="copy_engine",
        type=lambda name: None if name == "default" else name,
        help="of ours; `default`: what the operator chooses, low-latency words or a collective for small calls",
    )
    parser.add_argument(
        "--calls", type=int, default=10, help="in a row, few enough for the driver to take them without waiting"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=3, help="operands that take turns")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS)[:-1])
    parser.add_argument("--cold", action="store_true", help="measure calls behind other work of the host, too")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument("--commit", help="the commit measured, where there is no git")
    parser.add_argument("--null", action="store_true", help="the Python part alone, without a GPU")
    parser.add_argument("--world", type=int, default=4, help="ranks, with --null; else torchrun says")
    parser.add_argument(
        "--profile", action="store_true", help="where the time goes, by module; of ours on GPUs by function"
    )
    parser.add_argument(
        "--parts",
        action="store_true",
        help="where the time of ours goes, by function of the driver, GPUs idle; with --cold behind other work, too",
    )
    options = parser.parse_args()
    if min(options.calls, options.rounds, options.layers, options.world) < 1:
        parser.error("--calls, --rounds, --layers and --world start at 1")
    indivisible = [s for s in options.shapes for n in s if n % (options.world if options.null else _world())]
    if indivisible:
        parser.error(f"sizes must be multiples of the ranks: {indivisible[0]}")
    (null if options.null else measure)(options)


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


if __name__ == "__main__":
    sys.exit(main())
