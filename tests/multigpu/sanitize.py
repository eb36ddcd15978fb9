"""compute-sanitizer's memcheck over one launch of every realization, on real ranks.

    python -m tests.multigpu.sanitize --ranks 2
    python -m tests.multigpu.sanitize --ranks 4 --only 'gather, tma_reserved' --seconds 300

Every realization is run by a `torch.distributed.run` of its own with the tool around each rank, and prints one line: its exit
status, the errors that memcheck counted on each rank and the time. Reports of those that are not clean follow. Exit status: 0 all
are clean, 1 some are not, 2 the tool is not on this machine (it comes with the CUDA toolkit, or as the wheel
nvidia-cuda-sanitizer-api).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.realizations import REALIZATIONS, missing

ROOT = Path(__file__).parent.parent.parent
TOOL = "compute-sanitizer"
FOUND = 66
"""Exit status of a rank in whose launches memcheck has found something."""
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")


def find_tool() -> str | None:
    """The tool: of ``PATH``, of a CUDA toolkit, or of a wheel."""
    if found := shutil.which(TOOL):
        return found
    toolkits = sorted(Path("/usr/local").glob(f"cuda*/bin/{TOOL}"))
    wheels = [path for folder in sys.path for path in Path(folder or ".").glob(f"nvidia/*/bin/{TOOL}")]
    return next((str(path) for path in (*toolkits, *wheels) if path.is_file() and os.access(path, os.X_OK)), None)


@dataclass(frozen=True)
class Outcome:
    """How a realization's ranks ended under the tool. ``status``: None where they did not end in time."""

    name: str
    ranks: int
    status: int | None
    seconds: float
    output: str

    @property
    def errors(self) -> list[int]:
        """What memcheck counted, a number a rank that came to its end."""
        return [int(number) for number in SUMMARY.findall(self.output)]

    @property
    def clean(self) -> bool:
        """Whether every rank ended well, and was watched."""
        return self.status == 0 and self.errors == [0] * self.ranks

    def __str__(self) -> str:
        said = "clean" if self.clean else "NOT CLEAN"
        status = f"exit {self.status}" if self.status is not None else "not done"
        return f"{self.name:<24}{said:<12}{status:<10}errors by rank: {self.errors}  {self.seconds:.0f} s"


def run(tool: str, name: str, ranks: int, seconds: float) -> Outcome:
    """One realization's launch on ``ranks`` ranks, each under the tool."""
    # API errors are left out: libraries ask for what a driver may not have, and what we ask for raises by itself.
    watched = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND)]
    if (libraries := Path(tool).parent.parent / "lib").joinpath("libsanitizer-public.so").is_file():
        watched += ["--injection-path", str(libraries)]  # a wheel's, which lie beside its bin
    ranked = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*ranked, "--no-python", *watched, sys.executable, "-m", "tests.multigpu.sanitize", "--launch", name]
    env = {**os.environ, "OVERLAP_DEADLINE_S": "120"}
    if REALIZATIONS[name].far:
        env["OVERLAP_NODE_RANKS"] = str(max(1, ranks // 2))
    start = time.monotonic()
    # A session of its own, so that ranks which hang end with their launcher.
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, status = process.communicate(timeout=seconds)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, status = process.communicate()[0], None
    return Outcome(name, ranks, status, time.monotonic() - start, output)


def launch(name: str) -> None:
    """One launch, checked, as one of the ranks under the tool."""
    import torch

    from overlap.runtime.workspace import check, release
    from tests.multigpu.children import Scenario

    scenario = Scenario(name)
    scenario.product.check(scenario.module, 0)
    check(scenario.group)
    release(scenario.group)
    torch.distributed.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--only", action="append", choices=REALIZATIONS, metavar="NAME", help="only these realizations")
    parser.add_argument("--seconds", type=float, default=180.0, help="limit for each realization")
    parser.add_argument("--launch", choices=REALIZATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.launch:
        launch(options.launch)
        return 0
    tool = find_tool()
    if tool is None:
        print(f"not run: {TOOL} is not on this machine (PATH, /usr/local/cuda*/bin, nvidia wheels)")
        return 2
    print(f"{tool}, memcheck, {options.ranks} ranks, one launch each", flush=True)
    outcomes = []
    for name in options.only or REALIZATIONS:
        if why := missing(name):
            print(f"{name:<24}not run: {why}", flush=True)
            continue
        outcomes.append(run(tool, name, options.ranks, options.seconds))
        print(outcomes[-1], flush=True)
    bad = [outcome for outcome in outcomes if not outcome.clean]
    for outcome in bad:
        print(f"\n=== {outcome.name}\n{outcome.output[-4000:]}")
    return 1 if bad or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
