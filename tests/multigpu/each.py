"""Test files one after another, each as ranks of its own with a time limit, so that a hang costs seconds.

    python -m tests.multigpu.each --ranks 2 --seconds 60 stores boxes 'results_op:graph'

``NAME[:EXPRESSION]``: ``tests/multigpu/test_NAME.py``, all of it or the tests that pytest's ``-k EXPRESSION`` picks; without
names, every file. One line a file as it ends: pytest's summary of rank 0, or how many tests had ended and which one each rank was
in. What failed is told behind it, from the first rank that has something to tell; a test that takes long shows its stacks. Exit
status: 0 all passed, 1 some did not.

With ``--ahead`` cores that have nothing to do compile what the tests to come will launch (`tests.support.ahead`), and behind a
file's line stands how many kernels rank 0 found, and which ones it compiled because nobody had foreseen them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.ahead import MODULES, Ahead
from tests.support.compilations import KERNELS, compared, records
from tests.support.limited import run_limited

ROOT = Path(__file__).parent.parent.parent
TOLD = 3000
"""Characters of a failure that are printed."""
STUCK = 40
"""Seconds after which a test's stacks are printed, while it goes on: more than any test waits for a deadline."""
SUMMARY = re.compile(r"^=+ (.*(?:\d+ (?:passed|failed|errors?|deselected|skipped)|no tests ran).*?) =+$", re.MULTILINE)
BEGUN = re.compile(
    r"^(tests/multigpu/\S+::.*?) ?(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS|)(?: +\[ *\d+%\])?$", re.MULTILINE
)
TELLING = re.compile(
    r"^(?:E  |FAILED|ERROR|Timeout|Thread|  File(?!.*/(?:_pytest|pluggy)/)|.*Error:|tests/.*: ).*$", re.MULTILINE
)


def summed_up(told: Sequence[str], status: int | None, seconds: float) -> str:
    """Of what ranks printed under ``pytest -v``: rank 0's summary, or how far each came."""
    if status is not None and (summaries := SUMMARY.findall(told[0])):
        return summaries[-1]
    ended = f"not done in {seconds:.0f} s" if status is None else f"exit {status}"
    far = []
    for rank, text in enumerate(told):
        begun = BEGUN.findall(text)
        passed, failed = (sum(how in hows for _, how in begun) for hows in (("PASSED",), ("FAILED", "ERROR")))
        inside = begun[-1][0].partition("::")[2] if begun and not begun[-1][1] else "between tests"
        far.append(f"rank {rank}: {passed} passed, {failed} failed, in {inside}")
    return f"{ended}; " + "; ".join(far)


def run(
    name: str,
    ranks: int,
    seconds: float,
    extra: Sequence[str],
    out: Path | None,
    modules: str,
    ahead: Ahead | None = None,
) -> bool:
    """One file on ``ranks`` ranks that share a folder of modules; prints its line. True where all passed."""
    file, _, expression = name.partition(":")
    pytest = [
        "-m",
        "pytest",
        f"tests/multigpu/test_{file}.py",
        "-v",
        "-o",
        f"faulthandler_timeout={STUCK}",
        "--durations=3",
    ]
    chosen = ["-k", expression] if expression else []
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--redirects", "3"]
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, *launcher, "--log-dir", logs, *pytest, *chosen, *extra]
        # A rank that is killed has written nothing of what it kept back.
        env = {**os.environ, "PYTHONUNBUFFERED": "1", KERNELS: logs, MODULES: modules}
        ended = run_limited(command, seconds, cwd=ROOT, env=env)
        told, beside = ([_of_rank(logs, rank, stream) for rank in range(ranks)] for stream in ("stdout", "stderr"))
        asked = records(Path(logs).glob("rank_0.jsonl"))
    if out is not None:
        whole = [
            f"== rank {rank}\n{first}\n{second}" for rank, (first, second) in enumerate(zip(told, beside, strict=True))
        ]
        (out / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.txt").write_text("\n".join([*whole, "== launcher", ended.text]))
    print(f"{name:<28}{ended.seconds:6.0f} s  {summed_up(told, ended.status, seconds)}", flush=True)
    if ahead is not None:
        print("\n".join(f"  {line}" for line in (*ahead.end(name), *compared(asked, ahead.records))), flush=True)
    if ended.status == 0:
        return True
    for rank in range(ranks):
        if telling := [match.group() for text in (told[rank], beside[rank]) for match in TELLING.finditer(text)]:
            print(f"  rank {rank}:\n" + "\n".join(f"  {line}" for line in telling)[:TOLD], flush=True)
            break
    else:
        print("\n".join(f"  {line}" for line in ended.text.splitlines()[-15:])[-TOLD:], flush=True)
    return False


def _of_rank(logs: str, rank: int, stream: str) -> str:
    """What a rank wrote in the last attempt."""
    found = sorted(Path(logs).glob(f"*/attempt_*/{rank}/{stream}.log"))
    return found[-1].read_text(errors="replace") if found else ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME[:EXPRESSION]", help="files (all)")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit for each file")
    parser.add_argument("--out", type=Path, help="folder for what each file printed")
    parser.add_argument("--ahead", action="store_true", help="compile on all cores what the tests to come will launch")
    parser.add_argument("--target", default="sm_90", help="for which --ahead compiles (sm_90)")
    options, extra = parser.parse_known_args(argv)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    every = sorted(path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py"))
    names = options.names or every
    with ExitStack() as stack:
        modules = stack.enter_context(tempfile.TemporaryDirectory(prefix="overlap_modules_"))
        workers = (options.ranks, options.target, names, modules)
        ahead = stack.enter_context(Ahead(*workers)) if options.ahead else None
        passed = [run(name, options.ranks, options.seconds, extra, options.out, modules, ahead) for name in names]
    print(f"{sum(passed)} of {len(passed)} passed", flush=True)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
