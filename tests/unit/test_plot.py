"""Pictures of results: where marks stand, that both schemes can be read, and that those in docs are what the files give."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.support.results import result, rows_of

SVG = "{http://www.w3.org/2000/svg}"
WIDE_LETTER = 7.4
"""Pixels: no letter of a digit, and few of a word, take more at 12 pixels."""


def elements(text: str, tag: str, style: str | None = None) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(text).iter(SVG + tag)
    return [element for element in found if style is None or element.get("class") == style]


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "nan"))


def words(text: str) -> list[str]:
    return [element.text or "" for element in elements(text, "text")]


@pytest.fixture
def results(tmp_path):
    """A gain with a limit, a loss, a limit far away, and what has no time of ours; ways of two operators."""
    gain = rows_of("ag_gemm", 8192, 6144, 4096, {"gemm": 0.3, "serial_graph": 0.6, "ours_graph": 0.5})
    loss = rows_of("ag_gemm", 64, 6144, 4096, {"gemm": 0.01, "serial": 0.1, "ours_graph": 0.125})
    none = rows_of("gemm_rs", 64, 4096, 14336, {"gemm": 0.01, "serial": 0.1, "ours": "no memory"})
    return [
        (tmp_path / "ag_gemm_h100x4.json", result([*gain, *loss])),
        (tmp_path / "gemm_rs_h100x4.json", result(none)),
    ]


@pytest.fixture
def ways(tmp_path):
    def rows(op, k, times):
        found = []
        for how, ms in times.items():
            (row,) = rows_of(op, 8192, 4096, k, {"ours_graph": ms})
            found.append({**row, "how": how})
        return found

    beside = rows_of("gemm_rs", 8192, 4096, 4096, {"serial_graph": 2.0, "gemm": 0.5})
    chunks = rows("gemm_rs", 4096, {"split=1": 1.25, "split=2": 1.0, "split=8": 3.0, "backend=ldst_inline": 1.1})
    programs = rows("ag_gemm", 8192, {"comm_sms=8,backend=tma_reserved": 1.0, "comm_sms=16,backend=tma_reserved": 0.8})
    alone = rows("gemm_ar", 4096, {"plan=all_reduce_one_shot,split=1": 1.0, "plan=all_reduce_two_shot,split=2": 1.0})
    return [(tmp_path / "gemm_rs_h100x4.json", result([*beside, *chunks, *programs, *alone]))]


def test_bars_are_as_long_as_they_say(bench, results):
    plot = bench("plot_scores")
    text = str(plot.speedup(results))
    unit = (plot.WIDTH - plot.LEFT - plot.RIGHT) / plot.MOST
    (gain,) = [bar for bar in elements(text, "rect", "gain") if number(bar, "x") == plot.LEFT]
    (loss,) = [bar for bar in elements(text, "rect", "loss") if number(bar, "x") == plot.LEFT]
    assert number(gain, "width") == pytest.approx(1.2 * unit, abs=0.1)
    assert number(loss, "width") == pytest.approx(0.8 * unit, abs=0.1)
    assert gain.find(SVG + "title").text == "0.600 ms serial_graph, 0.500 ms ours"
    limits = [line for line in elements(text, "line", "ink-line") if number(line, "x1") > plot.LEFT]
    assert [number(line, "x1") for line in limits] == [pytest.approx(plot.LEFT + 2 * unit, abs=0.1)]
    assert number(gain, "y") > number(limits[0], "y1") and number(gain, "y") < number(limits[0], "y2")
    said = words(text)
    assert said.count("\N{RIGHTWARDS ARROW}") == 1, "the other limit is a speedup of 10"
    assert {"1.20", "0.80", "ag_gemm, 4 x H100", "8192, 6144, 4096"} <= set(said)
    assert not any("gemm_rs" in word for word in said), "without a time of ours there is no bar"


def test_marks_stand_at_their_eta_and_intensity(bench, results):
    plot = bench("plot_scores")
    text = str(plot.eta(results))
    legend, tall, few = elements(text, "circle")
    assert (tall.get("class"), few.get("class")) == ("s0", "s0-line"), "few rows are hollow"
    grid = {
        float(mark.text): number(mark, "y") - 4 for mark in elements(text, "text") if re.fullmatch(r"\d\.\d", mark.text)
    }
    assert number(tall, "cy") == pytest.approx(grid[0.6], abs=0.2)
    assert number(few, "cy") == pytest.approx(grid[0.0] + (grid[0.2] - grid[0.0]) * 0.08 / 0.2, abs=0.2)
    assert number(tall, "cx") == number(few, "cx"), "rows do not change what a byte is worth"
    places = {mark.text: number(mark, "x") for mark in elements(text, "text") if re.fullmatch(r"[\d,]{4,}", mark.text)}
    assert number(tall, "cx") == pytest.approx(places["2,048"], abs=0.2), "6144 / 3: the lowest power of two there"
    asked = [line for line in elements(text, "line", "ink-line")]
    assert [number(line, "y1") for line in asked] == [pytest.approx(grid[0.0] + (grid[0.2] - grid[0.0]) * 3.4, abs=0.2)]


def test_ways_over_the_fastest(bench, ways):
    plot = bench("plot_ways")
    text = str(plot.ways(ways))
    said = words(text)
    assert {"gemm_rs, 4 x H100, bf16", "serial", "split=8", "backend=ldst_inline", "8192, 4096, 4096"} <= set(said)
    tips = {element.text for element in elements(text, "title")}
    assert {"split=1: 1.250 ms", "serial: 2.000 ms", "comm_sms=16,backend=tma_reserved: 0.800 ms"} <= tips
    unit = (plot.WIDTH - plot.LEFT - plot.RIGHT) / (plot.SLOWEST - 1)
    squares = {mark.find(SVG + "title").text: mark for mark in elements(text, "polygon") if len(mark)}
    xs = [float(place.split(",")[0]) for place in squares["split=1: 1.250 ms"].get("points").split()]
    assert (min(xs) + max(xs)) / 2 == pytest.approx(plot.LEFT + 0.25 * unit, abs=0.2)


def test_sweeps_are_what_was_varied(bench, ways):
    plot = bench("plot_ways")
    groups = plot.measured_ways(ways)
    assert plot.sweep_of(groups, "split") == {
        "gemm_rs, 4 x H100, bf16": {"8192, 4096, 4096": {1: 1.25, 2: 1.0, 8: 3.0}}
    }, "two plans with one number each are no sweep"
    assert plot.sweep_of(groups, "comm_sms") == {
        "ag_gemm, 4 x H100, bf16, tma_reserved": {"8192, 4096, 8192": {8: 1.0, 16: 0.8}}
    }
    text = str(plot.sweeps(ways))
    chunks, programs = elements(text, "polyline")
    heights = [float(place.split(",")[1]) for place in chunks.get("points").split()]
    ticks = {mark.text: number(mark, "y") - 4 for mark in elements(text, "text") if re.fullmatch(r"1\.\d", mark.text)}
    rise = (ticks["1.6"] - ticks["1.0"]) / 0.6
    assert heights == pytest.approx([ticks["1.0"] + 0.25 * rise, ticks["1.0"], ticks["1.6"]], abs=0.2), (
        "1.25, 1 and, drawn at the edge, 3"
    )
    assert {"chunks of a piece", "programs that communicate"} <= set(words(text))


def test_ways_that_were_timed_with_the_host_ahead_are_shown_so(bench, tmp_path):
    times = {"copy_engine": (0.5, 0.4), "tma_inline": (0.45, 0.44)}
    made = []
    for how, (ms, queued) in times.items():
        (row,) = rows_of("ag_gemm", 8192, 4096, 4096, {"ours_graph": ms})
        made.append({**row, "how": f"backend={how}", "queued": queued})
    path = tmp_path / "ag_gemm_h100x4.json"
    bench("record").write(path, result(made))
    told = bench("table").read(path)
    assert bench("plot_ways").measured_ways([(path, told)]) == {
        "ag_gemm, 4 x H100, bf16": {"8192, 4096, 4096": {"backend=copy_engine": 0.4, "backend=tma_inline": 0.44}}
    }
    assert bench("table").ways_table_of(told["rows"])[2].startswith("| 8192, 4096, 4096 | **0.400** | 0.440 |")


def test_files_are_not_compared_with_each_other(bench, ways):
    """The second of the same operator and machine has a heading of its own."""
    (path, told), plot = ways[0], bench("plot_ways")
    again = (path.with_name("later.json"), told)
    groups = plot.measured_ways([ways[0], again])
    later = f", {path.parent.name}/later"
    assert {heading + later for heading in groups if not heading.endswith(later)} == {
        h for h in groups if h.endswith(later)
    }


def test_what_was_not_measured_has_no_picture(bench, results):
    plot = bench("plot")
    assert plot.drawn(results[1:], []) == {}
    assert set(plot.drawn(results, [])) == {"speedup.svg", "eta.svg"}
    assert plot.drawn([], [], [(results[0][0], {"machine": "of which nobody measured programs"})]) == {}


@pytest.fixture
def machines(tmp_path):
    rates = {"pull": {4: 150, 16: 300}, "push_tma": {4: 100, 16: 450, 132: 900}}
    return [(tmp_path / "here.yaml", {"machine": "here", "inside": {"gb_per_s": 375}, "programs": rates})]


def test_bandwidth_by_programs(bench, machines):
    text = str(bench("plot_ways").programs(machines))
    pull, push = ([float(p.split(",")[1]) for p in line.get("points").split()] for line in elements(text, "polyline"))
    ticks = {mark.text: number(mark, "y") - 4 for mark in elements(text, "text") if mark.text in ("0", "300", "400")}
    assert pull[1] == pytest.approx(ticks["300"], abs=0.1)
    assert push[1] == push[2] < ticks["400"], "beyond the edge"
    (engine,) = {number(line, "y1") for line in elements(text, "line", "ink-line")}
    assert engine == pytest.approx((3 * ticks["400"] + ticks["300"]) / 4, abs=0.1)
    assert {"here", "pull", "push, TMA", "4", "16", "132"} <= set(words(text))


def test_a_picture_needs_nothing_else_and_stays_within_its_edges(bench, results, ways, machines):
    for name, text in bench("plot").drawn(results, ways, machines).items():
        root = ElementTree.fromstring(text)
        width, height = number(root, "width"), number(root, "height")
        assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
        assert not re.search(r"href|url\(|<script|<image|@import", text), name
        assert "Made by `python bench/plot.py` from " in root.find(SVG + "desc").text
        for element in elements(text, "text"):
            said = len(element.text) * WIDE_LETTER
            before = {"start": 0, "middle": said / 2, "end": said}[element.get("text-anchor", "start")]
            assert 0 <= number(element, "x") - before and number(element, "x") - before + said <= width, element.text
            assert 0 < number(element, "y") <= height
        for element in (*elements(text, "rect"), *elements(text, "line")):
            sides = [float(element.get(side, 0)) for side in ("x", "x1", "x2", "y", "y1", "y2")]
            assert all(0 <= side <= width for side in sides[:3]) and all(0 <= side <= height for side in sides[3:])


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 has it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_it_reads_on_light_and_on_dark_pages(bench, results, ways, machines):
    """4.5 for words, 3 for marks, of the card and, for words in bars, of the bar."""
    for text in bench("plot").drawn(results, ways, machines).values():
        (style,) = elements(text, "style")
        light, dark = style.text.split("@media (prefers-color-scheme:dark)")
        for scheme in (light, dark):
            inks = dict(re.findall(r"\.([a-z0-9]+)\{fill:(#[0-9a-f]{6})\}", scheme))
            used = {
                word for element in ElementTree.fromstring(text).iter() for word in element.get("class", "").split()
            }
            assert {word.removesuffix("-line") for word in used} - {"small", "head", "b"} <= set(inks)
            for ink, colour in inks.items():
                least = 4.5 if ink in ("ink", "faint", "gain", "loss") else 0 if ink in ("card", "grid") else 3
                assert contrast(colour, inks["card"]) >= least, (ink, colour)
            assert len(set(inks.values())) >= len(inks) - 2, "the first two series are gain and loss"


def files_in(bench, repo, text):
    """The result files that a picture says it was made from."""
    reads = {".json": bench("table").read, ".yaml": bench("plot").read_machine}
    names = re.search(r"from (bench/results/[^<]*)\.</desc>", text).group(1).split(", ")
    return [(repo / name, reads[(repo / name).suffix](repo / name)) for name in names]


@pytest.mark.parametrize("name", ["speedup", "eta", "ways", "sweeps", "programs"])
def test_pictures_in_docs_are_what_their_files_give(bench, repo, name):
    there = (repo / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    draw, _ = bench("plot").FIGURES[name]
    assert str(draw(files_in(bench, repo, there))) == there, "run python bench/plot.py"
    assert f"figures/{name}.svg" in (repo / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_command_draws_them_all(bench, repo, tmp_path, capsys):
    bench("plot").main(["--out", str(tmp_path)])
    assert {path.stem for path in tmp_path.iterdir()} == set(bench("plot").FIGURES)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    bench("plot").main(["--out", str(tmp_path)])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert capsys.readouterr().out.count("\n") == 10


@pytest.mark.parametrize(("page", "words"), [("README.md", ["--lead"]), ("docs/results.md", [])])
def test_tables_in_docs_are_what_the_files_give(bench, repo, tmp_path, page, words):
    copy = tmp_path / "page.md"
    copy.write_text((repo / page).read_text(encoding="utf-8"), encoding="utf-8")
    bench("table").main([*words, "--into", str(copy)])
    assert copy.read_text(encoding="utf-8") == (repo / page).read_text(encoding="utf-8"), (
        f"run python bench/table.py {' '.join([*words, '--into', page])}"
    )
