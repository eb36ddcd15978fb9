"""``overlap explain --html --trace``: the predicted timeline of a kernel under a plan, drawn and traced."""

from __future__ import annotations

import json
import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.cli import main
from overlap.pipeline import Request, compile_source, planned
from overlap.pipeline.timing import tile_seconds, timeline_of
from overlap.schedule.machine import load_machine

KERNEL = "templates/kernels/grouped_gemm.py"
GATHER = ("--plan", "all_gather_1d", "--on", "a[M]")
SIZES = {"M": 1000, "N": 520, "K": 264}
SHAPE = ("--shape", "M=1000,N=520,K=264")


@pytest.fixture
def cli(repo, monkeypatch, capsys):
    """Runs the program in this process, in the repository; gives exit code, output and errors."""
    monkeypatch.chdir(repo)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def test_both_files_tell_the_same_launch(cli, tmp_path):
    html, trace = tmp_path / "out.html", tmp_path / "out.json"
    words = ("explain", KERNEL, *GATHER, "--world", "3", *SHAPE)
    code, plain, _ = cli(*words)
    assert code == 0 and not list(tmp_path.iterdir())
    code, said, _ = cli(*words, "--html", str(html), "--trace", str(trace), "--machine", "pcie", "--dtype", "bf16")
    assert code == 0 and said.startswith(plain)
    data = data_of(html.read_text())
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    last = max(e["ts"] + e["dur"] for e in slices)
    assert data["total"] * data["unit"] * 1e6 == pytest.approx(last, abs=0.01)
    assert sum(len(flat) // 8 for _, _, flat in data["lanes"]) == len(slices)
    assert said[len(plain) :].splitlines() == [
        f"wrote {html}: {last / 1e3:.4g} ms, {(data['total'] - data['tiles']) * data['unit'] * 1e3:.4g} ms of them exposed",
        f"wrote {trace}: {len(slices)} events",
    ]
    assert "<h1>matmul_kernel: all_gather_1d on a[M], 3 ranks</h1>" in html.read_text()
    assert "M=1000, N=520, K=264, bf16, copy_engine; predicted for pcie with" in html.read_text()
    # Two chunks come to each rank: copies and the tiles that they complete are of one colour, and their flags are told.
    copies = [e for e in slices if e["cat"] == "copy"]
    tiles = {(e["pid"], e["args"]["chunk"]) for e in slices if e["cat"] == "tile-run"}
    assert len(copies) == 6 and {(e["pid"], e["args"]["chunk"]) for e in copies} <= tiles
    assert sorted(e["args"]["flag"] for e in copies) == sorted(
        f"{slot} of rank {r}" for r in range(3) for slot in (0, 1)
    )
    again = tmp_path / "again.html"
    cli(*words, "--html", str(again), "--machine", "pcie", "--dtype", "bf16")
    assert again.read_bytes() == html.read_bytes()


def test_the_time_of_a_tile_may_be_given(cli, tmp_path):
    html = tmp_path / "out.html"
    code, _, _ = cli("explain", KERNEL, *GATHER, "--world", "1", *SHAPE, "--html", str(html), "--tile-us", "1000")
    data = data_of(html.read_text())
    # 16 x 9 tiles on 132 multiprocessors are two waves.
    assert code == 0 and data["tiles"] * data["unit"] == pytest.approx(2e-3)
    assert "predicted for h100-nvlink with 1000 us a tile" in html.read_text()


@pytest.mark.parametrize(("programs", "rate"), [(4, 130e9), (6, 185.5e9), (16, 279e9)])
def test_programs_that_move_chunks_take_as_long_as_programs_do(cli, tmp_path, programs, rate):
    """Not the copy engine's time: a push by TMA at the rate of so many programs, and units that do not compute."""
    trace = tmp_path / "out.json"
    how = ("--backend", "tma_reserved", "--set", f"comm_sms={programs}", "--tile-us", "100")
    code, _, _ = cli("explain", KERNEL, *GATHER, "--world", "2", *SHAPE, *how, "--trace", str(trace))
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    copies = [e["dur"] for e in slices if e["cat"] == "copy"]
    assert code == 0 and copies == pytest.approx([2 + 500 * 264 * 2 / rate * 1e6] * 2, abs=0.01)


@pytest.mark.parametrize(
    ("words", "message", "help_text"),
    [
        (("--html", "OUT", "--machine", "h100"), "h100", "h100-nvlink"),
        (("--trace", "OUT", "--machine", "h100-nvlink", "--world", "9"), "one node of 8 ranks, not 9", "h100-nvlink-ib400"),
        (("--html", "missing/folder/out.html"), "there is no folder 'missing/folder'", ""),
        (("--html", "OUT", "--tile-us", "0"), "--tile-us", ""),
        (("--trace", "OUT", "--dtype", "int3"), "int3", "fp16"),
    ],
)  # fmt: skip
def test_bad_input(cli, tmp_path, words, message, help_text):
    words = tuple(word.replace("OUT", str(tmp_path / "out")) for word in words)
    code, _, said = cli("explain", KERNEL, *GATHER, *SHAPE, *words)
    assert code == 2 and message in said and help_text in said and "Traceback" not in said
    assert not list(tmp_path.iterdir())


def compiled(repo, on: str, plan: str):
    compilation = compile_source(Request(SourceUnit.from_file(str(repo / KERNEL)), plan, on))
    return compilation, planned(compilation, world=2, sizes=SIZES)


def test_a_product_s_tile(repo):
    compilation, made = compiled(repo, "a[M]", "all_gather_1d")
    machine = load_machine("h100-nvlink")
    block_m, block_n = (axis.block for axis in made.axes[0])
    seconds = tile_seconds(compilation.program, made, machine, sizes=SIZES, dtype="fp16")
    tiles = -(-1000 // block_m) * -(-520 // block_n)
    waves = -(-tiles // 132)
    moved = 2 * (1000 * 264 + 264 * 520 + 1000 * 520) / machine.memory
    assert seconds == pytest.approx(max(2 * block_m * block_n * 264 * 132 / machine.rate("fp16"), moved / waves))


def test_tiles_that_wait_inside_their_loop_do_it_part_by_part(repo):
    compilation, made = compiled(repo, "a[K]", "all_gather_1d")
    machine = load_machine("pcie")
    timeline = timeline_of(compilation.program, made, machine, sizes=SIZES, tile=1e-3)
    runs = [e for e in timeline.events if e.kind == "tile-run" and e.rank == 0]
    # 144 tiles on 142 units: two parts of a wave, then two tiles whole.
    assert [(e.op, e.chunk) for e in runs] == [(None, ""), ((0, 0), "a[0:1000, 132:264]"), (None, "")]
    assert runs[2].label == f"the other {144 - machine.units} tiles"
    copied = next(e for e in timeline.events if e.kind == "copy" and e.op == (0, 0))
    assert copied.end <= runs[1].start and runs[1].end <= runs[2].end
    assert timeline.compute == pytest.approx((2e-3, 2e-3))


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("h100-nvlink", ("--plan", "reduce_scatter_1d", "--on", "c[M]", "--backend", "ldst_inline")),
        ("h100-nvlink", (*GATHER, "--backend", "ldst_reserved")),
        ("pcie", (*GATHER, "--backend", "ldst_reserved")),
    ],
)
def test_a_launch_is_drawn_as_what_carries_it_out(cli, tmp_path, machine, words):
    """A machine on which nobody has timed programs is drawn with copies, and says so."""
    totals, html = [], tmp_path / "out.html"
    shape = ("--shape", "M=8192,N=2048,K=2048", "--world", "4", "--machine", machine, "--html", str(html))
    for given in (words, (*words[:-2], "--backend", "copy_engine")):
        code, said, _ = cli("explain", KERNEL, *given, *shape)
        assert code == 0
        totals.append(re.search(r"wrote \S+: ([\d.]+) ms", said)[1])
        told = "timed as copies: machine pcie does not say how fast programs copy" in html.read_text()
        assert told == (machine == "pcie" and given == words)
    # Pushed or pulled, what ranks hold is copied to where the kernel reads it.
    assert (totals[0] == totals[1]) == (machine == "pcie")


@pytest.mark.parametrize(("columns", "in_place"), [(128, True), (96, False)])
def test_what_stays_of_a_result_is_not_copied_where_tiles_store_it(repo, cli, tmp_path, monkeypatch, columns, in_place):
    """Two ranks' columns in tiles of 32: whole tiles, or one that both have a part of."""
    kernel = str(repo / "tests" / "kernels" / "host_descriptors.py")
    blocks = (word for name in ("BM", "BN", "BK") for word in ("--set", f"{name}=32"))
    words = (kernel, "--plan", "all_to_all_1d", "--on", "c[M:N]", *blocks, "--world", "2")
    copied = []
    for asked in ("0", "1"):
        monkeypatch.setenv("OVERLAP_IN_PLACE", asked)
        out = tmp_path / f"{asked}.json"
        code, *_ = cli("explain", *words, "--shape", f"M=65536,N={columns},K=64", "--trace", str(out))
        events = json.loads(out.read_text())["traceEvents"]
        copied.append([event["dur"] for event in events if event.get("name", "").startswith("sum of")])
        assert code == 0 and len(copied[-1]) == 2
    assert (max(copied[1]) < max(copied[0])) == in_place


@pytest.mark.parametrize(("rows", "in_tiles"), [(256, True), (224, False)])
def test_tiles_that_add_are_drawn_behind_what_they_wait_for(repo, cli, tmp_path, rows, in_tiles):
    """Two ranks' rows in two parts, in tiles of 32: whole tiles, or some with rows of two parts, which a sum kernel adds up."""
    kernel = str(repo / "tests" / "kernels" / "host_descriptors.py")
    blocks = [word for name in ("BM", "BN", "BK") for word in ("--set", f"{name}=32")]
    words = (kernel, "--plan", "reduce_scatter_1d", "--on", "c[M]", *blocks, "--set", "split=2", "--world", "2")
    drawn = {}
    for asked in ("0", "1"):
        out = tmp_path / f"{asked}.json"
        code, said, _ = cli(
            "explain", *words, "--set", f"tile_sums={asked}", "--shape", f"M={rows},N=64,K=64", "--trace", str(out)
        )
        names = [event.get("name", "") for event in json.loads(out.read_text())["traceEvents"]]
        drawn[asked] = [sum(part in name for name in names) for part in ("sum of", "that add 1 to each")]
        assert code == 0 and ("flag 0     nothing sent" in said) == (in_tiles and asked == "1")
    assert drawn["0"] == [2, 0] and drawn["1"] == ([0, 4] if in_tiles else [2, 0])
