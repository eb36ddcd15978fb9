"""What ways of moving chunks are predicted to take: what is different about each, and the order that was measured."""

from dataclasses import replace

import pytest

from overlap.backends import backend, backends
from overlap.backends.capabilities import Need
from overlap.backends.ways import LIBRARY_WAYS, SERIAL_WAY, able_ways, way_of
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.cuts import split_of
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import PlanError
from overlap.schedule.carried import LANES, Way, programs_tried, rate_of_programs
from overlap.schedule.machine import load_machine
from overlap.schedule.op_ways import operator_candidates
from overlap.schedule.predict import predict
from overlap.schedule.ways import Candidate, best
from overlap.schedule.work import work_per_chunk

H100 = load_machine("h100-nvlink")
BF16 = {"M": 8192, "N": 8192, "K": 28672}


def seconds(op, ways, sizes=BF16, machine=H100, world=4, **options):
    found = operator_candidates(op, ways, world=world, sizes=sizes, machine=machine, **options)
    return {str(c.way): c.seconds for c in found}


@pytest.mark.parametrize("op", ["ag_gemm", "ag_gemm_k", "gemm_rs", "gemm_ar", "a2a_gemm", "gemm_a2a"])
@pytest.mark.parametrize("world", [1, 3, 4])
def test_lanes_and_serial_are_what_predict_says(op, world):
    sizes = {"M": 1000, "N": 520, "K": 344}
    whole = predict(op, world=world, sizes=sizes, machine=H100, break_even=False)
    found = seconds(op, [Way("copy_engine", "lanes"), SERIAL_WAY], sizes, world=world)
    assert found["serial"] == pytest.approx(whole.serial)
    assert found["copy_engine"] == pytest.approx(whole.fused if world > 1 else whole.gemm)


@pytest.mark.parametrize(
    ("m", "n", "k", "copied", "stored"),
    [(8192, 4096, 14336, 0.438, 0.515), (8192, 8192, 8192, 0.578, 0.733), (8192, 8192, 28672, 1.401, 1.511)],
)
def test_stores_lose_to_copies_as_measured(m, n, k, copied, stored):
    """4 x H100, bench/results/ways: by how much, to a fifth."""
    ways = [way_of(backend(name), True, tile_sums=False) for name in ("copy_engine", "ldst_inline")]
    found = seconds("gemm_rs", ways, {"M": m, "N": n, "K": k}, split=2)
    ratio = found["ldst_inline"] / found["copy_engine"]
    assert ratio > 1 and ratio == pytest.approx(stored / copied, rel=0.2)


def test_programs_that_move_take_units_and_copy_at_their_rate():
    ways = [Way("few", "moves", 4), Way("more", "moves", 32), Way("all", "shared")]
    found = seconds("ag_gemm", ways, {"M": 8192, "N": 1024, "K": 8192})
    assert found["few with 4 programs"] > found["more with 32 programs"]  # 134 MB at 162 GB/s: the copies last
    long = seconds("ag_gemm", ways, {"M": 8192, "N": 1 << 19, "K": 8192})
    assert long["few with 4 programs"] < long["more with 32 programs"]  # the product lasts


def test_the_rate_of_programs_is_what_was_measured_or_between():
    machine = replace(H100, programs={"push": {4: 100e9, 8: 200e9, 16: 900e9}, "push_tma": {8: 50e9}})
    rates = [rate_of_programs(machine, "push", n) for n in (2, 4, 6, 8, 16, 99)]
    assert rates == [50e9, 100e9, 150e9, 200e9, 377e9, 377e9]
    assert rate_of_programs(machine, "push", 8, by="tma") == 50e9
    assert programs_tried(replace(machine, units=40), "push") == (4, 8)
    with pytest.raises(PlanError, match="does not say how fast programs copy") as caught:
        rate_of_programs(machine, "pull", 8)
    assert "overlap calibrate" in caught.value.help


def test_a_collective_around_a_generated_kernel_copies_what_it_moves():
    """Into the library's memory and out of it: of 8192 x 8192 elements of 2 bytes twice, read and written."""
    sizes = {"M": 8192, "N": 8192, "K": 8192}
    found = seconds("ag_gemm", [SERIAL_WAY, LIBRARY_WAYS["collective"]], sizes)
    assert found["collective"] - found["serial"] == pytest.approx(2 * 2 * 8192 * 8192 * 2 / H100.memory)


def test_every_backend_is_able_or_refused_with_why():
    for moves in ("input", "result"):
        able, refused = able_ways(Need("x", "x", moves))
        names = [way.name for way in able] + [c.way.name for c in refused]
        assert sorted(names) == sorted([*backends, "serial"])
        assert all(c.refused and c.seconds is None for c in refused)
        assert [way.name for way in able if way.name != "serial"] == [
            name for name, found in backends.items() if moves in found.moves and not found.far
        ]
    able, refused = able_ways(Need("x", "x", "input"), programs=8, serial=False, lacking=lambda n: "no" * (n[0] == "t"))
    assert all(way.programs == 8 for way in able) and {way.name for way in able} <= {
        b.name for b in backends.values() if b.comm_sms
    }
    assert {"copy_engine: it takes no programs, and 8 are wanted"} <= {str(c) for c in refused}


WORDS = Way("words_inline", "words", pushed=True)
SMALL = {"gemm_rs": "reduce_scatter_1d", "gemm_ar": "all_reduce_one_shot", "gemm_a2a": "all_to_all_1d"}


@pytest.mark.parametrize("op", SMALL)
def test_words_take_a_launch_twice_the_bytes_and_a_crossing(op):
    """By hand: one launch, its wave with what it stores over the link, a crossing, and what is added or put in place."""
    world, sizes = 4, {"M": 64, "N": 4096, "K": 4096}
    found = seconds(op, [WORDS], sizes, world=world, plan=SMALL[op])["words_inline"]
    alone = predict(op, world=world, sizes=sizes, machine=H100, break_even=False).gemm
    part = 2 * 64 * 4096 * (world if op == "gemm_ar" else 1 if op == "gemm_rs" else 1 / world) / world
    sent, added = (
        2 * 3 * part / H100.programs["push"][132],
        (2 * world if op == "gemm_a2a" else world + 1) * part / H100.memory,
    )
    assert found == pytest.approx(alone + sent + min(H100.inside.latency_s, H100.flag) + added, rel=0.01)


def test_words_are_for_small_results():
    by = {
        rows: seconds("gemm_rs", [LANES, WORDS, SERIAL_WAY], {"M": rows, "N": 8192, "K": 8192}) for rows in (16, 8192)
    }
    assert by[16]["words_inline"] < by[16]["serial"] < by[16]["copy_engine"]
    assert by[8192]["copy_engine"] < by[8192]["words_inline"]


def test_words_wait_for_nothing_else_and_go_by_pointer():
    small = {"M": 64, "N": 4096, "K": 4096}
    for plan in ("all_reduce_two_shot", "all_reduce_ring"):
        (refused,) = operator_candidates("gemm_ar", [WORDS], world=4, sizes=small, machine=H100, plan=plan)
        assert refused.seconds is None and "send what tiles make" in refused.refused
    nodes = load_machine("h100-nvlink-ib400")
    (far,) = operator_candidates("gemm_rs", [WORDS], world=16, sizes=small, machine=nodes)
    assert "words go by pointer" in far.refused
    assert way_of(backend("words_inline"), True, 8, 4) == WORDS


def test_of_equals_the_first_is_taken():
    ways = [Candidate(Way(n, "lanes"), s) for n, s in (("a", 1.02), ("b", 1.0), ("c", 1.1))]
    assert best(ways).way.name == "a" and best(ways[1:]).way.name == "b" and best(ways[::-1]).way.name == "b"
    with pytest.raises(PlanError, match="no way to carry this out can be predicted: a: too far"):
        best([Candidate(Way("a", "lanes"), refused="too far")])


def test_tiles_behind_an_exchange_need_a_part_of_every_rank_s():
    """Nothing starts before the first part of all is there, rows between two cuts wait for what lands in them."""
    tensor = TensorSpec("x", (64, 30))
    path, text = find_template("all_to_all_1d")
    plan = build_plan(text, world=3, tensor=tensor, dim=1, to_dim=0, split="1:3/1/1:1", split_dim=0, path=path)
    (first, second, third), *_ = (work.runs for work in work_per_chunk(plan, 88, 1e-6))
    rows = [tuple(map(int, run.chunk[2:].split(",")[0].split(":"))) for run in (first, second, third)]
    assert rows == [(0, 6), (6, 11), (11, 22)] and [run.tiles for run in (first, second, third)] == [24, 20, 44]
    for run, (low, high) in zip((first, second, third), rows, strict=True):
        boxes = [plan.op(op).dst.box for op in run.waits]
        assert len(boxes) == 2 and all(box.lo[0] <= low and high <= box.hi[0] for box in boxes)


def test_exchanges_in_parts_are_ordered_as_two_gpus_did():
    """Milliseconds of 32768,8192,8192 (docs/performance.md): 1:3:4 3.176, 8 3.179, 1:3 3.218, 4 3.219, 2 3.336."""
    sizes = {"M": 32768, "N": 8192, "K": 8192}
    found = [
        seconds("a2a_gemm", [LANES], sizes, world=2, plan="all_to_all_1d", split=split_of(split))["copy_engine"]
        for split in ("1:3:4", "8", "1:3", "4", "2", "1")
    ]
    assert found == sorted(found)


@pytest.mark.parametrize("world", [2, 4])
def test_gathers_of_what_tiles_read_all_of_start_earlier_in_parts_of_rows(world):
    sizes = {"M": 8192, "N": 14336, "K": 4096}
    whole, halves, growing = (
        seconds("ag_gemm_k", [LANES], sizes, world=world, split=split)["copy_engine"] for split in (1, 2, (1, 3, 4))
    )
    assert growing < halves < whole
    found = predict("ag_gemm_k", world=world, sizes=sizes, machine=H100, split=(1, 3, 4), break_even=False)
    assert found.fused == pytest.approx(growing)


@pytest.mark.parametrize("world", [2, 4])
def test_sums_in_tiles_gain_where_what_comes_is_there_in_time(world, monkeypatch):
    """No sum behind the product and no unit left free; where all tiles begin at once those of the own part begin late."""
    ways = {kind: way_of(backend("copy_engine"), True, 0, free, kind == "tiles") for kind, free in HOW}

    def found(op="gemm_rs", split=2, **sizes):
        sizes = {"M": 8192, "N": 8192, "K": 8192 * world // 2, **sizes}
        times = {kind: seconds(op, [way], sizes, world=world, split=split) for kind, way in ways.items()}
        return {kind: next(iter(each.values())) for kind, each in times.items()}

    long, short, ragged = found(), found(M=256 * world), found(M=8192 - 128)
    assert long["tiles"] < long["behind"] and short["tiles"] > short["behind"]
    assert ragged["tiles"] == ragged["early"] and found("gemm_ar")["tiles"] == found("gemm_ar")["early"]
    for setting, same in (("0", "early"), ("1", "tiles")):
        monkeypatch.setenv("OVERLAP_TILE_SUMS", setting)
        way = way_of(backend("copy_engine"), True, 0, 4)
        assert seconds("gemm_rs", [way], {"M": 8192, "N": 8192, "K": 4096 * world}, world=world, split=2) == {
            str(way): long[same]
        }


HOW = (("behind", 0), ("early", 4), ("tiles", 4))


def test_tiles_stored_where_they_go_add_nothing():
    stored = way_of(backend("ldst_inline"), True, 0, 4, True)
    assert stored == way_of(backend("ldst_inline"), True) and stored.tile_sums is None
    (mixed,) = operator_candidates(
        "gemm_rs",
        [Way("copy_engine", "lanes", tile_sums=True)],
        world=2,
        sizes=BF16,
        machine=H100,
        split=2,
        named=lambda way: lambda op: stored if op.src_rank else way,
    )
    (lanes,) = operator_candidates(
        "gemm_rs", [Way("copy_engine", "lanes", tile_sums=True)], world=2, sizes=BF16, machine=H100, split=2
    )
    assert mixed.seconds > lanes.seconds
