"""Result files as Markdown tables, and into a document that has a place for them.

    python bench/table.py                            # every file of bench/results, to standard output
    python bench/table.py bench/results/ag_gemm_h100x4.json
    python bench/table.py --into docs/results.md     # replaces what stands between the two marks
    python bench/table.py --lead --into README.md    # one table: a line a shape, against the best of the others
    python bench/table.py --ways --into docs/backends.md    # bench/results/backends, of bench/ways.py
    python bench/table.py --gaps --into docs/performance.md    # bench/results/gaps, of bench/gaps.py

What limit, eta and speedup are stands in `scores`; a speedup below 1 is a loss, and said so. ``--lead`` is made of the suite of
the most ranks (``bench/run_suite.py``), and of the operators' own files where no suite has as many ranks as they.

``--ways`` has a column a way instead, the shortest time of each shape in bold; ``over serial`` is that of the serial composition
in a graph over it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record
from gaps_table import gaps_head_of, gaps_tables_of
from scores import Score, geometric_mean, kind_of, limit_of, score, shapes_of, timed, times_of
from suite import TALL_FROM, Row

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
GAPS_MARKS = ("<!-- gaps -->", "<!-- /gaps -->")


def table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One Markdown table: a line a shape, a column a contender that has any time, and what failed below it."""
    present = [name for name in record.CONTENDERS if any(row["contender"] == name for row in timed(rows))]
    asked = kind_of(rows) == "queued"
    headings = ["M, N, K", *(HEADINGS[name] for name in present), "limit", "eta", *(["asked"] if asked else [])]
    headings += ["speedup", *(["p99"] if asked else [])]
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    failed: list[str] = []
    for shape in shapes_of(rows):
        times, found = times_of(shape), score(shape)
        first = shape[0]
        dtype = "" if len({row["dtype"] for row in rows}) == 1 else f" {first['dtype']}"
        name = sizes_of(first)
        cells = [name + dtype, *(_ms(times.get(name)) for name in present), _ms(found.limit), _share(found.eta)]
        cells += [_share(target_of(first))] if asked else []
        cells += [_speedup(found.speedup), *([_share(found.worse_p99)] if asked else [])]
        lines.append("| " + " | ".join(cells) + " |")
        failed += [f"{HEADINGS[who]} at {name}: {why}" for who, why in found.failed.items() if who in present]
    return [*lines, *(["", "Failed: " + "; ".join(failed) + "."] if failed else [])]


def sizes_of(row: dict[str, Any]) -> str:
    """M, N, K of a row."""
    return f"{row['M']}, {row['N']}, {row['K']}"


def model_of(device: str) -> str:
    """``H100`` of `NVIDIA H100 80GB HBM3`."""
    return next((word for word in device.split() if any(c.isdigit() for c in word)), device)


def target_of(row: dict[str, Any]) -> float | None:
    """The eta that is asked of a row's shape."""
    try:
        return Row(row["op"], row["M"], row["N"], row["K"]).target
    except KeyError:
        return None


def lead_of(results: Sequence[dict[str, Any]]) -> list[str]:
    """One table of several result files, and what it comes to."""
    scores = [score(shape) for result in results for shape in shapes_of(result["rows"])]
    lines = ["| operator | GPUs | M, N, K | best baseline | ours, graph | ours, eager | eta | speedup |"]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|")
    for found in scores:
        sizes = found.sizes
        cells = [sizes["op"], f"{sizes['world']} x {model_of(sizes['device'])}", sizes_of(sizes)]
        cells.append(f"{_ms(found.baseline)} {HEADINGS.get(found.baseline_name, '')}".strip())
        cells += [_ms(found.graph), _ms(found.eager), _share(found.eta), _speedup(found.speedup)]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *_summary(scores)]


def _summary(scores: Sequence[Score]) -> list[str]:
    lines = []
    for which, some in (
        (f"M >= {TALL_FROM}", [found for found in scores if found.sizes["M"] >= TALL_FROM]),
        (f"M < {TALL_FROM}", [found for found in scores if found.sizes["M"] < TALL_FROM]),
    ):
        speedups = [found.speedup for found in some if found.speedup is not None]
        mean = geometric_mean(speedups)
        if mean is not None:
            losses = sum(speedup < 1 for speedup in speedups)
            lines.append(
                f"- Of the {len(speedups)} rows with {which}: geometric mean of the speedup {mean:.2f}, "
                f"from {min(speedups):.2f} to {max(speedups):.2f}; {losses} losses."
            )
    tall = [found for found in scores if found.sizes["M"] >= TALL_FROM and found.kind == "queued"]
    slower = [found.eager / found.graph for found in tall if found.eager and found.graph]
    if slower:
        lines.append(f"- Eager over in a graph, with M >= {TALL_FROM} and the host ahead: {max(slower):.3f} at most.")
    asked = [(found.eta, target) for found in tall if found.eta and (target := target_of(found.sizes))]
    if asked:
        reached = sum(had >= target for had, target in asked)
        lines.append(f"- The eta that is the aim on four H100s: reached by {reached} of {len(asked)} rows.")
    missing = sum(found.speedup is None for found in scores)
    return [
        *lines,
        *([f"- Rows without a speedup, since ours or all baselines have no time: {missing}."] if missing else []),
    ]


def leading(results: Sequence[tuple[Path, dict[str, Any]]]) -> list[tuple[Path, dict[str, Any]]]:
    """The files that ``--lead`` is made of: the suites of the most ranks, or all others where those have more."""
    worlds = {path: max(row["world"] for row in result["rows"]) for path, result in results}
    suites = [each for each in results if each[0].name.startswith("suite_")]
    others = [each for each in results if each not in suites]
    return [each for each in suites if worlds[each[0]] == max(worlds.values())] or others


def ways_table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One Markdown table of rows of bench/ways.py: a line a shape, a column a way."""
    ways = list(dict.fromkeys(row["how"] for row in rows if "how" in row))
    beside = [name for name in ("gemm", "serial_graph") if any(row["contender"] == name for row in rows)]
    shown = [way.removeprefix("backend=") if way.count("=") == 1 else way for way in ways]
    headings = ["M, N, K", *(HEADINGS[name] for name in beside), *shown, "limit", "eta", "over serial"]
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    for shape in shapes_of(rows):
        times = times_of(shape)
        best = min((times[way] for way in ways if way in times), default=None)
        limit, serial = limit_of(shape), times.get("serial_graph")
        of_ways = [times.get(way) for way in ways]
        cells = [sizes_of(shape[0]), *(_ms(times.get(name)) for name in beside)]
        cells += [f"**{_ms(ms)}**" if ms is not None and ms == best else _ms(ms) for ms in of_ways]
        cells += [_ms(limit), _share(limit / best if limit and best else None)]
        cells += [_speedup(serial / best if serial and best else None)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _commit(named: str) -> str:
    """A commit by a short name; what else a file says of its commits is left as it is."""
    return named[:12] if " " not in named else named


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.3f}"


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.2f}"


def _speedup(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}" if speedup >= 1 else f"**{speedup:.2f}, a loss**"


def section_of(result: dict[str, Any], table: Callable[[Sequence[dict[str, Any]]], list[str]] = table_of) -> list[str]:
    """Title, table and provenance of one result file."""
    rows = result["rows"]
    lines: list[str] = []
    for op, world in dict.fromkeys((row["op"], row["world"]) for row in rows):
        some = [row for row in rows if (row["op"], row["world"]) == (op, world)]
        dtypes = ", ".join(dict.fromkeys(row["dtype"] for row in some))
        ahead = ", host ahead" if kind_of(some) == "queued" else ""
        lines += [f"**{op}**, {world} x {some[0]['device']}, {dtypes}, ms{ahead}:", "", *table(some), ""]
    return [*lines, _made_by(result), ""]


def gaps_section_of(result: dict[str, Any]) -> list[str]:
    """The same of a file of bench/gaps.py, whose operators stand together."""
    rows = result["rows"]
    return [gaps_head_of(rows), "", *gaps_tables_of(rows), "", _made_by(result), ""]


def _made_by(result: dict[str, Any]) -> str:
    """Software, commit, date and command of a result file."""
    versions = result["versions"]
    software = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "triton", "nccl", "driver") if versions.get(name)
    )
    return f"{software}; commit {_commit(result['commit'])}, {result['date'][:10]}: `{result['command']}`"


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
    parser.add_argument("--lead", action="store_true", help="one table of all files")
    parser.add_argument(
        "--ways", action="store_true", help="files of bench/ways.py; default: all of bench/results/backends"
    )
    parser.add_argument(
        "--gaps", action="store_true", help="files of bench/gaps.py; default: all of bench/results/gaps"
    )
    options = parser.parse_args(argv)
    folder = Path("bench", "results", *(["backends"] if options.ways else ["gaps"] if options.gaps else []))
    files = options.files or sorted((record.ROOT / folder).glob("*.json"))
    if not files:
        sys.exit(f"no result files in {folder}; run a benchmark first")
    results = [(path, read(path)) for path in files]
    table, marks = (ways_table_of, WAYS_MARKS) if options.ways else (table_of, MARKS)
    if options.gaps:
        text, marks = "\n".join(line for _, result in results for line in gaps_section_of(result)), GAPS_MARKS
    elif options.lead:
        text = "\n".join(lead_of([result for _, result in leading(results)])) + "\n"
    else:
        text = "\n".join(line for _, result in results for line in section_of(result, table))
    if options.into is None:
        print(text, end="")
    else:
        document = options.into.read_text(encoding="utf-8")
        options.into.write_text(insert(document, text, marks), encoding="utf-8")


if __name__ == "__main__":
    main()
