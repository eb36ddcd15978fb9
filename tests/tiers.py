"""Runs the test tiers that need no GPU, each in a process of its own, and sums them up.

The simulator and the compiler cannot share a process: Triton decides at import time whether its kernels are
interpreted (``TRITON_INTERPRET=1``) or compiled. Tiers that depend on the Triton version run on every Python given.

    python tests/tiers.py --python 3.6.0=.venv/bin/python --python 3.9.0=.venv-newest/bin/python

Of a second version those tests are left out that are marked ``one_triton``: their subject is none of Triton's, or the compile
tier has it too (a sweep runs them all). A tier fails when any test fails, and when it holds no test at all. The browser tier runs
where there is a browser that works, and says why where there is none. Exit status: 0 all passed, 1 otherwise.

``--shard 2/8`` runs one of eight parts of the tests of every tier, a test always in the same one: what takes hours can be run in
pieces, on several machines. A tier of which a shard has nothing does not fail.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.sweep import SWEEP, Shard

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5


def no_browser(python: str) -> str:
    """Why no browser can be used; nothing where one can, or where the question itself fails, which the tests then do."""
    code = "import sys; sys.path.insert(0, 'tests/support'); import browser; browser.find()"
    done = subprocess.run(
        [python, "-c", code], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    _, refused, reason = done.stderr.strip().rpartition("browser.BrowserError: ")
    return reason.splitlines()[0] if refused else ""


@dataclass(frozen=True)
class Tier:
    """A folder of tests, whether its kernels are interpreted, and whether every Triton version runs it.

    ``missing`` says, for a Python, what the tier needs and this machine does not have.
    """

    name: str
    folders: tuple[str, ...]
    interpret: bool
    every_version: bool
    missing: Callable[[str], str] = lambda python: ""


TIERS = (
    Tier("unit + golden", ("tests/unit", "tests/golden"), interpret=False, every_version=False),
    Tier("sim", ("tests/sim",), interpret=True, every_version=True),
    Tier("compile", ("tests/compile",), interpret=False, every_version=True),
    Tier("browser", ("tests/browser",), interpret=False, every_version=False, missing=no_browser),
)


@dataclass(frozen=True)
class Outcome:
    label: str
    status: int
    seconds: float
    missing: str = ""

    def __str__(self) -> str:
        if self.missing:
            return f"{self.label:<32}not run: {self.missing}"
        said = {0: "passed", NO_TESTS: "FAILED: no tests"}.get(self.status, f"FAILED: pytest exit {self.status}")
        return f"{self.label:<32}{said:<28}{self.seconds:6.0f} s"


EVERY_VERSION = [] if SWEEP else ["-m", "not one_triton"]
"""What a version behind the first adds to pytest's arguments."""


def run(tier: Tier, version: str, python: str, jobs: int, extra: list[str], shard: Shard | None = None) -> Outcome:
    """One pytest process over the tier's folders, or over what a shard has of them."""
    label = f"{tier.name}, Triton {version}"
    print(f"\n=== {label}", flush=True)
    if missing := tier.missing(python):
        return Outcome(label, 0, 0.0, missing)
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if tier.interpret:
        env["TRITON_INTERPRET"] = "1"
    if shard is not None:
        env["OVERLAP_SHARD"] = str(shard)
    workers = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    command = [python, "-m", "pytest", "-q", *workers, *extra, *tier.folders]
    start = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    if shard is not None and status == NO_TESTS:
        return Outcome(label, 0, time.monotonic() - start, f"nothing of shard {shard}")
    return Outcome(label, status, time.monotonic() - start)


def shard_of(text: str) -> Shard:
    """`Shard.read`, as an argument."""
    try:
        return Shard.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", required=True, metavar="VERSION=PATH", help="oldest Triton first")
    parser.add_argument("--jobs", type=int, default=1, help="pytest workers a tier")
    parser.add_argument("--tier", action="append", choices=[tier.name for tier in TIERS], help="only these tiers")
    parser.add_argument("--shard", type=shard_of, metavar="N/COUNT", help="only this part of the tests of each tier")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args(argv)
    pythons = [entry.split("=", 1) for entry in options.python]

    outcomes = []
    for number, (version, python) in enumerate(pythons):
        for tier in TIERS:
            if options.tier and tier.name not in options.tier:
                continue
            if number == 0 or tier.every_version:
                extra = [*(EVERY_VERSION if number else ()), *options.pytest]
                outcomes.append(run(tier, version, python, options.jobs, extra, options.shard))

    print("\n" + "\n".join(map(str, outcomes)))
    print(f"{'all tiers':<60}{sum(o.seconds for o in outcomes):6.0f} s")
    failed = [outcome.label for outcome in outcomes if outcome.status]
    what = f"make {'sweep' if SWEEP else 'test'}{f' SHARD={options.shard}' if options.shard else ''}"
    print(f"FAILED: {'; '.join(failed)}" if failed else f"{what}: ok", flush=True)
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
