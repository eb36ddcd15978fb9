"""The whole pipeline in two parts, on a laptop:  python examples/demo.py compile ; python examples/demo.py simulate

``compile`` needs neither torch nor Triton: it shows what the compiler learns from a kernel, the plan, the runs of
rank 1 and the generated kernel. ``simulate`` runs that kernel on 4 simulated ranks, then removes its wait and
shows the race this causes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL = "templates/kernels/grouped_gemm.py"
PLAN, ON, WORLD = "all_gather_1d", "a[M]", 4
SHAPE = {"M": 1000, "K": 96, "N": 130}
SEEDS = 20
WAIT = re.compile(r"\bol\.wait\w*\((?:[^()]|\([^()]*\))*\)")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def compile_part() -> None:
    from overlap.annotate.source import SourceUnit
    from overlap.pipeline import Request, compile_source, explain

    started = time.perf_counter()
    request = Request(SourceUnit.from_file(KERNEL), plan=PLAN, on=ON)
    compilation = compile_source(request)
    for title, text in explain(compilation, world=WORLD, sizes=SHAPE, rank=1):
        say(f"{title}, world {WORLD}, {_shape(', ')}")
        print(text.rstrip("\n"))
    say("25 lines of the generated kernel")
    print("\n".join(_excerpt(compilation.module.text, 25)))
    seconds = time.perf_counter() - started
    print(
        f"\ncompiled in {seconds:.1f} s, torch loaded: {'torch' in sys.modules}, triton loaded: {'triton' in sys.modules}"
    )


def simulate_part() -> int:
    with tempfile.TemporaryDirectory(prefix="overlap-demo-") as folder:
        out = os.path.join(folder, "ag_gemm.py")
        command = ["compile", KERNEL, "--plan", PLAN, "--on", ON, "-o", out]
        if _overlap(command) != 0:
            return _failed("the kernel did not compile")
        if _overlap(_simulate(out, SEEDS)) != 0:
            return _failed("the generated kernel is not right")
        text = Path(out).read_text()
        broken = os.path.join(folder, "ag_gemm_without_wait.py")
        Path(broken).write_text(WAIT.sub("0", text, count=1))
        say("the same file with its wait replaced by 0")
        result = subprocess.run(
            [sys.executable, "-m", "overlap", *_simulate(broken, 1)], capture_output=True, text=True, cwd=ROOT
        )
        print(result.stdout, end="", flush=True)
        if result.returncode != 1 or "race" not in result.stdout:
            print(result.stderr, end="")
            return _failed("the removed wait was not found")
    print("\ndemo: ok")
    return 0


def _simulate(path: str, seeds: int) -> list[str]:
    return ["simulate", path, "--world", str(WORLD), "--shape", _shape(","), "--seeds", str(seeds)]


def _shape(separator: str) -> str:
    return separator.join(f"{k}={v}" for k, v in SHAPE.items())


def _overlap(arguments: list[str]) -> int:
    say("overlap " + " ".join(f"'{a}'" if "[" in a else a for a in arguments))
    return subprocess.run([sys.executable, "-m", "overlap", *arguments], cwd=ROOT).returncode


def _excerpt(text: str, lines: int) -> list[str]:
    """The part of the kernel around the dispatch region."""
    all_lines = text.splitlines()
    first = next(i for i, line in enumerate(all_lines) if ".find_run(" in line)
    return all_lines[first - 2 : first - 2 + lines]


def _failed(reason: str) -> int:
    print(f"\ndemo: FAILED, {reason}")
    return 1


if __name__ == "__main__":
    os.chdir(ROOT)
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    if part in ("compile", "all"):
        compile_part()
    sys.exit(simulate_part() if part in ("simulate", "all") else 0)
