"""The picture of a timeline as a real browser draws it, light and dark, and what the pointer is told.

Run where a browser is found (`tests/support/browser.py`); `make test` says where there is none.
"""

from __future__ import annotations

import json
import re
import sys
from html import unescape

import numpy as np
import pytest

from overlap.schedule.model import RankSchedule
from overlap.schedule.picture import html_picture

WORLD = 6
LONG = "a label that is far too long for its bar & <b>is cut</b>"


@pytest.fixture(scope="module")
def support(repo):
    sys.path.insert(0, str(repo / "tests" / "support"))
    import browser
    import timelines

    return browser, timelines


@pytest.fixture(scope="module")
def chromium(support):
    browser, _ = support
    try:
        return browser.find()
    except browser.BrowserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def page(support):
    _, timelines = support
    schedules = [RankSchedule(rank, WORLD, (), (), {(rank, i): 10 + i for i in range(5)}, ()) for rank in range(WORLD)]
    return html_picture(timelines.gathering(WORLD), title="AllGather", notes=[LONG], schedules=schedules)


@pytest.fixture
def save(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        return path.as_uri()

    return written


def dark(page: str) -> str:
    """The page as in the dark: its dark colours whatever the browser prefers."""
    made = page.replace("@media (prefers-color-scheme: dark)", "@media all")
    assert made != page
    return made


def scripted(page: str, script: str) -> str:
    """The page with a script behind its own that leaves what it found in the document."""
    said = f"<script>document.documentElement.dataset.found = JSON.stringify((() => {{ {script} }})());</script></body>"
    return page.replace("</body>", said)


def found(document: str):
    value = re.search(r'data-found="([^"]*)"', document)
    assert value, document[:1000]
    return json.loads(unescape(value[1]))


def colourful(image: np.ndarray) -> dict[tuple[int, ...], int]:
    """Strong colours of an image, coarsely, and how many pixels have each."""
    strong = image[(image.max(axis=2).astype(int) - image.min(axis=2)) > 40] // 16
    colours, counts = np.unique(strong.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(map(int, colour)): int(count) for colour, count in zip(colours, counts, strict=True)}


@pytest.mark.parametrize(("shade", "background"), [("light", (200, 255)), ("dark", (0, 80))])
def test_the_screen_shows_the_chunks_in_their_colours(support, chromium, page, save, tmp_path, shade, background):
    browser, _ = support
    image = browser.screenshot(chromium, save(dark(page) if shade == "dark" else page), tmp_path / "shot.png")
    assert image.shape[0] >= 400 and image.shape[1] >= 900
    low, high = background
    corner = image[4, -4]
    assert low <= corner.min() and corner.max() <= high
    # A chunk has a copy and a run on every other rank: some 5 x 2 bars of 16 rows and 100 pixels.
    full = [colour for colour, count in colourful(image).items() if count >= 2000]
    assert len(full) >= WORLD


def test_the_script_draws_every_event_and_tells_it(support, chromium, page, save):
    browser, timelines = support
    script = """
        const chart = document.getElementById("chart"), tip = document.getElementById("tip");
        const bars = [...chart.querySelectorAll(".bar")];
        const wait = bars.find((bar) => bar.classList.contains("wait"));
        const tell = (bar, type) => bar.dispatchEvent(new PointerEvent(type, { bubbles: true, clientX: 300, clientY: 300 }));
        const fill = new Set(bars.map((bar) => getComputedStyle(bar).fill)).size;  // zooming draws others
        const before = tip.hidden;
        tell(wait, "pointermove");
        const told = tip.innerText, lit = chart.querySelectorAll(".lit").length, seen = tip.getBoundingClientRect().height;
        chart.dispatchEvent(new PointerEvent("pointerleave"));
        const fit = chart.getBoundingClientRect().width;
        const after = tip.hidden;
        document.getElementById("in").click();
        const wide = chart.getBoundingClientRect().width;
        return {
          drawn: document.documentElement.dataset.drawn, bars: bars.length, before, told, lit, seen, after, fit, wide, fill,
          hatched: chart.querySelectorAll(".hatch").length, critical: chart.querySelectorAll(".critical").length,
          names: document.getElementById("names").innerText,
        };
    """
    said = found(browser.document(chromium, save(scripted(page, script))))
    timeline = timelines.gathering(WORLD)
    waits = sum(event.kind == "wait" for event in timeline.events)
    assert (int(said["drawn"]), said["bars"]) == (len(timeline.events), len(timeline.events))
    assert (said["hatched"], said["critical"]) == (waits, len(timeline.critical))
    # Each chunk has a colour, own tiles and flags have theirs.
    assert said["fill"] == WORLD + 2
    assert said["before"] and said["after"] and said["seen"] > 20
    for part in ("wait for a[1]", "10 of rank 0", "0 of rank 0", "rank 1", "0.0200 to 0.0300 ms", "0.0100 ms"):
        assert part in said["told"]
    # On each of the other ranks: a copy, a wait, a flag and a run.
    assert said["lit"] == 4 * (WORLD - 1)
    assert 0 < said["fit"] <= browser.SIZE[0] and said["wide"] > 1.8 * said["fit"]
    assert all(f"rank {rank}" in said["names"] for rank in range(WORLD))
