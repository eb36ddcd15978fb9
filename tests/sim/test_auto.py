"""``backend="auto"`` on simulated ranks: one choice for all of them, right results, and what is said of it."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
import torch
from test_compiled_kernel import close, data, grouped, on_ranks

import overlap
from overlap.api import auto
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import PlanError
from overlap.ops import ag_gemm, gemm_rs, last_plan
from overlap.schedule.machine import load_machine
from overlap.sim import World

pytestmark = pytest.mark.one_triton
H100 = load_machine("h100-nvlink")
FAST = {"pull": {2: 1e12}, "push": {2: 1e12}}
"""Programs that copy as fast as links carry."""


@pytest.fixture
def machines(monkeypatch):
    """``machines(a, b, ...)``: what rank 0, 1, ... take themselves to be on, the last also those behind them."""

    def give(*each):
        def machine_for(world):
            rank = sys._getframe(1).f_locals["runtime"].rank
            return each[min(rank, len(each) - 1)]

        monkeypatch.setattr(auto, "machine_for", machine_for)

    return give


def gathered(world: int, launches: int = 2) -> list:
    whole = data(20, 32)
    w = data(32, 24, seed=1)

    def body(group):
        rank = group.overlap_runtime.rank
        low, high = shard_interval(20, world, rank)
        ys = [
            ag_gemm(whole[low:high].contiguous(), w, gather_size=20, group=group, backend="auto")
            for _ in range(launches)
        ]
        group.overlap_runtime.synchronize()
        for y in ys:
            close(y, whole, w)
        return auto.choices(group.overlap_runtime)

    return World(world, seed=0, sms=8).run(body)


def test_all_ranks_do_what_rank_0_found(machines):
    """They know their machine by other numbers, and by theirs each would choose something else."""
    machines(replace(H100, programs=FAST, inside=replace(H100.inside, latency_s=1e-3)), replace(H100, programs={}))
    (one, *others) = [list(found.values()) for found in gathered(2)]
    assert len(one) == 1 and all(other == one for other in others)
    assert one[0].backend == "ldst_reserved" and one[0].programs == 2
    said = last_plan("ag_gemm")
    assert said is not None and said.backend == "ldst_reserved" and said.considered == one[0].considered
    assert said.considered[0].startswith("ldst_reserved with 2 programs ")
    assert any(text.startswith("copy_engine 1.") for text in said.considered)


def test_copies_where_programs_were_not_measured(machines):
    machines(replace(H100, programs={}))
    choice = next(iter(gathered(3, launches=1)[0].values()))
    assert choice.backend == "copy_engine"
    assert any("ldst_reserved: machine h100-nvlink does not say how fast programs copy" in c for c in choice.considered)


def test_words_are_for_those_who_name_them(machines):
    """Where nothing else could be as fast."""
    machines(replace(H100, programs=FAST))

    def body(group):
        y = gemm_rs(data(16, 32), data(32, 24, seed=1), group=group, backend="auto")
        group.overlap_runtime.synchronize()
        return y

    World(2, sms=8).run(body)
    said = last_plan("gemm_rs")
    assert said is not None and said.backend in ("copy_engine", "ldst_inline")
    assert any("words_inline has all programs of a launch resident at once" in each for each in said.considered)


def test_what_one_rank_cannot_choose_all_refuse(machines, monkeypatch):
    def nowhere(world):
        raise PlanError("unknown machine `mine`")

    monkeypatch.setattr(auto, "machine_for", nowhere)
    with pytest.raises(PlanError, match="unknown machine `mine`"):
        gathered(2)


def test_results_of_a_product(machines):
    machines(replace(H100, programs=FAST))
    x, w = data(32, 16, dtype=torch.float32), data(16, 24, dtype=torch.float32, seed=1)

    def body(group):
        y = gemm_rs(x, w, group=group, backend="auto")
        group.overlap_runtime.synchronize()
        rank = group.overlap_runtime.rank
        assert torch.allclose(y, (2 * x @ w)[16 * rank : 16 * rank + 16], atol=1e-4)
        return next(iter(auto.choices(group.overlap_runtime).values())).backend

    assert World(2, seed=0, sms=8).run(body)[0] in ("copy_engine", "ldst_inline")


def test_a_kernel_that_is_launched(repo, machines):
    machines(replace(H100, programs=FAST, inside=replace(H100.inside, latency_s=1e-3)))
    kernel = load_module(str(repo / "templates" / "kernels" / "grouped_gemm.py")).matmul_kernel
    compiled = overlap.compile(plan="all_gather_1d", on="a[M]", backend="auto")(kernel)
    whole, b = data(66), data(24, 40, seed=1)
    results = on_ranks(2, whole, lambda group, shard: grouped(compiled, shard, b, 66, group))
    for c in itertools.chain(*results):
        close(c, whole, b)
    assert compiled.last_plan.backend == "ldst_reserved" and compiled.last_plan.considered
    assert ("ldst_reserved", 0) in compiled.variants.known()
