"""`overlap.ops.ag_gemm` on simulated ranks against fp32 products of the gathered tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import RaceFault, UsageError
from overlap.ops import ag_gemm, last_plan, measure
from overlap.ops.kernels import copy_flat
from overlap.ops.reserve import reserve
from overlap.runtime.launch import launch as launch_layer
from overlap.sim import World
from overlap.sim.runtime import SimRuntime

EPSILON = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-22}


@dataclass
class Case:
    """One call: ``shape`` is the gathered tensor's, ``columns`` the weights'; what differs between ranks is random."""

    shape: tuple[int, ...]
    columns: tuple[int, ...]
    world: int = 2
    dim: int = 0
    dtype: torch.dtype = torch.float16
    bias: bool = False
    weight: str = "plain"
    x: str = "plain"
    plan: str = "all_gather_1d"
    split: int | str | tuple[int, ...] = 1
    options: dict = field(default_factory=dict)


CASES = {
    "even rows": Case((128, 64), (72,)),
    "ragged rows, several weights, bias": Case((131, 64), (40, 72, 8), world=3, bias=True, weight="transposed"),
    "weights and results TMA cannot take": Case((67, 32), (33, 7), world=4, bias=True, plan="all_gather_1d_push"),
    "rows TMA cannot take": Case((70, 23), (41,), weight="transposed", x="strided", dtype=torch.bfloat16),
    "rows of several dimensions": Case((8, 5, 24), (33,), world=4, dtype=torch.bfloat16, plan="all_gather_1d_push"),
    "uneven outer dimension": Case((7, 5, 24), (40,), world=3, dtype=torch.float32),
    "inner dimension, batched": Case((2, 37, 24), (40, 7), world=3, dim=1, bias=True, plan="all_gather_1d_push"),
    "inner dimension from the end": Case((3, 8, 2, 16), (16,), world=4, dim=-3, dtype=torch.float32, x="strided"),
    "inner dimension by TMA": Case((2, 101, 24), (40, 16), world=3, dim=1, bias=True, plan="all_gather_1d_push"),
    "uneven outer dimension by TMA": Case((7, 52, 16), (33,), world=3, dtype=torch.bfloat16, weight="transposed"),
    "stride 0": Case((66, 32), (24,), x="expanded"),
    "offset view, odd address": Case((66, 32), (24,), world=3, x="offset", weight="offset"),
    "every other column of a weight": Case((66, 32), (24,), weight="skipping"),
    "fewer rows than ranks": Case((3, 64), (64,), world=4),
    "one of everything": Case((1, 8), (1,), world=4, dtype=torch.float32),
    "one rank": Case((33, 16), (24, 8), world=1, bias=True),
    "moved between tiles": Case((70, 23), (41, 9), world=3, split=2, options={"backend": "ldst_inline"}),
    "moved by reserved programs": Case((131, 64), (40, 8), world=3, bias=True, options={"backend": "ldst_reserved"}),
    "moved by two reserved programs": Case(
        (70, 23), (41,), dtype=torch.bfloat16, split=2, options={"backend": "ldst_reserved", "comm_sms": 2}
    ),
    "a small chunk at the end": Case((131, 16), (24,), world=4, split="1/1/3:1"),
    "uneven chunks, ring": Case((90, 16), (24,), world=3, split=(1, 2, 1), plan="all_gather_ring"),
    "chunks of a shard, ring": Case((90, 16), (24,), world=3, split=2, plan="all_gather_ring"),
}


def weight_of(case: Case, n: int, generator: torch.Generator) -> torch.Tensor:
    depth = case.shape[-1]
    if case.weight == "transposed":
        return torch.randn(n, depth, generator=generator).to(case.dtype).t()
    if case.weight == "skipping":
        return torch.randn(depth, 2 * n, generator=generator).to(case.dtype)[:, ::2]
    if case.weight == "offset":
        return torch.randn(depth * n + 1, generator=generator).to(case.dtype)[1:].view(depth, n)
    return torch.randn(depth, n, generator=generator).to(case.dtype)


def shard_of(case: Case, whole: torch.Tensor, rank: int) -> torch.Tensor:
    low, high = shard_interval(whole.shape[case.dim], case.world, rank)
    shard = whole.narrow(case.dim, low, high - low)
    if case.x == "offset":
        memory = torch.empty(shard.numel() + 1, dtype=shard.dtype)
        memory[1:] = shard.reshape(-1)
        return memory[1:].view(shard.shape)
    if case.x == "strided":
        return shard.transpose(0, -1).contiguous().transpose(0, -1)
    return shard if case.x == "expanded" else shard.contiguous()


def run(case: Case, *, seed: int = 0, launches: int = 2):
    """Every rank's results of several calls in a row with new data, beside what they should be."""
    generator = torch.Generator().manual_seed(seed)
    depth = case.shape[-1]
    wholes = [torch.randn(case.shape, generator=generator).to(case.dtype) for _ in range(launches)]
    if case.x == "expanded":
        wholes = [w.narrow(0, 0, 1).expand(case.shape) for w in wholes]
    weights = [[weight_of(case, n, generator) for n in case.columns] for _ in range(case.world)]
    biases = [
        [torch.randn(n, generator=generator).to(case.dtype) if case.bias else None for n in case.columns]
        for _ in range(case.world)
    ]

    def body(group):
        rank = group.overlap_runtime.rank
        results = []
        for whole in wholes:
            results.append(
                ag_gemm(
                    shard_of(case, whole, rank),
                    weights[rank],
                    bias=biases[rank],
                    gather_dim=case.dim,
                    gather_size=case.shape[case.dim],
                    group=group,
                    return_gathered=True,
                    plan=case.plan,
                    split=case.split,
                    **case.options,
                )  # fmt: skip
            )
        group.overlap_runtime.synchronize()
        return results

    for rank, results in enumerate(World(case.world, seed=seed).run(body)):
        for whole, (ys, gathered) in zip(wholes, results, strict=True):
            assert torch.equal(gathered, whole)
            for y, w, b in zip(ys, weights[rank], biases[rank], strict=True):
                wanted = whole.double() @ w.double() + (b.double() if b is not None else 0)
                scale = whole.double().abs() @ w.double().abs() + 1
                assert y.dtype == case.dtype and y.shape == wanted.shape
                worst = ((y.double() - wanted).abs() / scale).max().item()
                assert worst <= EPSILON[case.dtype] + depth * 2**-24, worst  # NaN fails too


@pytest.mark.parametrize("name", CASES)
def test_equals_the_product_of_the_gathered_tensor(name):
    case = CASES[name]
    run(case, seed=len(name))
    said = last_plan()
    backend = case.options.get("backend", "copy_engine")
    assert (said.operator, said.backend, said.world) == ("ag_gemm", backend, case.world)


@pytest.mark.parametrize("backend", ["copy_engine", "ldst_reserved"])
def test_which_kernel_ran_depends_on_the_gathered_tensor_alone(backend):
    """Ranks whose weights differ in shape and alignment still take part in one protocol; one here has nothing to compute."""
    whole = torch.randn(48, 32, dtype=torch.float16)
    weights = [torch.randn(32, 16).half(), torch.randn(7, 32).half().t(), torch.empty(32, 0).half()]

    def body(group):
        rank = group.overlap_runtime.rank
        y = ag_gemm(whole.chunk(3)[rank].clone(), weights[rank], group=group, backend=backend)
        group.overlap_runtime.synchronize()
        return y

    for y, w in zip(World(3).run(body), weights, strict=True):
        assert torch.allclose(y.float(), whole.float() @ w.float(), atol=2e-2)


@pytest.mark.parametrize(
    ("backend", "plan"),
    [
        ("copy_engine", "all_gather_1d_pull"),
        ("copy_engine", "all_gather_1d_push"),
        ("ldst_reserved", "all_gather_1d_push"),
        ("tma_reserved", "all_gather_1d_pull"),
        ("collective", "all_gather_1d"),
    ],
)
def test_a_rank_without_columns_waits_for_what_it_returns(backend, plan):
    """No tile of its own does; the first call, one that is kept, one that repeats it. Seven rows leave the last rank none."""
    weights = [torch.randn(32, columns).half() for columns in (0, 16, 8, 0)]
    wholes = [torch.randn(7, 32, dtype=torch.float16) for _ in range(3)]

    def body(group):
        rank = group.overlap_runtime.rank
        found = []
        for whole in wholes:
            x = whole[2 * rank : 2 * rank + 2].clone()
            options = {"gather_size": 7, "return_gathered": True, "backend": backend, "plan": plan}
            found.append(ag_gemm(x, weights[rank], group=group, **options))
        group.overlap_runtime.synchronize()
        return found

    for calls, w in zip(World(4).run(body), weights, strict=True):
        for (y, gathered), whole in zip(calls, wholes, strict=True):
            assert torch.equal(gathered, whole) and torch.allclose(y.float(), whole.float() @ w.float(), atol=2e-2)


def test_memory_reserved_for_programs_that_move_is_all_there_will_be():
    whole, w = torch.randn(40, 16).half(), torch.randn(16, 24).half()
    how = {"backend": "ldst_reserved", "comm_sms": 2}

    def body(group):
        runtime = group.overlap_runtime
        reserve(group, max_tokens=40, hidden=16, dtype=torch.float16, **how)
        made = []
        runtime.symmetric = lambda *words, **options: made.append(words)
        results = [ag_gemm(x.chunk(2)[runtime.rank].clone(), w, group=group, **how) for x in (whole, whole[:6])]
        runtime.synchronize()
        return made, results

    for made, results in World(2).run(body):
        assert not made
        assert all(
            torch.allclose(y.float(), x.float() @ w.float(), atol=2e-2)
            for x, y in zip((whole, whole[:6]), results, strict=True)
        )


def test_programs_of_the_kernel_are_asked_of_a_way_that_has_them():
    with pytest.raises(UsageError, match="copy_engine takes no programs of the kernel") as caught:
        World(1).run(lambda group: ag_gemm(torch.ones(4, 8), torch.ones(8, 4), group=group, comm_sms=2))
    assert "ldst_reserved" in caught.value.help


def test_results_go_where_the_caller_says():
    whole = torch.randn(20, 16, dtype=torch.float16)
    w = torch.randn(16, 24).half()

    def body(group):
        out = torch.empty(20, 24, dtype=torch.float16)
        y = ag_gemm(whole.chunk(2)[group.overlap_runtime.rank].clone(), w, out=out, group=group)
        group.overlap_runtime.synchronize()
        return y is out, out

    for same, out in World(2).run(body):
        assert same and torch.allclose(out.float(), whole.float() @ w.float(), atol=2e-2)


def test_nothing_to_gather_is_no_launch():
    w, bias = torch.randn(0, 3), torch.randn(3)

    def body(group):
        empty = ag_gemm(torch.empty(0, 5), torch.randn(5, 3), group=group, return_gathered=True)
        summed = ag_gemm(torch.empty(2, 0), w, bias=bias, group=group)
        return empty, summed

    for (y, gathered), summed in World(3).run(body):
        assert y.shape == (0, 3) and gathered.shape == (0, 5)
        assert torch.equal(summed, bias.expand(6, 3))


def test_further_products_run_before_peers_may_overwrite_the_gathered_tensor(monkeypatch):
    """With pushes a peer's next launch writes the buffer that the second weight's product reads."""
    case = Case((64, 16), (16, 8), world=2, plan="all_gather_1d_push")
    run(case, launches=3)
    original = launch_layer.launch

    def late(operator, instance, given, bound, grid, results, behind=None, repeat=None, left=None):
        original(operator, instance, given, bound, grid, results)
        if behind is not None:
            behind()

    monkeypatch.setattr(launch_layer, "launch", late)
    with pytest.raises(RaceFault, match="race"):
        for seed in range(6):
            run(case, seed=seed, launches=3)


def test_a_simulated_group_has_no_collectives():
    def body(group):
        return ag_gemm(torch.randn(4, 8), torch.randn(8, 8), group=group, backend="serial")

    with pytest.raises(UsageError, match="no collectives"):
        World(2).run(body)


def test_exposed_time_is_measured_on_request(monkeypatch):
    """Both sides of the measurement run, and give what they should; the clock is not simulated."""
    whole, w = torch.randn(20, 16, dtype=torch.float16), torch.randn(16, 24).half()
    timed = []

    def clock(run, iterations):
        run()
        timed.append(iterations)
        return 2.5 if run.__name__ == "alone" else 3.0

    monkeypatch.setattr("overlap.api.measure.median_ms", clock)

    def body(group):
        shard = whole.chunk(2)[group.overlap_runtime.rank].clone()
        said = measure(shard, w, group=group, iterations=7)
        group.overlap_runtime.synchronize()
        return said

    for said in World(2).run(body):
        assert (said.exposed_ms, said.backend, said.world) == (0.5, "copy_engine", 2)
        assert "0.500 ms of it exposed" in str(said)
    assert timed == [7] * 4


def test_exposed_time_of_a_call_that_returns_the_gathered_tensor(monkeypatch):
    """It is the call that is measured, and its copy of what was gathered is no communication."""
    whole, w = torch.randn(20, 16, dtype=torch.float16), torch.randn(16, 24).half()
    returned, launched = [], []
    launch = SimRuntime.launch

    def watched(self, kernel, *rest):
        launched.append(kernel)
        launch(self, kernel, *rest)

    def clock(run, iterations):
        monkeypatch.setattr(SimRuntime, "launch", watched if run.__name__ == "alone" else launch)
        returned.append(run())
        return 1.0

    monkeypatch.setattr("overlap.api.measure.median_ms", clock)

    def body(group):
        measure(whole, w, group=group, return_gathered=True)
        group.overlap_runtime.synchronize()

    World(1).run(body)
    (y, gathered), _ = returned
    assert torch.equal(gathered, whole)
    torch.testing.assert_close(y.float(), whole.float() @ w.float(), rtol=1e-2, atol=1e-2)
    assert launched.count(copy_flat) == 1
