"""The parent's side of the probes: starts them together, waits a bounded time, turns every ending into an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .probe import MARK, PROBES

LIMIT_S = 120.0
"""Importing torch from a cold network disk takes tens of seconds."""

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""A look at a machine never touches NVLink multicast, which is shared by everybody on it."""

Answers = dict[str, dict[str, Any]]


def ask(names: Sequence[str] = tuple(PROBES), *, limit_s: float = LIMIT_S) -> Answers:
    """Every probe's answer: ``ok`` and either what it found or ``error``, one line. Broken packages do not raise."""
    program = f"import sys; from {__package__} import probe; probe.child(sys.argv[1])"
    environment = {**os.environ, **NO_MULTICAST}
    package = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    # Files, not pipes: a child that prints more than a pipe holds would wait for a reader.
    with tempfile.TemporaryDirectory(prefix="overlap-doctor-") as folder:
        started = {}
        for name in names:
            out, err = Path(folder, f"{name}.out"), Path(folder, f"{name}.err")
            with out.open("wb") as o, err.open("wb") as e:
                child = subprocess.Popen(
                    [sys.executable, "-c", program, name], stdin=subprocess.DEVNULL, stdout=o, stderr=e, env=environment
                )
            started[name] = (child, out, err)
        end = time.monotonic() + limit_s
        return {name: _answer(*parts, end - time.monotonic(), limit_s) for name, parts in started.items()}


def _answer(child: subprocess.Popen[bytes], out: Path, err: Path, left: float, limit_s: float) -> dict[str, Any]:
    try:
        status = child.wait(max(0.0, left))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return {"ok": False, "error": f"importing it did not end within {limit_s:g} s"}
    for line in reversed(out.read_text(errors="replace").splitlines()):
        if line.startswith(MARK):
            return json.loads(line[len(MARK) :])
    said = [line for line in err.read_text(errors="replace").splitlines() if line.strip()]
    ending = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    last = f": {said[-1].strip()}" if said else ""
    return {"ok": False, "error": f"importing it ended the process ({ending}){last}"}
