"""Pictures of result files, as SVG in docs/figures.

    python bench/plot.py              # all of them, from bench/results
    python bench/plot.py --out FOLDER

    speedup.svg    a bar a shape: the best baseline over ours, and what a perfect overlap would be (`scores`)
    eta.svg        how much of the limit is reached, by operations for each byte that must come
    ways.svg       realization by realization: plans, backends and splits of one product against each other (bench/ways.py)
    sweeps.svg     the same by the number of chunks, and of programs that communicate, where those were varied
    programs.svg   bandwidth by the number of programs that copy, as `overlap calibrate` measured it

The last three are this machine's version of Figure 11 of the paper, the first of its Figure 8. Colours are those of the page's
light or dark scheme, files are small and the same for the same results; so they are written here (`svg`) and not by a library,
which would be one more dependency whose fonts and version decide the bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record
import yaml
from plot_parts import Result
from plot_scores import eta, speedup
from plot_ways import programs, sweeps, ways
from svg import Sheet
from table import leading, read

FIGURES: dict[str, tuple[Callable[[Sequence[Result]], Sheet | None], str]] = {
    "speedup": (speedup, "results"),
    "eta": (eta, "results"),
    "ways": (ways, "ways"),
    "sweeps": (sweeps, "ways"),
    "programs": (programs, "machines"),
}
"""What draws a picture, and from what."""
WAYS = ("ways", "backends", "splits")
"""Folders of what bench/ways.py writes."""


def drawn(results: Sequence[Result], of_ways: Sequence[Result], machines: Sequence[Result] = ()) -> dict[str, str]:
    """Pictures by name, from the operators' result files, those of ways and machines; none of what was not measured."""
    given = {"results": leading(results), "ways": of_ways, "machines": machines}
    sheets = {name: draw(given[kind]) for name, (draw, kind) in FIGURES.items()}
    return {f"{name}.svg": str(sheet) for name, sheet in sheets.items() if sheet is not None}


def read_machine(path: Path) -> dict[str, Any]:
    """A machine file as it stands."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=record.ROOT / "bench" / "results", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=record.ROOT / "docs" / "figures", metavar="FOLDER")
    options = parser.parse_args(argv)
    results = [(path, read(path)) for path in sorted(options.results.glob("*.json"))]
    of_ways = [(path, read(path)) for name in WAYS for path in sorted((options.results / name).glob("*.json"))]
    machines = [(path, read_machine(path)) for path in sorted((options.results / "machines").glob("*.yaml"))]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in drawn(results, of_ways, machines).items():
        (options.out / name).write_text(text, encoding="utf-8")
        print(options.out / name)


if __name__ == "__main__":
    main()
