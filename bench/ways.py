"""Ways of carrying out one of our operators against each other, in a graph: which of them is the default is measured.

    python -m torch.distributed.run --nproc-per-node 4 bench/ways.py --op ag_gemm --way plan=all_gather_1d_pull \
        --way plan=all_gather_1d_push --way plan=all_gather_1d_push,split=2
    python -m torch.distributed.run --nproc-per-node 4 bench/ways.py --op ag_gemm --backends --seconds 240

A way is a list of the operator's keywords, and of settings by their variables (``split=4,OVERLAP_SUM_SMS=8``;
``split=1/1/3:1`` are parts by weight). Every shape times all of them in shuffled order, as the operator's own benchmark does,
after checking their results. Rows are as in every result file, with ``how``, the way, as a further key.

``--backends`` is a way for each backend that the capability table has for the operator, beside the product alone and the
serial composition in a graph; it writes bench/results/backends, which ``bench/table.py --ways`` shows. A backend that this
machine lacks something for is left out, with the reason; so are the shapes that are not begun within ``--seconds``.

``--ahead`` times them with the host ahead as well (`timing.Queue`), which tables and pictures then show: a graph of a short
product is over before the host has launched the next one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import driver
import record
from common import DTYPES, Contender, Session, Unavailable, Watchdog, build, check, graph_of
from timing import Queue, measure, sample, worst


def way(text: str) -> dict[str, Any]:
    """``plan=all_gather_1d_push,split=2`` as keywords."""
    found: dict[str, Any] = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier() or not value:
            raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE[,KEY=VALUE ...]")
        found[key] = int(value) if value.isdecimal() else value
    return found


def shown(how: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in how.items())


BESIDE = ("gemm", "serial", "serial_graph")
"""Contenders that backends are measured beside; the second is there to be captured."""


def backends_of(op: str) -> list[dict[str, Any]]:
    """A way for each backend of the capability table that can be asked to carry an operator out, but serial and auto."""
    from overlap.backends.capabilities import AUTO, SERIAL, names

    moves = "result" if op.startswith("gemm") else "input"
    return [{"backend": name} for name in names(moves) if name not in (AUTO, SERIAL)]


def ours_in_graph(bench: Any, problem: Any, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    """``ours`` of a benchmark, called in this way and captured.

    Raises:
        Unavailable: what runs would be serial, so that its time says nothing of the way.
    """
    variables = {key: str(value) for key, value in how.items() if key.isupper()}
    keywords = {key: value for key, value in how.items() if key not in variables}
    with mock.patch.dict(os.environ, variables):
        eager = bench.ours(problem, built, {"backend": "copy_engine", **keywords})
        from overlap.ops import last_plan

        said = last_plan(bench.OP)
        if said is not None and said.why_serial:
            raise Unavailable(f"serial: {said.why_serial}")
        return graph_of(problem.session, eager, "ours_graph")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--op",
        choices=record.OPS,
        required=True,
        help="the benchmark whose problem, shapes and contender ``ours`` are used",
    )
    parser.add_argument("--way", action="append", type=way, default=[], metavar="KEY=VALUE[,...]", dest="ways")
    parser.add_argument("--backends", action="store_true", help="every backend that can, beside serial")
    parser.add_argument("--ahead", action="store_true", help="time calls that the host enqueues ahead too")
    parser.add_argument("--seconds", type=float, default=300.0, help="no shape is begun after that")
    parser.add_argument("--shapes", nargs="+", metavar="M,N,K", help="default: those of the operator's benchmark")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=30, help="published numbers need 20 or more")
    parser.add_argument("--out", type=Path, help="result file; default: by operator and GPUs")
    parser.add_argument("--commit", help="the commit measured, where there is no git")
    options = parser.parse_args()
    ways = [*options.ways, *(backends_of(options.op) if options.backends else ())]
    if not ways:
        parser.error("say --way KEY=VALUE, or --backends")
    bench = importlib.import_module(options.op)
    session = Session("cuda")
    default = record.default_path(options.op, session.name, session.world)
    path = options.out or default.parent / ("backends" if options.backends else "ways") / default.name
    begun = time.monotonic()
    watchdog = Watchdog(lambda name, why: None)
    rows: list[dict[str, Any]] = []
    clocks = [record.clocks("start")]
    wrong: list[str] = []
    for m, n, k in map(driver.shape, options.shapes or bench.SHAPES):
        why = driver.indivisible(bench, (m, n, k), session.world)
        if not session.everywhere(time.monotonic() - begun < options.seconds):
            why = f"{options.seconds:g} s have passed"
        session.say(f"{m},{n},{k}" + (f" left out: {why}" if why else ""))
        if why:
            continue
        problem = bench.Problem(session, m, n, k, DTYPES[options.dtype])
        others = bench.contenders(problem, {}) if options.backends else {}
        builders = {name: others[name] for name in BESIDE if name in others}
        builders |= {shown(how): partial(ours_in_graph, bench, problem, how=how) for how in ways}
        built = build(session, watchdog, builders)
        built.pop("serial", None)
        problem.fill(1)
        bad = check(session, watchdog, built, problem.expected())
        wrong += bad
        right = {name: contender for name, contender in built.items() if name not in bad}
        times = measure(session, watchdog, right, rounds=options.rounds, seed=m + n + k)
        ahead: dict[str, float] = {}
        if options.ahead:
            right = {name: right[name] for name in times}
            queued = sample(session, watchdog, right, Queue(session), rounds=options.rounds, seed=m + n + k)
            ahead = worst(session, queued)
        clocks.append(record.clocks(f"after {m},{n},{k}"))
        for name, ms in times.items():
            also = f", with the host ahead {ahead[name]:9.4f}" if name in ahead else ""
            session.say(f"  {name:<40}{ms:9.4f}{also} ms")
            contender = name if name in BESIDE else "ours_graph"
            values = (options.op, m, n, k, session.world, options.dtype, contender, round(ms, 5), session.name)
            row = dict(zip(record.ROW_KEYS, values, strict=True))
            row |= {"how": name} if contender != name else {}
            rows.append({**row, "queued": round(ahead[name], 5)} if name in ahead else row)
        del problem, built, right, others, builders
        session.free()
    if session.rank == 0:
        values = (
            record.hardware(session.world),
            record.versions(),
            clocks,
            options.commit or record.commit(),
            record.command(session.world),
            record.now(),
            rows,
        )
        record.write(path, dict(zip(record.KEYS, values, strict=True)))
        session.say(f"written: {path}")
    session.close()
    if wrong:
        sys.exit(f"wrong results: {', '.join(sorted(set(wrong)))}")


if __name__ == "__main__":
    main()
