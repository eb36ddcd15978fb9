"""Where the time of each tall row of the suite goes: every call taken apart, by measurement, beside its limit.

    python -m torch.distributed.run --nproc-per-node 4 bench/gaps.py
    python -m torch.distributed.run --nproc-per-node 4 bench/gaps.py --rows gemm_ar:8192,4096,14336 gemm_rs:8192,8192,8192
    python -m torch.distributed.run --nproc-per-node 2 bench/gaps.py --rows gemm_ar:8192,4096,7168 --way split=2 --way split=4
    python bench/table.py --gaps --into docs/performance.md

A row is measured in one process a GPU as the suite does it, bf16, our call with its defaults captured in a graph, the host ahead
(`timing.Queue`). Then, in the same processes:

    profiled   the same graph, our fused launch by itself and the operator's kernel by itself, under torch.profiler: when each
               kernel and copy began and ended
    recorded   the same call with tiles that record (docs/tracing.md) in a graph, and its fused launch by itself
    clocks     of a multiprocessor from the begin to the end of our call and of the product alone (`sm_clock`); and what calls
               take one behind the other for a quarter of a second, with clock and power as NVML has them meanwhile

The fused launch by itself is a call of which all steps are left out but the kernel: all flags are still up, nothing is
copied. `apart` says what the terms are; they are those of the rank whose call takes longest. A recorded call makes all tiles in
one launch; what the setting ``tail`` leaves to a second one is in the profile, and so in ``uneven``.

The file is written after every row.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import apart
import driver
import nvml
import record
import scores
import sm_clock
import suite
import torch
import torch.distributed as dist
from common import DTYPES, Contender, Session, Unavailable, Watchdog, graph_of
from run_suite import attempt
from timing import QUEUE_CALLS, Queue, sample
from ways import shown, way

PROFILED, RECORDED, STAMPED = 5, 5, 5
"""Calls of each kind that are profiled, that record, and whose clock is taken."""
CLOCKED = ("ours_graph", "triton_gemm", "gemm")
CYCLES = 20_000_000
"""For which the device sleeps ahead of profiled calls, 10 ms: their host is slow."""
CLOCK_S = 0.25
"""Of calls one behind the other, whose clocks are read from the middle on."""
WANTED = ["gemm", "triton_gemm", "ours", "ours_graph"]


def chosen(text: str) -> suite.Row:
    """``OP:M,N,K`` as a row, which need be none of the suite."""
    op, colon, sizes = text.partition(":")
    if not colon or op not in suite.OPERATORS:
        raise argparse.ArgumentTypeError(f"{text!r} is not OP:M,N,K with an operator of {', '.join(suite.OPERATORS)}")
    return suite.Row(op, *driver.shape(sizes))


@contextmanager
def only_kernel() -> Any:
    """Calls inside consist of their fused kernel, and of what follows it to make the rest of its tiles.

    Whole calls must have come before: it is their epoch whose flags are up, and their data that is read.
    """
    from overlap.runtime.launch import launch
    from overlap.schedule.steps import Kernel

    def kernels(rank: int, steps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(step for step in steps if isinstance(step, Kernel))

    with mock.patch.object(launch, "STEP_FILTER", kernels):
        yield


def recorded_tiles(group: Any = None) -> apart.Tiles:
    """Where the time of the tiles of the last launch went, which recorded them; the device must be done.

    Raises:
        Unavailable: nothing was recorded.
    """
    from overlap.runtime.instances import instances
    from overlap.runtime.of_group import runtime_of
    from overlap.runtime.tracing.recording import last_log
    from overlap.schedule.recorded import RankRecord, tiles_of

    runtime = runtime_of(group)
    known = list(instances(runtime).values())
    log = last_log(known[-1]) if known else None
    if log is None:
        raise Unavailable("no tile recorded anything")
    loops = log.instance.operator.logged
    parts = len(log.parts.runs) * loops if log.parts is not None else 0
    rate = 1e-9 if runtime.device.type == "cuda" else 1e-6
    tiles = tiles_of(log.read(), log.tiles, parts, 0.0, rate, max(1, loops))
    found = RankRecord(runtime.rank, log.schedule, log.parts, log.names, tiles, 0.0)
    return apart.tiles_of(replace(found, end=found.tiles_end))


def profiled(session: Session, contenders: Sequence[Contender], calls: int) -> tuple[dict[str, Any], list[list[float]]]:
    """What a profiler saw of so many queued calls of each contender, one contender after the other, and their times by events."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        times = [session.queue(each.call, calls, CYCLES)[0] for each in contenders]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        return json.loads(Path(path).read_text(encoding="utf-8")), times


def by_profile(
    trace: dict[str, Any], calls: int
) -> tuple[list[apart.Frame], list[apart.Frame], list[apart.Frame], apart.Call]:
    """Frames of our calls, of our fused launch and of the operator's kernel by themselves, and the call in the middle of ours.

    Raises:
        ValueError: the profile does not hold so many calls of each.
    """
    found = apart.calls_of(apart.activities_of(trace))
    if len(found) != 3 * calls:
        raise ValueError(f"the profile has {len(found)} calls and not {3 * calls}")
    ours, alone, product = (found[at : at + calls] for at in range(0, 3 * calls, calls))
    names = set().union(*(call.kernels for call in alone))
    frames = [apart.frame_of(call, names) for call in ours]
    order = sorted(range(calls), key=lambda at: frames[at].total)
    return (
        frames,
        [apart.frame_of(call, call.kernels) for call in alone],
        [apart.frame_of(call, call.kernels) for call in product],
        ours[order[calls // 2]],
    )


def back_to_back(session: Session, gpu: Any, call: Callable[[], object], ms: float) -> dict[str, float]:
    """What calls take one behind the other, and what clocks and power are meanwhile; ``ms``: of one, the same on all ranks."""
    calls = max(20, min(4000, int(1e3 * CLOCK_S / ms)))
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    session.everywhere(True)
    with nvml.sampling(gpu, CLOCK_S / 2) as samples:
        begun.record()
        for _ in range(calls):
            call()
        ended.record()
        session.synchronize()
    return {**nvml.said_of(samples), "us": round(1e3 * begun.elapsed_time(ended) / calls, 1)}


class Measured:
    """One row on this rank, measured step by step; each step is collective."""

    def __init__(
        self, session: Session, watchdog: Watchdog, row: suite.Row, how: dict[str, Any], options: argparse.Namespace
    ) -> None:
        bench = importlib.import_module(row.op)
        self.session, self.watchdog, self.row, self.options = session, watchdog, row, options
        self.problem = bench.Problem(session, *row[1:], DTYPES[options.dtype])
        reasons: dict[str, str] = {}
        self.right, wrong = driver.prepare(bench, self.problem, watchdog, how, WANTED, (), reasons)
        from overlap.ops import last_plan

        said = last_plan(row.op)
        if said is not None and said.why_serial:
            raise Unavailable(f"serial: {said.why_serial}")
        missing = [name for name in WANTED if name not in self.right]
        if missing:
            raise Unavailable("; ".join(f"{name}: {reasons.get(name, 'not built')}" for name in missing))
        self.ran = "" if said is None else f"{said.plan}, {said.chunks} chunks"

    def queued(self, names: Sequence[str], rounds: int) -> dict[str, float]:
        """Medians on this rank, us, of calls without profiler and records, the host ahead."""
        contenders = {name: self.right[name] for name in names}
        times = sample(
            self.session, self.watchdog, contenders, Queue(self.session), rounds=rounds, seed=sum(self.row[1:])
        )
        return {name: 1e3 * statistics.median(values) for name, values in times.items()}

    def profile(self) -> tuple[Any, list[float]]:
        """What `by_profile` makes of a profile, and our calls' times in it."""
        ours = self.right["ours"]

        def alone() -> torch.Tensor:
            with only_kernel():
                return ours.call()

        contenders = [self.right["ours_graph"], Contender("alone", alone), self.right["triton_gemm"]]
        alone()
        self.session.synchronize()
        self.session.everywhere(True)
        trace, times = profiled(self.session, contenders, PROFILED)
        return by_profile(trace, PROFILED), times[0]

    def record(self) -> tuple[list[apart.Tiles], list[apart.Tiles], list[float]]:
        """Tiles of recorded calls and of recorded launches by themselves, and the times of the calls, ms."""
        from overlap.api.trace import recording

        visit = Queue(self.session, calls=1)
        ours = self.right["ours"]
        with recording():
            graph = graph_of(self.session, Contender("recorded", ours.call), "recorded")
            tiles, alone, times = [], [], []
            for _ in range(RECORDED):
                times += visit(graph)
                tiles.append(recorded_tiles())
            with only_kernel():
                for _ in range(RECORDED):
                    visit(Contender("alone", ours.call))
                    alone.append(recorded_tiles())
        return tiles, alone, times

    def clocks(self, gpu: Any, us: dict[str, float]) -> dict[str, dict[str, float]]:
        """Of our calls and of the product alone: in single ones, and one behind the other where the driver tells of clocks."""
        device, visit = self.session.device, Queue(self.session, calls=1)
        found = {name: sm_clock.clock_of(self.right[name], visit, device, STAMPED) for name in CLOCKED}
        if self.session.everywhere(gpu is not None):
            for name in CLOCKED:
                (ms,) = self.session.largest([us[name] / 1e3])
                found[name] |= back_to_back(self.session, gpu, self.right[name].call, ms)
        return found


def measured(session: Session, watchdog: Watchdog, gpu: Any, row: suite.Row, how: dict[str, Any], options: Any) -> Any:
    """What is known of a row on this rank; collective.

    Raises:
        Unavailable: a step of it cannot be done on some rank, which the message names.
    """

    def step(name: str, make: Callable[[], Any]) -> Any:
        made, why = attempt(session, watchdog, f"{row}: {name}", make)
        if why:
            raise Unavailable(f"{name}: {why}")
        return made

    it: Measured = step("build", lambda: Measured(session, watchdog, row, how, options))
    us = step("times", lambda: it.queued(WANTED, options.rounds))
    (frames, alone, product, call), seen = step("profile", it.profile)
    tiles, still, traced = step("records", it.record)
    again = step("times again", lambda: it.queued(("ours_graph",), 2))
    clocks = step("clocks", lambda: it.clocks(gpu, us))
    ours = us["ours_graph"]
    beside = {
        "alone": statistics.median(each.product for each in alone),
        "alone_launch": statistics.median(each.launch for each in alone),
        "product": statistics.median(each.product for each in product),
        "recorded_alone": statistics.median(each.span for each in still),
        "recorded_span": statistics.median(each.span for each in tiles),
        "recorded_waits_alone": statistics.median(each.waiting for each in still),
        "uneven_alone": statistics.median(each.uneven for each in still),
        "profiled": 1e3 * statistics.median(seen) - ours,
        "recorded": 1e3 * statistics.median(traced) - ours,
        "again": again["ours_graph"] - ours,
    }
    return {
        "us": us,
        "terms": {name: round(value, 1) for name, value in apart.terms_of(ours, frames, tiles, still).items()},
        "beside": {name: round(value, 1) for name, value in beside.items()},
        "programs": tiles[0].programs,
        "copying": apart.copying_of(call),
        "clocks": clocks,
        "ran": it.ran,
        "timeline": apart.timeline_of(call),
    }


def row_of(row: suite.Row, how: dict[str, Any], session: Session, dtype: str, told: Sequence[Any]) -> dict[str, Any]:
    """The row of the file from what all ranks have told: of times the worst, of all else the rank whose call takes longest."""
    head = {**row._asdict(), "world": session.world, "dtype": dtype, "device": session.name, "how": shown(how)}
    worst = max(range(len(told)), key=lambda rank: told[rank]["us"]["ours_graph"])
    ms = {name: round(max(each["us"][name] for each in told) / 1e3, 5) for name in told[0]["us"]}
    limit = max(min(ms["gemm"], ms["triton_gemm"]), scores.received_bytes(head) / scores.BYTES_PER_MS)
    found = told[worst]
    return {
        **head,
        "ran": found["ran"],
        "ms": ms,
        "limit": round(limit, 5),
        "rank": worst,
        "programs": found["programs"],
        "copying": found["copying"],
        **{key: found[key] for key in ("terms", "beside")},
        "all_ranks": [each["terms"] for each in told],
        "clocks": [each["clocks"] for each in told],
        "timeline": found["timeline"],
    }


def say(session: Session, row: dict[str, Any]) -> None:
    """Prints a row on rank 0."""
    ms = row["ms"]
    session.say(
        f"  {ms['ours_graph']:.4f} ms, eager {ms['ours']:.4f}, limit {row['limit']:.4f}, "
        f"eta {row['limit'] / ms['ours_graph']:.3f}, rank {row['rank']}, {row['programs']} programs, {row['ran']}"
    )
    for title, values in (("us", row["terms"]), ("beside", row["beside"]), ("copies", row["copying"])):
        session.say(f"  {title}: " + ", ".join(f"{name} {value:.1f}" for name, value in values.items()))
    for name in CLOCKED:
        session.say(f"  clocks of {name}: {row['clocks'][row['rank']][name]}")


def gpu_of(session: Session) -> Any:
    """The GPU's clocks, where they can be read."""
    if not session.cuda:
        return None
    try:
        return nvml.Nvml(str(torch.cuda.get_device_properties(session.device).uuid))
    except (OSError, AttributeError) as error:
        print(f"rank {session.rank}: no clocks: {error}", flush=True)
        return None


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tall = [row for row in suite.ROWS if row.tall]
    parser.add_argument("--rows", nargs="+", type=chosen, default=tall, metavar="OP:M,N,K", help="default: tall rows")
    parser.add_argument(
        "--way", action="append", type=way, metavar="KEY=VALUE[,...]", dest="ways", help="as bench/ways.py takes it"
    )
    parser.add_argument("--seconds", type=float, help="no row is begun after that; default: all of them are")
    parser.add_argument("--rounds", type=int, default=8, help=f"of {QUEUE_CALLS} calls each")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--out", type=Path, help="result file; default: bench/results/gaps/gaps_..., by GPUs")
    parser.add_argument("--commit", help="the commit measured, where there is no git")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearsal of this script")
    options = parser.parse_args(argv)
    if options.device == "cpu" and options.out is None:
        parser.error("--device cpu needs --out: its numbers mean nothing")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    begun = time.monotonic()
    options = arguments(argv)
    # A profiler that goes and comes back does not find the graphs that were captured meanwhile.
    os.environ.update({"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"})
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    session = Session(options.device)
    default = record.default_path("gaps", session.name, session.world)
    path = options.out or default.parent / "gaps" / default.name
    commit, command = options.commit or record.commit(), record.command(session.world)
    watchdog, gpu = Watchdog(lambda name, why: None), gpu_of(session)
    rows: list[dict[str, Any]] = []
    clocks = [record.clocks("start")]
    for row, how in [(row, how) for row in options.rows for how in options.ways or [{}]]:
        late = options.seconds is not None and time.monotonic() - begun > options.seconds
        if not session.everywhere(not late):
            session.say(f"{row} and what follows is left: {options.seconds:g} s have passed")
            break
        session.say(f"{row} {shown(how)}".rstrip())
        why = driver.indivisible(importlib.import_module(row.op), row[1:], session.world)
        variables = {key: str(value) for key, value in how.items() if key.isupper()}
        keywords = {key: value for key, value in how.items() if key not in variables}
        told: list[Any] = [None] * session.world
        if not why:
            try:
                with mock.patch.dict(os.environ, variables):
                    mine = measured(session, watchdog, gpu, row, keywords, options)
                dist.all_gather_object(told, mine)
            except Unavailable as error:
                why = str(error)
        if why:
            session.say(f"  left out: {why}")
            head = {**row._asdict(), "world": session.world, "dtype": options.dtype, "device": session.name}
            rows.append({**head, "how": shown(how), "failed": why})
        else:
            rows.append(row_of(row, how, session, options.dtype, told))
            say(session, rows[-1])
        if session.rank == 0:
            record.write_rows(path, rows, clocks, commit, command, session.world)
        session.free()
    if session.rank == 0:
        session.say(f"written: {path}, {time.monotonic() - begun:.0f} s")
    session.close()


if __name__ == "__main__":
    main()
