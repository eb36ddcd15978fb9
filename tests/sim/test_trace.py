"""`overlap trace` on simulated ranks: every tile recorded once, in order of time, and a trace that viewers can read."""

from __future__ import annotations

import json
import os
from unittest import mock

import pytest
import torch
import triton

from overlap import settings
from overlap.api import trace as tracing
from overlap.api.trace import recording
from overlap.cli.main import main
from overlap.codegen.module_io import load_module
from overlap.errors import UsageError
from overlap.ops.trace import trace_operator
from overlap.sim import World
from tests.support.trace_format import check_format
from tests.support.traces import check_chunks, check_tiles

CASES = {
    "gather": ("ag_gemm", 3, {"M": 200, "N": 144, "K": 48}, {}),
    "gather, moved between tiles": ("ag_gemm", 2, {"M": 131, "N": 80, "K": 32}, {"backend": "ldst_inline", "split": 2}),
    "gather, moved by programs": ("ag_gemm", 2, {"M": 131, "N": 80, "K": 32}, {"backend": "ldst_reserved"}),
    "gather along K": ("ag_gemm_k", 2, {"M": 70, "N": 48, "K": 320}, {}),
    "scatter": ("gemm_rs", 3, {"M": 200, "N": 64, "K": 96}, {}),
    "scatter, stored where it goes": ("gemm_rs", 2, {"M": 96, "N": 64, "K": 64}, {"backend": "ldst_inline"}),
    "scatter, added by tiles": ("gemm_rs", 3, {"M": 384, "N": 64, "K": 48}, {"split": 1}),
    "one rank": ("ag_gemm", 1, {"M": 64, "N": 64, "K": 32}, {}),
    "rows for one rank alone": ("ag_gemm", 3, {"M": 1, "N": 48, "K": 32}, {}),
}


def traced(op, world, sizes, options, seed=0):
    run = World(world, seed=seed).run(lambda group: trace_operator(op, sizes, group=group, warm=1, **options))
    return run[0]


@pytest.fixture(scope="module")
def measured():
    made = {}

    def make(name):
        if name not in made:
            with mock.patch.dict(os.environ, {"OVERLAP_TILE_SUMS": str(int("added by tiles" in name))}):
                made[name] = traced(*CASES[name])
        return made[name]

    return make


@pytest.mark.one_triton
@pytest.mark.parametrize("name", CASES)
def test_every_tile_is_recorded_once_and_in_order(measured, name):
    found = measured(name)
    assert len(found.records) == CASES[name][1]
    check_tiles(found)


@pytest.mark.one_triton
@pytest.mark.parametrize("name", CASES)
def test_what_tiles_use_had_come_and_what_leaves_was_made(measured, name):
    found = measured(name)
    check_chunks(found)
    copied = {op for record in found.records for op in record.copied}
    assert copied == (set() if "backend" in CASES[name][3] else {op for op, _ in found.plan.items()})


@pytest.mark.one_triton
def test_chunks_are_named_as_predicted_ones_are(measured):
    for name in CASES:
        found = measured(name)
        trace = json.loads(found.trace())
        predicted = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "copy"}
        marks = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "arrival"}
        made = {e["name"].removeprefix("made: ") for e in trace["traceEvents"] if e.get("cat") == "made"}
        assert marks | made <= predicted
        assert marks == predicted


@pytest.mark.one_triton
@pytest.mark.parametrize("name", CASES)
def test_the_trace_is_in_the_trace_event_format(measured, name):
    found = measured(name)
    events = check_format(found.trace())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {
        2 * rank + kind: f"rank {rank} {('predicted', 'measured')[kind]}"
        for rank in range(CASES[name][1])
        for kind in (0, 1)
    }
    tiles = [e for e in events if e.get("cat") == "tile"]
    assert len(tiles) == sum(len(record.tiles) for record in found.records)


@pytest.mark.one_triton
def test_arrows_lead_to_the_first_tile_that_used_a_chunk(measured):
    found = measured("gather")
    events = json.loads(found.trace())["traceEvents"]
    for record in found.records:
        pid = 2 * record.rank + 1
        arrived = record.arrivals()
        assert len(arrived) == len(record.schedule.slots)
        arrows = [e for e in events if e["ph"] == "f" and e["pid"] == pid]
        assert len(arrows) == len(arrived)
        wanted = {record.names[arrival.tile] for arrival in arrived.values()}
        tiles = [e for e in events if e.get("cat") == "tile" and e["pid"] == pid]
        ends = {
            t["name"]
            for a in arrows
            for t in tiles
            if t["tid"] == a["tid"] and t["ts"] <= a["ts"] <= t["ts"] + t["dur"]
        }
        assert wanted <= ends


@pytest.mark.one_triton
def test_the_command_traces_an_operator(tmp_path, capsys):
    out = tmp_path / "trace.json"
    with pytest.raises(SystemExit) as done:
        main(["trace", "--op", "ag_gemm", "--shape", "M=64,N=32,K=32", "--world", "2", "-o", str(out)])
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("ag_gemm 64,32,32 bf16 on 2 ranks\n")
    assert "rank 1: first tile " in said and "pull a_desc[0:1, 0:32, 0:32] 0 -> 1" in said
    assert json.loads(out.read_text())["otherData"]["title"] == "ag_gemm 64,32,32 bf16 on 2 ranks"


def test_the_command_traces_a_file(repo, tmp_path, capsys):
    out = tmp_path / "trace.json"
    words = [str(repo / "templates/kernels/grouped_gemm.py"), "--plan", "all_gather_1d", "--on", "a[M]"]
    with pytest.raises(SystemExit) as done:
        main(["trace", *words, "--shape", "M=70,N=40,K=32", "--dtype", "fp16", "--world", "2", "-o", str(out)])
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert "all_gather_1d on a[M]" in said and "pull a[35:70, 0:32] 1 -> 0" in said


@pytest.mark.one_triton
def test_a_decorated_kernel_is_recorded_and_computes_what_it_did(repo):
    """Inside `recording`, by a module of its own; outside nothing is recorded."""
    kernel = load_module(str(repo / "tests/kernels/decorated.py")).kernel
    a, b = torch.randn(70, 32), torch.randn(32, 40)

    def body(group):
        rank = group.rank()
        shard = a[35 * rank : 35 * (rank + 1)].contiguous()
        c = torch.full((70, 40), float("nan"))

        def call():
            kernel[lambda m: (triton.cdiv(70, m["BM"]) * triton.cdiv(40, m["BN"]),)](
                shard, b, c, 70, 40, 32, 32, 1, 40, 1, 40, group=group
            )

        def traced():
            return tracing.record(
                call, group, title="decorated", dtype="fp32", tile=lambda schedules, machine: 1e-6, warm=1
            )

        with pytest.raises(UsageError, match="decorated: nothing was recorded"):
            traced()
        with tracing.recording():
            found = traced()
        return found, c

    results = World(2).run(body)
    assert "OVERLAP_TRACE" not in os.environ
    for found, c in results:
        check_tiles(found)
        check_chunks(found)
        assert torch.allclose(c, a @ b, atol=1e-4)


def test_nothing_records_behind_a_traced_call():
    """Ranks are threads, and what each sets is shared: the one that comes first may leave first."""
    first, second = recording(), recording()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert settings.get("trace")
    second.__exit__(None, None, None)
    assert not settings.get("trace")


@pytest.mark.parametrize(("name", "stored"), [("scatter", False), ("scatter, stored where it goes", True)])
def test_what_is_predicted_is_what_carries_it_out(measured, name, stored):
    """What tiles have stored needs no copy."""
    copies = [event for event in measured(name).predicted.events if event.kind == "copy"]
    assert copies and all((event.start == event.end) == stored for event in copies)


@pytest.mark.parametrize(("name", "in_tiles"), [("scatter", False), ("scatter, added by tiles", True)])
def test_what_is_predicted_adds_where_the_call_did(measured, name, in_tiles):
    """By tiles that wait for what comes, or by a sum behind all."""
    events = measured(name).predicted.events
    assert any(event.kind == "sum" for event in events) != in_tiles
    assert any("that add 2 to each" in event.label for event in events) == in_tiles
