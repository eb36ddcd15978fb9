"""All that the GPUs of one host are asked, stage by stage: tests, realizations side by side, the suite, and where its time goes.

    python -m bench.campaign --ranks 4                       # all of it
    python -m bench.campaign --ranks 4 --list                # the stages, what each answers, and its command
    python -m bench.campaign --ranks 2 matrix suite gaps     # some of them, in that order

A stage is one command, with a limit that holds for all it starts: what hangs costs the rest nothing. As each ends a line says
how, with the last line that it printed; all it printed, and what it measured, is in ``--out``. With ``--seconds`` no stage begins
that might not be over by then. On fewer ranks than the suite is made for, shapes are such that a rank's product is the suite's,
but for the suite's own two stages. Exit status: 0 all chosen stages ended well, 1 some did not.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.suite import TARGETS
from overlap.schedule.operators import AXES, OPERATORS
from tests.support.limited import run_limited

ROOT = Path(__file__).parent.parent
WORLD = 4
"""Ranks that the suite's shapes are made for."""
STARTING = 30.0
"""Seconds for ranks to start, and to end what they have begun, beyond those that a command is told."""


@dataclass(frozen=True)
class Stage:
    """``asks``: the question it answers. ``seconds``: that the command is told to keep to, all in all."""

    name: str
    asks: str
    seconds: float
    command: tuple[str, ...]

    @property
    def limit(self) -> float:
        return self.seconds + STARTING


def stages(ranks: int, out: Path, commit: str) -> tuple[Stage, ...]:
    """All, what matters most first."""

    def tests(name: str, asks: str, seconds: float, *files: str) -> Stage:
        each = ("-m", "tests.multigpu.each", "--ranks", str(ranks), "--ahead", "--out", str(out / "each"))
        command = (sys.executable, *each, "--seconds", f"{seconds / len(files):.0f}", *files)
        return Stage(name, asks, seconds, command)

    def bench(name: str, asks: str, script: str, seconds: float, *arguments: str) -> Stage:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        told = ("--seconds", f"{seconds:.0f}", "--commit", commit, "--out", str(out / f"{name}.json"))
        return Stage(name, asks, seconds, (sys.executable, *launcher, f"bench/{script}.py", *arguments, *told))

    def backends(op: str) -> Stage:
        measured = bench(f"{op}_backends", "realizations side by side", "ways", 75, "--op", op, "--backends", "--ahead")
        # NVSHMEM moves its own memory alone; the others are as fast in it.
        held = ("OVERLAP_PROVIDER=nvshmem", "NVSHMEM_SYMMETRIC_SIZE=16G")
        return replace(measured, command=("env", *held, *measured.command))

    def ways(name: str, asks: str, op: str, seconds: float, *which: str) -> Stage:
        chosen = ("--op", op, "--ahead", "--rounds", "20", "--shapes", *shapes(op, ranks))
        return bench(name, asks, "ways", seconds, *chosen, *(part for way in which for part in ("--way", way)))

    free, beside, staged = "OVERLAP_SUM_SMS=4", "OVERLAP_TILE_SUMS=0", "OVERLAP_IN_PLACE=0"
    gather, exchange = "plan=all_gather_1d", "plan=all_to_all_1d"
    parts = f"{exchange}_push,split=1:3:4"
    adding = [f"split={split},OVERLAP_TILE_SUMS=1" for split in ("2", "4", "2:1:1")]
    rows = [f"{op}:{shape}" for op in TARGETS for shape in shapes(op, ranks)]
    return (
        tests("matrix", "every operator by every realization, ragged and uneven, against fp32", 110, "matrix"),
        tests("realizations", "each over two streams, replayed, too late, in two groups at once", 110, "realizations"),
        bench("suite", "speedup and eta of the tall rows", "run_suite", 150, "--only", "tall"),
        bench("gaps", "what the time of a tall row is made of", "gaps", 150, "--rounds", "5", "--rows", *rows),
        bench("decode", "speedup of the rows of a decode step", "run_suite", 120, "--only", "decode"),
        *(backends(op) for op in (*TARGETS, "ag_gemm_k")),
        ways(
            "rs", "sums in tiles or beside them", "gemm_rs", 60, *(f"split={n},{free},{beside}" for n in "24"), *adding
        ),
        ways("ar", "parts of an all-reduce", "gemm_ar", 45, *(f"split={n},{free}" for n in ("2", "4", "2:2:2:1:1"))),
        ways("ag", "pulled, pushed, staged", "ag_gemm", 90, gather, f"{gather}_push", f"{gather}_push,{staged}"),
        ways("a2a", "the same of an exchange", "a2a_gemm", 45, f"{exchange},split=8", parts, f"{parts},{staged}"),
        ways("ga2a", "parts of an exchanged result", "gemm_a2a", 45, "split=1", *(f"split={n},{free}" for n in "24")),
        tests("newer", "what four ranks have not run yet", 240, "tile_sums", "in_place", "in_place_results", "repeat"),
        tests("faults", "ranks that are late, silent or killed", 240, "faults"),
    )


def shapes(op: str, ranks: int) -> list[str]:
    """The suite's tall shapes of an operator, for so many ranks."""
    found = []
    for sizes in TARGETS[op]:
        named = dict(zip(AXES, sizes, strict=True))
        named[OPERATORS[op].divided] = named[OPERATORS[op].divided] * ranks // WORLD
        found.append(",".join(map(str, named.values())))
    return found


def run(stage: Stage, out: Path) -> bool:
    """One stage; prints its line. True where it ended well."""
    ended = run_limited(stage.command, stage.limit, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    (out / f"{stage.name}.txt").write_text(f"$ {shlex.join(stage.command)}\n{ended.text}")
    how = {None: "not done in time", 0: "ok"}.get(ended.status, f"exit {ended.status}")
    last = next((line.strip() for line in reversed(ended.text.splitlines()) if line.strip()), "")
    print(f"{stage.name:<18}{ended.seconds:6.0f} s  {how:<18}{last[:160]}", flush=True)
    return ended.status == 0


def head() -> str:
    """The commit that is checked out; empty where there is no git."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="which, in that order (all)")
    parser.add_argument("--ranks", type=int, required=True, help="GPUs")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no stage begins that may not be over by then"
    )
    parser.add_argument("--out", type=Path, default=Path("campaign"), help="folder for what is printed and measured")
    parser.add_argument("--commit", help="the commit that is measured, where there is no git")
    parser.add_argument("--list", action="store_true", help="show the stages and run none")
    options = parser.parse_args(argv)
    out = options.out.absolute()
    known = {stage.name: stage for stage in stages(options.ranks, out, options.commit or head())}
    if unknown := [name for name in options.stages if name not in known]:
        parser.error(f"no stage {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.stages or known]
    if options.list:
        for stage in chosen:
            print(f"{stage.name}: {stage.asks}; at most {stage.limit:.0f} s\n  {shlex.join(stage.command)}")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    start, well, left = time.monotonic(), [], []
    for stage in chosen:
        if time.monotonic() - start + stage.limit > options.seconds:
            left.append(stage.name)
        else:
            well.append(run(stage, out))
    print(f"{sum(well)} of {len(well)} ended well" + (f"; no time for {', '.join(left)}" if left else ""), flush=True)
    return 0 if all(well) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
