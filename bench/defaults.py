"""Writes the shipped defaults of the tuner, templates/tuned, from measured ways (bench/results), and from nothing else.

    python bench/defaults.py

A shape's entry is the fastest of the ways that were measured for it, where that is fused: tensors below the setting
``serial_below_bytes`` stay as they are, since no file of ways has serial in it. Times with the host ahead (``queued``) count
where there are any of a shape on as many devices, and single calls where there are none. Ways that say otherwise than the
default of a setting that no config has (`OTHERWISE`) count for nothing, and so does that pulling was faster for `ag_gemm` than
pushing what is staged.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from overlap.autotune.config import Config
from overlap.autotune.entry import Entry
from overlap.autotune.key import Key
from overlap.autotune.shipped import MARK, VERSION
from overlap.backends.base import Realization
from overlap.chunkplan.cuts import Split, split_of
from overlap.ops.tuning import BUILT_IN
from overlap.settings import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [ROOT / "bench" / "results" / name for name in ("splits", "sums", "ways")]
DEVICES = ("H100", "H200")
SUMS = "OVERLAP_SUM_SMS"
OTHERWISE = ("OVERLAP_STORE_SUMS=0", "OVERLAP_IN_PLACE=0")
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
PLANS = {"gemm_rs": "reduce_scatter_1d", "gemm_ar": "all_reduce_two_shot", "ag_gemm": "all_gather_1d"}
SPLITS = {"gemm_rs": 2, "a2a_gemm": 4}
"""Of a way that names none, where they are not as in `Realization`."""
PUSHED_SINCE = "2026-11-29T00:57"
"""Files older than that have `a2a_gemm` as above where nothing else is said, later ones as it is built in now."""
IN_PLACE_SINCE = "2026-11-29T04:06"
"""In older files what `ag_gemm` pushes is staged, and a way that names no plan pulls: that pulling was faster there says nothing
of calls now, which push where tiles read in place. Ways of later files that name none go as calls do."""
TILES, TILE_SUMS_SINCE = "OVERLAP_TILE_SUMS", "2026-11-29T04:26"
"""In older files a kernel adds what `gemm_rs` by copy engine scatters, where nothing else is said: so it does in calls of what is
taken from them, as long as nobody has measured tiles that add."""
PULLS = ("all_gather_1d", "all_gather_1d_pull")


def usual(op: str, date: str) -> tuple[str, Split]:
    """Plan and split of a way that names none, in a file of a date."""
    if (op == "a2a_gemm" and date >= PUSHED_SINCE) or (op == "ag_gemm" and date >= IN_PLACE_SINCE):
        plan, split = BUILT_IN[op]
        return plan or "", split
    return PLANS.get(op, "all_to_all_1d"), SPLITS.get(op, 1)


def moved(op: str, m: int, n: int, k: int, world: int, dtype: str) -> int:
    """Bytes of the communicated tensor, as calls count them."""
    elements = m * (k if op in ("ag_gemm", "ag_gemm_k", "a2a_gemm") else n)
    return elements * BYTES[dtype] // (world if "a2a" in op else 1)


def config_of(op: str, how: str, date: str) -> Config:
    """The config that a way (``plan=all_gather_1d_push,split=2``, ``split=2,OVERLAP_SUM_SMS=4``) names in a file of a date."""
    pairs = dict(pair.split("=") for pair in how.split(","))
    plan, split = usual(op, date)
    if "split" in pairs:
        split = split_of(pairs["split"])
    sums, backend = pairs.get(SUMS), pairs.get("backend", "copy_engine")
    older = "0" if op == "gemm_rs" and backend == "copy_engine" and date < TILE_SUMS_SINCE else None
    tiles = pairs.get(TILES, older)
    realization = Realization(
        backend,
        split=split,
        comm_sms=int(pairs.get("comm_sms", 0)),
        sum_sms=None if sums is None else int(sums),
        tile_sums=None if tiles is None else int(tiles),
    )
    return Config(realization, pairs.get("plan", plan))


Timed = tuple[float, str, str, str]
"""Milliseconds of a way, the way, its file with the commit, and when that was made."""


def timed(path: Path) -> Iterator[tuple[tuple[Any, ...], bool, Timed]]:
    """A file's rows: what was measured on what, whether with the host ahead, and the time."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for row in value["rows"]:
        device = next(name for name in DEVICES if name in row["device"].split())
        of = (device, row["op"], row["M"], row["N"], row["K"], row["world"], row["dtype"])
        ahead = row.get("queued") is not None
        cite = f"{path.relative_to(ROOT).as_posix()}, {row['how']}, commit {value['commit']}"
        if row["ms"] is not None and not set(OTHERWISE) & set(row["how"].split(",")):
            yield of, ahead, (row["queued"] if ahead else row["ms"], row["how"], cite, value["date"])


def entries(paths: Iterable[Path]) -> dict[str, list[Entry]]:
    """The defaults, by device."""
    measured: dict[tuple[Any, ...], dict[bool, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for of, ahead, time in timed(path):
            measured[of][ahead].append(time)
    found: dict[str, list[Entry]] = defaultdict(list)
    for (device, op, m, n, k, world, dtype), times in measured.items():
        if moved(op, m, n, k, world, dtype) < SETTINGS["serial_below_bytes"].default:
            continue
        counted = times[True] or times[False]
        ms, how, cite, date = min(counted)
        config = config_of(op, how, date)
        if (
            op == "ag_gemm"
            and config.plan in PULLS
            and config.realization.backend == "copy_engine"
            and date < IN_PLACE_SINCE
        ):
            continue
        key = Key(op, (("M", m), ("N", n), ("K", k)), dtype, world, device)
        found[device].append(Entry(key, config, ms, date[:10], len(counted), cite))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(argv)
    for device, each in entries(path for folder in FOLDERS for path in sorted(folder.glob("*.json"))).items():
        target = ROOT / "templates" / "tuned" / f"{device.lower()}.json"
        text = json.dumps({MARK: VERSION, "entries": [entry.to_json() for entry in each]}, indent=2)
        target.write_text(text + "\n", encoding="utf-8")
        print(f"{target.relative_to(ROOT)}: {len(each)} entries")


if __name__ == "__main__":
    main()
