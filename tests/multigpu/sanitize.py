"""compute-sanitizer's memcheck over one launch of every realization, on real ranks.

    python -m tests.multigpu.sanitize --ranks 2 --together --seconds 90
    python -m tests.multigpu.sanitize --ranks 4 --only 'gather, tma_reserved' --seconds 300

Every realization is run by a `torch.distributed.run` of its own with the tool around each rank, and prints one line: its exit
status, the errors that memcheck counted on each rank and the time. Starting takes most of that under the tool, so with --together
realizations share processes: those of pointers, those of a library and those of far peers, all three at once. Such a line also
says which realizations came to their end; which one has errors is then seen without --together. Data and oracle are made on the
host, so that only what a launch starts runs under the tool.

Reports of those that are not clean follow. Exit status: 0 all are clean, 1 some are not, 2 the tool is not on this machine (it
comes with the CUDA toolkit, or as the wheel nvidia-cuda-sanitizer-api).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.limited import run_limited
from tests.support.realizations import REALIZATIONS, missing

ROOT = Path(__file__).parent.parent.parent
TOOL = "compute-sanitizer"
FOUND = 66
"""Exit status of a rank in whose launches memcheck has found something."""
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
DONE = "right under the tool: "
"""What a rank prints behind a launch whose result is right, ahead of the realization's name."""


def find_tool() -> str | None:
    """The tool: of ``PATH``, of a CUDA toolkit, or of a wheel."""
    if found := shutil.which(TOOL):
        return found
    toolkits = sorted(Path("/usr/local").glob(f"cuda*/bin/{TOOL}"))
    wheels = [path for folder in sys.path for path in Path(folder or ".").glob(f"nvidia/*/bin/{TOOL}")]
    return next((str(path) for path in (*toolkits, *wheels) if path.is_file() and os.access(path, os.X_OK)), None)


@dataclass(frozen=True)
class Outcome:
    """How the ranks of some realizations ended under the tool. ``status``: None where they did not end in time."""

    names: tuple[str, ...]
    ranks: int
    status: int | None
    seconds: float
    output: str

    @property
    def errors(self) -> list[int]:
        """What memcheck counted, a number a rank that came to its end."""
        return [int(number) for number in SUMMARY.findall(self.output)]

    @property
    def done(self) -> list[str]:
        """The realizations whose result was right on every rank."""
        return [name for name in self.names if self.output.count(f"{DONE}{name}\n") == self.ranks]

    @property
    def clean(self) -> bool:
        """Whether every rank ended well, and was watched."""
        return self.status == 0 and self.errors == [0] * self.ranks and len(self.done) == len(self.names)

    def __str__(self) -> str:
        said = "clean" if self.clean else "NOT CLEAN"
        status = f"exit {self.status}" if self.status is not None else "not done"
        name = self.names[0] if len(self.names) == 1 else f"{len(self.names)} together"
        line = f"{name:<24}{said:<12}{status:<10}errors by rank: {self.errors}  {self.seconds:.0f} s"
        return line if len(self.names) == 1 else f"{line}\n  done: {'; '.join(self.done) or 'none'}"


def run(tool: str, names: tuple[str, ...], ranks: int, seconds: float) -> Outcome:
    """A launch of each of some realizations, in one process a rank, each under the tool."""
    # API errors are left out: libraries ask for what a driver may not have, and what we ask for raises by itself.
    watched = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND)]
    if (libraries := Path(tool).parent.parent / "lib").joinpath("libsanitizer-public.so").is_file():
        watched += ["--injection-path", str(libraries)]  # a wheel's, which lie beside its bin
    ranked = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    launched = [word for name in names for word in ("--launch", name)]
    command = [*ranked, "--no-python", *watched, sys.executable, "-m", "tests.multigpu.sanitize", *launched]
    env = {**os.environ, "OVERLAP_DEADLINE_S": "120"}
    if any(REALIZATIONS[name].far for name in names):
        env["OVERLAP_NODE_RANKS"] = str(max(1, ranks // 2))
    ended = run_limited(command, seconds, cwd=ROOT, env=env)
    return Outcome(names, ranks, ended.status, ended.seconds, ended.text)


def launch(names: Sequence[str]) -> None:
    """One launch of each, checked, as one of the ranks under the tool."""
    import torch

    from overlap.runtime.workspace import check, release
    from tests.multigpu.children import Scenario

    scenario = Scenario(*names)
    for name, module in scenario.modules.items():
        product = scenario.make(name, 515, device="cpu")
        product.check(module, 0)
        check(scenario.group)
        # One write, so that no other rank's falls into it.
        os.write(1, f"{DONE}{name}\n".encode())
    release(scenario.group)
    torch.distributed.destroy_process_group()


def groups(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Those that can share processes: far peers need nodes, and a library that hangs under the tool takes none of ours along."""
    for kind in ((False, False), (False, True), (True, False)):
        if found := tuple(n for n in names if (REALIZATIONS[n].far, REALIZATIONS[n].library) == kind):
            yield found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--only", action="append", choices=REALIZATIONS, metavar="NAME", help="only these realizations")
    parser.add_argument("--seconds", type=float, default=180.0, help="limit for each start of ranks")
    parser.add_argument("--together", action="store_true", help="several realizations a process")
    parser.add_argument("--launch", action="append", choices=REALIZATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.launch:
        launch(options.launch)
        return 0
    tool = find_tool()
    if tool is None:
        print(f"not run: {TOOL} is not on this machine (PATH, /usr/local/cuda*/bin, nvidia wheels)")
        return 2
    print(f"{tool}, memcheck, {options.ranks} ranks, one launch each", flush=True)
    here = []
    for name in options.only or REALIZATIONS:
        if why := missing(name):
            print(f"{name:<24}not run: {why}", flush=True)
        else:
            here.append(name)
    started = list(groups(here)) if options.together else [(name,) for name in here]
    outcomes = []
    with ThreadPoolExecutor(len(started) if options.together and started else 1) as pool:
        for outcome in pool.map(lambda names: run(tool, names, options.ranks, options.seconds), started):
            outcomes.append(outcome)
            print(outcome, flush=True)
    bad = [outcome for outcome in outcomes if not outcome.clean]
    for outcome in bad:
        print(f"\n=== {'; '.join(outcome.names)}\n{outcome.output[-4000:]}")
    return 1 if bad or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
