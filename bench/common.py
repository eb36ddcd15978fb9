"""What every benchmark here shares: ranks, contenders, checks, a watchdog, and how one call is timed.

One process a GPU, all contenders in the same processes. Every round times each contender once, in an order shuffled
anew and the same on all ranks, because a contender's aftermath can cost the next one a third of a millisecond. Around
one call:

    flush the L2 cache | all ranks meet (a one-word all-reduce) | event | the call | event | synchronize | cool down

The host runs ahead for as long as the flush and the meeting take, about 0.2 ms, as it would behind a previous layer;
what an eager call costs beyond that is in its time. A contender's number is its median over the rounds, on the rank
where that is highest. Inputs are random, of each rank's own, and refilled after everything is built, so that an old
result is a wrong one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-3}
"""Highest relative error in the Frobenius norm against an fp32 product of the same inputs; fp32: room for TF32."""

FLUSH_BYTES = 256 << 20
WARM_CALLS = 3
BUILD_LIMIT_S = 120.0
"""Covers compiling a kernel; a contender that is not built by then hangs."""
CALL_LIMIT_S = 45.0
"""Longer than the deadline of the waits on the device, whose error names what was waited for."""
HUNG = 75
"""Exit status of a rank whose contender did not come back."""


class Unavailable(Exception):
    """A contender that cannot run here; the message says why."""


@dataclass(frozen=True)
class Contender:
    """One way of computing the result.

    ``call`` enqueues it and returns the result. ``scratch``: tensors it writes on the way, poisoned before the check.
    ``expected``: ``product``, or ``gather`` for contenders that only communicate.
    """

    name: str
    call: Callable[[], torch.Tensor]
    scratch: tuple[torch.Tensor, ...] = ()
    expected: str = "product"


class Session:
    """This process as one rank of the benchmark. Ends with ``close``.

    Args:
        device: ``cuda``, or ``cpu`` for a rehearsal of the benchmark itself, whose numbers mean nothing.

    Raises:
        SystemExit: not started by torchrun, or fewer GPUs than ranks.
    """

    def __init__(self, device: str = "cuda") -> None:
        script = os.path.basename(sys.argv[0])
        if "RANK" not in os.environ:
            sys.exit(f"start me with: python -m torch.distributed.run --nproc-per-node 4 bench/{script}")
        os.environ.update(NO_MULTICAST)
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        self.cuda = device == "cuda"
        if self.cuda and torch.cuda.device_count() <= local:
            sys.exit(f"{self.world} ranks need as many GPUs; torch sees {torch.cuda.device_count()} (`overlap doctor`)")
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        torch.backends.cuda.matmul.allow_tf32 = False
        # A restart may find the store of the attempt before it, whose addresses lead nowhere.
        store, _, _ = next(rendezvous("env://", self.rank, self.world))
        attempt = dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(
            "nccl" if self.cuda else "gloo",
            store=attempt,
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=2 * BUILD_LIMIT_S),
            device_id=self.device if self.cuda else None,
        )
        self._flag = torch.zeros(1, device=self.device)
        self._flush = torch.empty(FLUSH_BYTES if self.cuda else 0, dtype=torch.int8, device=self.device)

    @property
    def name(self) -> str:
        """The device's name as the driver says it."""
        return torch.cuda.get_device_name(self.device) if self.cuda else "cpu"

    def say(self, text: str) -> None:
        """Prints on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Collective: each value's maximum over the ranks."""
        told = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return told.tolist()

    def everywhere(self, ok: bool) -> bool:
        """Collective: whether all ranks say yes."""
        return self.largest([0.0 if ok else 1.0])[0] == 0.0

    def time(self, call: Callable[[], object]) -> float:
        """Milliseconds of one call, all ranks having met before it."""
        if not self.cuda:
            dist.barrier()
            begin = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - begin)
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush.zero_()
        dist.all_reduce(self._flag)
        begun.record()
        call()
        ended.record()
        torch.cuda.synchronize(self.device)
        return begun.elapsed_time(ended)

    def free(self) -> None:
        """Gives back the memory of a finished shape."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def close(self) -> None:
        dist.barrier()
        self.synchronize()
        dist.destroy_process_group()


class Watchdog:
    """Ends the process when a step takes too long: a contender that hangs on a GPU cannot be stopped in any other way.

    Args:
        on_failure: called with the step's name and what happened before the process ends, with status `HUNG` or with an
            error that nobody caught (a fault on the device leaves a process without a device).
    """

    def __init__(self, on_failure: Callable[[str, str], None]) -> None:
        self._on_failure = on_failure
        self._step: tuple[str, float, float] | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def step(self, name: str, limit_s: float) -> Iterator[None]:
        """Work that must end within ``limit_s`` seconds."""
        self._step = (name, time.monotonic() + limit_s, limit_s)
        try:
            yield
        except Exception as error:
            self._on_failure(name, f"{type(error).__name__}")
            raise
        finally:
            self._step = None

    def _watch(self) -> None:
        while True:
            time.sleep(0.1)
            step = self._step
            if step is not None and time.monotonic() > step[1]:
                why = f"did not end within {step[2]:g} s"
                print(f"rank {os.environ.get('RANK', 0)}: {step[0]} {why}", flush=True)
                try:
                    self._on_failure(step[0], why)
                finally:
                    os._exit(HUNG)


def graph_of(session: Session, contender: Contender, name: str) -> Contender:
    """The same calls captured in a CUDA graph; its result is the captured call's.

    Raises:
        Unavailable: no GPU.
    """
    if not session.cuda:
        raise Unavailable("needs a GPU")
    side = torch.cuda.Stream(session.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            contender.call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize(session.device)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as NCCL's own watchdog, may go on calling the driver.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = contender.call()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return Contender(name, replay, contender.scratch, contender.expected)


def build(
    session: Session, watchdog: Watchdog, builders: dict[str, Callable[[dict[str, Contender]], Contender]]
) -> dict[str, Contender]:
    """Builds contenders in order, each from those before it; what a rank cannot build is left out, with the reason."""
    built: dict[str, Contender] = {}
    for name, builder in builders.items():
        why, speaker = "", True
        with watchdog.step(name, BUILD_LIMIT_S):
            try:
                contender = builder(built)
                for _ in range(WARM_CALLS):
                    contender.call()
                session.synchronize()
            except Unavailable as error:
                why, speaker = str(error), session.rank == 0
            except Exception as error:
                why = f"{type(error).__name__}: " + (str(error).strip().splitlines() or [""])[0]
            if session.everywhere(not why):
                built[name] = contender
        if why and speaker:
            print(f"  rank {session.rank}: {name} left out: {why}", flush=True)
    return built


def check(
    session: Session, watchdog: Watchdog, contenders: dict[str, Contender], expected: dict[str, torch.Tensor]
) -> list[str]:
    """Names of the contenders whose results are wrong, every output and scratch tensor having held NaN before.

    Args:
        expected: ``product`` in fp32, and ``gather`` in the inputs' dtype, which must be met bit for bit.
    """
    found = []
    for name, contender in contenders.items():
        with watchdog.step(name, CALL_LIMIT_S):
            # A result in memory of its own is freed here and most likely written again by the next call.
            for tensor in (contender.call(), *contender.scratch):
                session.synchronize()
                tensor.fill_(float("nan"))
            session.synchronize()
            wrong = difference(contender.call(), expected[contender.expected])
            session.synchronize()
            if wrong:
                print(f"  rank {session.rank}: {name} is WRONG: {wrong}", flush=True)
            if not session.everywhere(not wrong):
                found.append(name)
    return found


def difference(result: torch.Tensor, expected: torch.Tensor) -> str:
    """What is wrong with a result, in words; empty where nothing is."""
    if result.shape != expected.shape:
        return f"shape {tuple(result.shape)} instead of {tuple(expected.shape)}"
    if result.dtype == expected.dtype and torch.equal(result, expected):
        return ""
    if result.dtype == expected.dtype and expected.dtype != torch.float32:
        return f"{int((result != expected).sum())} of {result.numel()} elements differ"
    error = result.float().sub_(expected)
    if not torch.isfinite(error).all():
        return f"{int((~torch.isfinite(error)).sum())} of {error.numel()} elements are not finite"
    norm, limit = float(expected.norm()), TOLERANCE[result.dtype]
    relative = float(error.norm()) / max(norm, 1e-30)
    if relative > limit:
        return f"relative error {relative:.1e}, allowed {limit:.0e}"
    worst, scale = float(error.abs().max()), float(expected.abs().max())
    return "" if worst <= 10 * limit * scale else f"an element is off by {worst:.3g}, the largest is {scale:.3g}"


def rounds_of(names: Sequence[str], rounds: int, seed: int) -> Iterator[list[str]]:
    """``rounds`` orders of the names, each shuffled anew, the same on every rank."""
    shuffler = random.Random(seed)
    for _ in range(rounds):
        order = list(names)
        shuffler.shuffle(order)
        yield order


def measure(
    session: Session, watchdog: Watchdog, contenders: dict[str, Contender], *, rounds: int, seed: int
) -> dict[str, float]:
    """Milliseconds of each contender: its median over the rounds, on the rank where that is highest."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for order in rounds_of(tuple(contenders), rounds, seed):
        for name in order:
            with watchdog.step(name, CALL_LIMIT_S):
                times[name].append(session.time(contenders[name].call))
            if session.cuda:
                time.sleep(min(0.02, max(0.001, 2e-3 * times[name][-1])))
    medians = session.largest([statistics.median(times[name]) for name in contenders])
    return dict(zip(contenders, medians, strict=True))
