"""How well the event model orders what was measured: predictions against files of bench/ways.py and logs of `overlap tune`.

    python bench/model.py bench/results/sums/gemm_rs_h200x4.json bench/results/tuning/*.json
    python bench/model.py --together --each --machine h200-nvlink bench/results/{sums,splits}/gemm_ar_h200x4*.json

A line for each operator and shape of each file: configs with both a prediction and a time, Spearman's rank correlation of the
two, how far the best of the five that the model likes best is behind the best of all, and predictions over times, from the least
to the most. What stands in two files was not measured in one process; ``--together`` ranks it together all the same, what was
measured several times by the mean. Times are those with the host ahead where a shape has them. CPU only.

A log names its machine; ways are predicted on that of the setting ``machine``, or ``--machine``. Units that a way leaves to sums
without saying so are those of the operator's rule, or of the one at the commit of the file (`RULES`); sums that nobody says
to store are stored in files made since that is so (`STORED_SINCE`), or added by tiles (`defaults.TILE_SUMS_SINCE`), and exchanges
of older ones are pulled (`defaults.usual`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import defaults
from common import DTYPES
from scores import shapes_of, times_of

from overlap.autotune.config import Config
from overlap.autotune.log import TOP, spearman
from overlap.autotune.space import Product, predict
from overlap.backends.base import Realization
from overlap.chunkplan.cuts import split_of
from overlap.errors import OverlapError
from overlap.ops import sums
from overlap.ops.reduce_gemm import default_split
from overlap.ops.tuning import problem_of
from overlap.schedule.machine import Machine, load_machine, machine_for
from overlap.schedule.operators import operator_of
from overlap.schedule.product import itemsize_of

MACHINES = Path(__file__).parent / "results" / "machines"
RULES: Mapping[str, float | None] = {"43f0047": None, "e2d995b": None, "c633f0c": None, "d9030b7": None, "a23b81a": 0.6}
"""What `sums.LEAST_EARLY` was at commits of files measured before 9be3d31, which made it what it is; None: there was no rule."""
SAID, STORED, IN_PLACE = "OVERLAP_SUM_SMS", "OVERLAP_STORE_SUMS", "OVERLAP_IN_PLACE"
STORED_SINCE = "2026-11-29T00:41"
"""Files of this date and later were made with sums stored at peers where nothing else is said."""
IN_PLACE_SINCE = "2026-11-29T03:58"
"""The same of what stays of a result, stored in it by tiles."""

Case = tuple[str, int, int, int, int, str]
"""Operator, M, N, K, ranks and dtype."""
Cases = dict[Case, dict[str, tuple[float, float]]]
"""Predicted and measured ms, by config."""
Several = dict[Case, dict[str, list[tuple[float, float]]]]


def config_of(
    way: str, case: Case, commit: str = "", units: int = 132, date: str = defaults.PUSHED_SINCE
) -> Config | None:
    """The config that a way of bench/ways.py names; None where it has keys that the model does not know.

    ``commit``, ``date``: of the file, whose defaults count.

    Raises:
        OverlapError: a malformed split.
    """
    op, m, n, k, world, dtype = case
    said = said_by(way)
    if set(said) - {"plan", "backend", "split", "comm_sms", SAID, STORED, IN_PLACE, defaults.TILES}:
        return None
    operator, itemsize = operator_of(op, {"M": m, "N": n, "K": k}), itemsize_of(dtype)
    backend = said.get("backend", "copy_engine")
    usual = problem_of(op, {"M": m, "N": n, "K": k}, DTYPES[dtype], world)
    own, split = (usual.plan if op == "gemm_ar" else ""), usual.split
    if op == "a2a_gemm":
        own, split = defaults.usual(op, date)
    plan, given = said.get("plan", own), said.get("split")
    if given is not None:
        split = split_of(int(given) if given.isdecimal() else given)
    elif op == "gemm_ar":
        split = default_split(plan, m * n * itemsize, world, backend)
    free = int(said.get(SAID, 0))
    if SAID not in said and operator.kind in ("reduce_scatter", "all_reduce") and backend == "copy_engine":
        least = next((rule for known, rule in RULES.items() if commit.startswith(known)), sums.LEAST_EARLY)
        how: dict[str, Any] = {"world": world, "itemsize": itemsize, "moved": itemsize, "units": units}
        if least is not None:
            with mock.patch.object(sums, "LEAST_EARLY", least):
                free = sums.offered_sums(m, n, k // world, again=op == "gemm_ar", split=split, **how)
    return Config(Realization(backend, split, comm_sms=int(said.get("comm_sms", 0)), sum_sms=free), plan)


def said_by(way: str) -> dict[str, str]:
    """The keys of a way with what it says of each."""
    return dict(pair.split("=", 1) for pair in way.split(",") if "=" in pair)


def of_ways(result: Mapping[str, Any], machine: Machine | None = None) -> Cases:
    """Predicted and measured ms of a result file, by config, by case; without ways that the model has no say of.

    Two ways may be one config, where one says what the other leaves to the operator.
    """
    several: Several = {}
    for rows in shapes_of(result["rows"]):
        row, times = rows[0], times_of(rows)
        case: Case = (row["op"], row["M"], row["N"], row["K"], row["world"], row["dtype"])
        for way in (each["how"] for each in rows if "how" in each and each["how"] in times):
            date, said = result.get("date", ""), said_by(way)
            config = config_of(way, case, result["commit"], date=date)
            since = {STORED: STORED_SINCE, IN_PLACE: IN_PLACE_SINCE, defaults.TILES: defaults.TILE_SUMS_SINCE}
            how = {key: said.get(key, str(int(date >= first))) for key, first in since.items()}
            if defaults.TILES not in said and how[defaults.TILES] == "1":
                how[defaults.TILES] = ""  # as operators decide
            with mock.patch.dict(os.environ, how):
                ms = None if config is None else predicted(case, config, machine or machine_for(row["world"]))
            if ms is not None:
                name = f"{config}, sums stored" if how[STORED] == "1" and case[0] == "gemm_ar" else str(config)
                pushed = case[0] in ("a2a_gemm", "gemm_a2a") or "_push" in config.plan
                name += ", in place" if how[IN_PLACE] == "1" and pushed else ""
                name += ", sums in tiles" if how[defaults.TILES] != "0" and case[0] == "gemm_rs" else ""
                several.setdefault(case, {}).setdefault(name, []).append((ms, times[way]))
    return averaged(several)


def of_log(log: Mapping[str, Any], machine: Machine | None = None) -> Cases:
    """The same of a log of `overlap tune`, predicted anew: by config, the last times.

    Logs have no date: those of `gemm_rs` that never say whether tiles add are of when they did not, and ``OVERLAP_IN_PLACE=0`` is
    for the caller to set for those of when inputs were staged, which bench/results has.
    """
    key, named = log["key"], MACHINES / f"{log['machine']}.yaml"
    sizes = key["sizes"]
    case: Case = (key["operator"], sizes["M"], sizes["N"], sizes["K"], key["world"], key["dtype"])
    machine = machine or load_machine(str(named) if named.is_file() else log["machine"])
    pairs: dict[str, tuple[float, float]] = {}
    said = any("tile_sums" in trial["config"] for trial in log["trials"])
    how = {} if said else {defaults.TILES: "0"}
    for trial in log["trials"]:
        config = Config.from_json(trial["config"])
        with mock.patch.dict(os.environ, how):
            ms = predicted(case, config, machine) if trial.get("times") else None
        if ms is not None:
            pairs[str(config)] = ms, trial["times"][-1][1]
    return {case: pairs}


def predicted(case: Case, config: Config, machine: Machine) -> float | None:
    """ms of a config, where the model has a say of it."""
    op, m, n, k, world, dtype = case
    seconds = predict(Product(op, {"M": m, "N": n, "K": k}, dtype, world), machine, config)
    return None if seconds is None else 1e3 * seconds


def together(files: Iterable[Cases]) -> Cases:
    """Several files as one."""
    several: Several = {}
    for cases in files:
        for case, pairs in cases.items():
            for name, pair in pairs.items():
                several.setdefault(case, {}).setdefault(name, []).append(pair)
    return averaged(several)


def averaged(several: Several) -> Cases:
    """The means of what was measured more than once."""
    return {
        case: {name: (mean(p for p, _ in found), mean(ms for _, ms in found)) for name, found in pairs.items()}
        for case, pairs in several.items()
    }


def line_of(case: Case, pairs: Mapping[str, tuple[float, float]]) -> str:
    """A line of the table: configs, correlation, what the best of the first five loses, predictions over times."""
    op, m, n, k, world, dtype = case
    order = sorted(pairs.values())
    agreed = spearman([p for p, _ in order], [ms for _, ms in order])
    behind = min(ms for _, ms in order[:TOP]) / min(ms for _, ms in order) - 1
    ratios = sorted(p / ms for p, ms in order)
    said = "-" if agreed is None else f"{agreed:.2f}"
    first = f"{100 * behind:.1f} %" if len(order) > TOP else "-"
    return f"| {op} {m}, {n}, {k} | {world} | {len(order)} | {said} | {first} | {ratios[0]:.2f} to {ratios[-1]:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of bench/ways.py, or logs of overlap tune")
    parser.add_argument("--machine", help="name or file; default: as launches and logs have it")
    parser.add_argument("--together", action="store_true", help="rank what several files have of a shape together")
    parser.add_argument("--each", action="store_true", help="also every config with its times")
    options = parser.parse_args()
    try:
        machine = None if options.machine is None else load_machine(options.machine)
        found = []
        for path in options.files:
            value = json.loads(path.read_text(encoding="utf-8"))
            found.append(of_log(value, machine) if "trials" in value else of_ways(value, machine))
    except OverlapError as error:
        sys.exit(str(error))
    print("| M, N, K | ranks | configs | rank correlation | first five behind | predicted / measured |")
    print("|---|---:|---:|---:|---:|---|")
    for cases in [together(found)] if options.together else found:
        for case, pairs in cases.items():
            print(line_of(case, pairs), flush=True)
            for name, (p, ms) in sorted(pairs.items(), key=lambda item: item[1][1]) if options.each else ():
                print(f"    {name:<60}{p:9.4f} predicted {ms:9.4f} ms  {p / ms:5.2f}")


if __name__ == "__main__":
    main()
