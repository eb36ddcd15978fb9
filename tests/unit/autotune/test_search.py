"""The space of configs, what prunes it, and successive halving on a clock that the test turns."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from overlap.autotune.config import Config
from overlap.autotune.prune import Limits, Tile, by_limits, by_rows, prune
from overlap.autotune.search import KEPT, RUNS, TRIAL_MS, Measured, Search
from overlap.autotune.space import (
    PLANS,
    Product,
    around,
    communication,
    ordered,
    predict,
    splits_of,
    with_tile,
    words_of,
)
from overlap.backends.base import Realization
from overlap.backends.capabilities import Need
from overlap.chunkplan.library import list_templates
from overlap.schedule.machine import load_machine

H100 = Limits(shared=227 * 1024, threads=1024, units=132)


def config(split: int = 1, backend: str = "copy_engine", **meta: int) -> Config:
    return Config(Realization(backend, split=split, meta=tuple(sorted(meta.items()))))


class Clock:
    """Measures as a table says; a trial takes its runs and, the first time, what compiling takes."""

    def __init__(self, ms: dict[Config, float], compile_s: float = 1.0) -> None:
        self.ms = ms
        self.now = 0.0
        self.asked: list[tuple[Config, int]] = []
        self._compile = compile_s

    def measure(self, config: Config, runs: int) -> Measured:
        first = config not in [known for known, _ in self.asked]
        self.asked.append((config, runs))
        ms = self.ms[config]
        if not math.isfinite(ms):
            self.now += 1
            return Measured(None, "rank 1: OutOfResources: shared memory", self.now)
        self.now += self._compile * first + runs * ms / 1e3
        # Few runs are noisy: a tenth either way.
        noise = 1 + (0.1 if len(self.asked) % 2 else -0.1) * (runs == RUNS[0])
        return Measured(ms * noise, elapsed=self.now)


def test_the_best_is_found_with_few_long_trials():
    ms = {config(n): 1.0 + abs(n - 7) / 5 for n in range(1, 31)}
    clock = Clock(ms)
    outcome = Search(clock, 1000).run(config(30), [config(n) for n in range(1, 30)])
    assert outcome.winner is not None and outcome.winner.config == config(7) and outcome.left == 0
    longest = [c for c, runs in clock.asked if runs == RUNS[-1]]
    assert len(longest) <= 4 and sum(runs == RUNS[0] for _, runs in clock.asked) == 30
    assert sum(runs == RUNS[1] for _, runs in clock.asked) == 30 // KEPT


def test_neighbours_of_the_best_are_tried_and_the_built_in_wins_a_draw():
    ms = {config(n): 2.0 - n / 10 for n in range(1, 5)} | {config(4, BLOCK_M=64): 0.5}
    outcome = Search(Clock(ms), 1000).run(
        config(1), [config(n) for n in range(2, 5)], lambda best: [config(4, BLOCK_M=64), best]
    )
    assert outcome.winner.config == config(4, BLOCK_M=64)
    level = {config(1): 1.0, config(2): 0.995}
    assert Search(Clock(level), 1000).run(config(1), [config(2)]).winner.config == config(1)


def test_failures_take_configs_out():
    ms = {config(1): math.inf, config(2): 1.0, config(3): math.inf}
    outcome = Search(Clock(ms), 1000).run(config(1), [config(2), config(3)], lambda best: ())
    assert outcome.winner.config == config(2)
    assert [bool(trial.failed) for trial in outcome.trials] == [True, False, True]
    nothing = Search(Clock({config(1): math.inf}), 1000).run(config(1), ())
    assert nothing.winner is None and nothing.trials[0].failed


@pytest.mark.parametrize("budget", [5.0, 12.0, 40.0])
def test_the_budget_is_kept_and_the_likeliest_are_measured(budget):
    ms = {config(n): 1.0 for n in (*range(1, 200), 300)}
    clock = Clock(ms, compile_s=0.7)
    outcome = Search(clock, budget).run(config(1), [config(n) for n in range(2, 200)], lambda best: [config(300)])
    assert clock.now <= budget and outcome.seconds == clock.now
    assert outcome.winner is not None and outcome.left == 199 - len({c for c, _ in clock.asked if c != config(300)})
    assert [c for c, runs in clock.asked][:3] == [config(1), config(2), config(3)]


def test_a_budget_for_nothing_still_measures_what_is_built_in():
    clock = Clock({config(1): 1.0}, compile_s=3)
    outcome = Search(clock, 1e-9).run(config(1), [config(2)])
    assert outcome.winner.config == config(1) and outcome.left == 1


def test_slow_configs_are_run_fewer_times():
    clock = Clock({config(1): 900.0, config(2): 899.0}, compile_s=0)
    Search(clock, 1000).run(config(1), [config(2)])
    assert max(runs for _, runs in clock.asked) == RUNS[0] and TRIAL_MS < 900 * RUNS[0]


def test_what_no_device_can_hold_is_counted_by_reason():
    tile = {"BLOCK_K": 64, "BLOCK_M": 128}
    small = config(**tile, BLOCK_N=128)
    huge = config(**tile, BLOCK_N=256)  # 4 warps by default: 256 accumulators a thread
    odd = config(**tile, BLOCK_N=96)
    deep = Config(Realization(num_stages=9, meta=small.realization.meta))
    wide = Config(Realization(num_warps=64, meta=small.realization.meta))
    crowd = Config(Realization("ldst_reserved", comm_sms=132))
    found = prune(
        [small, small, huge, odd, deep, wide, crowd, config(9), config(8), config(backend="serial")],
        [by_limits(H100, 2), by_rows(8)],
    )
    assert found.kept == (small, config(8), config(backend="serial"))
    assert found.refused == {
        "more registers than a thread has": 1,
        "block sizes that are no powers of two": 1,
        "more shared memory than a block has": 1,
        "more threads than a block has": 1,
        "no multiprocessor left to compute": 1,
        "chunks of less than a row": 1,
    }
    assert str(found).startswith("3 configs, 6 refused: 1 block sizes")


@pytest.mark.parametrize(("stages", "result", "fits"), [(3, 2, True), (4, 2, False), (4, 0, True)])
def test_a_result_that_is_stored_from_shared_memory_takes_some(stages, result, fits):
    """128 x 256 x 64 in bf16: a stage is 48 KiB, a tile of the result 64; with four of them a trial failed on H200s."""
    meta = config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64).realization.meta
    one = Config(Realization(num_warps=8, num_stages=stages, meta=meta))
    assert bool(prune([one], [by_limits(H100, 2, Tile(result=result))]).kept) == fits


def test_the_space_of_an_operator_is_what_the_capability_table_leaves():
    machine = load_machine("h100-nvlink")
    product = Product("ag_gemm", {"M": 1000, "N": 512, "K": 96}, "bf16", 3)
    configs, refused = communication(
        product,
        machine,
        Need("ag_gemm", moves="input", triton=(3, 6)),
        lacking=lambda name: "asleep" * (name == "ldst_inline"),
    )
    backends = {c.realization.backend for c in configs}
    assert {"copy_engine", "ldst_reserved", "tma_reserved", "serial"} <= backends and "ldst_inline" not in backends
    assert refused["asleep"] > 0
    assert "collective" in backends
    plans = {c.plan for c in configs if c.realization.backend == "copy_engine"}
    assert plans == {"all_gather_1d", "all_gather_1d_push", "all_gather_ring"}, (
        "what its own direction makes is there once"
    )
    assert len({c.realization.comm_sms for c in configs if c.realization.backend == "ldst_reserved"}) > 2
    assert {c.realization.split for c in configs} == set(splits_of("all_gather")) > {1, 8, (3, 1)}
    inside, _ = communication(
        replace(product, op="ag_gemm_k"), machine, Need("x", moves="input"), lacking=lambda name: ""
    )
    assert {c.realization.split for c in inside} == set(splits_of("all_to_all"))
    graded = next(c for c in configs if c.realization.split == ((1,), (1,), (3, 1)))
    assert by_rows(3)(graded) and not by_rows(4)(graded), "a part of less than a row"
    chosen, predicted, behind = ordered(configs, lambda c: predict(product, machine, c), most=12, each=1)
    assert len(chosen) == 12 and behind == len(configs) - 12
    assert {c.realization.backend for c in chosen} == backends, "each backend is measured"
    times = [round(predicted[c], 7) for c in chosen]
    assert times == sorted(times) and times[0] == min(round(time, 7) for time in predicted.values())
    assert all(name in list_templates() for names in PLANS.values() for name in names)


@pytest.mark.parametrize(("op", "moves", "pushed"), [("a2a_gemm", "input", True), ("gemm_a2a", "result", False)])
def test_an_exchange_is_pushed_where_it_would_be_pulled(op, moves, pushed):
    """Out of the caller's tensor; results are pushed in any case."""
    product = Product(op, {"M": 1024, "N": 512, "K": 512}, "bf16", 2)
    configs, _ = communication(product, load_machine("h100-nvlink"), Need(op, moves=moves), lacking=lambda name: "")
    plans = {c.plan for c in configs if c.realization.backend == "copy_engine"}
    assert plans == {"all_to_all_1d"} | ({"all_to_all_1d_push"} if pushed else set())
    assert not any(c.plan == "all_to_all_1d_push" for c in configs if c.realization.backend == "words_inline")


def test_words_are_tried_of_small_results_alone():
    """Whole, by plans of one step; where a rank gets less than a MiB."""
    machine, need = load_machine("h100-nvlink"), Need("x", moves="result", triton=(3, 6))
    for op, plan in (
        ("gemm_rs", "reduce_scatter_1d"),
        ("gemm_ar", "all_reduce_one_shot"),
        ("gemm_a2a", "all_to_all_1d"),
    ):
        product = Product(op, {"M": 16, "N": 4096, "K": 4096}, "bf16", 2)
        configs, _ = communication(product, machine, need, lacking=lambda name: "")
        words = [c for c in configs if c.realization.backend == "words_inline"]
        assert words == [Config(Realization("words_inline"), plan)]
        chosen, _, _ = ordered(configs, lambda c, product=product: predict(product, machine, c), most=12, each=1)
        assert chosen[0] == words[0], "no other way is predicted to be as fast"
        # Bytes that a rank of two gets, for each row: all of it, half, a quarter.
        first = 2**20 * {"gemm_ar": 1, "gemm_rs": 2, "gemm_a2a": 4}[op] // (2 * 4096)
        for rows, refused in ((8192, 1), (first, 1), (first - 1, 0)):
            other = replace(product, sizes={"M": rows, "N": 4096, "K": 4096})
            found = prune(configs, [words_of(other)])
            assert found.refused == Counter({"too many bytes for words": refused} if refused else {}), rows
            assert len(found.kept) == len(configs) - refused


@pytest.mark.parametrize("rows", [8192, 8000])
def test_sums_in_tiles_are_tried_where_pieces_are_whole_tiles(rows):
    """Of the plan whose pieces nobody sends on, with nothing left free for sums; and each of the others with them off."""
    machine, need = load_machine("h100-nvlink"), Need("x", moves="result", triton=(3, 6))
    product = Product("gemm_rs", {"M": rows, "N": 4096, "K": 4096}, "bf16", 2)
    configs, _ = communication(product, machine, need, lacking=lambda name: "")
    by = {None: [], 0: [], 1: []}
    for found in configs:
        by[found.realization.tile_sums].append(found)
    # 4000 rows are none of 128 in any of the pieces tried.
    assert {c.realization.split for c in by[1]} == (set(splits_of("reduce_scatter")) if rows == 8192 else set())
    assert {(c.plan, c.realization.backend, c.realization.sum_sms) for c in by[1]} <= {
        ("reduce_scatter_1d", "copy_engine", 0)
    }
    assert len({c.realization.split for c in by[0]}) == len(by[1]) < len(by[0]) or not by[0]
    assert all(c.plan != "reduce_scatter_1d" or c.realization.backend != "copy_engine" for c in by[None]) == (
        rows == 8192
    )
    for found in by[1]:
        plain = replace(found, realization=replace(found.realization, tile_sums=0))
        times = [predict(product, machine, each) for each in (found, plain)]
        assert plain in by[0] and times[0] != times[1]
    for op, dtype in (("gemm_ar", "bf16"), ("gemm_rs", "fp32")):
        others, _ = communication(replace(product, op=op, dtype=dtype), machine, need, lacking=lambda name: "")
        assert {c.realization.tile_sums for c in others} == {None}


def test_words_are_not_cut_around_a_config():
    tile = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 1, "num_warps": 4, "num_stages": 4}
    words = Config(Realization("words_inline"), "reduce_scatter_1d")
    assert around(words, [tile]) == (with_tile(words, tile),)


def test_tiles_and_numbers_around_a_config():
    start = Config(Realization("ldst_reserved", split=2, comm_sms=8), "all_gather_1d")
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 4, "num_warps": 8, "num_stages": 2}
    near = around(start, [tile])
    assert with_tile(start, tile) in near and with_tile(start, tile).realization.num_warps == 8
    assert {(c.realization.split, c.realization.comm_sms) for c in near} == {(2, 8), (1, 8), (4, 8), (2, 4), (2, 16)}
    assert around(Config(Realization("serial")), [tile]) == ()
    machine, product = load_machine("h100-nvlink"), Product("ag_gemm", {"M": 8192, "N": 8192, "K": 8192}, "bf16", 4)
    assert predict(product, machine, with_tile(start, tile)) != predict(product, machine, start)
