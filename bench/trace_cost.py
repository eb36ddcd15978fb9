"""What recording costs: the same calls with and without it, one behind the other in a queue, in turns.

    python -m torch.distributed.run --standalone --nproc-per-node 2 bench/trace_cost.py --op ag_gemm --shape 8192,28672,8192

Prints the median of each on the slowest rank, and the middle half of the differences from turn to turn.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import nullcontext

import torch
from common import DTYPES, Session

from overlap.api.trace import recording
from overlap.ops.tuning import CALLS, OperatorCall, problem_of

SLEEP_CYCLES = 20_000_000
"""How long the device sleeps while the host enqueues a turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", choices=sorted(CALLS), required=True)
    parser.add_argument("--shape", required=True, help="M,N,K of the whole product")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--backend", default="copy_engine")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--calls", type=int, default=5, help="in a queue")
    given = parser.parse_args()
    session = Session()
    try:
        sizes = dict(zip("MNK", map(int, given.shape.split(",")), strict=True))
        problem = problem_of(given.op, sizes, DTYPES[given.dtype], session.world)
        call = OperatorCall(given.op, problem, session.world, session.rank, session.device)
        group = torch.distributed.group.WORLD
        ways = {"without": nullcontext, "with": recording}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(-2, given.turns):
            for name, way in ways.items():
                with way(), torch.no_grad():
                    taken, _ = session.queue(
                        lambda: call.plain(group, backend=given.backend), given.calls, SLEEP_CYCLES
                    )
                if turn >= 0:
                    times[name].append(statistics.median(session.largest(taken)))
        without, recorded = (statistics.median(times[name]) for name in ways)
        low, _, high = statistics.quantiles(
            [b / a - 1 for a, b in zip(times["without"], times["with"], strict=True)], n=4
        )
        session.say(
            f"{given.op} {given.shape} {given.dtype} {given.backend}, {session.world} x {session.name}: "
            f"{without:.4f} ms, recording {recorded:.4f} ms ({recorded / without - 1:+.1%}, half of the turns "
            f"{low:+.1%} to {high:+.1%})"
        )
    finally:
        session.close()


if __name__ == "__main__":
    main()
