"""The suite on a CPU: its rows, what their times are worth, queues, what is left out, and a file that goes on."""

from __future__ import annotations

import json
import math

import pytest

from tests.support.forked import run_ranks
from tests.support.results import result, rows_of


def test_rows_are_those_of_the_targets_and_of_a_decode_step(bench):
    suite, driver = bench("suite"), bench("driver")
    tall = [row for row in suite.ROWS if row.tall]
    decode = [row for row in suite.ROWS if not row.tall]
    counts = {op: sum(row.op == op for row in tall) for op in suite.OPERATORS}
    assert counts == {"ag_gemm": 6, "gemm_rs": 4, "gemm_ar": 2, "a2a_gemm": 2, "gemm_a2a": 2}
    assert list(suite.ROWS) == [*tall, *decode], "a run that is cut has the tall ones"
    assert all(0 < row.target < 1 for row in tall) and all(row.target is None for row in decode)
    for op, sizes in (
        ("ag_gemm", {(14336, 4096), (28672, 8192)}),
        ("gemm_rs", {(4096, 14336), (8192, 28672)}),
        ("gemm_ar", {(4096, 14336), (8192, 28672)}),
    ):
        some = [row for row in decode if row.op == op]
        assert {(row.N, row.K) for row in some} == sizes and {row.M for row in some} == {1, 8, 16, 64, 128, 512}
        assert len(some) == 12
    assert len(set(suite.ROWS)) == len(suite.ROWS) == 52
    for row in suite.ROWS:
        assert not driver.indivisible(bench(row.op), row[1:], 4), "one token is a row of four ranks too"


def test_a_part_of_the_rows(bench):
    suite = bench("suite")

    def names(operators, only):
        return [str(row) for row in suite.chosen(suite.ROWS, operators, only)]

    assert len(names(list(suite.OPERATORS), [])) == 52
    assert names(["gemm_ar", "a2a_gemm"], ["tall"]) == [
        "gemm_ar 8192,4096,14336",
        "gemm_ar 8192,8192,28672",
        "a2a_gemm 32768,8192,8192",
        "a2a_gemm 65536,4096,4096",
    ]
    assert names(["gemm_rs"], ["1,4096,14336", "8192,8192,8192"]) == ["gemm_rs 8192,8192,8192", "gemm_rs 1,4096,14336"]
    assert len(names(["gemm_rs"], ["decode"])) == 12
    with pytest.raises(ValueError, match="'7,7,7' is tall, decode or a shape M,N,K of the suite's gemm_rs"):
        names(["gemm_rs"], ["decode", "7,7,7"])


def test_a_score_by_hand(bench):
    """8192 x 4096 bf16, three quarters of it from others: 50.3 MB, 0.1335 ms at 377 GB/s."""
    scores = bench("scores")
    times = {"gemm": 0.4, "triton_gemm": 0.3, "nccl": 0.1, "serial": 0.7, "serial_graph": 0.6, "asynctp": 0.9}
    found = scores.score(rows_of("ag_gemm", 8192, 14336, 4096, {**times, "ours": 0.65, "ours_graph": 0.5}))
    assert (found.kind, found.limit, found.baseline_name, found.baseline) == ("ms", 0.3, "serial_graph", 0.6)
    assert (found.graph, found.eager, found.ours) == (0.5, 0.65, 0.5)
    assert found.eta == pytest.approx(0.6) and found.speedup == pytest.approx(1.2)
    assert found.intensity == pytest.approx((2 * 8192 * 14336 * 4096 / 4) / (8192 * 4096 * 2 * 0.75))
    short = scores.score(rows_of("ag_gemm", 8192, 14336, 4096, {"gemm": 0.1, "serial": 0.7, "ours": 0.65}))
    assert short.limit == pytest.approx(8192 * 4096 * 2 * 0.75 / 377e6), "the transfer is longer"
    assert short.ours == 0.65 and short.worse_p99 is None


def test_a_score_of_times_with_the_host_ahead(bench):
    """Single calls are not mixed in, but of whom never had the host ahead."""
    scores = bench("scores")
    times = {"gemm": (0.4, 0.3), "serial_graph": (0.6, 0.55), "asynctp": (0.52, None), "ours": (0.9, 0.51)}
    rows = rows_of("ag_gemm", 8192, 14336, 4096, {**times, "ours_graph": (0.6, 0.5), "low_contention": "rank 1: no"})
    found = scores.score(rows)
    assert (found.kind, found.limit, found.graph, found.eager) == ("queued", 0.3, 0.5, 0.51)
    assert (found.baseline_name, found.baseline) == ("asynctp", 0.52)
    assert found.failed == {"low_contention": "rank 1: no"}
    assert found.worse_p99 is None, "of calls that were never queued there is none"
    faster = scores.score(rows_of("ag_gemm", 64, 64, 64, {"serial": (1.0, 0.5), "ours_graph": (1.0, 0.25)}))
    assert faster.worse_p99 == pytest.approx(0.5) and faster.eta is None
    eager = {"serial": (1.0, 0.5), "ours": (1.0, 0.4), "ours_graph": "no memory"}
    assert scores.score(rows_of("ag_gemm", 64, 64, 64, eager)).worse_p99 == pytest.approx(0.8)


def test_what_is_missing_has_no_score(bench):
    scores = bench("scores")
    lost = scores.score(rows_of("gemm_rs", 64, 64, 64, {"gemm": "no memory", "serial": 0.1, "ours": "no memory"}))
    assert (lost.limit, lost.ours, lost.eta, lost.speedup) == (None, None, None, None)
    assert set(lost.failed) == {"gemm", "ours"}
    alone = {**rows_of("ag_gemm", 64, 64, 64, {"gemm": 0.1})[0], "world": 1}
    assert scores.score([alone]).intensity == math.inf


def test_geometric_mean(bench):
    mean = bench("scores").geometric_mean
    assert mean([2.0, 8.0]) == pytest.approx(4.0)
    assert mean([1.3]) == pytest.approx(1.3)
    assert mean([]) is None


class OneRank:
    """A session of one rank whose clock and whose host say what the test wants."""

    rank, world, cuda = 0, 1, False

    def __init__(self, awake_until=0):
        self.awake_until = awake_until
        self.cycles = []
        self.said = []

    def synchronize(self):
        """Nothing runs behind the host's back."""

    def everywhere(self, ok):
        return ok

    def largest(self, values):
        return list(values)

    def reason(self, why):
        return f"rank 0: {why}"

    def say(self, text):
        self.said.append(text)

    def queue(self, call, calls, cycles):
        self.cycles.append(cycles)
        return [call() for _ in range(calls)], cycles >= self.awake_until


class FakeDevice:
    """Events and sleep of a device that has woken after so many of the host's steps; each step is a millisecond."""

    def __init__(self, monkeypatch, common, wakes_at):
        self.steps = []
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                self.timed = enable_timing

            def record(self):
                self.at = len(device.steps)
                device.steps.append("event" if self.timed else "awake")

            def query(self):
                return len(device.steps) >= wakes_at

            def elapsed_time(self, other):
                return float(other.at - self.at)

        cuda = common.torch.cuda
        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "_sleep", lambda cycles: self.steps.append(f"sleep {cycles}"), raising=False)
        monkeypatch.setattr(cuda, "synchronize", lambda device: self.steps.append("synchronize"))
        monkeypatch.setattr(common.dist, "all_reduce", lambda flag: self.steps.append("meet"))
        self.session = object.__new__(common.Session)
        flush = type("Flush", (), {"zero_": lambda _: self.steps.append("flush")})()
        vars(self.session).update(cuda=True, device="cuda:0", _flag=None, _flush=flush)


@pytest.mark.parametrize(("wakes_at", "ahead"), [(100, True), (7, False)])
def test_a_queue_is_enqueued_behind_a_sleep(bench, monkeypatch, wakes_at, ahead):
    """Ranks meet behind the sleep, whose length differs, and before each call; the call alone is between two events."""
    device = FakeDevice(monkeypatch, bench("common"), wakes_at)
    times, told = device.session.queue(lambda: device.steps.append("call"), 2, 1000)
    once = ["flush", "meet", "event", "call", "event"]
    assert device.steps == ["sleep 1000", "awake", *once, *once, "synchronize"]
    assert (times, told) == ([2.0, 2.0], ahead)


def test_the_device_sleeps_until_the_host_is_ahead(bench):
    timing, common = bench("timing"), bench("common")
    session = OneRank(awake_until=5 * timing.CYCLES_A_CALL)
    queue = timing.Queue(session, calls=2)
    contender = common.Contender("ours", lambda: 0.5)
    assert queue(contender) == [0.5, 0.5]
    assert session.cycles == [2 * timing.CYCLES_A_CALL, 4 * timing.CYCLES_A_CALL, 8 * timing.CYCLES_A_CALL]
    session.cycles.clear()
    queue(contender)
    assert session.cycles == [8 * timing.CYCLES_A_CALL], "it is known the next time"
    with pytest.raises(common.Unavailable, match="does not get ahead"):
        timing.Queue(OneRank(awake_until=math.inf))(contender)


def test_a_contender_that_fails_is_given_up_and_the_others_go_on(bench):
    timing, common = bench("timing"), bench("common")
    session, calls, reasons = OneRank(), {"serial": 0, "ours": 0}, {}

    def visit(contender):
        calls[contender.name] += 1
        if contender.name == "ours" and calls["ours"] == 2:
            raise RuntimeError("a wait took too long\nand more")
        return [float(calls[contender.name])]

    contenders = {name: common.Contender(name, lambda: None) for name in calls}
    watchdog = common.Watchdog(lambda step, why: None)
    times = timing.sample(session, watchdog, contenders, visit, rounds=4, seed=0, reasons=reasons)
    assert times == {"serial": [1.0, 2.0, 3.0, 4.0]}
    assert calls == {"serial": 4, "ours": 2}
    assert reasons == {"ours": "rank 0: RuntimeError: a wait took too long"}


def test_p99(bench):
    p99 = bench("timing").p99
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(n) for n in range(1, 101)]) == 99.0
    assert p99([float(n) for n in range(1, 201)]) == 198.0


COMMON = {"world": 2, "dtype": "bf16", "device": "H100"}
NAMES = ["gemm", "serial", "ours"]
GOOD = {"ms": 0.5, "p99": 0.6, "queued": 0.4, "queued_p99": None, "rounds": 3}


def test_a_file_goes_on_where_it_ended(bench, tmp_path):
    files, suite = bench("suite_file"), bench("suite")
    path, row, other = tmp_path / "suite.json", suite.ROWS[0], suite.ROWS[1]
    file = files.SuiteFile(path, "abc", COMMON)
    assert not file.done(row, NAMES) and file.begin(row, NAMES) == {}
    file.add({"gemm": GOOD, "serial": {"ms": None, "failed": "rank 1: no"}, "ours": GOOD}, write=False)
    assert not path.exists()
    file.save()
    again = files.SuiteFile(path, "abc", COMMON)
    assert again.rows == file.rows and again.done(row, NAMES) and not again.done(other, NAMES)
    assert not again.done(row, NAMES, retry=True), "a failure may be gone"
    assert not again.done(row, [*NAMES, "asynctp"]), "one more than there were"
    assert again.begin(row, NAMES) == {} and again.has(row) == {}
    assert files.SuiteFile(path, "abc", COMMON, fresh=True).rows == []
    with pytest.raises(SystemExit, match="is of commit abc and not def: name another --out, or say --fresh"):
        files.SuiteFile(path, "def", COMMON)
    with pytest.raises(SystemExit, match="is of device H100 and not H200"):
        files.SuiteFile(path, "abc", {**COMMON, "device": "H200"})


def test_the_first_rank_that_says_why_is_right(bench, tmp_path):
    """The others lose their peer, and say that."""
    files, suite, path = bench("suite_file"), bench("suite"), tmp_path / "suite.json"
    ranks = [files.SuiteFile(path, "abc", COMMON) for _ in range(2)]
    for file in ranks:
        file.begin(suite.ROWS[0], NAMES)
    ranks[1].ended("ours", "did not end within 45 s")
    ranks[0].ended("ours", "RuntimeError: connection closed by peer")
    (row,) = json.loads(path.read_text())["rows"]
    assert row["failed"] == "ended the process: did not end within 45 s"
    ranks[0].begin(suite.ROWS[1], NAMES)
    ranks[0].ended("ours", "an error of its own")
    assert [had["failed"].removeprefix(files.ENDED) for had in json.loads(path.read_text())["rows"]] == [
        "ended the process: did not end within 45 s".removeprefix(files.ENDED),
        "an error of its own",
    ]


def test_what_ends_the_process_is_written_down_and_left_out(bench, tmp_path):
    files, suite = bench("suite_file"), bench("suite")
    path = tmp_path / "suite.json"
    for row in suite.ROWS[:2]:
        file = files.SuiteFile(path, "abc", COMMON)
        file.begin(row, NAMES)
        file.ended("ours", "did not end within 45 s")
        file = files.SuiteFile(path, "abc", COMMON)
        assert not file.done(row, NAMES), "the others were not measured"
        assert file.begin(row, NAMES) == {"ours": "ended the process: did not end within 45 s"}
        found = {"gemm": GOOD, "serial": GOOD, "ours": {"ms": None, "failed": file.has(row)["ours"]["failed"]}}
        file.add(found, write=True)
        assert file.done(row, NAMES)
    third = files.SuiteFile(path, "abc", COMMON)
    assert third.begin(suite.ROWS[2], NAMES) == {
        "ours": "left out: at other shapes it ended the process: did not end within 45 s"
    }
    assert third.begin(suite.ROWS[6], NAMES) == {}, "another operator"
    third.ended("expected", "OutOfMemoryError")
    assert files.SuiteFile(path, "abc", COMMON).done(suite.ROWS[6], NAMES), "nothing of this shape can be measured"


REHEARSAL = """
import itertools, sys, types
sys.path.insert(0, {bench!r})
import ag_gemm, gemm_rs, gemm_ar, record, run_suite, suite

suite.ROWS = (
    suite.Row("ag_gemm", 6, 4, 8), suite.Row("gemm_rs", 5, 4, 8), suite.Row("gemm_ar", 4, 4, 8), suite.Row("gemm_ar", 4, 4, 7)
)
right = gemm_rs.serial

def serial(p, built):
    if p.session.rank == 1:
        raise RuntimeError("not on this rank")
    return right(p, built)

class NoMemory(gemm_ar.Problem):
    def allocate(self, make):
        if self.session.rank == 0:
            raise MemoryError("8 GiB wanted")
        super().allocate(make)

gemm_rs.serial, gemm_ar.Problem = serial, NoMemory
run_suite.time = types.SimpleNamespace(monotonic=itertools.count().__next__)  # a second passes between two looks
run_suite.main()
"""


def test_the_suite_rehearsed_on_two_cpu_ranks(repo, tmp_path):
    """Contenders that one rank cannot build, a shape that one has no memory for, one that is none; cut after a row."""
    script, out = tmp_path / "rehearsal.py", tmp_path / "suite.json"
    script.write_text(REHEARSAL.format(bench=str(repo / "bench")))
    words = ("--device", "cpu", "--dtype", "fp32", "--rounds", "2", "--commit", "abc", "--out", str(out))

    def run(*more):
        ranks = run_ranks(2, script, *words, *more, cwd=repo, timeout=300)
        assert [done.returncode for done in ranks] == [0, 0], [done.stdout + done.stderr for done in ranks]
        return ranks[0].stdout

    assert "3 rows are left: start me again" in run("--seconds", "1.5")
    first = json.loads(out.read_text())["rows"]
    assert [row["contender"] for row in first if row["ms"]] == ["gemm", "nccl", "serial", "ours"]
    assert all(row["p99"] >= row["ms"] > 0 and row["queued_p99"] >= row["queued"] > 0 for row in first if row["ms"])
    assert {row["contender"]: row["failed"] for row in first if not row["ms"]}["serial_graph"] == "needs a GPU"
    assert {row["ran"] for row in first if row["ms"] and row["contender"] == "ours"} == {
        "serial: no peer copies for tensors on cpu"
    }

    printed = run()
    assert "1 of 4 rows are there" in printed and "all rows are there" in printed and "ag_gemm" not in printed
    rows = json.loads(out.read_text())["rows"]
    assert rows[: len(first)] == first
    why = {(row["op"], row["K"], row["contender"]): row["failed"] for row in rows if "failed" in row}
    assert why["gemm_rs", 8, "serial"] == "rank 1: RuntimeError: not on this rank"
    assert ("gemm_rs", 8, "ours") not in why
    assert why["gemm_ar", 8, "ours"] == why["gemm_ar", 8, "gemm"] == "rank 0: MemoryError: 8 GiB wanted"
    assert why["gemm_ar", 7, "ours"] == "K must be a multiple of 2 here"


def test_words_that_name_no_rows_are_refused(bench, capsys):
    with pytest.raises(SystemExit):
        bench("run_suite").main(["--operators", "gemm_ar", "--only", "8192,28672,8192"])
    assert "'8192,28672,8192' is tall, decode or a shape M,N,K of the suite's gemm_ar" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench("run_suite").main(["--device", "cpu"])
    assert "--device cpu needs --out" in capsys.readouterr().err


def test_one_table_of_all_files(bench, tmp_path, capsys):
    record, table = bench("record"), bench("table")
    times = {"gemm": 0.3, "serial_graph": 0.6, "ours_graph": 0.5}
    record.write(tmp_path / "ag_gemm_h100x4.json", result(rows_of("ag_gemm", 8192, 14336, 4096, times)))
    few = rows_of("gemm_rs", 64, 4096, 14336, {"gemm": 0.05, "serial": 0.1, "ours": 0.125})
    none = rows_of("gemm_rs", 8, 4096, 14336, {"gemm": 0.05, "serial": 0.1})
    record.write(tmp_path / "gemm_rs_h100x4.json", result([*few, *none]))
    table.main(["--lead", *map(str, sorted(tmp_path.glob("*.json")))])
    assert capsys.readouterr().out.splitlines() == [
        "| operator | GPUs | M, N, K | best baseline | ours, graph | ours, eager | eta | speedup |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        "| ag_gemm | 4 x H100 | 8192, 14336, 4096 | 0.600 serial, graph | 0.500 | - | 0.60 | 1.20 |",
        "| gemm_rs | 4 x H100 | 64, 4096, 14336 | 0.100 serial | - | 0.125 | 0.40 | **0.80, a loss** |",
        "| gemm_rs | 4 x H100 | 8, 4096, 14336 | 0.100 serial | - | - | - | - |",
        "",
        "- Of the 1 rows with M >= 2048: geometric mean of the speedup 1.20, from 1.20 to 1.20; 0 losses.",
        "- Of the 1 rows with M < 2048: geometric mean of the speedup 0.80, from 0.80 to 0.80; 1 losses.",
        "- Rows without a speedup, since ours or all baselines have no time: 1.",
    ]


def test_the_suite_in_short(bench):
    """Eager against graph and what was asked, of tall rows with the host ahead; single calls say neither."""
    table = bench("table")
    times = {"gemm": (0.4, 0.3), "serial": (0.7, 0.6), "ours": (0.9, 0.325), "ours_graph": (0.8, 0.32)}
    rows = rows_of("ag_gemm", 8192, 14336, 4096, times) + rows_of("gemm_rs", 8192, 8192, 28672, times)
    rows += rows_of("ag_gemm", 64, 14336, 4096, {**times, "ours": (0.9, 0.9)})
    lines = table.lead_of([result(rows)])
    assert lines[-2:] == [
        "- Eager over in a graph, with M >= 2048 and the host ahead: 1.016 at most.",
        "- The eta that is the aim on four H100s: reached by 1 of 2 rows.",
    ], "0.3 of 0.32 where 0.90 and 0.95 are asked"
    assert not any(
        "Eager" in line for line in table.lead_of([result(rows_of("ag_gemm", 8192, 64, 64, {"serial": 1.0}))])
    )


def test_a_suite_leads_where_it_has_as_many_ranks(bench, tmp_path):
    table = bench("table")
    four, two = (rows_of("ag_gemm", 64, 64, 64, {"serial": 1.0}) for _ in range(2))
    for row in two:
        row["world"] = 2
    alone = (tmp_path / "ag_gemm_h100x4.json", result(four))
    small, whole = (tmp_path / "suite_h100x2.json", result(two)), (tmp_path / "suite_h100x4.json", result(four))
    assert table.leading([alone, small]) == [alone]
    assert table.leading([alone, small, whole]) == [whole]
    assert table.leading([small]) == [small]


def test_the_table_of_a_suite_says_what_was_asked_and_what_failed(bench):
    times = {"gemm": (0.4, 0.3), "serial": (0.7, 0.6), "asynctp": "rank 1: no", "ours_graph": (0.9, 0.5)}
    low = {"serial": (0.7, 0.6), "asynctp": (0.2, 0.1), "ours_graph": (0.9, 0.5)}
    rows = rows_of("ag_gemm", 8192, 14336, 4096, times) + rows_of("ag_gemm", 64, 14336, 4096, low)
    assert bench("table").table_of(rows) == [
        "| M, N, K | GEMM | serial | AsyncTP | ours, graph | limit | eta | asked | speedup | p99 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| 8192, 14336, 4096 | 0.300 | 0.600 | - | 0.500 | 0.300 | 0.60 | 0.90 | 1.20 | 0.83 |",
        "| 64, 14336, 4096 | - | 0.600 | 0.100 | 0.500 | - | - | - | **0.20, a loss** | 5.00 |",
        "",
        "Failed: AsyncTP at 8192, 14336, 4096: rank 1: no.",
    ]
