"""How long the event model takes, by number of operations: gathers by pull in 4 chunks a rank, each with its run of tiles.

    python bench/event_model.py [--worlds 32 64 128 256]

256 ranks with 1,020 chunks each are 261,120 copies, as many flags, and a million events. CPU only, one process.
"""

from __future__ import annotations

import argparse
import time

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.schedule.events import simulate
from overlap.schedule.machine import load_machine
from overlap.schedule.work import work_per_chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--machine", default="h100-nvlink-ib400")
    parser.add_argument("--plan", default="all_gather_1d")
    given = parser.parse_args()
    machine = load_machine(given.machine)
    path, text = find_template(given.plan)
    print("| ranks | operations | events | seconds | of a processor | us an operation |")
    print("|---:|---:|---:|---:|---:|---:|")
    for world in given.worlds:
        tensor = TensorSpec("x", (world * 4, 8))
        plan = build_plan(text, world=world, tensor=tensor, dim=0, split=4, path=path)
        operations = sum(map(len, plan.ops))
        began, ticking = time.perf_counter(), time.process_time()
        timeline = simulate(plan, machine, work_per_chunk(plan, 2000, 1e-6))
        spent, busy = time.perf_counter() - began, time.process_time() - ticking
        each = busy / max(operations, 1) * 1e6
        print(
            f"| {world} | {operations} | {len(timeline.events)} | {spent:.2f} | {busy:.2f} | {each:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
