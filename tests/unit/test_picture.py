"""The picture of a timeline as one HTML file, and the same events as a trace: what is in them, and that nothing else is."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from overlap.errors import UnsupportedError
from overlap.schedule.lanes import lanes_by_rank, natural
from overlap.schedule.model import RankSchedule
from overlap.schedule.picture import LIMIT, html_picture
from overlap.schedule.picture.rows import TICKS, rows, tick_of
from overlap.schedule.timeline import KINDS, Event, Timeline
from overlap.schedule.trace import chrome_trace

FIELDS = 8
VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture(scope="module")
def gathering(repo):
    spec = importlib.util.spec_from_file_location("timelines", repo / "tests/support/timelines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.gathering


def one(*events: Event, world: int = 1, critical: tuple[int, ...] = (), compute: float = 0.0) -> Timeline:
    return Timeline(world, events, critical, max((e.end for e in events), default=0.0), (compute,) * world)


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails where elements are not closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    @property
    def data(self) -> dict:
        found = [text for text in self.texts["script"] if text.startswith("{")]
        assert len(found) == 1
        return json.loads(found[0])


def drawn(data: dict) -> list[tuple]:
    """The events that the script makes of the numbers: rank, lane, kind, start, end, label, chunk, op, source."""
    found = []
    for rank, lane, flat in data["lanes"]:
        end = 0
        for i in range(0, len(flat), FIELDS):
            kind, gap, length, label, chunk, op_rank, op_index, source = flat[i : i + FIELDS]
            start, end = end + gap, end + gap + length
            op = (op_rank, op_index) if op_rank >= 0 else None
            name = data["chunks"][chunk] if chunk >= 0 else ""
            text = data["labels"][label].replace("\x01", name).replace("\x02", f"{source} -> {rank}")
            found.append((rank, lane, data["kinds"][kind], start, end, text, name, op, source))
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_the_numbers_are_the_timeline_s(gathering, world):
    timeline = gathering(world, copy=31.7e-6, run=19.3e-6)
    data = Page(html_picture(timeline, title="AllGather")).data
    unit = data["unit"]
    wanted = [
        (e.rank, e.lane, e.kind, round(e.start / unit), round(e.end / unit), e.label, e.chunk, e.op, e.source)
        for e in timeline.events
    ]
    assert sorted(drawn(data), key=repr) == sorted(wanted, key=repr)
    assert TICKS <= data["total"] == round(timeline.total / unit) < 10.1 * TICKS
    assert data["tiles"] == round(max(timeline.compute) / unit)
    assert data["exposed"] == [round(timeline.exposed_of(rank) / unit) for rank in range(world)]
    path = [(lane, position) for lane, position in data["critical"]]
    starts = [drawn({**data, "lanes": [data["lanes"][lane]]})[position] for lane, position in path]
    assert [s[3] for s in starts] == [round(timeline.events[i].start / unit) for i in timeline.critical]
    assert [s[5] for s in starts] == [timeline.events[i].label for i in timeline.critical]


def test_copies_stand_over_tiles_over_sums_and_lanes_are_numbered_by_value():
    lanes = ("sums", "tiles", "copy 10", "copy 2")
    timeline = one(*(Event(0, lane, "copy", 0.0, 1.0, lane) for lane in lanes))
    assert list(lanes_by_rank(timeline, [0])[0]) == ["copy 2", "copy 10", "tiles", "sums"]
    assert [lane[1] for lane in rows(timeline, [0]).values["lanes"]] == ["copy 2", "copy 10", "tiles", "sums"]
    assert sorted(["b", "a[10]", "a[9]", "a10", "a9"], key=natural) == ["a9", "a10", "a[9]", "a[10]", "b"]


def test_labels_are_shared_and_come_back_whole():
    names = ["pull a[1] 1 -> 0", "pull a[1] 11 -> 0", "a[1] 1 -> 01", "a[1]a[1]", "1 -> 0, 1 -> 0", "\x01\x02 a[1]", ""]
    events = [Event(0, "copy 0", "copy", i, i + 1, name, "a[1]", (0, i), 1) for i, name in enumerate(names)]
    elsewhere = Event(2, "copy 0", "copy", 0, 1, "pull a[3] 1 -> 2", "a[3]", (2, 0), 1)
    data = Page(html_picture(one(*events, elsewhere, world=3), title="t")).data
    assert [event[5] for event in drawn(data)] == [*names[:5], "   a[1]", "", "pull a[3] 1 -> 2"]
    assert data["labels"][0] == "pull \x01 \x02" and len(data["labels"]) == len(names)


def test_a_copy_and_its_tiles_share_a_colour_and_chunks_do_not(gathering):
    data = Page(html_picture(gathering(64), title="t")).data
    assert len(set(data["hues"])) == len(data["chunks"]) == 64 and max(data["hues"]) < 360
    by_op: dict[tuple, set] = {}
    for _, _, kind, _, _, _, chunk, op, _ in drawn(data):
        if op is not None:
            by_op.setdefault(op, set()).add((kind == "copy", chunk))
    assert len(by_op) == 64 * 63
    assert all(len(found) == 2 and len({chunk for _, chunk in found}) == 1 for found in by_op.values())


def test_what_can_be_read_without_the_script(gathering):
    page = Page(html_picture(gathering(3), title="AllGather of a", notes=["M=1000", "machine pcie"]))
    assert page.texts["title"] == page.texts["h1"] == ["AllGather of a"]
    assert page.texts["p"][:2] == ["M=1000", "machine pcie"]
    facts = dict(zip(page.texts["dt"], page.texts["dd"], strict=True))
    assert facts == {
        "launch": "0.08000 ms",
        "tiles alone": "0.06000 ms",
        "exposed gap": "0.02000 ms (25.0 % of the launch)",
        "ranks": "3",
    }
    assert page.texts["li"][-3:] == ["a[0]", "a[1]", "a[2]"]
    assert "critical path" in page.texts["li"] and "tiles wait for the chunk" in page.texts["li"]


def test_the_legend_names_what_is_there():
    page = Page(html_picture(one(Event(0, "tiles", "tile-run", 0.0, 1.0, "run 0")), title="t"))
    assert not any("wait" in text or "added" in text for text in page.texts["li"])
    many = one(*(Event(0, "copy 0", "copy", i, i + 1, "x", f"a[{i}]") for i in range(30)))
    assert Page(html_picture(many, title="t")).texts["li"][-1] == "and 6 more, on around the colours"


def test_the_pointer_tells_the_flag(gathering):
    timeline = gathering(2)
    schedules = [
        RankSchedule(0, 2, (), (), {(0, 0): 5}, ()),
        RankSchedule(1, 2, (), (), {(1, 0): 7, (1, 9): 8}, ()),
    ]
    data = Page(html_picture(timeline, title="t", schedules=schedules)).data
    assert data["flags"] == [0, 0, 0, 5, 1, 0, 1, 7]


@pytest.mark.parametrize(
    "text",
    ["</script><script>alert(1)</script>", "</script ", "<!--<script>", "a & b \"c\" 'd' <i>", "\u2028 \ud800 é"],
)
def test_no_label_ends_what_it_stands_in(text):
    event = Event(0, "copy 0", "copy", 0.0, 1.0, text, text, (0, 0))
    made = html_picture(one(event), title=text, notes=[text])
    page = Page(made)
    assert [event[5:7] for event in drawn(page.data)] == [(text, text)]
    shown = text.replace("\ud800", "?")
    assert ["".join(page.texts[tag]) for tag in ("title", "h1")] == [shown, shown]
    assert [tag for tag, _ in page.elements].count("script") == 2
    # Browsers end a script at less than the parser here does.
    assert [made.count(word) for word in ("<script", "</script", "<!--")] == [2, 2, 0]
    made.encode()


def test_the_file_asks_for_nothing(gathering):
    made = html_picture(gathering(8), title="t")
    page = Page(made)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & {tag for tag, _ in page.elements}
    assert not {"src", "href", "action", "srcset"} & {name for _, attributes in page.elements for name in attributes}
    assert not re.search(r"https?:|//[a-z]+\.|@import|fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", made)
    assert set(re.findall(r"url\(([^)]*)\)", made)) == {"#hatch", "#dots"}
    policy = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]


def test_light_and_dark_set_the_same_colours(gathering):
    style = Page(html_picture(gathering(2), title="t")).texts["style"][0]
    light, dark = re.search(
        r":root \{(.*?)\}\s*@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", style, re.S
    ).groups()
    names = [re.findall(r"(--[\w-]+):", block) for block in (light, dark)]
    assert set(names[1]) <= set(names[0]) and "--page" in names[1]
    used = set(re.findall(r"var\((--[\w-]+)", style))
    assert used - {"--h"} == set(names[0])


def test_the_same_timeline_gives_the_same_bytes(gathering):
    assert html_picture(gathering(5), title="t") == html_picture(gathering(5), title="t")
    assert chrome_trace(gathering(5)) == chrome_trace(gathering(5))


def test_ranks_that_do_not_fit_are_left_out_and_that_is_said(gathering):
    timeline = gathering(64)
    last = next(i for i, e in enumerate(timeline.events) if e.rank == 50 and e.kind == "copy")
    made = html_picture(replace(timeline, critical=(last,)), title="t", limit=120_000)
    page = Page(made)
    ranks = page.data["ranks"]
    assert len(made.encode()) <= 120_000 and ranks == [*range(len(ranks) - 1), 50] and len(ranks) > 8
    assert page.texts["dd"][-2:] == ["64", f"{len(ranks)} of them: those of the critical path, and the lowest"]
    with pytest.raises(UnsupportedError, match="a picture of one rank has"):
        html_picture(timeline, title="t", limit=1000)


def test_sixty_four_ranks_fit_whole(gathering):
    made = html_picture(gathering(64), title="t")
    assert len(made.encode()) < LIMIT and len(Page(made).data["ranks"]) == 64


@pytest.mark.parametrize(
    "timeline", [Timeline(1, (), (), 0.0, (0.0,)), one(Event(0, "tiles", "flag", 0.0, 0.0, "seen"))]
)
def test_a_launch_that_takes_no_time(timeline):
    data = Page(html_picture(timeline, title="t")).data
    assert (data["unit"], data["total"], len(drawn(data))) == (1e-9, 0, len(timeline.events))
    assert json.loads(chrome_trace(timeline))["displayTimeUnit"] == "ns"


@pytest.mark.parametrize(("total", "unit"), [(1.0, 1e-6), (9.99, 1e-6), (3e-3, 1e-9), (5000.0, 1e-3), (2e-7, 1e-13)])
def test_ticks_follow_the_length_of_the_launch(total, unit):
    assert tick_of(total) == pytest.approx(unit)


def test_every_kind_of_event_has_its_look(repo):
    """The script and the style name the kinds that the event model names."""
    folder = repo / "overlap/schedule/picture"
    script, style = (folder / "page.js").read_text(), (folder / "page.css").read_text()
    assert set(re.findall(r'event\.kind [!=]== "([\w-]+)"', script)) <= set(KINDS)
    assert {kind for kind in KINDS if f"i.{kind}" in style} == set(KINDS)


# The trace


def test_the_trace_has_every_event_once(gathering):
    timeline = gathering(3, copy=31.7e-6)
    trace = json.loads(chrome_trace(timeline, title="AG"))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [
        (s["pid"], s["cat"], s["name"], round(1e3 * s["ts"]), round(1e3 * (s["ts"] + s["dur"]))) for s in slices
    ] == [(e.rank, e.kind, e.label, round(e.start * 1e9), round(e.end * 1e9)) for e in timeline.events]
    assert [i for i, s in enumerate(slices) if s["args"]["critical"]] == sorted(timeline.critical)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert [names[s["pid"], s["tid"]] for s in slices] == [e.lane for e in timeline.events]
    assert [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"] == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    assert trace["otherData"] == {"title": "AG", "exposed_ms": pytest.approx(timeline.exposed * 1e3, abs=1e-6)}


def test_slices_of_a_thread_do_not_lie_over_each_other(gathering):
    ends: dict[tuple, float] = {}
    for e in json.loads(chrome_trace(gathering(4, copy=31.7777e-6, run=19.3333e-6)))["traceEvents"]:
        if e["ph"] == "X":
            start, end = round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)
            assert ends.get((e["pid"], e["tid"]), 0) <= start <= end
            ends[e["pid"], e["tid"]] = end


def test_arrows_lead_from_a_copy_to_the_tiles_that_wait_for_it(gathering):
    trace = json.loads(chrome_trace(gathering(3)))["traceEvents"]
    slices = [e for e in trace if e["ph"] == "X"]

    def at(arrow: dict) -> list[dict]:
        return [
            s
            for s in slices
            if (s["pid"], s["tid"]) == (arrow["pid"], arrow["tid"]) and s["ts"] <= arrow["ts"] < s["ts"] + s["dur"]
        ]

    arrows = {e["id"]: {} for e in trace if e["ph"] == "s"}
    for e in trace:
        if e["ph"] in "sf":
            arrows[e["id"]][e["ph"]] = e
    assert len(arrows) == 6
    for arrow in arrows.values():
        (copy,), (used,) = at(arrow["s"]), at(arrow["f"])
        assert copy["cat"] == "copy" and used["cat"] == "wait" and arrow["f"]["bp"] == "e"
        assert copy["args"]["operation"] == used["args"]["operation"] and arrow["s"]["ts"] <= arrow["f"]["ts"]


def test_the_trace_tells_flags_and_sources(gathering):
    schedule = RankSchedule(1, 2, (), (), {(1, 0): 7}, ())
    trace = json.loads(chrome_trace(gathering(2), schedules=[schedule]))["traceEvents"]
    copies = [e["args"] for e in trace if e.get("cat") == "copy"]
    assert [args.get("flag") for args in copies] == [None, "7 of rank 1"]
    assert [args["from"] for args in copies] == ["rank 1", "rank 0"]
