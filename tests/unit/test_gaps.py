"""A call taken apart: by a profile and records that are made up, so that every term is known, and what tables make of it."""

from __future__ import annotations

import json

import pytest

from overlap.schedule.model import AxisTiles, RankSchedule, Run
from overlap.schedule.recorded import RankRecord, TileTimes
from tests.support.forked import run_ranks

NCCL, FILL = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
    "void at::native::FillFunctor<signed char>",
)


def event(cat, name, begin, end, stream=7, **more):
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "args": {"stream": stream, **more}}


def call_at(t, *, late=0.0):
    """Of a call whose ranks have met at ``t``: 3 us to its entry, 9 more to its product of 100 us and 4 of a second launch,
    then 6 of nothing, 8 of a sum that begins ``late``, and 7 of a copy, the first two of them beside the sum."""
    copied = t + 130 + late
    return [
        event("kernel", FILL, t - 60, t - 20),
        event("kernel", NCCL, t - 20, t),
        event("kernel", "entry_kernel", t + 3, t + 11),
        event("kernel", "gemm", t + 12, t + 112),
        event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", t + 12, t + 60, 20, bytes=1 << 20),
        event("kernel", "sum_kernel", t + 70, t + 75, 21),
        event("kernel", "gemm_tail", t + 112, t + 116),
        event("kernel", "sum_kernel", t + 122 + late, t + 132 + late),
        event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", copied, t + 137 + late, 20, bytes=8),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": t, "dur": 900, "args": {}},
    ]


def trace_of(*calls):
    return {"traceEvents": [event("kernel", "spin_kernel(long)", 0, 1000), *(each for call in calls for each in call)]}


def test_a_profile_is_cut_into_calls(bench):
    apart = bench("apart")
    trace = trace_of(call_at(2000.0), call_at(3000.0), [event("kernel", "later", 3500, 3600)])
    trace["traceEvents"].append(event("kernel", "spin_kernel(long)", 3400, 3450))
    first, second = apart.calls_of(apart.activities_of(trace))
    assert (first.met, second.met, second.end) == (2000, 3000, 3137)
    assert len(first.activities) == 7, "a meeting, sleep and the flush are of no call, and what follows them is of none"
    assert first.kernels == {"entry_kernel", "gemm", "sum_kernel", "gemm_tail"}


def test_a_call_around_its_product(bench):
    apart = bench("apart")
    (call,) = apart.calls_of(apart.activities_of(trace_of(call_at(2000.0))))
    frame = apart.frame_of(call, {"gemm", "gemm_tail"})
    assert frame == apart.Frame(launch=3, opening=9, product=104, sums=8, copies=7, idle=6)
    assert frame.total == call.end - call.met
    with pytest.raises(ValueError, match="none of matmul ran in the call"):
        apart.frame_of(call, {"matmul"})
    (bare,) = apart.calls_of([each for each in call_activities(apart) if each.name in (NCCL, "gemm")])
    assert apart.frame_of(bare, {"gemm"}) == apart.Frame(12, 0, 100, 0, 0, 0)


def test_how_copies_run(bench):
    """Two chunks, 5 us apart, one beside the second, and a flag."""
    apart = bench("apart")
    copies = [event("gpu_memcpy", "Memcpy PtoP", *times, bytes=size) for *times, size in COPIES]
    (call,) = apart.calls_of(apart.activities_of(trace_of([*call_at(2000.0)[:4], *copies])))
    assert apart.copying_of(call) == {"from": 20, "until": 95, "busy": 70, "gb_s": 360, "beside": 14}
    (bare,) = apart.calls_of(apart.activities_of(trace_of(call_at(2000.0)[:4])))
    assert apart.copying_of(bare) == {}


COPIES = ((2020.0, 2055.0, 10_500_000), (2060.0, 2095.0, 10_500_000), (2074.0, 2088.0, 4_200_000), (2093.0, 2099.0, 8))


def call_activities(apart):
    return apart.activities_of(trace_of(call_at(2000.0)))


def test_what_intervals_cover(bench):
    covered = bench("apart").covered
    assert covered([(0, 4), (2, 6), (8, 9), (20, 30)], 1, 10) == 6
    assert covered([], 0, 9) == covered([(0, 5)], 5, 9) == 0


def recorded(programs):
    """A record of tiles ``(begins, waits, ready, ends)`` in us, by program."""
    tiles = [
        TileTimes(position, program, program, *(1e-6 * moment for moment in times))
        for position, (program, times) in enumerate((p, times) for p, each in enumerate(programs) for times in each)
    ]
    axes = (AxisTiles("M", len(tiles), 1),)
    schedule = RankSchedule(0, 1, axes, (Run(0, (0,), (len(tiles),)),), {}, ())
    found = RankRecord(0, schedule, None, ("",) * len(tiles), tuple(tiles), 0.0)
    return RankRecord(0, schedule, None, found.names, found.tiles, found.tiles_end)


def test_terms_add_up_to_the_time(bench):
    """Two programs: tiles of 40 us take 44 in the call, one waits for 8, and one ends 20 before the other."""
    apart = bench("apart")
    disturbed = recorded([[(0, 0, 0, 44), (44, 44, 52, 96)], [(0, 0, 0, 44), (44, 45, 46, 76)]])
    still = recorded([[(0, 0, 0, 40), (40, 40, 40, 80)], [(0, 0, 0, 40), (40, 40, 40, 64)]])
    tiles, alone = apart.tiles_of(disturbed), apart.tiles_of(still)
    assert (tiles.programs, tiles.span) == (2, pytest.approx(96))
    assert (tiles.busy, tiles.waiting, tiles.uneven) == (pytest.approx(82), pytest.approx(4), pytest.approx(10))
    assert (alone.busy, alone.waiting, alone.uneven) == (pytest.approx(72), 0, pytest.approx(8))
    frames = [apart.Frame(3, 9, 104, 5, 10, idle) for idle in (6, 100, 5)]
    terms = apart.terms_of(140.0, frames, [tiles] * 3, [alone])
    expected = [3, 9, 72, 10, 4, 18, 5, 10, 6, 3]
    assert list(terms) == list(apart.TERMS) and list(terms.values()) == pytest.approx(expected)
    assert sum(terms.values()) == pytest.approx(140)


def alone_at(t):
    """Of a launch by itself: a kernel of 90 us and the second launch behind it, 95 in all."""
    kernels = event("kernel", "gemm", t + 4, t + 94), event("kernel", "gemm_tail", t + 95, t + 99)
    return [[event("kernel", NCCL, t - 9, t), *kernels]]


def test_a_profile_of_three_kinds_of_calls(bench):
    """Ours, its launch alone, by which its product is known, and the operator's kernel; of ours the one in the middle is kept."""
    gaps = bench("gaps")
    alone = [*alone_at(5000.0), *alone_at(6000.0), *alone_at(7000.0)]
    plain = [[event("kernel", NCCL, t - 9, t), event("kernel", "plain", t + 2, t + 88)] for t in (8000, 9000, 9500)]
    ours = [call_at(2000.0, late=7), call_at(3000.0), call_at(4000.0, late=2)]
    frames, launch, product, middle = gaps.by_profile(trace_of(*ours, *alone, *plain), 3)
    assert [frame.total for frame in frames] == [144, 137, 139] and {frame.product for frame in frames} == {104}
    assert [each.product for each in launch] == [95] * 3 and [each.product for each in product] == [86] * 3
    assert middle.met == 4000
    assert bench("apart").timeline_of(middle)[2] == ["kernel", "gemm", 7, 12.0, 100.0, 0]
    with pytest.raises(ValueError, match="the profile has 8 calls and not 9"):
        gaps.by_profile(trace_of(*ours, *alone, *plain[1:]), 3)


COPYING = {"from": 15.0, "until": 415.0, "busy": 300.0, "gb_s": 333.4}


def told(us, tiles):
    names = ("launch", "opening", "tiles", "slowed", "waiting", "uneven", "copies", "sums", "idle", "rest")
    terms = dict(zip(names, (3.0, 17.0, tiles, 20.0, 30.0, 9.0, 7.0, 8.0, 6.0, 1.0), strict=True))
    beside = {"alone": 330.0, "product": 320.0, "profiled": 2.5, "recorded": 1.25, "again": 0.5, "uneven_alone": 7.0}
    clocks = {
        "ours_graph": {"mhz": 1800, "of": 5, "sm_mhz": 1700.0, "us": us + 19},
        "triton_gemm": {"mhz": 1850, "of": 5, "sm_mhz": 1500.0, "us": 365.0},
        "gemm": {"sm_mhz": 1500.0, "us": 360.0},
    }
    times = {"gemm": 312.0, "triton_gemm": 317.0, "ours": us, "ours_graph": us}
    return {
        "us": times, "terms": terms, "beside": beside, "programs": 128, "copying": COPYING, "clocks": clocks,
        "ran": "two shots, 6 chunks", "timeline": [],
    }  # fmt: skip


@pytest.fixture
def made(bench):
    """A row of four ranks, of which the second is the slowest."""
    gaps, suite = bench("gaps"), bench("suite")

    class Four:
        world, name = 4, "NVIDIA H200"

    row = suite.Row("gemm_ar", 8192, 4096, 14336)
    return gaps.row_of(row, {}, Four(), "bf16", [told(us, us - 101) for us in (400.0, 401.0, 399.0, 400.0)])


def test_a_row_is_of_the_slowest_rank_and_knows_its_limit(made):
    assert made["rank"] == 1 and made["terms"]["tiles"] == 300 and len(made["all_ranks"]) == 4
    assert made["limit"] == 0.312 and made["ms"]["ours_graph"] == 0.401
    assert sum(made["terms"].values()) == pytest.approx(401)


def test_a_row_from_its_steps(bench, monkeypatch, capsys):
    """What each step gives ends in the row; a step that a rank cannot do says which."""
    gaps, apart = bench("gaps"), bench("apart")
    still, tiles = apart.Tiles(128, 72.0, 0.0, 8.0), apart.Tiles(128, 82.0, 4.0, 10.0)
    profile = (*gaps.by_profile(trace_of(call_at(2000.0), *alone_at(5000.0), *alone_at(6000.0)), 1), [0.142])

    class Steps:
        ran = "two shots, 6 chunks"

        def __init__(self, *_):
            self.clocks = lambda gpu, us: {name: {"mhz": 10 * us[name]} for name in gaps.CLOCKED}

        def queued(self, names, rounds):
            return {name: {"gemm": 100.0, "triton_gemm": 104.0}.get(name, 140.0) + (rounds == 2) for name in names}

        def profile(self):
            return profile[:4], profile[4]

        def record(self):
            return [tiles] * 3, [still] * 3, [0.141, 0.143, 0.142]

    class One:
        world, name, rank = 1, "NVIDIA H200", 0

        def synchronize(self):
            """All is done."""

        def everywhere(self, ok):
            return ok

        def reason(self, why):
            return why

        def say(self, text):
            print(text)

    monkeypatch.setattr(gaps, "Measured", Steps)
    options, watchdog = gaps.arguments([]), bench("common").Watchdog(lambda step, why: None)
    row = options.rows[0]
    mine = gaps.measured(One(), watchdog, None, row, {}, options)
    assert sum(mine["terms"].values()) == pytest.approx(140) and mine["terms"]["slowed"] == 10
    assert (mine["beside"]["profiled"], mine["beside"]["recorded"], mine["beside"]["again"]) == (2, 2, 1)
    gaps.say(One(), gaps.row_of(row, {}, One(), "bf16", [mine]))
    said = capsys.readouterr().out
    assert "0.1400 ms, eager 0.1400, limit 0.1000, eta 0.714, rank 0, 128 programs, two shots, 6 chunks" in said
    assert "us: launch 3.0, opening 9.0, tiles 72.0," in said and "clocks of triton_gemm: {'mhz': 1040.0}" in said
    assert "copies: from 12.0, until 60.0, busy 48.0, gb_s 21.8, beside 0.0" in said
    monkeypatch.setattr(Steps, "record", lambda self: 1 / 0)
    with pytest.raises(bench("common").Unavailable, match="records: ZeroDivisionError"):
        gaps.measured(One(), watchdog, None, row, {}, options)


def test_a_clock_between_two_stamps(bench):
    """1,800 cycles a us; other multiprocessors count otherwise."""
    clock = bench("sm_clock")
    assert clock.megahertz([1000, 70_000, 3, 0, 101_000, 250_000, 3, 0]) == 1800
    assert clock.megahertz([1000, 70_000, 3, 0, 101_000, 250_000, 4, 0]) is None


def test_a_table_of_gaps(bench, made, tmp_path):
    record, table = bench("record"), bench("table")
    failed = {key: made[key] for key in ("op", "M", "N", "K", "world", "dtype", "device", "how")}
    short = {**made, "how": "split=8", "clocks": [{"ours_graph": {"us": 50.0}, "gemm": {"us": 40.0}}] * 4}
    rows = [made, {**made, "how": "split=4", "clocks": [{}] * 4}, short]
    rows.append({**failed, "M": 1, "failed": "serial: it is small"})
    path, document = tmp_path / "gaps_h200x2.json", tmp_path / "performance.md"
    record.write_rows(path, rows, [], "c0ffee", "python bench/gaps.py", 2)
    document.write_text("before\n<!-- gaps -->\n<!-- /gaps -->\n")
    table.main(["--gaps", str(path), "--into", str(document)])
    lines = document.read_text().splitlines()
    assert lines[1:3] == ["<!-- gaps -->", "4 x NVIDIA H200, bf16, us, host ahead:"]
    assert lines[4] == (
        "| | M, N, K | ours | limit | eta | asked | launch | opening | tiles | slowed | waiting | uneven | copies | sums | idle "
        "| rest |"
    )
    assert lines[6] == (
        "| gemm_ar | 8192, 4096, 14336 | 401 | 312 | 0.78 | 0.75 | 3 | 17 | 300 | 20 | **30** | 9 | 7 | 8 | 6 | 1 |"
    )
    assert lines[7].startswith("| gemm_ar split=4 | 8192, 4096, 14336 |")
    assert lines[10] == "| | M, N, K | copies run | launch alone | kernel alone | MHz | sustained |"
    assert lines[12] == (
        "| gemm_ar | 8192, 4096, 14336 | 15 to 415, 75 %, 333 GB/s | 330 | 320 | 1800 / 1850 | 420, 1700 MHz, eta 0.86 |"
    )
    assert lines[13].endswith("| 330 | 320 | - | - |")
    assert lines[14].startswith("| gemm_ar split=8 |") and " | - | 50, eta " in lines[14], (
        "nobody asked for the clock in time"
    )
    assert "Left out: gemm_ar 1, 4096, 14336: serial: it is small." in lines
    assert "Calls took 2.5 to 2.5 us more under the profiler, 1.2 to 1.2 where tiles record." in lines
    assert lines[-1] == "<!-- /gaps -->" and "commit c0ffee" in lines[-2]


def test_gaps_rehearsed_on_two_cpu_ranks(repo, tmp_path):
    """Every row has its reason, and the file is there."""
    out = tmp_path / "gaps.json"
    words = ("--device", "cpu", "--dtype", "fp32", "--commit", "abc", "--out", str(out))
    rows = ("--rows", "ag_gemm:64,32,16", "gemm_rs:8,4,7", "--way", "split=2,OVERLAP_SUM_SMS=0")
    ranks = run_ranks(2, repo / "bench" / "gaps.py", *words, *rows, cwd=repo, timeout=120)
    assert [done.returncode for done in ranks] == [0, 0], [done.stdout + done.stderr for done in ranks]
    found = json.loads(out.read_text())
    assert [row["how"] for row in found["rows"]] == ["split=2,OVERLAP_SUM_SMS=0"] * 2
    assert "serial: no peer copies for tensors on cpu" in found["rows"][0]["failed"]
    assert found["rows"][1]["failed"] == "K must be a multiple of 2 here"


def test_rows_that_are_none_are_refused(bench, capsys):
    for words in (["--rows", "ag_gemm"], ["--rows", "gemm:1,2,3"], ["--rows", "ag_gemm:1,2"], ["--device", "cpu"]):
        with pytest.raises(SystemExit):
            bench("gaps").main(words)
    said = capsys.readouterr().err
    assert "'gemm:1,2,3' is not OP:M,N,K with an operator of" in said and "--device cpu needs --out" in said


class Gpu:
    """One whose clock falls."""

    def __init__(self, nvml):
        self.nvml, self.mhz = nvml, 1980

    def sample(self):
        self.mhz -= 1
        return self.nvml.Sample(self.mhz, 700.0, True)


def test_clocks_are_sampled_while_something_runs(bench):
    import time

    nvml = bench("nvml")
    gpu = Gpu(nvml)
    with nvml.sampling(gpu, 0.0) as samples:
        while gpu.mhz > 1975:
            time.sleep(0.001)
    said = nvml.said_of(samples)
    assert said["least_mhz"] == gpu.mhz and said["capped"] == 1.0 and said["watts"] == 700.0
    assert said["samples"] == 1980 - gpu.mhz and nvml.said_of([]) == {}
    with pytest.raises(OSError):
        nvml.Nvml("0000")


@pytest.mark.parametrize("peers", [1, 3, 7])
def test_lanes_share_the_copies(bench, peers):
    """Each case has every copy once, and lanes that are held stand ahead of the one that is not."""
    queues = bench("copy_queues")
    for name, case in queues.cases(peers).items():
        lanes = case.copies()
        assert sorted(number for lane in lanes for number in lane) == list(range(queues.COPIES)), name
        assert len(lanes) == (case.held + 1 if case.held else case.lanes)
        assert not case.held or lanes[-1] == list(range(queues.COPIES // 2))
        assert len(lanes) <= queues.most_lanes(peers) <= max(4, peers)
    assert ("a lane a peer, 3" in queues.cases(peers)) == (peers == 3)


def test_a_file_of_one_process_on_several_gpus_says_how_it_is_made(bench, tmp_path, monkeypatch):
    record, path = bench("record"), tmp_path / "copies.json"
    monkeypatch.setattr(record, "hardware", lambda world: {"gpus": world})
    monkeypatch.setattr(record.sys, "argv", [str(record.ROOT / "bench" / "copy_queues.py"), "--bytes", "4096"])
    for more, ranks in (({"processes": 1}, 1), ({}, 4)):
        record.write_asked(path, [], [], "c0ffee", 4, **more)
        found = json.loads(path.read_text())
        assert found["command"].endswith(f"--nproc-per-node {ranks} bench/copy_queues.py --bytes 4096")
        assert found["hardware"] == {"gpus": 4}
