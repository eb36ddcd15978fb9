"""Pictures of ways to carry one product out against each other (bench/ways.py), and of what copies (`overlap calibrate`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plot_parts import LEFT, RIGHT, ROW, WIDTH, Result, about, footer
from scores import shapes_of, times_of
from svg import SERIES, Sheet
from table import model_of, sizes_of

SLOWEST = 1.6
"""A way that takes this much longer than the fastest, or more, is drawn at the edge."""


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
            wide = 26 + 6.9 * len(name)
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
    footer(sheet)
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
    footer(sheet)
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


def programs(machines: Sequence[Result]) -> Sheet | None:
    """GB/s by programs that copy, a panel a machine file (`overlap calibrate`), and what a copy engine does."""
    panels = [(path, machine) for path, machine in machines if machine.get("programs")]
    if not panels:
        return None
    what = "GB/s between two GPUs by the number of programs that copy, and of a copy engine."
    sheet = Sheet(WIDTH, "Programs that copy", about(what, machines))
    sheet.text(16, 26, "Programs that copy", "ink head")
    sheet.text(
        16, 46, "GB/s of 64 MiB between two GPUs by the number of programs; dashed: a copy engine", "faint small"
    )
    for number, (path, machine) in enumerate(panels):
        _programs_panel(sheet, 16.0 + (number % 2) * WIDTH / 2, 66.0 + (number // 2) * 300, path, machine)
    footer(sheet)
    return sheet


def _programs_panel(sheet: Sheet, x: float, y: float, path: Path, machine: dict[str, Any]) -> None:
    left, right, top, bottom, most = x + 34, x + WIDTH / 2 - 36, y + 62, y + 230, 450.0
    counts = sorted({count for rates in machine["programs"].values() for count in rates})
    step = (right - left) / max(1, len(counts) - 1)

    def up(rate: float) -> float:
        return bottom - (bottom - top) * min(rate, most) / most

    sheet.text(x, y + 12, path.stem, "ink b")
    for tick in (0, 100, 200, 300, 400):
        sheet.line(left, up(tick), right, up(tick))
        sheet.text(left - 8, up(tick) + 4, str(tick), "faint small", "end")
    engine = machine.get("inside", {}).get("gb_per_s")
    if engine:
        for start in range(0, int(right - left), 10):
            sheet.line(left + start, up(engine), left + start + 5, up(engine), "ink")
    for number, count in enumerate(counts):
        sheet.text(left + step * number, bottom + 16, str(count), "faint small", "middle")
    for number, (how, rates) in enumerate(machine["programs"].items()):
        sheet.mark(x + 8 + 84 * number, y + 32, number)
        words = how.removesuffix("_tma") + (", TMA" if how.endswith("_tma") else "")
        sheet.text(x + 18 + 84 * number, y + 36, words, "faint small")
        points = [(left + step * counts.index(count), up(rate)) for count, rate in sorted(rates.items())]
        sheet.path(points, f"s{number % SERIES}")
        for (px, py), (count, rate) in zip(points, sorted(rates.items()), strict=True):
            sheet.mark(px, py, number, f"{words}, {count}: {rate} GB/s")
