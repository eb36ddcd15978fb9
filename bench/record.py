"""A result file: one JSON object {hardware, versions, clocks, commit, command, date, rows}; a rerun replaces it.

A row: op (`OPS`), M, N, K (global), world, dtype, contender (`CONTENDERS`), ms, device; in files of bench/ways.py also
how, the keywords of the call. Rows of bench/run_suite.py have some of `MORE`: ran, what our call did; p99 of ``ms``; queued and
queued_p99, ms with the host ahead; rounds. There ms is null where failed says why.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPS = ("ag_gemm", "ag_gemm_k", "gemm_rs", "gemm_ar", "a2a_gemm", "gemm_a2a")
CONTENDERS = (
    "gemm",
    "triton_gemm",
    "nccl",
    "serial",
    "serial_graph",
    "asynctp",
    "low_contention",
    "one_shot",
    "two_shot",
    "kraken",
    "ours",
    "ours_graph",
)
KEYS = ("hardware", "versions", "clocks", "commit", "command", "date", "rows")
ROW_KEYS = ("op", "M", "N", "K", "world", "dtype", "contender", "ms", "device")
MORE = ("how", "ran", "p99", "queued", "queued_p99", "rounds", "failed")
CLOCKS = {
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "max_sm_mhz",
    "clocks.mem": "memory_mhz",
    "temperature.gpu": "celsius",
    "power.draw": "watts",
}


def output(*command: str) -> str:
    """What a program prints, or nothing where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def clocks(when: str) -> dict[str, Any]:
    """Clocks, temperature and power of every GPU at this moment."""
    fields = ",".join(CLOCKS)
    text = output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    gpus = [dict(zip(CLOCKS.values(), map(_number, line.split(",")), strict=False)) for line in text.splitlines()]
    return {"when": when, "gpus": gpus}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def commit() -> str:
    """The commit that is measured, with ``-dirty`` where the code differs from it; ``unknown`` outside a checkout."""
    head = output("git", "rev-parse", "HEAD").strip()
    changed = output("git", "status", "--porcelain", "--", "overlap", "templates", "bench/*.py").strip()
    return (head or "unknown") + ("-dirty" if changed else "")


def hardware(world: int) -> dict[str, Any]:
    """The GPUs of this host and its processor."""
    import torch

    count = torch.cuda.device_count()
    gpus = [torch.cuda.get_device_properties(i) for i in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    return {
        "gpus": [{"name": g.name, "sms": g.multi_processor_count, "memory_bytes": g.total_memory} for g in gpus],
        "peer_access": count > 1 and all(torch.cuda.can_device_access_peer(i, j) for i, j in pairs),
        "ranks": world,
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    import torch
    import triton

    from overlap.doctor.assess import driver_version
    from overlap.version import __version__

    return {
        "overlap": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "",
        "driver": driver_version(),
    }


def command(world: int) -> str:
    """The command that makes this file again, with what the environment sets for it."""
    script = os.path.relpath(sys.argv[0], ROOT)
    names = sorted(name for name in os.environ if name.startswith("OVERLAP_") or name == "NVSHMEM_SYMMETRIC_SIZE")
    held = [f"{name}={shlex.quote(os.environ[name])}" for name in names]
    launcher = ["python", "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    return " ".join([*held, shlex.join([*launcher, script, *sys.argv[1:]])])


def default_path(op: str, device_name: str, world: int) -> Path:
    """``bench/results/ag_gemm_h100x4.json`` for four of `NVIDIA H100 80GB HBM3`."""
    words = [w for w in re.split(r"[^a-z0-9]+", device_name.lower()) if w not in ("nvidia", "amd", "instinct")]
    model = next((w for w in words if any(c.isdigit() for c in w)), words[0] if words else "gpu")
    return ROOT / "bench" / "results" / f"{op}_{model}x{world}.json"


def write(path: Path, record: dict[str, Any]) -> None:
    """Replaces a result file.

    Raises:
        ValueError: a key, operator or contender that no reader of these files knows.
    """
    if tuple(record) != KEYS:
        raise ValueError(f"a record has the keys {KEYS}, not {tuple(record)}")
    for row in record["rows"]:
        keys = (*ROW_KEYS, *(key for key in MORE if key in row))
        known = tuple(row) == keys and row["op"] in OPS and row["contender"] in CONTENDERS
        if not known or (row["ms"] is None) != ("failed" in row):
            raise ValueError(f"not a row of a result file: {row}")
    head = [f'  "{key}": {json.dumps(record[key])}' for key in KEYS[:-1]]
    rows = ",\n".join("    " + json.dumps(row) for row in record["rows"])
    text = "{\n" + ",\n".join([*head, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.new")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_rows(
    path: Path, rows: list[dict[str, Any]], clocks: list[dict[str, Any]], commit: str, command: str, world: int
) -> None:
    """Replaces a file whose rows are not of operators, so of any keys, under the head that every result file has."""
    values = (hardware(world), versions(), clocks, commit, command, now(), rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(zip(KEYS, values, strict=True)), indent=1) + "\n", encoding="utf-8")


def write_asked(
    path: Path | None,
    rows: list[dict[str, Any]],
    clocks_before: list[dict[str, Any]],
    said: str | None,
    world: int,
    *,
    processes: int | None = None,
) -> None:
    """`write_rows` of this run, which ends here, where a file is asked for.

    ``said``: the commit, where there is no git; ``world``: GPUs; ``processes``: where they are not one for each.
    """
    if path is not None:
        write_rows(path, rows, [*clocks_before, clocks("end")], said or commit(), command(processes or world), world)


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


@dataclass
class Journal:
    """What a run knows so far, kept beside its result file, so that a restart goes on behind a contender that hung.

    torchrun's ``--max-restarts 3`` starts all ranks again; the journal then holds the finished rows and whom to leave
    out. A run that is no restart begins anew. Rows are the same on all ranks, so whichever rank sees a failure writes.
    """

    path: Path
    rank: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    clocks: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and self.path.is_file():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self.rows, self.left_out, self.clocks = kept["rows"], kept["left_out"], kept["clocks"]

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"rows": self.rows, "left_out": self.left_out, "clocks": self.clocks}
        partial = self.path.with_name(f"{self.path.name}.{self.rank}")
        partial.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(partial, self.path)

    def failed(self, contender: str, why: str) -> None:
        """Remembers, from any rank, that a contender took the process with it; the first reason is the one, others follow it."""
        if self.path.is_file():
            why = json.loads(self.path.read_text(encoding="utf-8"))["left_out"].get(contender, why)
        self.left_out.setdefault(contender, why)
        self.save()

    def done(self, **shape: int) -> bool:
        """Whether the rows of this shape are there already."""
        return any(all(row[key] == size for key, size in shape.items()) for row in self.rows)

    def finish(self) -> None:
        if self.rank == 0:
            self.path.unlink(missing_ok=True)
