"""The benchmarks' own parts on a CPU: orders, checks, result files, tables, and what happens when a contender hangs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.support.forked import run_alone, run_ranks

ROWS = [
    # op, M, N, K, contender, ms
    (
        "ag_gemm",
        8192,
        14336,
        4096,
        {"gemm": 0.31, "nccl": 0.21, "serial": 0.55, "serial_graph": 0.5, "ours_graph": 0.41},
    ),
    ("ag_gemm", 64, 28672, 8192, {"gemm": 0.001, "serial": 0.1, "asynctp": 0.09, "ours": 0.2, "ours_graph": 0.1}),
    ("ag_gemm", 16, 16, 16, {"ours": 0.2}),
]


OPS = ("ag_gemm", "ag_gemm_k", "gemm_rs", "gemm_ar", "a2a_gemm", "gemm_a2a")


def rows(world: int = 4, dtype: str = "bf16") -> list[dict]:
    return [
        {"op": op, "M": m, "N": n, "K": k, "world": world, "dtype": dtype, "contender": who, "ms": ms, "device": "H100"}
        for op, m, n, k, times in ROWS
        for who, ms in times.items()
    ]


def result(**changes) -> dict:
    kept = {
        "hardware": {"gpus": [{"name": "H100"}] * 4},
        "versions": {"torch": "2.11.0", "triton": "3.6.0", "nccl": "2.28.9", "driver": "580", "python": "3.12"},
        "clocks": [],
        "commit": "0123456789abcdef",
        "command": "python -m torch.distributed.run --nproc-per-node 4 bench/ag_gemm.py",
        "date": "2026-11-28T00:00:00+00:00",
        "rows": rows(),
    }
    return {**kept, **changes}


def test_table(bench):
    lines = bench("table").table_of(rows())
    assert lines == [
        "| M, N, K | GEMM | NCCL | serial | serial, graph | AsyncTP | ours | ours, graph | limit | eta | speedup |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| 8192, 14336, 4096 | 0.310 | 0.210 | 0.550 | 0.500 | - | - | 0.410 | 0.310 | 0.76 | 1.22 |",
        "| 64, 28672, 8192 | 0.001 | - | 0.100 | - | 0.090 | 0.200 | 0.100 | 0.002 | 0.02 | **0.90, a loss** |",
        "| 16, 16, 16 | - | - | - | - | - | 0.200 | - | - | - | - |",
    ]


def test_limit_is_the_longer_of_product_and_transfer(bench):
    """50.3 MB for 8192 x 4096 bf16 from three other ranks, 0.1335 ms at 377 GB/s."""
    scores = bench("scores")
    row = {
        "op": "ag_gemm",
        "M": 8192,
        "N": 6144,
        "K": 4096,
        "world": 4,
        "dtype": "bf16",
        "contender": "gemm",
        "ms": 0.1,
    }
    assert scores.limit_of([row]) == pytest.approx(8192 * 4096 * 2 * 0.75 / 377e6)
    assert scores.limit_of([{**row, "ms": 0.15}]) == 0.15
    assert scores.limit_of([{**row, "world": 1}]) == 0.1
    assert scores.limit_of([{**row, "contender": "nccl"}]) is None
    half = scores.received_bytes(row)
    assert scores.received_bytes({**row, "dtype": "fp32"}) == 2 * half
    scattered = scores.received_bytes({**row, "op": "gemm_rs"})
    assert scattered == 8192 * 6144 * 2 * 0.75
    assert scores.received_bytes({**row, "op": "gemm_ar"}) == 2 * scattered
    for op in bench("record").OPS:
        assert scores.received_bytes({**row, "op": op}) > 0


def test_several_dtypes_are_told_apart(bench):
    lines = bench("table").table_of(rows() + rows(dtype="fp32"))
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| 8192, 14336, 4096 bf16", "| 64, 28672, 8192 bf16"]
    assert len(lines) == 2 + 2 * len(ROWS)


def test_result_file_and_document(bench, tmp_path, capsys):
    record, table = bench("record"), bench("table")
    path = tmp_path / "results" / "ag_gemm_h100x4.json"
    record.write(path, result())
    assert json.loads(path.read_text()) == result()
    record.write(path, result(rows=rows()[:1]))
    assert len(json.loads(path.read_text())["rows"]) == 1, "a rerun replaces its file"
    assert os.listdir(path.parent) == [path.name]

    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    table.main([str(path), "--into", str(readme)])
    first = readme.read_text()
    assert first.startswith("before\n<!-- results -->\n**ag_gemm**, 4 x H100, bf16, ms:\n\n| M, N, K | GEMM |")
    assert first.endswith("\n<!-- /results -->\nafter\n")
    assert "old" not in first
    assert "torch 2.11.0, triton 3.6.0, nccl 2.28.9, driver 580; commit 0123456789ab, 2026-11-28: `python -m" in first
    table.main([str(path), "--into", str(readme)])
    assert readme.read_text() == first
    table.main([str(path)])
    assert capsys.readouterr().out in first

    readme.write_text("no marks")
    with pytest.raises(SystemExit, match="no place for the tables"):
        table.main([str(path), "--into", str(readme)])
    path.write_text("{}")
    with pytest.raises(SystemExit, match="not a result file"):
        table.main([str(path)])
    with pytest.raises(SystemExit, match="No such file"):
        table.main([str(tmp_path / "none.json")])


def test_rows_of_another_kind_stand_under_the_same_head(bench, tmp_path):
    path = tmp_path / "new" / "rows.json"
    record = bench("record")
    record.write_rows(path, [{"us": 1.5}], [{"when": "start"}], "c0ffee", "python bench/x.py", 2)
    found = json.loads(path.read_text())
    assert tuple(found) == record.KEYS
    assert (found["rows"], found["clocks"], found["commit"]) == ([{"us": 1.5}], [{"when": "start"}], "c0ffee")
    assert (found["hardware"]["ranks"], found["command"]) == (2, "python bench/x.py")


def test_a_row_that_no_reader_knows_is_not_written(bench, tmp_path):
    record = bench("record")
    for wrong in ({"contender": "fastest"}, {"op": "gemm_gemm"}):
        with pytest.raises(ValueError, match="not a row"):
            record.write(tmp_path / "x.json", result(rows=[{**rows()[0], **wrong}]))
    with pytest.raises(ValueError, match="has the keys"):
        record.write(tmp_path / "x.json", {"rows": []})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "ag_gemm_h100x4.json"),
        ("NVIDIA H200", "ag_gemm_h200x4.json"),
        ("AMD Instinct MI300X", "ag_gemm_mi300xx4.json"),
    ],
)
def test_default_path(bench, repo, device, name):
    assert bench("record").default_path("ag_gemm", device, 4) == repo / "bench" / "results" / name


def test_orders_are_shuffled_anew_and_agreed(bench):
    timing = bench("timing")
    names = [f"c{i}" for i in range(6)]
    orders = list(timing.rounds_of(names, 40, seed=3))
    assert all(sorted(order) == names for order in orders)
    assert orders == list(timing.rounds_of(names, 40, seed=3))
    assert {order[0] for order in orders} == set(names)
    assert len({tuple(order) for order in orders}) > 30


def test_difference(bench):
    common = bench("common")
    import torch

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((256, 512), (512, 384)))
    expected = a.float() @ b.float()
    right = (a @ b).clone()
    assert common.difference(right, expected) == ""
    assert common.difference(a.clone(), a) == ""
    assert common.difference(right[:-1], expected) == "shape (255, 384) instead of (256, 384)"
    unwritten = right.clone()
    unwritten[3, 5] = float("nan")
    assert common.difference(unwritten, expected) == "1 of 98304 elements are not finite"
    row = right.clone()
    row[7] = right[8]
    assert common.difference(row, expected).startswith("relative error")
    element = right.clone()
    element[7, 0] += 40
    assert common.difference(element, expected).startswith("an element is off by")
    moved = a.clone()
    moved[0, 0] += 1
    assert common.difference(moved, a) == "1 of 131072 elements differ"


def test_journal_goes_on_only_in_a_restart(bench, tmp_path, monkeypatch):
    record = bench("record")
    path = tmp_path / "ag.json.part"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    first = record.Journal(path, rank=0)
    first.rows += rows()[:1]
    first.save()
    record.Journal(path, rank=1, rows=list(first.rows)).failed("asynctp", "did not end within 30 s")
    first.failed("asynctp", "RuntimeError")  # since rank 1 is gone
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = record.Journal(path, rank=0)
    assert again.left_out == {"asynctp": "did not end within 30 s"}
    assert again.done(M=8192, N=14336, K=4096)
    assert not again.done(M=8192, N=14336, K=8192)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert record.Journal(path, rank=0).rows == []
    again.finish()
    assert os.listdir(tmp_path) == []


def test_the_command_names_the_settings_of_the_environment(bench, monkeypatch, repo):
    record = bench("record")
    for name in [name for name in os.environ if name.startswith(("OVERLAP_", "NVSHMEM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", [str(repo / "bench" / "ways.py"), "--op", "ag_gemm"])
    plain = "python -m torch.distributed.run --nproc-per-node 2 bench/ways.py --op ag_gemm"
    assert record.command(2) == plain
    monkeypatch.setenv("OVERLAP_PROVIDER", "nvshmem")
    monkeypatch.setenv("OVERLAP_CACHE_DIR", "/a b")
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "16G")
    assert record.command(2) == f"NVSHMEM_SYMMETRIC_SIZE=16G OVERLAP_CACHE_DIR='/a b' OVERLAP_PROVIDER=nvshmem {plain}"


def start(repo, *words: str) -> subprocess.CompletedProcess[str]:
    """A script under torchrun, two ranks, on this repository."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    env = {**os.environ, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1"}
    env = {name: value for name, value in env.items() if name not in ("RANK", "TORCHELASTIC_RESTART_COUNT")}
    return subprocess.run(command, capture_output=True, text=True, cwd=repo, env=env, timeout=300, check=False)


def rehearsed(repo, script: str, *words: str) -> str:
    """What two ranks print, of which neither fails."""
    ranks = run_ranks(2, script, *words, cwd=repo, timeout=300)
    assert [done.returncode for done in ranks] == [0, 0], [done.stdout + done.stderr for done in ranks]
    return "".join(done.stdout for done in ranks)


def test_ag_gemm_rehearsed_on_two_cpu_ranks(repo, tmp_path):
    """The whole script: what needs a GPU and a shape that does not divide are left out, the rest is measured."""
    out = tmp_path / "ag.json"
    shapes = ["--shapes", "64,32,16", "7,5,4", "3,2,1"]
    printed = rehearsed(repo, "bench/ag_gemm.py", "--device", "cpu", "--out", str(out), "--rounds", "2", *shapes)
    told = json.loads(out.read_text())
    assert list(told) == ["hardware", "versions", "clocks", "commit", "command", "date", "rows"]
    assert [(r["M"], r["contender"]) for r in told["rows"]] == [
        (m, who) for m in (64, 3) for who in ("gemm", "nccl", "serial", "ours")
    ]
    assert all(r["ms"] > 0 and r["world"] == 2 and r["op"] == "ag_gemm" for r in told["rows"])
    assert "asynctp left out: needs a GPU" in printed
    assert "ours runs serial: no peer copies for tensors on cpu" in printed
    assert "7,5,4 left out: N must be a multiple of 2 here" in printed
    assert os.listdir(tmp_path) == ["ag.json"]


EVERY_OPERATOR = """
import importlib, sys
sys.path.insert(0, {bench!r})
import common, driver, torch

session = common.Session("cpu")
watchdog = common.Watchdog(lambda step, why: None)
for op in {ops!r}:
    module = importlib.import_module(op)
    problem = module.Problem(session, 6 if "a2a" in op else 5, 4, 8, torch.float32)
    wanted = list(module.contenders(problem, {{}}))
    times, wrong = driver.run_shape(module, problem, watchdog, {{"split": 1}}, wanted, (), rounds=1)
    session.say(f"{{op}}: {{sorted(times)}}, wrong {{wrong}}, {{driver.indivisible(module, (3, 3, 3), 2)}}")
session.close()
"""


def test_every_operator_rehearsed_on_two_cpu_ranks(repo, tmp_path):
    script = tmp_path / "every.py"
    script.write_text(EVERY_OPERATOR.format(bench=str(repo / "bench"), ops=OPS))
    printed = rehearsed(repo, str(script))
    told = [line for line in printed.splitlines() if ": [" in line]
    assert [line.split(":")[0] for line in told] == list(OPS)
    assert all("['gemm', 'nccl', 'ours', 'serial'], wrong [], " in line for line in told), told
    assert all("of 2 here" in line for line in told)
    assert printed.count("ours runs serial: no peer copies for tensors on cpu") == len(OPS)


def test_every_benchmark_has_what_the_driver_and_the_ways_need(bench):
    driver, record = bench("driver"), bench("record")
    assert set(OPS) == set(record.OPS)
    for op in OPS:
        module = bench(op)
        sizes = [driver.shape(text) for text in module.SHAPES]
        assert module.OP == op and len(set(sizes)) == len(sizes)
        assert any(m <= 64 for m, _, _ in sizes) or "a2a" in op, "decode rows"
        assert all(not driver.indivisible(module, size, 4) for size in sizes)
        assert issubclass(module.Problem, driver.BaseProblem) and callable(module.ours)


HANGING = """
import sys, time
from pathlib import Path
sys.path.insert(0, {bench!r})
import common, record, timing, torch

common.BUILD_LIMIT_S = 6.0
session = common.Session("cpu")
journal = record.Journal(Path({part!r}), session.rank)
watchdog = common.Watchdog(journal.failed)
right = torch.ones(2, 2)

def hangs(built):
    def call():
        if session.rank == 1:
            time.sleep(600)
        return right.clone()
    return common.Contender("asynctp", call)

def raises(built):
    if session.rank == 1:
        raise RuntimeError("not on this rank")
    return common.Contender("kraken", right.clone)

builders = {{
    "gemm": lambda built: common.Contender("gemm", right.clone),
    "kraken": raises,
    "ours": lambda built: common.Contender("ours", lambda: right * (2 if session.rank else 1)),
    "asynctp": hangs,
}}
builders = {{name: builder for name, builder in builders.items() if name not in journal.left_out}}
built = common.build(session, watchdog, builders)
wrong = common.check(session, watchdog, built, {{"product": right}})
times = timing.measure(session, watchdog, {{n: c for n, c in built.items() if n not in wrong}}, rounds=3, seed=0)
session.say(f"left out {{journal.left_out}}, built {{sorted(built)}}, wrong {{wrong}}, timed {{sorted(times)}}")
session.close()
"""


def test_a_contender_that_hangs_is_left_out_after_a_restart(repo, tmp_path):
    """Rank 1 hangs in one contender, fails in another and computes a wrong result in a third; the job ends well."""
    script = tmp_path / "hanging.py"
    script.write_text(HANGING.format(bench=str(repo / "bench"), part=str(tmp_path / "part")))
    done = start(repo, "--max-restarts", "1", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asynctp did not end within 6 s" in done.stdout
    assert "rank 1: kraken left out: RuntimeError: not on this rank" in done.stdout
    assert "rank 1: ours is WRONG: " in done.stdout
    assert done.stdout.rstrip().splitlines()[-1] == (
        "left out {'asynctp': 'did not end within 6 s'}, built ['gemm', 'ours'], wrong ['ours'], timed ['gemm']"
    )


def test_without_torchrun_it_says_how_to_start(repo):
    done = run_alone("bench/ag_gemm.py", cwd=repo)
    assert done.returncode == 1
    assert done.stderr.strip() == ("start me with: python -m torch.distributed.run --nproc-per-node 4 bench/ag_gemm.py")


class OneRank:
    """A session of one rank whose clock says what the test wants."""

    rank, cuda = 0, False

    def __init__(self, times=()):
        self.times = {name: list(values) for name, values in dict(times).items()}
        self.order = []

    def synchronize(self):
        """Nothing runs behind the host's back."""

    def everywhere(self, ok):
        return ok

    def largest(self, values):
        return [10 * value for value in values]

    def time(self, call):
        name = call()
        self.order.append(name)
        return self.times[name].pop(0)


@pytest.fixture
def watchdog(bench):
    """One that tells on nobody."""
    return bench("common").Watchdog(lambda step, why: None)


def test_results_that_are_old_or_never_written_are_wrong(bench, watchdog, capsys):
    common = bench("common")
    import torch

    expected = {"product": torch.full((4, 4), 3.0), "gather": torch.full((2, 2), 1.0).bfloat16()}
    never, scratch = torch.full((4, 4), 3.0), torch.full((2, 2), 1.0).bfloat16()

    def through_scratch():
        return torch.full((4, 4), 3.0) * scratch.float()[0, 0]

    contenders = {
        "gemm": common.Contender("gemm", lambda: torch.full((4, 4), 3.0)),
        "serial": common.Contender("serial", lambda: never),
        "asynctp": common.Contender("asynctp", lambda: torch.full((4, 4), 2.0)),
        "ours": common.Contender("ours", through_scratch, scratch=(scratch,)),
        "nccl": common.Contender("nccl", lambda: torch.full((2, 2), 1.0).bfloat16(), expected="gather"),
    }
    assert common.check(OneRank(), watchdog, contenders, expected) == ["serial", "asynctp", "ours"]
    assert "serial is WRONG: 16 of 16 elements are not finite" in capsys.readouterr().out


def test_a_number_is_the_median_on_the_worst_rank(bench, watchdog):
    common = bench("common")
    session = OneRank({"serial": [5.0, 1.0, 2.0], "ours": [0.5, 9.0, 0.25]})
    contenders = {n: common.Contender(n, lambda n=n: n) for n in ("serial", "ours")}
    assert bench("timing").measure(session, watchdog, contenders, rounds=3, seed=1) == {"serial": 20.0, "ours": 5.0}
    assert [sorted(session.order[i : i + 2]) for i in (0, 2, 4)] == [["ours", "serial"]] * 3


def test_an_error_that_nobody_caught_is_written_down(bench):
    told = []
    with pytest.raises(RuntimeError, match="illegal address"):
        with bench("common").Watchdog(lambda *words: told.append(words)).step("ours", 60):
            raise RuntimeError("illegal address")
    assert told == [("ours", "RuntimeError")]


def test_the_kernel_alone_is_launched_as_the_operator_does(bench, monkeypatch):
    """On the gathered tensor, with every parameter of the kernel given."""
    from types import SimpleNamespace

    import torch

    from overlap.ops import products
    from overlap.runtime import of_group

    launches = []

    def recorded(*words):
        kernel, grid, arguments = prepared(*words)
        launcher = {grid: lambda **given: launches.append((kernel, given))}
        return launcher, grid, arguments

    prepared = products.product_arguments
    monkeypatch.setattr(products, "product_arguments", recorded)
    monkeypatch.setattr(of_group, "runtime_of", lambda group: SimpleNamespace(sm_count=132))
    session = SimpleNamespace(device=torch.device("cpu"), world=2, rank=1, cuda=True, synchronize=lambda: None)
    module = bench("ag_gemm")
    problem = module.Problem(session, 64, 32, 16, torch.float32)
    assert module.triton_gemm(problem, {}).call() is problem.c
    ((kernel, given),) = launches
    assert given["a_ptr"].data_ptr() == problem.a.data_ptr()
    assert (given["M"], given["N"], given["K"], given["stride_am"]) == (64, 16, 16, 16)
    assert set(given) - {"num_warps", "num_stages"} == set(kernel.arg_names)


def test_the_hosts_part_of_a_call_is_measured_without_a_gpu(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bench/host_cost.py", "--null", "--world", "3", "--ops", "gemm_rs"])
    sys.argv += ["--shapes", "96,24,48", "--calls", "2", "--rounds", "2", "--profile"]
    bench("host_cost").main()
    first, *modules = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"  gemm_rs +96 +24 +48  3 ranks +[0-9.]+ us in the best of 2 rounds, [0-9.]+ in the median, \d+ Python calls",
        first,
    )
    assert any(line.endswith("  api/repeat.py") for line in modules), modules
    assert not any("scatter_view" in line or line.endswith("runtime/calls/kernel_call.py") for line in modules), (
        "the long way"
    )


@pytest.mark.parametrize(("backend", "most"), [("copy_engine", 42), ("words_inline", 27), ("default", 28)])
def test_a_repeated_call_calls_no_more_of_python_than_it_did(bench, monkeypatch, tmp_path, capsys, backend, most):
    """What counts behind other work is how much code is touched. By default small calls go by words: a product and a launch."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bench/host_cost.py", "--null", "--backend", backend, "--ops", "gemm_ar"])
    sys.argv += ["--shapes", "16,32,64", "--calls", "2", "--rounds", "1", "--cold"]
    bench("host_cost").main()
    found = re.search(r"in the median, \d+ cold, (\d+) Python calls$", capsys.readouterr().out.strip())
    assert found and int(found[1]) <= most


def test_sizes_that_ranks_cannot_share_are_refused(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench/host_cost.py", "--null", "--world", "3", "--shapes", "96,24,50"])
    with pytest.raises(SystemExit):
        bench("host_cost").main()
    assert "sizes must be multiples of the ranks: (96, 24, 50)" in capsys.readouterr().err


def test_ways_side_by_side(bench, tmp_path):
    """A column a way, the best in bold; what could not be measured is a dash, and a loss is said."""
    record, table = bench("record"), bench("table")
    times = {
        8192: {"gemm": 0.3, "serial_graph": 0.5, "backend=copy_engine": 0.4, "backend=tma_inline": 0.42},
        64: {"gemm": 0.05, "serial_graph": 0.1, "backend=tma_inline": 0.125},
    }
    made = []
    for m, found in times.items():
        for how, ms in found.items():
            row = {**rows()[0], "M": m, "contender": how if "=" not in how else "ours_graph", "ms": ms}
            made.append({**row, "how": how} if "=" in how else row)
    path, document = tmp_path / "ag_gemm_h100x4.json", tmp_path / "backends.md"
    record.write(path, result(rows=made))
    document.write_text("<!-- results -->kept<!-- /results -->\n<!-- ways -->\n<!-- /ways -->\n")
    table.main(["--ways", str(path), "--into", str(document)])
    lines = document.read_text().splitlines()
    assert lines[0] == "<!-- results -->kept<!-- /results -->"
    assert lines[4:8] == [
        "| M, N, K | GEMM | serial, graph | copy_engine | tma_inline | limit | eta | over serial |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        "| 8192, 14336, 4096 | 0.300 | 0.500 | **0.400** | 0.420 | 0.300 | 0.75 | 1.25 |",
        "| 64, 14336, 4096 | 0.050 | 0.100 | - | **0.125** | 0.050 | 0.40 | **0.80, a loss** |",
    ]
    assert lines[-1] == "<!-- /ways -->" and "commit 0123456789ab" in lines[-2]


@pytest.mark.parametrize("op", OPS)
def test_a_way_for_every_backend_that_can(bench, op):
    found = {how["backend"] for how in bench("ways").backends_of(op)}
    assert {"copy_engine", "ldst_inline", "tma_inline", "nvshmem", "collective"} <= found
    assert ("ldst_reserved" in found) == (op in ("ag_gemm", "ag_gemm_k", "a2a_gemm"))
    assert not found & {"serial", "auto"}
