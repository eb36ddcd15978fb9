"""Small and medium collectives by message size: low-latency words, blocks, NCCL, torch's all-reduces in symmetric memory.

    python -m torch.distributed.run --nproc-per-node 2 bench/low_latency.py --json low_latency.json

``graph``: calls one behind the other in a CUDA graph, time of a replay divided by their number, median over the replays.
``alone``: a graph of one call, all ranks having met before it (as in `common`), median and 99th percentile. ``eager``: host
calls one behind the other, divided by their number. Microseconds, on the rank where a number is highest; of each contender the
result is checked against a sum in fp32, or to the bit where nothing is added. Sizes are bytes of the whole tensor. ``words`` and
``blocks`` carry all sizes; ``_1`` and ``_2`` are our all-reduces in one step and in two, whatever the size; ``b128``, ``b512``:
as many words a program at a time, ``4k``, ``16k``: blocks of so many bytes, ``p1``: one program a multiprocessor at most.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
from common import Session

SIZES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20,
         16 << 20, 24 << 20)  # fmt: skip
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
CALLS = 20
"""One behind the other in a graph, and eager."""
Call = Callable[[], torch.Tensor]


class Problem:
    """One collective of ``size`` bytes of bf16: what this rank gives, what it should get."""

    def __init__(self, session: Session, kind: str, size: int) -> None:
        self.session, self.kind = session, kind
        world, rank = session.world, session.rank
        rows = world * world
        columns = max(1, size // 2 // rows)
        generator = torch.Generator(session.device).manual_seed(rank)
        everything = torch.randn(rows, columns, device=session.device, generator=generator).bfloat16()
        piece = everything[: rows // world]
        self.given = everything if kind in ("all_reduce", "reduce_scatter") else piece.contiguous()
        whole = [torch.empty_like(self.given) for _ in range(world)]
        dist.all_gather(whole, self.given)
        if kind == "all_gather":
            self.wanted = torch.cat(whole)
        elif kind == "all_to_all":
            self.wanted = torch.cat([part.chunk(world)[rank] for part in whole])
        else:
            total = torch.stack(whole).float().sum(0)
            self.wanted = total if kind == "all_reduce" else total.chunk(world)[rank]
        self.out = torch.empty(self.wanted.shape, dtype=torch.bfloat16, device=session.device)

    def right(self, found: torch.Tensor) -> bool:
        """Sums are near enough for one rounding a rank; what is moved is the same."""
        if self.kind in ("all_gather", "all_to_all"):
            return torch.equal(found, self.wanted)
        error = (found.float() - self.wanted).norm() / self.wanted.norm()
        return bool(error < 1e-2)


_SLOTS: dict[tuple[object, ...], Any] = {}


def ours(
    p: Problem, by: str = "words", steps: int = 0, block: int = 256, block_bytes: int = 8 << 10, programs: int = 4
) -> Call:
    """Our own, by words or by blocks: bf16 added in fp32, in the order of the ranks; each variant with slots of its own.

    ``steps``: of an all-reduce, 0 for what is chosen.
    """
    from overlap.runtime.of_group import runtime_of
    from overlap.runtime.packets import blocks, limits, low_latency, transport, words

    variant = (by, steps, block, block_bytes, programs)
    if variant not in _SLOTS:
        _SLOTS[variant] = low_latency.LowLatency(runtime_of(None))
    found = _SLOTS[variant]

    def call() -> torch.Tensor:
        os.environ["OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES"] = "0" if by == "blocks" else str(1 << 40)
        low_latency.in_two_steps = (lambda size, world: steps == 2) if steps else limits.in_two_steps
        words.BLOCK, blocks.BLOCK_BYTES, transport.A_MULTIPROCESSOR = block, block_bytes, programs
        blocks.HALVED_BYTES = 256 << 10 if block_bytes == 8 << 10 else 0
        if p.kind == "all_reduce":
            done = found.all_reduce(p.given, p.out)
        elif p.kind == "reduce_scatter":
            done = found.reduce_scatter(p.given, 0, p.out)
        elif p.kind == "all_gather":
            done = found.all_gather(p.given, 0, p.out)
        else:
            # Rows of all columns go where rows of all are wanted: one dimension more makes them dimensions of their own.
            world = p.session.world
            held = p.given.view(1, world, -1)
            done = found.all_to_all(held, 0, 1, p.out.view(world, 1, -1))
        assert done == by
        return p.out

    return call


def nccl(p: Problem) -> Call:
    """The all-reduce works in place, on memory that is what it is: the check is of the first call alone."""

    def call() -> torch.Tensor:
        if p.kind == "all_reduce":
            dist.all_reduce(p.out)
        elif p.kind == "reduce_scatter":
            dist.reduce_scatter_tensor(p.out, p.given)
        elif p.kind == "all_gather":
            dist.all_gather_into_tensor(p.out, p.given)
        else:
            dist.all_to_all_single(p.out, p.given)
        return p.out

    return call


def torch_shot(name: str) -> Callable[[Problem], Call]:
    """``one_shot_all_reduce`` or ``two_shot_all_reduce_`` of `torch.ops.symm_mem`."""

    def make(p: Problem) -> Call:
        import torch.distributed._symmetric_memory as symm

        group = dist.group.WORLD.group_name
        place = symm.empty(p.given.shape, dtype=p.given.dtype, device=p.given.device)
        symm.rendezvous(place, group)
        place.copy_(p.given)
        op = getattr(torch.ops.symm_mem, name)
        return lambda: op(place, "sum", group)

    return make


CONTENDERS: dict[str, Callable[[Problem], Call]] = {
    "words": ours,
    "words_1": partial(ours, steps=1),
    "words_2": partial(ours, steps=2),
    "b128": partial(ours, block=128),
    "b512": partial(ours, block=512, programs=2),
    "p1": partial(ours, programs=1),
    "blocks": partial(ours, by="blocks"),
    "blocks_1": partial(ours, by="blocks", steps=1),
    "blocks_2": partial(ours, by="blocks", steps=2),
    "blocks_4k": partial(ours, by="blocks", block_bytes=4 << 10),
    "blocks_16k": partial(ours, by="blocks", block_bytes=16 << 10),
    "blocks_p1": partial(ours, by="blocks", programs=1),
    "nccl": nccl,
    "one_shot": torch_shot("one_shot_all_reduce"),
    "two_shot": torch_shot("two_shot_all_reduce_"),
}


SUMS_ALONE = ("words_1", "words_2", "blocks_1", "blocks_2", "one_shot", "two_shot")
"""Contenders that only all-reduces have."""


def captured(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    """So many calls in a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    return graph


def measured(session: Session, p: Problem, make: Callable[[Problem], Call], rounds: int) -> dict[str, object]:
    """A contender's times in microseconds; says why there are none."""
    try:
        call = make(p)
        p.out.copy_(p.given if p.kind == "all_reduce" else torch.full_like(p.out, math.nan))
        good = p.right(call())
        if not session.everywhere(good):
            return {"error": "wrong"}
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        many, one = captured(call, CALLS), captured(call, 1)
    except Exception as error:  # a contender that cannot run here
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    p.out.zero_()  # a sum in place would grow beyond its type
    for graph in (many, one):
        graph.replay()
    chained, alone = [], []
    for _ in range(rounds):
        chained.append(session.time(many.replay) * 1e3 / CALLS)
        alone.append(session.time(one.replay) * 1e3)

    def eager() -> None:
        for _ in range(CALLS):
            call()

    hosts = [session.time(eager) * 1e3 / CALLS for _ in range(max(3, rounds // 4))]
    ordered = sorted(alone)
    mine = [statistics.median(chained), statistics.median(alone), ordered[int(0.99 * (len(ordered) - 1))]]
    names = ("graph", "alone", "alone_p99", "eager")
    return dict(zip(names, session.largest([*mine, statistics.median(hosts)]), strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of the whole tensor")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--contenders", nargs="+", default=("words", "blocks", "nccl", "one_shot", "two_shot"), choices=CONTENDERS
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args(argv)
    os.environ.setdefault(
        "OVERLAP_LOW_LATENCY_BELOW_BYTES", str(max(options.sizes) * int(os.environ.get("WORLD_SIZE", "1")) + 1)
    )
    session = Session()
    clocks, rows = [record.clocks("start")], []
    session.say(f"{session.name}, {session.world} ranks, us: graph of {CALLS} | alone, p99 | eager")
    for kind in options.kinds:
        for size in options.sizes:
            p = Problem(session, kind, size)
            found = {}
            for name in options.contenders:
                if kind == "all_reduce" or name not in SUMS_ALONE:
                    found[name] = measured(session, p, CONTENDERS[name], options.rounds)
            rows.append({"kind": kind, "bytes": size, "us": found})
            session.say(f"{kind:<15}{size:>9}  " + "  ".join(f"{name} {told(us)}" for name, us in found.items()))
            session.free()
    if session.rank == 0:
        record.write_asked(options.json, rows, clocks, options.commit, session.world)
    session.close()


def told(us: dict[str, object]) -> str:
    """A contender's numbers in short."""
    if "error" in us:
        return f"({us['error']})"
    return "{graph:.1f} | {alone:.1f}, {alone_p99:.1f} | {eager:.1f}".format(**us)


if __name__ == "__main__":
    main()
