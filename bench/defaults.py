"""Writes the shipped defaults of the tuner, templates/tuned, from measured ways (bench/results/ways), and from nothing else.

    python bench/defaults.py

A shape's entry is the fastest of the ways that were measured for it, where that is fused: tensors below the setting
``serial_below_bytes`` stay as they are, since no file of ways has serial in it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from overlap.autotune.config import Config
from overlap.autotune.entry import Entry
from overlap.autotune.key import Key
from overlap.autotune.shipped import MARK, VERSION
from overlap.backends.base import Realization
from overlap.chunkplan.cuts import split_of
from overlap.settings import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
WAYS = ROOT / "bench" / "results" / "ways"
DEVICES = ("H100", "H200")
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
PLANS = {"gemm_rs": "reduce_scatter_1d", "gemm_ar": "", "ag_gemm": "all_gather_1d"}
SPLITS = {"gemm_rs": 2, "a2a_gemm": 4}
"""Of a way that names none, where they are not as in `Realization`."""


def moved(op: str, m: int, n: int, k: int, world: int, dtype: str) -> int:
    """Bytes of the communicated tensor, as calls count them."""
    elements = m * (k if op in ("ag_gemm", "ag_gemm_k", "a2a_gemm") else n)
    return elements * BYTES[dtype] // (world if "a2a" in op else 1)


def config_of(op: str, how: str) -> Config:
    """The config that a way (``plan=all_gather_1d_push,split=2``) names."""
    pairs = dict(pair.split("=") for pair in how.split(","))
    split = split_of(str(pairs.get("split", SPLITS.get(op, 1))))
    realization = Realization(pairs.get("backend", "copy_engine"), split=split, comm_sms=int(pairs.get("comm_sms", 0)))
    return Config(realization, pairs.get("plan", PLANS.get(op, "all_to_all_1d")))


def entries(path: Path) -> list[tuple[str, Entry]]:
    """A file's defaults, each with its device."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = defaultdict(list)
    for row in value["rows"]:
        device = next(name for name in DEVICES if name in row["device"].split())
        rows[device, row["op"], row["M"], row["N"], row["K"], row["world"], row["dtype"]].append(
            (row["ms"], row["how"])
        )
    found = []
    for (device, op, m, n, k, world, dtype), timed in rows.items():
        if moved(op, m, n, k, world, dtype) < SETTINGS["serial_below_bytes"].default:
            continue
        ms, how = min(timed)
        key = Key(op, (("M", m), ("N", n), ("K", k)), dtype, world, device)
        cite = f"{path.relative_to(ROOT).as_posix()}, {how}, commit {value['commit']}"
        found.append((device, Entry(key, config_of(op, how), ms, value["date"][:10], len(timed), cite)))
    return found


def main() -> None:
    by_device: dict[str, list[Entry]] = defaultdict(list)
    for path in sorted(WAYS.glob("*.json")):
        for device, entry in entries(path):
            by_device[device].append(entry)
    for device, each in by_device.items():
        target = ROOT / "templates" / "tuned" / f"{device.lower()}.json"
        text = json.dumps({MARK: VERSION, "entries": [entry.to_json() for entry in each]}, indent=2)
        target.write_text(text + "\n", encoding="utf-8")
        print(f"{target.relative_to(ROOT)}: {len(each)} entries")


if __name__ == "__main__":
    main()
