"""A picture as one SVG file that needs nothing else, and reads on light and on dark pages.

The picture has a card of its own behind it, and card and ink change together where the viewer prefers dark: what is on it can be
read whatever page it stands on. Same calls, same bytes: no time, no random names, coordinates to a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SERIES = 6
"""Colours that can be told apart, also by who sees few of them; marks differ too."""
_LIGHT = ("#0067a5", "#c04a00", "#00734f", "#9a3d8f", "#806000", "#4d5566")
_DARK = ("#6cb6ff", "#ff9f6b", "#4fd1a5", "#e89be0", "#e3c14b", "#b4bcc8")
_INKS = {
    "card": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9aa4af"),
    "grid": ("#dde3e9", "#2b323b"),
    "gain": (_LIGHT[0], _DARK[0]),
    "loss": (_LIGHT[1], _DARK[1]),
    **{f"s{number}": pair for number, pair in enumerate(zip(_LIGHT, _DARK, strict=True))},
}
_CROSS = [(-0.5, -1.4), (0.5, -1.4), (0.5, -0.5), (1.4, -0.5), (1.4, 0.5), (0.5, 0.5)]
_CROSS += [(-x, -y) for x, y in _CROSS]
_RULES = (
    "text{font:12px system-ui,sans-serif}.small{font-size:11px}.head{font-size:15px;font-weight:600}.b{font-weight:600}"
)


def _style(which: int) -> str:
    rules = []
    for name, pair in _INKS.items():
        rules.append(f".{name}{{fill:{pair[which]}}}.{name}-line{{stroke:{pair[which]};fill:none}}")
    return "".join(rules)


class Sheet:
    """Marks are added in the order in which they lie on each other.

    Args:
        title, about: what a reader who does not see it is told.
    """

    def __init__(self, width: int, title: str, about: str) -> None:
        self.width = width
        self.height = 0.0
        self._title = title
        self._about = about
        self._marks: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, ink: str = "grid", width: float = 1) -> None:
        place = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self._add(max(y1, y2), f'<line class="{ink}-line" {place} stroke-width="{_n(width)}"/>')

    def path(self, points: Sequence[tuple[float, float]], ink: str) -> None:
        """A line through points."""
        places = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._add(max(y for _, y in points), f'<polyline class="{ink}-line" points="{places}" stroke-width="1.5"/>')

    def bar(self, x: float, y: float, width: float, height: float, ink: str, tip: str = "") -> None:
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._add(y + height, _tipped("rect", f'class="{ink}" {place}', tip))

    def mark(self, x: float, y: float, series: int, tip: str = "", *, hollow: bool = False, size: float = 4.0) -> None:
        """A point of a series: its colour and its form."""
        s, form = size, series % SERIES
        outlines = (
            None,
            [(-s, -s), (s, -s), (s, s), (-s, s)],
            [(0, -1.4 * s), (1.4 * s, 0), (0, 1.4 * s), (-1.4 * s, 0)],
            [(0, -1.3 * s), (1.2 * s, s), (-1.2 * s, s)],
            [(0, 1.3 * s), (1.2 * s, -s), (-1.2 * s, -s)],
            [(s * x, s * y) for x, y in _CROSS],
        )
        ink = f's{form}-line" stroke-width="1.5' if hollow else f"s{form}"
        outline = outlines[form]
        if outline is None:
            drawn = _tipped("circle", f'class="{ink}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(s)}"', tip)
        else:
            places = " ".join(f"{_n(x + dx)},{_n(y + dy)}" for dx, dy in outline)
            drawn = _tipped("polygon", f'class="{ink}" points="{places}"', tip)
        self._add(y + s, drawn)

    def text(self, x: float, y: float, words: str, style: str = "ink", anchor: str = "start") -> None:
        """``style``: an ink, and ``small``, ``head`` or ``b``; ``anchor``: start, middle or end, at ``x``."""
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._add(y + 4, f'<text class="{style}" x="{_n(x)}" y="{_n(y)}"{at}>{escape(words)}</text>')

    def _add(self, bottom: float, mark: str) -> None:
        self.height = max(self.height, bottom)
        self._marks.append(mark)

    def __str__(self) -> str:
        height = _n(self.height + 12)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" width="{self.width}" '
            f'height="{height}" role="img" aria-labelledby="title about">',
            f'<title id="title">{escape(self._title)}</title>',
            f'<desc id="about">{escape(self._about)}</desc>',
            f"<style>{_RULES}{_style(0)}@media (prefers-color-scheme:dark){{{_style(1)}}}</style>",
            f'<rect class="card" width="{self.width}" height="{height}" rx="6"/>',
        ]
        return "\n".join([*lines, *self._marks, "</svg>"]) + "\n"


def _tipped(element: str, attributes: str, tip: str) -> str:
    if not tip:
        return f"<{element} {attributes}/>"
    return f"<{element} {attributes}><title>{escape(tip)}</title></{element}>"


def _n(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
