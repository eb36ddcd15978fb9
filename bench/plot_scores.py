"""Pictures of what operators gain, and of how much of the limit they reach (`scores`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from plot_parts import LEFT, RIGHT, ROW, WIDTH, Result, about, footer
from scores import Score, score, shapes_of
from suite import TALL_FROM
from svg import Sheet
from table import model_of, sizes_of, target_of

MOST = 2.0
"""Speedups and limits beyond are drawn at the edge."""


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
    footer(sheet)
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
    footer(sheet)
    return sheet
