"""One self-contained HTML file: the numbers of `rows`, page.css, page.js, and what needs no script to be read.

The file asks for nothing: its content security policy forbids every request, and it names no address.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from overlap.errors import UnsupportedError

from ..model import RankSchedule
from ..timeline import Timeline
from .rows import Rows, rows

LIMIT = 1_000_000
"""Bytes that a picture has at most; ranks are left out, and that is said, where all of them would be more."""

_NAMED = 24
"""Chunks that the legend names."""

_KINDS = (
    ("copy", "copy of a chunk, in its colour"),
    ("tile-run", "tiles that were ready with that chunk"),
    ("own", "tiles that need no chunk of another rank"),
    ("wait", "tiles wait for the chunk"),
    ("sum", "partial results are added"),
    ("flag", "flag or launch cost"),
    ("critical", "critical path"),
    ("gap", "exposed: beyond the tiles of the slowest rank"),
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def html_picture(
    timeline: Timeline,
    *,
    title: str,
    notes: Sequence[str] = (),
    schedules: Sequence[RankSchedule] = (),
    limit: int = LIMIT,
) -> str:
    """The picture of a timeline; the same arguments give the same text.

    Args:
        notes: lines under the title, such as the shape and the machine.
        schedules: where the pointer's text finds the flag of an operation.
        limit: bytes that the file may have.

    Raises:
        UnsupportedError: not even one rank fits.
    """
    # An event is eight numbers and as many commas, so no more ranks than these can fit.
    ranks = _first_shown(timeline, max(1, timeline.world * limit // max(limit, 16 * len(timeline.events))))
    while True:
        drawn = rows(timeline, sorted(ranks), schedules)
        text = _page(drawn, title, notes)
        size = len(text.encode())
        if size <= limit:
            return text
        if len(ranks) == 1:
            raise UnsupportedError(
                f"a picture of one rank has {size} bytes, more than the {limit} of a picture that browsers draw at once",
                help="--trace writes the same events for Perfetto, which takes any number",
            )
        ranks = _first_shown(timeline, min(len(ranks) - 1, max(1, len(ranks) * limit // size)))


def _first_shown(timeline: Timeline, count: int) -> list[int]:
    """The ranks of the critical path, from its end, and then the lowest."""
    on_path = (timeline.events[index].rank for index in reversed(timeline.critical))
    return list(dict.fromkeys([*on_path, *range(timeline.world)]))[:count]


def _page(drawn: Rows, title: str, notes: Sequence[str]) -> str:
    here = files(__package__)
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    said = "".join(f"<p>{_text(note)}</p>\n" for note in notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
{said}{_facts(drawn)}{_legend(drawn)}</header>
<main id="view">
<div id="head">
<div id="corner"><button type="button" id="out" title="Zoom out">&minus;</button>
<button type="button" id="fit" title="The whole launch">fit</button>
<button type="button" id="in" title="Zoom in">+</button></div>
<svg id="axis" role="img" aria-label="Time in milliseconds"></svg>
</div>
<div id="rows">
<div id="names"></div>
<svg id="chart" role="img" aria-label="Events of each rank over time"></svg>
</div>
</main>
<div id="tip" role="tooltip" hidden></div>
<noscript><p>The rows are drawn by a script in this file.</p></noscript>
<script type="application/json" id="data">{drawn.text}</script>
<script>
{script}</script>
</body>
</html>
"""


def _facts(drawn: Rows) -> str:
    timeline = drawn.timeline
    tiles = max(timeline.compute, default=0.0)
    share = f" ({100 * timeline.exposed / timeline.total:.1f} % of the launch)" if timeline.total > 0 else ""
    facts = [
        ("launch", f"{milliseconds(timeline.total, timeline.total)} ms"),
        ("tiles alone", f"{milliseconds(tiles, timeline.total)} ms"),
        ("exposed gap", f"{milliseconds(timeline.exposed, timeline.total)} ms{share}"),
        ("ranks", str(timeline.world)),
    ]
    if len(drawn.ranks) < timeline.world:
        facts.append(("drawn", f"{len(drawn.ranks)} of them: those of the critical path, and the lowest"))
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts) + "</dl>\n"


def _legend(drawn: Rows) -> str:
    present = {event.kind for event in drawn.timeline.events} | {"critical", "gap"}
    if any(event.kind == "tile-run" and not event.chunk for event in drawn.timeline.events):
        present.add("own")
    kinds = "".join(f'<li><i class="{kind}"></i>{text}</li>' for kind, text in _KINDS if kind in present)
    named = list(zip(drawn.chunks, drawn.hues, strict=True))[:_NAMED]
    chunks = "".join(f'<li><i class="copy" style="--h:{hue}"></i>{_text(chunk)}</li>' for chunk, hue in named)
    left = len(drawn.chunks) - len(named)
    more = f"<li>and {left} more, on around the colours</li>" if left else ""
    return f'<ul class="kinds">{kinds}</ul>\n' + (f'<ul class="chunks">{chunks}{more}</ul>\n' if chunks else "")


def milliseconds(seconds: float, total: float) -> str:
    """``seconds`` in ms, to four digits or so of ``total``."""
    digits = 3 - math.floor(math.log10(total * 1e3)) if total > 0 else 3
    return f"{seconds * 1e3:.{min(6, max(1, digits))}f}"


def _text(text: str) -> str:
    """Text as HTML; what no file can hold (half a surrogate pair, from an odd file name) becomes a question mark."""
    return escape(text.encode("utf-8", "replace").decode(), quote=True)
