"""Test files one after another, each as ranks of its own with a time limit, so that a hang costs seconds.

    python -m tests.multigpu.each --ranks 2 --seconds 60 stores boxes 'results_op:graph'

``NAME[:EXPRESSION]``: ``tests/multigpu/test_NAME.py``, all of it or the tests that pytest's ``-k EXPRESSION`` picks; without
names, every file. One line a file as it ends: pytest's summary of rank 0, or how far it came. What failed is told behind it,
from the first rank that has something to tell. Exit status: 0 all passed, 1 some did not.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.limited import run_limited

ROOT = Path(__file__).parent.parent.parent
TOLD = 3000
"""Characters of a failure that are printed."""


def run(name: str, ranks: int, seconds: float, extra: Sequence[str], out: Path | None) -> bool:
    """One file on ``ranks`` ranks; prints its line. True where all passed."""
    file, _, expression = name.partition(":")
    chosen = ["-k", expression] if expression else []
    pytest = [
        "-m",
        "pytest",
        f"tests/multigpu/test_{file}.py",
        "-q",
        "-o",
        "faulthandler_timeout=130",
        "--durations=3",
        *chosen,
        *extra,
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--tee", "3"]
    status, text, took = run_limited([sys.executable, *launcher, *pytest], seconds, cwd=ROOT)
    if out is not None:
        (out / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.txt").write_text(text)
    by_rank = {rank: re.findall(rf"^\[default{rank}\]:(.*)$", text, re.MULTILINE) for rank in range(ranks)}
    said = [line for line in by_rank[0] if re.search(r"\d+ (passed|failed|error|deselected)|no tests ran", line)]
    dots = "".join(line.split(" ")[0] for line in by_rank[0] if re.match(r"^[.FEsx]+( |$)", line))
    summary = (
        said[-1]
        if said
        else f"not done in {seconds:.0f} s: {dots or 'no test ended'}"
        if status is None
        else f"exit {status}: {dots}"
    )
    print(f"{name:<28}{took:6.0f} s  {summary}", flush=True)
    if status == 0:
        return True
    for rank, lines in by_rank.items():
        if failures := [line for line in lines if re.match(r"^(E  |FAILED|ERROR|.*Error:|tests/.*: )", line)]:
            print(f"  rank {rank}:\n" + "\n".join(f"  {line}" for line in failures)[:TOLD], flush=True)
            break
    else:
        print("\n".join(f"  {line}" for line in text.splitlines()[-25:])[-TOLD:], flush=True)
    return False


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME[:EXPRESSION]", help="files (all)")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit for each file")
    parser.add_argument("--out", type=Path, help="folder for what each file printed")
    options, extra = parser.parse_known_args(argv)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    every = sorted(path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py"))
    passed = [run(name, options.ranks, options.seconds, extra, options.out) for name in options.names or every]
    print(f"{sum(passed)} of {len(passed)} passed", flush=True)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
