"""All-reduces behind a product of cuBLAS: our words and blocks in every form against torch's, in one process.

    python -m torch.distributed.run --nproc-per-node 4 bench/behind.py --shapes 128,4096,14336 512,4096,14336

Microseconds of a product and the all-reduce behind it, in a graph, with the host ahead (`timing.Queue`): median and 99th
percentile, on the rank where each is highest. M, N, K are global, each rank has K / world. ``gemm`` is the product alone,
``layer`` a fourth of a graph of four. Results are checked against an fp32 sum, eager, in each graph and when all has been timed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
from common import Contender, Session, Watchdog
from timing import Queue, measure, p99, sample, worst

SHAPES = ("128,4096,14336", "512,4096,14336", "64,4096,14336", "512,8192,28672")
WAYS: dict[str, dict[str, int]] = {
    "blocks": {"halved": 256 << 10},
    "blocks_early": {"halved": 256 << 10, "early": 1},
    "blocks_4k": {"block": 4 << 10, "threads": 128},
    "blocks_8k": {},
    "blocks_16k": {"block": 16 << 10, "threads": 512},
    "blocks_1": {"steps": 1},
    "words": {"words": 1},
    "words_early": {"words": 1, "early": 1},
}
"""``early``: launched while the product ends (the setting ``launch_early``); ``steps``: 0 for what is chosen."""
Sum = Callable[[torch.Tensor, torch.Tensor], None]
Call = Callable[[], torch.Tensor]


def ours(
    words: int = 0, block: int = 8 << 10, threads: int = 256, early: int = 0, steps: int = 0, halved: int = 0
) -> Sum:
    """One of our ways, with slots of its own."""
    from overlap.runtime.of_group import runtime_of
    from overlap.runtime.packets import blocks, limits, low_latency

    found = low_latency.LowLatency(runtime_of(None))

    def add(summand: torch.Tensor, out: torch.Tensor) -> None:
        os.environ["OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES"] = str(1 << 40) if words else "0"
        os.environ["OVERLAP_LAUNCH_EARLY"] = str(early)
        low_latency.in_two_steps = (lambda size, world: steps == 2) if steps else limits.in_two_steps
        blocks.BLOCK_BYTES, blocks.THREADS, blocks.HALVED_BYTES = block, threads, halved
        assert found.all_reduce(summand, out) == ("words" if words else "blocks")

    return add


class Problem:
    """Operands of a product, whose partial results are added."""

    def __init__(self, session: Session, m: int, n: int, k: int) -> None:
        import torch.distributed._symmetric_memory as symm

        self.session = session
        generator = torch.Generator(session.device).manual_seed(7 + session.rank)
        made = partial(torch.randn, device=session.device, generator=generator)
        self.a, self.b = made(m, k // session.world).bfloat16(), made(k // session.world, n).bfloat16()
        self.part, self.out = (torch.empty(m, n, device=session.device, dtype=torch.bfloat16) for _ in range(2))
        self.group = dist.group.WORLD.group_name
        self.shared = symm.empty(m, n, dtype=torch.bfloat16, device=session.device)
        symm.rendezvous(self.shared, self.group)
        self.wanted = self.a.float() @ self.b.float()
        dist.all_reduce(self.wanted)

    def poison(self) -> None:
        self.part.fill_(float("nan"))
        self.out.fill_(float("nan"))

    def right(self, found: torch.Tensor) -> bool:
        """Collective."""
        error = (found.float() - self.wanted).norm() / self.wanted.norm()
        return self.session.everywhere(bool(error < 1e-2))

    def alone(self) -> torch.Tensor:
        return torch.mm(self.a, self.b, out=self.part)

    def by_us(self, add: Sum) -> torch.Tensor:
        add(self.alone(), self.out)
        return self.out

    def by_torch(self, name: str) -> torch.Tensor:
        product = torch.mm(self.a, self.b, out=self.shared)
        result: torch.Tensor = getattr(torch.ops.symm_mem, name)(product, "sum", self.group)
        return result


def captured(call: Call, calls: int = 1) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph


def contenders(p: Problem, ways: dict[str, Sum]) -> tuple[dict[str, Contender], dict[str, Contender]]:
    """By name: a product and its sum, and four of them one behind the other; wrong ones are said and left out."""
    single, four = {}, {}
    for name, add in ways.items():
        call = partial(p.by_us, add)
        p.poison()
        good = p.right(call())
        for _ in range(2):
            call()
        graphs = captured(call), captured(call, 4)
        for graph in graphs:
            p.poison()
            graph.replay()
            good = p.right(p.out) and good
        if not good:
            p.session.say(f"  {name} is wrong")
            continue
        single[name], four[name] = (Contender(name, graph.replay) for graph in graphs)
    for name in ("one_shot_all_reduce", "two_shot_all_reduce_"):
        if not p.right(p.by_torch(name)):
            p.session.say(f"  {name} is wrong")
        shot = partial(p.by_torch, name)
        short = name.removesuffix("_").removesuffix("_all_reduce")
        single[short], single[f"{short}_graph"] = (
            Contender(short, shot),
            Contender(f"{short}_graph", captured(shot).replay),
        )
    single["gemm"] = Contender("gemm", captured(p.alone).replay)
    return single, four


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="M,N,K")
    parser.add_argument("--ways", nargs="+", default=tuple(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args(argv)
    os.environ["OVERLAP_LOW_LATENCY_BELOW_BYTES"] = str(26 << 20)
    session = Session()
    watchdog = Watchdog(lambda name, why: None)
    ways = {name: ours(**WAYS[name]) for name in options.ways}
    clocks, rows = [record.clocks("start")], []
    session.say(f"{session.name}, {session.world} ranks, us: median, p99 | a layer of four")
    for m, n, k in (tuple(map(int, shape.split(","))) for shape in options.shapes):
        p = Problem(session, m, n, k)
        single, four = contenders(p, ways)
        times = sample(session, watchdog, single, Queue(session), rounds=options.rounds, seed=m)
        middle, tail = worst(session, times), worst(session, times, p99)
        layers = measure(session, watchdog, four, rounds=max(6, options.rounds // 3), seed=m)
        us: dict[str, dict[str, Any]] = {}
        for name in middle:
            us[name] = {"median": round(1e3 * middle[name], 2), "p99": round(1e3 * tail[name], 2)}
            if name in layers:
                us[name]["layer"] = round(1e3 * layers[name] / 4, 2)
        wrong = []
        for name in four:
            p.poison()
            single[name].call()
            if not p.right(p.out):
                wrong.append(name)
        session.say(
            f"{m},{n},{k}, {2 * m * n >> 10} KiB" + (f": wrong afterwards: {', '.join(wrong)}" if wrong else "")
        )
        for name, found in us.items():
            session.say(f"  {name:<16}{found['median']:8.2f}, {found['p99']:8.2f} | {found.get('layer', 0):8.2f}")
        rows.append({"kind": "all_reduce behind", "shape": [m, n, k], "bytes": 2 * m * n, "us": us, "wrong": wrong})
        single.clear()
        four.clear()
        session.free()
    if session.rank == 0:
        record.write_asked(options.json, rows, clocks, options.commit, session.world)
    session.close()


if __name__ == "__main__":
    main()
