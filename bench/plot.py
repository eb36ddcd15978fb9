"""Pictures of result files, as SVG in docs/figures.

    python bench/plot.py              # all of them, from bench/results
    python bench/plot.py --out FOLDER

    speedup.svg    a bar a shape: the best baseline over ours, and what a perfect overlap would be (`scores`)
    eta.svg        how much of the limit is reached, by operations for each byte that must come
    ways.svg       realization by realization: plans, backends and splits of one product against each other (bench/ways.py)
    sweeps.svg     the same by the number of chunks, and of programs that communicate, where those were varied

The last two are this machine's version of Figure 11 of the paper, the first of its Figure 8. Colours are those of the page's
light or dark scheme, files are small and the same for the same results; so they are written here (`svg`) and not by a library,
which would be one more dependency whose fonts and version decide the bytes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import record
from scores import Score, score, shapes_of, times_of
from suite import TALL_FROM
from svg import SERIES, Sheet
from table import leading, model_of, read, sizes_of, target_of

Result = tuple[Path, dict[str, Any]]

WIDTH = 760
LEFT, RIGHT = 170, 52
"""Room for the names of shapes, and for numbers behind the longest bar."""
ROW = 16
MOST = 2.0
"""Speedups and limits beyond are drawn at the edge."""
SLOWEST = 1.6
"""As is a way that takes this much longer than the fastest."""
COMMAND = "python bench/plot.py"


def about(what: str, results: Iterable[Result]) -> str:
    """What is shown, how it is made and from what."""
    names = ", ".join(_relative(path) for path, _ in results)
    return f"{what} Made by `{COMMAND}` from {names}."


def _relative(path: Path) -> str:
    resolved = path.resolve()
    return resolved.relative_to(record.ROOT).as_posix() if resolved.is_relative_to(record.ROOT) else path.name


def scored(results: Sequence[Result]) -> list[Score]:
    return [score(shape) for _, result in results for shape in shapes_of(result["rows"])]


def groups_of(scores: Iterable[Score]) -> dict[str, list[Score]]:
    """Scores by operator and machine, which is their heading."""
    groups: dict[str, list[Score]] = {}
    for found in scores:
        heading = f"{found.sizes['op']}, {found.sizes['world']} x {model_of(found.sizes['device'])}"
        groups.setdefault(heading, []).append(found)
    return groups


def speedup(results: Sequence[Result]) -> Sheet | None:
    """Bars of what ours gains over the best baseline, each with its limit."""
    scores = [found for found in scored(results) if found.speedup is not None]
    if not scores:
        return None
    what = "Speedup over the best baseline by operator and shape (M, N, K), with the speedup of a perfect overlap."
    sheet = Sheet(WIDTH, "Speedup over the best baseline", about(what, results))

    def at(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(value, MOST) / MOST

    sheet.text(16, 26, "Speedup over the best baseline", "ink head")
    sheet.bar(16, 39, 18, 9, "gain")
    sheet.text(40, 47, "faster", "faint small")
    sheet.bar(90, 39, 18, 9, "loss")
    sheet.text(114, 47, "slower", "faint small")
    sheet.line(170, 37, 170, 50, "ink", 2)
    sheet.text(178, 47, "a perfect overlap (beyond 2: an arrow)", "faint small")
    y = top = 66.0
    marks: list[Callable[[], None]] = []
    for heading, some in groups_of(scores).items():
        marks.append(lambda y=y, heading=heading: sheet.text(16, y + 12, heading, "ink b"))
        y += ROW + 2
        for found in some:
            marks.append(lambda y=y, found=found: _speedup_row(sheet, at, y, found))
            y += ROW
        y += 8
    for tick in (0.5, 1.0, 1.5, 2.0):
        sheet.line(at(tick), top, at(tick), y, "faint" if tick == 1 else "grid")
        sheet.text(at(tick), y + 14, f"{tick:g}", "faint small", "middle")
    for mark in marks:
        mark()
    _footer(sheet)
    return sheet


def _speedup_row(sheet: Sheet, at: Callable[[float], float], y: float, found: Score) -> None:
    assert found.speedup is not None and found.baseline is not None and found.ours is not None
    sheet.text(LEFT - 8, y + 12, sizes_of(found.sizes), "faint small", "end")
    tip = f"{found.baseline:.3f} ms {found.baseline_name}, {found.ours:.3f} ms ours"
    ink = "gain" if found.speedup >= 1 else "loss"
    end = at(found.speedup)
    sheet.bar(at(0), y + 2, end - at(0), ROW - 4, ink, tip)
    if found.limit:
        perfect = found.baseline / found.limit
        if perfect <= MOST:
            sheet.line(at(perfect), y + 1, at(perfect), y + ROW - 1, "ink", 2)
        else:
            sheet.text(at(MOST) + 14, y + 12, "\N{RIGHTWARDS ARROW}", "ink small")
    # Where the bar begins, so that no limit runs through it.
    narrow = end < at(0.15)
    sheet.text(
        end + 5 if narrow else at(0) + 6, y + 12, f"{found.speedup:.2f}", f"{'ink' if narrow else 'card'} small b"
    )


def eta(results: Sequence[Result]) -> Sheet | None:
    """The share of the limit against the operations for each byte that a rank must receive."""
    scores = [found for found in scored(results) if found.eta is not None and math.isfinite(found.intensity)]
    if not scores:
        return None
    what = "Limit over our time (eta) by operations per byte received; filled marks have M of 2048 or more."
    sheet = Sheet(WIDTH, "Share of the limit by arithmetic intensity", about(what, results))
    low = math.floor(min(math.log2(found.intensity) for found in scores))
    high = max(low + 1, math.ceil(max(math.log2(found.intensity) for found in scores)))
    left, right, top, bottom, most = 60.0, WIDTH - 36.0, 104.0, 424.0, 1.2

    def across(intensity: float) -> float:
        return left + (right - left) * (math.log2(intensity) - low) / (high - low)

    def up(value: float) -> float:
        return bottom - (bottom - top) * min(value, most) / most

    sheet.text(16, 26, "Share of the limit by arithmetic intensity", "ink head")
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        sheet.line(left, up(tick), right, up(tick), "faint" if tick == 1 else "grid")
        sheet.text(left - 8, up(tick) + 4, f"{tick:.1f}", "faint small", "end")
    for power in range(low, high + 1):
        sheet.line(across(2.0**power), top, across(2.0**power), bottom)
        sheet.text(
            across(2.0**power), bottom + 16, f"{2**power if power >= 0 else 2.0**power:,}", "faint small", "middle"
        )
    sheet.text(
        (left + right) / 2, bottom + 34, "operations of a rank per byte that it must receive", "faint small", "middle"
    )
    sheet.text(left - 44, top - 14, "eta", "faint small")
    operators = list(dict.fromkeys(found.sizes["op"] for found in scores))
    for number, op in enumerate(operators):
        sheet.mark(24 + 118 * number, 46, number)
        sheet.text(34 + 118 * number, 50, op, "ink small")
    sheet.text(
        16,
        68,
        f"filled: M of {TALL_FROM} or more; hollow: fewer; a bar: what is asked of the shape on four H100s",
        "faint small",
    )
    for found in scores:
        assert found.eta is not None
        number = operators.index(found.sizes["op"])
        x = across(found.intensity) + 7 * (number - (len(operators) - 1) / 2)  # side by side where they are equal
        target = target_of(found.sizes)
        if target is not None:
            sheet.line(x - 6, up(target), x + 6, up(target), "ink", 1.5)
        tip = f"{found.sizes['op']} {sizes_of(found.sizes)}: {found.eta:.2f}"
        sheet.mark(x, up(found.eta), number, tip, hollow=found.sizes["M"] < TALL_FROM)
    _footer(sheet)
    return sheet


def ways(results: Sequence[Result]) -> Sheet | None:
    """Each way of an operator's call over the fastest of its shape."""
    groups = [(heading, shapes) for heading, shapes in measured_ways(results).items() if shapes]
    if not groups:
        return None
    what = "Time of each way to carry a product out, over the fastest way of that shape (M, N, K)."
    sheet = Sheet(WIDTH, "Realizations side by side", about(what, results))

    def at(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(value, SLOWEST) - 1) / (SLOWEST - 1)

    sheet.text(16, 26, "Realizations side by side", "ink head")
    sheet.text(
        16, 46, f"time over that of the fastest way of the shape; {SLOWEST:g} and more at the edge", "faint small"
    )
    y = 64.0
    for heading, shapes in groups:
        names = list(dict.fromkeys(way for times in shapes.values() for way in times))
        sheet.text(16, y + 12, heading, "ink b")
        y += 22
        x = 24.0
        for number, name in enumerate(names):
            wide = 26 + 6.4 * len(name)
            if x + wide > WIDTH - 16:
                x, y = 24.0, y + ROW
            sheet.mark(x, y + 8, number, hollow=number >= SERIES)
            sheet.text(x + 9, y + 12, name, "faint small")
            x += wide
        y += ROW + 4
        for tick in (1.0, 1.2, 1.4, 1.6):
            sheet.line(at(tick), y, at(tick), y + ROW * len(shapes), "faint" if tick == 1 else "grid")
            sheet.text(at(tick), y + ROW * len(shapes) + 13, f"{tick:g}", "faint small", "middle")
        for shape, times in shapes.items():
            sheet.text(LEFT - 12, y + 12, shape, "faint small", "end")
            fastest = min(times.values())
            for number, name in enumerate(names):
                if name in times:
                    tip = f"{name}: {times[name]:.3f} ms"
                    sheet.mark(at(times[name] / fastest), y + 8, number, tip, hollow=number >= SERIES)
            y += ROW
        y += 28
    _footer(sheet)
    return sheet


def measured_ways(results: Sequence[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """ms by way, by shape, by operator and machine; serial as a way where it was measured beside them.

    What stands in two files was not measured in one process, so it is never compared: the second has a heading of its own.
    """
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for path, result in results:
        taken = set(groups)
        for shape in shapes_of(result["rows"]):
            row, times = shape[0], times_of(shape)
            ways = {each["how"] for each in shape if "how" in each}
            found = {"serial" if name == "serial_graph" else name: ms for name, ms in times.items()}
            heading = f"{row['op']}, {row['world']} x {model_of(row['device'])}, {row['dtype']}"
            heading += f", {path.parent.name}/{path.stem}" if heading in taken else ""
            kept = {name: ms for name, ms in found.items() if name in (*ways, "serial")}
            if ways:
                groups.setdefault(heading, {})[sizes_of(row)] = kept
    return groups


def keywords(way: str) -> dict[str, str]:
    """``plan=all_gather_ring,split=2`` as pairs."""
    return dict(pair.split("=", 1) for pair in way.split(",") if "=" in pair)


def sweep_of(groups: dict[str, dict[str, dict[str, float]]], key: str) -> dict[str, dict[str, dict[int, float]]]:
    """ms by a numeric keyword, by shape, by operator and the other keywords; only where it has several values."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for heading, shapes in groups.items():
        for shape, times in shapes.items():
            for way, ms in times.items():
                pairs = keywords(way)
                value = pairs.pop(key, None)
                if value is not None and value.isdecimal():
                    said = (
                        value if name in ("plan", "backend") else f"{name}={value}" for name, value in pairs.items()
                    )
                    rest = "".join(f", {word}" for word in said)
                    found.setdefault(heading + rest, {}).setdefault(shape, {})[int(value)] = ms
    kept = {heading: {s: t for s, t in shapes.items() if len(t) > 1} for heading, shapes in found.items()}
    return {heading: shapes for heading, shapes in kept.items() if shapes}


def sweeps(results: Sequence[Result]) -> Sheet | None:
    """Time by chunks of a piece and by communicating programs, a line a shape."""
    groups = measured_ways(results)
    panels = [
        (label, heading, shapes)
        for key, label in (("split", "chunks of a piece"), ("comm_sms", "programs that communicate"))
        for heading, shapes in sweep_of(groups, key).items()
    ]
    if not panels:
        return None
    what = "Time by the number of chunks, or of programs that communicate, over the fastest of the shape."
    sheet = Sheet(WIDTH, "Chunks and communicating programs", about(what, results))
    sheet.text(16, 26, "Chunks and communicating programs", "ink head")
    sheet.text(
        16, 46, f"time over that of the fastest of the shape (M, N, K); {SLOWEST:g} and more at the edge", "faint small"
    )
    y = 66.0
    for number in range(0, len(panels), 2):
        pair = panels[number : number + 2]
        for column, (label, heading, shapes) in enumerate(pair):
            _sweep_panel(sheet, 16.0 + column * WIDTH / 2, y, label, heading, shapes)
        y += 214 + ROW * max(len(shapes) for _, _, shapes in pair)
    _footer(sheet)
    return sheet


def _sweep_panel(
    sheet: Sheet, x: float, y: float, label: str, heading: str, shapes: dict[str, dict[int, float]]
) -> None:
    left, right, top = x + 34, x + WIDTH / 2 - 36, y + 22 + ROW * len(shapes)
    bottom = top + 130
    values = sorted({value for times in shapes.values() for value in times})
    step = (right - left) / max(1, len(values) - 1)

    def up(ratio: float) -> float:
        return bottom - (bottom - top) * (min(ratio, SLOWEST) - 1) / (SLOWEST - 1)

    sheet.text(x, y + 12, heading, "ink b")
    for tick in (1.0, 1.2, 1.4, 1.6):
        sheet.line(left, up(tick), right, up(tick), "faint" if tick == 1 else "grid")
        sheet.text(left - 8, up(tick) + 4, f"{tick:.1f}", "faint small", "end")
    for number, value in enumerate(values):
        sheet.text(left + step * number, bottom + 16, str(value), "faint small", "middle")
    sheet.text((left + right) / 2, bottom + 32, label, "faint small", "middle")
    for number, (shape, times) in enumerate(shapes.items()):
        series, fastest = number % SERIES, min(times.values())
        hollow = number >= SERIES
        sheet.mark(x + 8, y + 26 + ROW * number, series, hollow=hollow)
        sheet.text(x + 18, y + 30 + ROW * number, f"{shape}: {fastest:.3f} ms", "faint small")
        points = [(left + step * values.index(value), up(ms / fastest)) for value, ms in sorted(times.items())]
        sheet.path(points, f"s{series}")
        for (px, py), (value, ms) in zip(points, sorted(times.items()), strict=True):
            sheet.mark(px, py, series, f"{shape}, {value}: {ms:.3f} ms", hollow=hollow)


def _footer(sheet: Sheet) -> None:
    sheet.text(
        16, sheet.height + 20, f"{COMMAND}; files and commands of the measurements: docs/results.md", "faint small"
    )


FIGURES: dict[str, tuple[Callable[[Sequence[Result]], Sheet | None], bool]] = {
    "speedup": (speedup, False),
    "eta": (eta, False),
    "ways": (ways, True),
    "sweeps": (sweeps, True),
}
"""What draws a picture, and whether from files of ways."""


def drawn(results: Sequence[Result], of_ways: Sequence[Result]) -> dict[str, str]:
    """Pictures by name, from the operators' result files and those of ways; none of what was not measured."""
    led = leading(results)
    sheets = {name: draw(of_ways if by_ways else led) for name, (draw, by_ways) in FIGURES.items()}
    return {f"{name}.svg": str(sheet) for name, sheet in sheets.items() if sheet is not None}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=record.ROOT / "bench" / "results", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=record.ROOT / "docs" / "figures", metavar="FOLDER")
    options = parser.parse_args(argv)
    folders = (options.results,), (options.results / "ways", options.results / "backends")
    files = [[(path, read(path)) for folder in some for path in sorted(folder.glob("*.json"))] for some in folders]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in drawn(*files).items():
        (options.out / name).write_text(text, encoding="utf-8")
        print(options.out / name)


if __name__ == "__main__":
    main()
