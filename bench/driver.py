"""The run of one operator's benchmark: shapes, contenders, journal, result file. A benchmark's file says what is compared.

A benchmark is a module with ``OP``, ``SHAPES`` (``M,N,K``), ``DIVIDED`` (which of M, N, K the ranks share evenly here),
``Problem`` (one shape on this rank, `BaseProblem`) and ``contenders`` (builders by name, a graph behind what it captures).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
from common import BUILD_LIMIT_S, DTYPES, Contender, Session, Unavailable, Watchdog, build, check, graph_of
from timing import measure

CAPTURES = {"serial_graph": "serial", "ours_graph": "ours"}
"""What each graph captures."""

Builder = Callable[[dict[str, Contender]], Contender]


@dataclass
class BaseProblem:
    """One shape on this rank: global M, N, K, and the session. ``allocate`` and ``fill`` make and fill its tensors."""

    session: Session
    M: int
    N: int
    K: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.allocate(partial(torch.empty, dtype=self.dtype, device=self.session.device))
        self.fill(0)

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        """Makes the tensors; ``make`` is `torch.empty` of the right dtype and device."""
        raise TypeError(f"{type(self).__name__} has no tensors")

    def fill(self, seed: int) -> None:
        """New random data in the same tensors."""
        raise TypeError(f"{type(self).__name__} has no data")

    @property
    def held(self) -> int:
        """How many of M rows are this rank's own under `torch.chunk`."""
        most = -(-self.M // self.session.world)
        return max(0, min(most, self.M - self.session.rank * most))

    def own_rows(self, whole: torch.Tensor) -> torch.Tensor:
        """Those rows of a tensor that has all."""
        begin = min(self.M, self.session.rank * -(-self.M // self.session.world))
        return whole[begin : begin + self.held]

    def random(self, tensor: torch.Tensor, seed: int, *, own: bool) -> None:
        """Normal numbers, the same on all ranks or of this rank's ``own``."""
        generator = torch.Generator(self.session.device)
        tensor.normal_(generator=generator.manual_seed(1_000_003 * (self.session.rank + 1) + seed if own else seed))


def need_gpu(p: BaseProblem) -> None:
    if not p.session.cuda:
        raise Unavailable("needs a GPU")


def symmetric(p: BaseProblem, *shape: int) -> tuple[torch.Tensor, str]:
    """Memory of torch's own symmetric kind, and the name of the group it was met over."""
    need_gpu(p)
    import torch.distributed._symmetric_memory as memory

    name = dist.group.WORLD.group_name
    memory.enable_symm_mem_for_group(name)
    made = memory.empty(*shape, dtype=p.dtype, device=p.session.device)
    memory.rendezvous(made, name)
    return made, name


def in_graph(p: BaseProblem, built: dict[str, Contender], name: str) -> Contender:
    if CAPTURES[name] not in built:
        raise Unavailable(f"needs {CAPTURES[name]}")
    return graph_of(p.session, built[CAPTURES[name]], name)


def ours(
    p: BaseProblem, operator: Callable[[], torch.Tensor], op: str, scratch: tuple[torch.Tensor, ...] = ()
) -> Contender:
    """A prebuilt operator; says so if it chooses to run serially."""
    from overlap.ops import last_plan

    contender = Contender("ours", operator, scratch)
    contender.call()
    said = last_plan(op)
    if said is not None and said.why_serial:
        p.session.say(f"  ours runs serial: {said.why_serial}")
    return contender


def launched(kernel: Any, grid: Any, arguments: dict[str, Any], result: torch.Tensor, expected: str) -> Contender:
    """A kernel of ours as it stands, with nothing communicated."""

    def call() -> torch.Tensor:
        kernel[grid](**arguments)
        return result

    return Contender("triton_gemm", call, expected=expected)


def with_graphs(p: BaseProblem, builders: dict[str, Builder]) -> dict[str, Builder]:
    """The builders, and behind them one for every graph of one of them."""
    graphs = {name: partial(in_graph, p, name=name) for name, of in CAPTURES.items() if of in builders}
    return {**builders, **graphs}


def names_of(bench: Any) -> list[str]:
    """The contenders of a benchmark, in the order in which they are built."""
    return list(bench.contenders(None, {}))


def prepare(
    bench: Any,
    p: BaseProblem,
    watchdog: Watchdog,
    how: dict[str, Any],
    wanted: list[str],
    left_out: Container[str],
    reasons: dict[str, str] | None = None,
) -> tuple[dict[str, Contender], list[str]]:
    """Builds the contenders of one shape and checks them on fresh data.

    Args:
        how: keywords of our operator.
        wanted: the contenders to time.
        left_out: contenders that failed before and are not tried again.
        reasons: gets why others cannot be timed, by contender.

    Returns:
        the contenders to time, and the names of those whose results are wrong.
    """
    needed = {*wanted, *(CAPTURES[name] for name in wanted if name in CAPTURES)}
    builders = {
        name: builder for name, builder in bench.contenders(p, how).items() if name in needed and name not in left_out
    }
    built = build(p.session, watchdog, builders, reasons)
    with watchdog.step("expected", BUILD_LIMIT_S):
        p.fill(1)
        expected = p.expected()
    timed = {name: contender for name, contender in built.items() if name in wanted}
    wrong = check(p.session, watchdog, timed, expected, reasons)
    return {name: contender for name, contender in timed.items() if name not in wrong}, wrong


def run_shape(
    bench: Any,
    p: BaseProblem,
    watchdog: Watchdog,
    how: dict[str, Any],
    wanted: list[str],
    left_out: Container[str],
    *,
    rounds: int,
) -> tuple[dict[str, float], list[str]]:
    """Builds, checks and times the contenders of one shape; see `prepare`.

    Returns:
        milliseconds by contender, and the contenders whose results are wrong, which are not timed.
    """
    right, wrong = prepare(bench, p, watchdog, how, wanted, left_out)
    return measure(p.session, watchdog, right, rounds=rounds, seed=p.M + p.N + p.K), wrong


def arguments(bench: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=bench.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=shape, default=[shape(s) for s in bench.SHAPES], metavar="M,N,K")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=30, help="published numbers need 20 or more")
    parser.add_argument("--contenders", nargs="+", choices=record.CONTENDERS, default=list(record.CONTENDERS))
    parser.add_argument("--plan", help="plan of ours; by default the operator chooses")
    parser.add_argument(
        "--split", help="chunks a shard is cut into, or weights (1:2:1), by ours; by default the operator chooses"
    )
    parser.add_argument("--backend", help="backend of ours; by default it chooses, and is serial for small tensors")
    parser.add_argument("--out", type=Path, help="result file; default: bench/results, by operator and GPUs")
    parser.add_argument("--commit", help="the commit measured, where there is no git")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearsal of this script")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.device == "cpu" and options.out is None:
        parser.error("--device cpu needs --out: its numbers mean nothing")
    return options


def shape(text: str) -> tuple[int, int, int]:
    """``M,N,K``."""
    try:
        m, n, k = (int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes start at 1")
    return m, n, k


def indivisible(bench: Any, sizes: Sequence[int], world: int) -> str:
    """Why a shape is no shape of this benchmark on so many ranks, or nothing."""
    if all(size % world == 0 for size, name in zip(sizes, "MNK", strict=True) if name in bench.DIVIDED):
        return ""
    names = " and ".join(bench.DIVIDED)
    return f"{names} must be {'multiples' if len(bench.DIVIDED) > 1 else 'a multiple'} of {world} here"


def keywords(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of our operator; what was not said is left to it."""
    how = {"plan": options.plan, "split": options.split, "backend": options.backend}
    return {key: value for key, value in how.items() if value is not None}


def main(bench: Any) -> None:
    """Runs a benchmark as its command line says."""
    options = arguments(bench)
    session = Session(options.device)
    path = options.out or record.default_path(bench.OP, session.name, session.world)
    journal = record.Journal(path.with_name(path.name + ".part"), session.rank)
    watchdog = Watchdog(journal.failed)
    for name, why in journal.left_out.items():
        session.say(f"{name} left out: {why}")
    wrong: list[str] = []
    if session.cuda:
        journal.clocks.append(record.clocks("start"))
    for m, n, k in options.shapes:
        why = indivisible(bench, (m, n, k), session.world)
        if why:
            session.say(f"{m},{n},{k} left out: {why}")
        elif not journal.done(M=m, N=n, K=k):
            session.say(f"{m},{n},{k}")
            problem = bench.Problem(session, m, n, k, DTYPES[options.dtype])
            times, bad = run_shape(
                bench, problem, watchdog, keywords(options), options.contenders, journal.left_out, rounds=options.rounds
            )
            wrong += bad
            if session.cuda:
                journal.clocks.append(record.clocks(f"after {m},{n},{k}"))
            common = {"op": bench.OP, "M": m, "N": n, "K": k, "world": session.world, "dtype": options.dtype}
            for name, ms in times.items():
                session.say(f"  {name:<14}{ms:9.4f} ms")
                journal.rows.append({**common, "contender": name, "ms": round(ms, 5), "device": session.name})
            if session.rank == 0:
                journal.save()
            del problem
            session.free()
    if session.rank == 0:
        values = (
            record.hardware(session.world),
            record.versions(),
            journal.clocks,
            options.commit or record.commit(),
            record.command(session.world),
            record.now(),
            journal.rows,
        )
        record.write(path, dict(zip(record.KEYS, values, strict=True)))
        journal.finish()
        session.say(f"written: {path}")
    session.close()
    if wrong:
        sys.exit(f"wrong results: {', '.join(sorted(set(wrong)))}")
