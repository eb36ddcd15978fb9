"""What every benchmark here shares: ranks, contenders, checks, a watchdog, and how one call is timed.

One process a GPU, all contenders in the same processes. Around one call:

    flush the L2 cache | all ranks meet (a one-word all-reduce) | event | the call | event | synchronize | cool down

The host runs ahead for as long as the flush and the meeting take, about 0.2 ms, as it would behind a previous layer;
what an eager call costs beyond that is in its time. In a queue the device sleeps first, until the host has enqueued several
calls, and nothing of the host's is in their times:

    sleep | flush | meet | event | the call | event | flush | meet | event | the call | event | ... | synchronize

Rounds and what is made of their times are in `timing`. Inputs are random, of each rank's own, and refilled after
everything is built, so that an old result is a wrong one.
"""

from __future__ import annotations

import contextlib
import gc
import os
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

    def reason(self, why: str) -> str:
        """Collective: why something failed, with the first rank that says so where not all say the same."""
        told: list[str] = [""] * self.world
        dist.all_gather_object(told, why)
        if len(set(told)) == 1:
            return told[0]
        return next(f"rank {rank}: {text}" for rank, text in enumerate(told) if text)

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

    def queue(self, call: Callable[[], object], calls: int, cycles: int) -> tuple[list[float], bool]:
        """Milliseconds of each of some calls that the host enqueues while the device sleeps, all ranks meeting before each.

        Args:
            cycles: of the device's clock that it sleeps.

        Returns:
            the times, and whether the host had enqueued everything when the device woke: only then its part is in none.
        """
        if not self.cuda:
            return [self.time(call) for _ in range(calls)], True
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        awake = torch.cuda.Event()
        torch.cuda._sleep(cycles)
        awake.record()
        for begun, ended in marks:
            self._flush.zero_()
            dist.all_reduce(self._flag)
            begun.record()
            call()
            ended.record()
        ahead = not awake.query()
        torch.cuda.synchronize(self.device)
        return [begun.elapsed_time(ended) for begun, ended in marks], ahead

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
    session: Session,
    watchdog: Watchdog,
    builders: dict[str, Callable[[dict[str, Contender]], Contender]],
    reasons: dict[str, str] | None = None,
) -> dict[str, Contender]:
    """Builds contenders in order, each from those before it; what a rank cannot build is left out.

    Args:
        reasons: gets why, by contender.
    """
    built: dict[str, Contender] = {}
    for name, builder in builders.items():
        why, speaker = "", True
        with watchdog.step(name, BUILD_LIMIT_S):
            try:
                contender = builder(built)
            except Unavailable as error:
                why, speaker = str(error), session.rank == 0
            except Exception as error:
                why = said_by(error)
            # Before anybody calls it: a rank would wait in a collective for one that has given up.
            there = session.everywhere(not why)
            if there:
                try:
                    for _ in range(WARM_CALLS):
                        contender.call()
                    session.synchronize()
                except Exception as error:
                    why = said_by(error)
                there = session.everywhere(not why)
            if there:
                built[name] = contender
            elif reasons is not None:
                reasons[name] = session.reason(why)
        if why and speaker:
            print(f"  rank {session.rank}: {name} left out: {why}", flush=True)
    return built


def said_by(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: " + (str(error).strip().splitlines() or [""])[0]


def check(
    session: Session,
    watchdog: Watchdog,
    contenders: dict[str, Contender],
    expected: dict[str, torch.Tensor],
    reasons: dict[str, str] | None = None,
) -> list[str]:
    """Names of the contenders whose results are wrong, every output and scratch tensor having held NaN before.

    Args:
        expected: ``product`` in fp32, and ``gather`` in the inputs' dtype, which must be met bit for bit.
        reasons: gets what is wrong, by contender.
    """
    found = []
    for name, contender in contenders.items():
        with watchdog.step(name, CALL_LIMIT_S):
            try:
                # A result in memory of its own is freed here and most likely written again by the next call.
                for tensor in (contender.call(), *contender.scratch):
                    session.synchronize()
                    tensor.fill_(float("nan"))
                session.synchronize()
                wrong = difference(contender.call(), expected[contender.expected])
                session.synchronize()
            except Exception as error:
                session.synchronize()  # raises again where the device is lost
                wrong = said_by(error)
            if wrong:
                print(f"  rank {session.rank}: {name} is WRONG: {wrong}", flush=True)
            if not session.everywhere(not wrong):
                found.append(name)
                if reasons is not None:
                    reasons[name] = session.reason(f"wrong result: {wrong}" if wrong else "")
    return found


def difference(result: torch.Tensor, expected: torch.Tensor) -> str:
    """What is wrong with a result, in words; empty where nothing is."""
    if result.shape != expected.shape:
        return f"shape {tuple(result.shape)} instead of {tuple(expected.shape)}"
    if result.dtype == expected.dtype and torch.equal(result, expected):
        return ""
    if result.dtype == expected.dtype and expected.dtype != torch.float32:
        return f"{int((result != expected).sum())} of {result.numel()} elements differ"
    if not result.numel():
        return ""
    error = result.float().sub_(expected)
    if not torch.isfinite(error).all():
        return f"{int((~torch.isfinite(error)).sum())} of {error.numel()} elements are not finite"
    norm, limit = float(expected.norm()), TOLERANCE[result.dtype]
    relative = float(error.norm()) / max(norm, 1e-30)
    if relative > limit:
        return f"relative error {relative:.1e}, allowed {limit:.0e}"
    worst, scale = float(error.abs().max()), float(expected.abs().max())
    return "" if worst <= 10 * limit * scale else f"an element is off by {worst:.3g}, the largest is {scale:.3g}"
