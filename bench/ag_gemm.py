"""AllGather-GEMM: every way of computing ``gather(a) @ b`` on the same GPUs, in the same processes.

    python -m torch.distributed.run --nproc-per-node 4 bench/ag_gemm.py
    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/ag_gemm.py --rounds 40

``a`` is [M, K], each rank holding M / world rows; ``b`` is [K, N], each rank holding N / world columns. ``gemm`` and
``triton_gemm`` have all of ``a`` and compute a rank's product alone; ``nccl`` moves the data alone. Everything else
starts from the shard in ordinary memory, so staging is included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
from common import DTYPES, Contender, Session, Unavailable, Watchdog, build, check, graph_of, measure

OP = "ag_gemm"
SHAPES = (
    "8192,6144,4096",
    "8192,14336,4096",
    "8192,8192,8192",
    "8192,28672,8192",
    "8192,29568,8192",
    "8192,53248,16384",
    "2048,14336,4096",
    "512,28672,8192",
    "64,28672,8192",
    "16,14336,4096",
)
CAPTURES = {"serial_graph": "serial", "ours_graph": "ours"}
"""What each graph captures."""


@dataclass
class Problem:
    """One shape on this rank: global M, N, K; ``a`` whole (for checks and the contenders that gather nothing), the own
    rows ``shard``, the own columns ``b``, and memory for results."""

    session: Session
    M: int
    N: int
    K: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        session = self.session
        make = partial(torch.empty, dtype=self.dtype, device=session.device)
        self.a = make(self.M, self.K)
        self.shard = make(self.M // session.world, self.K)
        self.b = make(self.K, self.N // session.world)
        self.c = make(self.M, self.N // session.world)
        self.gathered = make(self.M, self.K)
        self.fill(0)

    def fill(self, seed: int) -> None:
        """New random data in the same tensors: ``a`` the same on all ranks, ``b`` of each rank's own."""
        session = self.session
        generator = torch.Generator(session.device)
        self.a.normal_(generator=generator.manual_seed(seed))
        self.shard.copy_(self.a.chunk(session.world)[session.rank])
        self.b.normal_(generator=generator.manual_seed(1_000_003 * (session.rank + 1) + seed))
        session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        return {"product": self.a.float() @ self.b.float(), "gather": self.a}


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.c))


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: _gather(p), expected="gather")


def _gather(p: Problem) -> torch.Tensor:
    # One collective under its new name and its old one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(p.gathered, p.shard)
    return p.gathered


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: torch.matmul(_gather(p), p.b, out=p.c), scratch=(p.gathered,))


def asynctp(p: Problem, built: dict[str, Contender]) -> Contender:
    need_gpu(p)
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    symmetric.enable_symm_mem_for_group(name)

    def call() -> torch.Tensor:
        _, (result,) = torch.ops.symm_mem.fused_all_gather_matmul(p.shard, [p.b], gather_dim=0, group_name=name)
        return result

    return Contender("asynctp", call)


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.ag_gemm`, as it stands, on the gathered ``a``."""
    need_gpu(p)
    from overlap.ops.products import Product, product_arguments
    from overlap.ops.views import gather_view
    from overlap.runtime.protocol import runtime_of

    view = gather_view(p.a, 0, None, 1, 0)
    product = Product(p.b, p.c.unsqueeze(0), None)
    kernel, grid, kernel_arguments = product_arguments(product, p.a.unsqueeze(0), view, runtime_of(None))

    def call() -> torch.Tensor:
        kernel[grid](**kernel_arguments)
        return p.c

    return Contender("triton_gemm", call)


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import ag_gemm, last_plan

    contender = Contender("ours", lambda: ag_gemm(p.shard, p.b, out=p.c, **how))
    contender.call()
    said = last_plan()
    if said is not None and said.why_serial:
        p.session.say(f"  ours runs serial: {said.why_serial}")
    return contender


def in_graph(p: Problem, built: dict[str, Contender], name: str) -> Contender:
    if CAPTURES[name] not in built:
        raise Unavailable(f"needs {CAPTURES[name]}")
    return graph_of(p.session, built[CAPTURES[name]], name)


def need_gpu(p: Problem) -> None:
    if not p.session.cuda:
        raise Unavailable("needs a GPU")


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, Callable[[dict[str, Contender]], Contender]]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    return {
        "gemm": partial(gemm, p),
        "triton_gemm": partial(triton_gemm, p),
        "nccl": partial(nccl, p),
        "serial": partial(serial, p),
        "serial_graph": partial(in_graph, p, name="serial_graph"),
        "asynctp": partial(asynctp, p),
        "ours": partial(ours, p, how=how),
        "ours_graph": partial(in_graph, p, name="ours_graph"),
    }


def run_shape(
    p: Problem, watchdog: Watchdog, how: dict[str, Any], wanted: list[str], left_out: Container[str], *, rounds: int
) -> tuple[dict[str, float], list[str]]:
    """Builds, checks on fresh data and times the contenders of one shape.

    Args:
        how: keywords of `overlap.ops.ag_gemm`.
        wanted: the contenders to time.
        left_out: contenders that failed before and are not tried again.

    Returns:
        milliseconds by contender, and the contenders whose results are wrong, which are not timed.
    """
    needed = {*wanted, *(CAPTURES[name] for name in wanted if name in CAPTURES)}
    builders = {
        name: builder for name, builder in contenders(p, how).items() if name in needed and name not in left_out
    }
    built = build(p.session, watchdog, builders)
    p.fill(1)
    timed = {name: contender for name, contender in built.items() if name in wanted}
    wrong = check(p.session, watchdog, timed, p.expected())
    right = {name: contender for name, contender in timed.items() if name not in wrong}
    return measure(p.session, watchdog, right, rounds=rounds, seed=p.M + p.N + p.K), wrong


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=shape, default=[shape(s) for s in SHAPES], metavar="M,N,K")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=30, help="published numbers need 20 or more")
    parser.add_argument("--contenders", nargs="+", choices=record.CONTENDERS, default=list(record.CONTENDERS))
    parser.add_argument("--plan", default="all_gather_1d", help="plan of ours")
    parser.add_argument("--split", type=int, default=1, help="chunks a shard is cut into, by ours")
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


def main() -> None:
    options = arguments()
    session = Session(options.device)
    path = options.out or record.default_path(OP, session.name, session.world)
    journal = record.Journal(path.with_name(path.name + ".part"), session.rank)
    watchdog = Watchdog(journal.failed)
    for name, why in journal.left_out.items():
        session.say(f"{name} left out: {why}")
    wrong: list[str] = []
    how = {"plan": options.plan, "split": options.split, "backend": options.backend}
    if session.cuda:
        journal.clocks.append(record.clocks("start"))
    for m, n, k in options.shapes:
        if m % session.world or n % session.world:
            session.say(f"{m},{n},{k} left out: M and N must be multiples of {session.world} here")
        elif not journal.done(M=m, N=n, K=k):
            session.say(f"{m},{n},{k}")
            problem = Problem(session, m, n, k, DTYPES[options.dtype])
            times, bad = run_shape(problem, watchdog, how, options.contenders, journal.left_out, rounds=options.rounds)
            wrong += bad
            if session.cuda:
                journal.clocks.append(record.clocks(f"after {m},{n},{k}"))
            common = {"op": OP, "M": m, "N": n, "K": k, "world": session.world, "dtype": options.dtype}
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


if __name__ == "__main__":
    main()
