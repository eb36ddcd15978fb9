"""Every operator at every shape that has a target, against everything else, into one file.

    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/run_suite.py
    python -m torch.distributed.run --nproc-per-node 4 bench/run_suite.py --seconds 500     # again and again, until it is done
    python -m torch.distributed.run --nproc-per-node 4 bench/run_suite.py --operators gemm_rs --only tall 512,8192,28672

Rows and targets are in `suite`, contenders in the operators' own benchmarks (``bench/ag_gemm.py``, ...). A shape builds its
contenders, checks their results on fresh random data with everything poisoned before, and times them twice, in orders shuffled
anew each round: ``ms``, single calls, and ``queued``, calls that the host enqueues ahead of the device (`common`), of each the
median and the 99th percentile on the rank where that is highest.

The file is written after every shape. The same command goes on where it ended, whatever ended it: rows that are there are
not measured again. A contender that fails has a row with the reason instead of a time. One that hangs or takes the device along
ends the process, is written down by then, and is left out of that shape when torchrun (``--max-restarts``) or you start again;
after the second time, of that operator.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import driver
import record
import suite
from common import BUILD_LIMIT_S, DTYPES, Session, Watchdog, said_by
from suite_file import SuiteFile
from timing import Queue, p99, sample, worst

TALL_ROUNDS, DECODE_ROUNDS = 12, 30
"""Times `QUEUE_CALLS` of the queue: 48 and 120 calls, so that the 99th percentile of decode is not the largest."""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", nargs="+", choices=suite.OPERATORS, default=list(suite.OPERATORS))
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ROWS", help="tall, decode, or shapes M,N,K of the suite"
    )
    parser.add_argument("--seconds", type=float, help="no shape is begun after that; default: all of them are")
    parser.add_argument("--rounds", type=int, help=f"default: {TALL_ROUNDS} of tall rows, {DECODE_ROUNDS} of decode")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever the file has")
    parser.add_argument("--retry", action="store_true", help="measure shapes in which a contender failed once more")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--out", type=Path, help="result file; default: bench/results/suite_..., by GPUs")
    parser.add_argument("--commit", help="the commit measured, where there is no git")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearsal of this script")
    options = parser.parse_args(argv)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.device == "cpu" and options.out is None:
        parser.error("--device cpu needs --out: its numbers mean nothing")
    try:
        options.rows = suite.chosen(suite.ROWS, options.operators, options.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    return options


def attempt(session: Session, watchdog: Watchdog, step: str, make: Callable[[], Any]) -> tuple[Any, str]:
    """Collective: what ``make`` gives, and why a rank could not make it."""
    made, why = None, ""
    with watchdog.step(step, BUILD_LIMIT_S):
        try:
            made = make()
            session.synchronize()
        except Exception as error:
            why = said_by(error)
        if not session.everywhere(not why):
            return None, session.reason(why)
    return made, ""


def run_row(
    session: Session, watchdog: Watchdog, row: suite.Row, options: argparse.Namespace, left_out: dict[str, str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Measures one row of the suite.

    Args:
        left_out: contenders that are not tried, and why.

    Returns:
        by contender what its row of the file has beside the sizes, and the contenders whose results are wrong.
    """
    bench = importlib.import_module(row.op)
    wanted = driver.names_of(bench)
    reasons = dict(left_out)
    why = driver.indivisible(bench, row[1:], session.world)
    problem, wrong = None, []
    times: dict[str, list[float]] = {}
    queued: dict[str, list[float]] = {}
    rounds = options.rounds or (TALL_ROUNDS if row.tall else DECODE_ROUNDS)
    if not why:
        make = partial(bench.Problem, session, *row[1:], DTYPES[options.dtype])
        problem, why = attempt(session, watchdog, "problem", make)
    if problem is not None:
        right, wrong = driver.prepare(bench, problem, watchdog, {}, wanted, left_out, reasons)
        how = {"rounds": rounds, "seed": sum(row[1:]), "reasons": reasons}
        times = sample(session, watchdog, right, lambda each: [session.time(each.call)], **how)
        right = {name: right[name] for name in times}
        # Whose host does not get ahead still has its single calls.
        queued = sample(session, watchdog, right, Queue(session), **{**how, "reasons": None})
    found: dict[str, dict[str, Any]] = {}
    columns = {"ms": worst(session, times), "p99": worst(session, times, p99)}
    columns |= {"queued": worst(session, queued), "queued_p99": worst(session, queued, p99)}
    ran = _ran(row.op)
    for name in wanted:
        if name in times:
            had = {key: round(column[name], 5) if name in column else None for key, column in columns.items()}
            found[name] = {"ms": had.pop("ms"), **({"ran": ran} if name.startswith("ours") else {}), **had}
            found[name]["rounds"] = rounds
        else:
            found[name] = {"ms": None, "failed": why or reasons.get(name, "not built")}
    return found, wrong


def _ran(op: str) -> str:
    """What the last call of our operator did, in a few words."""
    from overlap.ops import last_plan

    said = last_plan(op)
    if said is None:
        return ""
    return f"serial: {said.why_serial}" if said.why_serial else f"{said.backend}, {said.plan}, {said.chunks} chunks"


@contextlib.contextmanager
def progress(session: Session, rows: int) -> Iterator[Callable[[str], None]]:
    """A bar over the rows, on rank 0 of a terminal; what is called when one begins."""
    if session.rank != 0 or not sys.stdout.isatty():
        yield lambda name: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=rows)
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=name)
            begun += 1

        yield begin
        bar.update(task, completed=begun)


def say(session: Session, found: dict[str, dict[str, Any]]) -> None:
    """Prints a row's times on rank 0."""
    for name, has in found.items():
        if has["ms"] is None:
            session.say(f"  {name:<14} failed: {has['failed']}")
        else:
            ahead = "        -" if has["queued"] is None else f"{has['queued']:9.4f}"
            session.say(f"  {name:<14}{has['ms']:9.4f} ms, p99 {has['p99']:9.4f}, queued {ahead}")


def main(argv: Sequence[str] | None = None) -> None:
    begun = time.monotonic()
    options = arguments(argv)
    session = Session(options.device)
    path = options.out or record.default_path("suite", session.name, session.world)
    common = {"world": session.world, "dtype": options.dtype, "device": session.name}
    file = SuiteFile(path, options.commit or record.commit(), common, fresh=options.fresh)
    session.everywhere(True)  # all have read the file before any writes it
    watchdog = Watchdog(file.ended)
    wrong: list[str] = []
    left = [row for row in options.rows if not file.done(row, _names(row), retry=options.retry)]
    session.say(f"{len(options.rows) - len(left)} of {len(options.rows)} rows are there; {path}")
    with progress(session, len(left)) as begins:
        while left:
            # Ranks' clocks differ: all go on, or none.
            late = options.seconds is not None and time.monotonic() - begun > options.seconds
            if not session.everywhere(not late):
                break
            row = left.pop(0)
            begins(str(row))
            session.say(str(row))
            out = file.begin(row, _names(row), retry=options.retry, clocks=session.cuda)
            found, bad = run_row(session, watchdog, row, options, out)
            wrong += bad
            file.add(found, write=session.rank == 0)
            say(session, found)
            session.free()
    session.say(f"{len(left)} rows are left: start me again" if left else f"all rows are there: {path}")
    session.close()
    if wrong:
        sys.exit(f"wrong results: {', '.join(sorted(set(wrong)))}")


def _names(row: suite.Row) -> list[str]:
    return driver.names_of(importlib.import_module(row.op))


if __name__ == "__main__":
    main()
