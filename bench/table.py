"""Result files as Markdown tables, and into a document that has a place for them.

    python bench/table.py                            # every file of bench/results, to standard output
    python bench/table.py bench/results/ag_gemm_h100x4.json
    python bench/table.py --into README.md           # replaces what stands between the two marks
    python bench/table.py --ways --into docs/backends.md    # bench/results/backends, of bench/ways.py

``limit`` is a perfect overlap: the longer of the product alone (cuBLAS) and the bytes a rank must receive at 377 GB/s,
what a copy engine moves between two H100s. ``of limit`` is limit over our best time. ``gain`` is the best time of all
others who compute the same result over our best: below 1 it is a loss, and said so.

``--ways`` has a column a way instead, the shortest time of each shape in bold; ``over serial`` is that of the serial composition
in a graph over it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import record

BYTES_PER_MS = 377e6
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}
ALONE = ("gemm", "triton_gemm", "nccl")
"""Contenders that do a part of the work: no baselines."""
OURS = ("ours", "ours_graph")
HEADINGS = {
    "gemm": "GEMM",
    "triton_gemm": "Triton GEMM",
    "nccl": "NCCL",
    "serial": "serial",
    "serial_graph": "serial, graph",
    "asynctp": "AsyncTP",
    "low_contention": "low contention",
    "one_shot": "one-shot",
    "two_shot": "two-shot",
    "kraken": "kraken",
    "ours": "ours",
    "ours_graph": "ours, graph",
}
MARKS = ("<!-- results -->", "<!-- /results -->")
WAYS_MARKS = ("<!-- ways -->", "<!-- /ways -->")


def received_bytes(row: dict[str, Any]) -> float:
    """Bytes a rank must receive (and send), whatever the algorithm.

    Raises:
        KeyError: an operator without a count.
    """
    world, size = row["world"], SIZES[row["dtype"]]
    a, c = row["M"] * row["K"] * size, row["M"] * row["N"] * size
    others = (world - 1) / world
    return {
        "ag_gemm": a * others,
        "ag_gemm_k": a * others,
        "gemm_rs": c * others,
        "gemm_ar": 2 * c * others,
        "a2a_gemm": a / world * others,
        "gemm_a2a": c / world * others,
    }[row["op"]]


def limit_of(rows: Sequence[dict[str, Any]]) -> float | None:
    """The lower bound in ms for the rows of one shape; None without a product alone."""
    alone = next((row["ms"] for row in rows if row["contender"] == "gemm"), None)
    return None if alone is None else max(alone, received_bytes(rows[0]) / BYTES_PER_MS)


def shapes_of(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows by shape and dtype, in the order in which they came."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in ("op", "M", "N", "K", "world", "dtype")), []).append(row)
    return list(groups.values())


def table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One Markdown table: a line a shape, a column a contender that has any time."""
    present = [name for name in record.CONTENDERS if any(row["contender"] == name for row in rows)]
    headings = ["M, N, K", *(HEADINGS[name] for name in present), "limit", "of limit", "gain"]
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    for shape in shapes_of(rows):
        times = {row["contender"]: row["ms"] for row in shape}
        limit = limit_of(shape)
        best = min((times[name] for name in OURS if name in times), default=None)
        rivals = [ms for name, ms in times.items() if name not in (*ALONE, *OURS)]
        first = shape[0]
        dtype = "" if len({row["dtype"] for row in rows}) == 1 else f" {first['dtype']}"
        cells = [f"{first['M']}, {first['N']}, {first['K']}{dtype}"]
        cells += [_ms(times.get(name)) for name in present]
        cells += [_ms(limit), f"{limit / best:.2f}" if limit and best else "-", _gain(best, rivals)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.3f}"


def _gain(best: float | None, rivals: Sequence[float]) -> str:
    if best is None or not rivals:
        return "-"
    gain = min(rivals) / best
    return f"{gain:.2f}" if gain >= 1 else f"**{gain:.2f}, a loss**"


def ways_table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One Markdown table of rows of bench/ways.py: a line a shape, a column a way."""
    ways = list(dict.fromkeys(row["how"] for row in rows if "how" in row))
    beside = [name for name in ("gemm", "serial_graph") if any(row["contender"] == name for row in rows)]
    shown = [way.removeprefix("backend=") if way.count("=") == 1 else way for way in ways]
    headings = ["M, N, K", *(HEADINGS[name] for name in beside), *shown, "limit", "of limit", "over serial"]
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    for shape in shapes_of(rows):
        times = {row.get("how", row["contender"]): row["ms"] for row in shape}
        best = min((times[way] for way in ways if way in times), default=None)
        limit, serial = limit_of(shape), times.get("serial_graph")
        of_ways = [times.get(way) for way in ways]
        cells = [", ".join(str(shape[0][axis]) for axis in "MNK"), *(_ms(times.get(name)) for name in beside)]
        cells += [f"**{_ms(ms)}**" if ms is not None and ms == best else _ms(ms) for ms in of_ways]
        cells += [_ms(limit), f"{limit / best:.2f}" if limit and best else "-"]
        cells += [_gain(best, [serial] if serial else [])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def section_of(result: dict[str, Any], table: Callable[[Sequence[dict[str, Any]]], list[str]] = table_of) -> list[str]:
    """Title, table and provenance of one result file."""
    rows = result["rows"]
    lines: list[str] = []
    for op, world in dict.fromkeys((row["op"], row["world"]) for row in rows):
        some = [row for row in rows if (row["op"], row["world"]) == (op, world)]
        dtypes = ", ".join(dict.fromkeys(row["dtype"] for row in some))
        lines += [f"**{op}**, {world} x {some[0]['device']}, {dtypes}, ms:", "", *table(some), ""]
    versions = result["versions"]
    software = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "triton", "nccl", "driver") if versions.get(name)
    )
    return [*lines, f"{software}; commit {result['commit'][:12]}, {result['date'][:10]}: `{result['command']}`", ""]


def read(path: Path) -> dict[str, Any]:
    """A result file.

    Raises:
        SystemExit: it is none.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    if not isinstance(result, dict) or set(result) != set(record.KEYS) or not result["rows"]:
        sys.exit(f"{path}: not a result file; its keys must be {', '.join(record.KEYS)}, with at least one row")
    return result


def insert(document: str, text: str, marks: tuple[str, str] = MARKS) -> str:
    """The document with ``text`` between its two marks.

    Raises:
        SystemExit: a mark is missing, or they stand the wrong way round.
    """
    begin, end = map(document.find, marks)
    if begin < 0 or end < begin:
        sys.exit(f"no place for the tables: write {marks[0]} and, below it, {marks[1]}")
    return f"{document[: begin + len(marks[0])]}\n{text}{document[end:]}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="result files; default: all of bench/results")
    parser.add_argument("--into", type=Path, metavar="FILE", help="document to rewrite in place")
    parser.add_argument(
        "--ways", action="store_true", help="files of bench/ways.py; default: all of bench/results/backends"
    )
    options = parser.parse_args(argv)
    folder = Path("bench", "results", *(["backends"] if options.ways else []))
    files = options.files or sorted((record.ROOT / folder).glob("*.json"))
    if not files:
        sys.exit(f"no result files in {folder}; run a benchmark first")
    table, marks = (ways_table_of, WAYS_MARKS) if options.ways else (table_of, MARKS)
    text = "\n".join(line for path in files for line in section_of(read(path), table))
    if options.into is None:
        print(text, end="")
    else:
        document = options.into.read_text(encoding="utf-8")
        options.into.write_text(insert(document, text, marks), encoding="utf-8")


if __name__ == "__main__":
    main()
