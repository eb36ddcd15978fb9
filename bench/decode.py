"""Products of few rows whose result is summed over ranks, as in decoding: low-latency words inside the product's own launch,
behind a library's product in a launch of their own, and NCCL.

    python -m torch.distributed.run --nproc-per-node 2 bench/decode.py --json decode.json

``words_inline``: one launch of a Triton kernel, with the operator's own blocks or those named; ``serial, words``: torch's
product, then one of words; ``serial, nccl``: torch's product, then NCCL; ``product``: torch's product alone. ``graph``: calls
one behind the other in a CUDA graph, time of a replay divided by their number; ``alone``: a graph of one call, all ranks having
met before it. Medians, microseconds, on the rank where they are highest; every result is checked against a sum in fp32. N, K
are of a whole layer, K is divided among the ranks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import record
import torch
import torch.distributed as dist
from common import Session
from low_latency import captured

from overlap import release

LAYERS = {
    "8B attention": (4096, 4096),
    "8B mlp": (4096, 14336),
    "70B attention": (8192, 8192),
    "70B mlp": (8192, 28672),
}
"""N, K of the second product of a part of a layer of Llama 3."""
ROWS = (1, 16, 64, 128)
CALLS = 20
Call = Callable[[], torch.Tensor]


class Problem:
    """One product; ``scatter``: its rows are reduce-scattered, else it is all-reduced."""

    def __init__(self, session: Session, rows: int, columns: int, depth: int, scatter: bool) -> None:
        generator = torch.Generator(session.device).manual_seed(session.rank)
        shapes = ((rows, depth // session.world), (depth // session.world, columns))
        self.x, self.w = (torch.randn(shape, device=session.device, generator=generator).bfloat16() for shape in shapes)
        total = self.x.float() @ self.w.float()
        dist.all_reduce(total)
        self.scatter = scatter
        self.wanted = total.chunk(session.world)[session.rank] if scatter else total

    def fused(self, backend: str | None) -> Call:
        from overlap.ops import gemm_ar, gemm_rs

        operator = gemm_rs if self.scatter else gemm_ar
        return lambda: operator(self.x, self.w, backend=backend)

    def right(self, y: torch.Tensor) -> bool:
        return bool((y.float() - self.wanted).norm() < 1e-2 * self.wanted.norm())


def tiled(m: int, n: int, k: int, warps: int, stages: int) -> Callable[[Problem], Call]:
    """Words inside a product with these blocks."""
    from overlap.ops import partials
    from overlap.ops.blocks import Blocks, choose_blocks

    def make(p: Problem) -> Call:
        call = p.fused("words_inline")

        def chosen() -> torch.Tensor:
            partials.choose_blocks = lambda **_: Blocks(m, n, k, warps, stages)
            try:
                return call()
            finally:
                partials.choose_blocks = choose_blocks

        return chosen

    return make


CONTENDERS: dict[str, Callable[[Problem], Call]] = {
    "words_inline": lambda p: p.fused("words_inline"),
    "64x32x128": lambda p: tiled(64, 32, 128, 4, 6)(p),
    "64x32x256": lambda p: tiled(64, 32, 256, 4, 4)(p),
    "serial, words": lambda p: p.fused(None),
    "serial, nccl": lambda p: p.fused("serial"),
    "product": lambda p: lambda: p.x @ p.w,
}


def measured(session: Session, p: Problem, name: str, rounds: int) -> dict[str, object]:
    """A contender's times; says why there are none."""
    release()  # what an earlier contender made ready is not this one's
    try:
        call = CONTENDERS[name](p)
        good = name == "product" or p.right(call())
        if not session.everywhere(good):
            return {"error": "wrong"}
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        many, one = captured(call, CALLS), captured(call, 1)
    except Exception as error:  # a contender that cannot run here
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    for graph in (many, one):
        graph.replay()
    chained = [session.time(many.replay) * 1e3 / CALLS for _ in range(rounds)]
    alone = [session.time(one.replay) * 1e3 for _ in range(rounds)]
    return dict(zip(("graph", "alone"), session.largest([*map(statistics.median, (chained, alone))]), strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--contenders", nargs="+", default=[*CONTENDERS], choices=CONTENDERS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args(argv)
    session = Session()
    clocks, rows = [record.clocks("start")], []
    session.say(f"{session.name}, {session.world} ranks, us: graph of {CALLS} | alone")
    for count in options.rows:
        for scatter in (False, True) if count >= session.world else (False,):
            for layer, (columns, depth) in LAYERS.items():
                p = Problem(session, count, columns, depth, scatter)
                found = {name: measured(session, p, name, options.rounds) for name in options.contenders}
                kind = "gemm_rs" if scatter else "gemm_ar"
                rows.append({"kind": kind, "layer": layer, "M": count, "N": columns, "K": depth, "us": found})
                shown = "  ".join(f"{name} {told(us)}" for name, us in found.items())
                session.say(f"{kind} {layer:<14} M={count:<4} {shown}")
                session.free()
    if session.rank == 0:
        record.write_asked(options.json, rows, clocks, options.commit, session.world)
    session.close()


def told(us: dict[str, object]) -> str:
    """A contender's numbers in short."""
    return f"({us['error']})" if "error" in us else "{graph:.1f} | {alone:.1f}".format(**us)


if __name__ == "__main__":
    main()
