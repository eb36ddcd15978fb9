"""Calls that repeat an earlier one on simulated ranks: the same launches, found by a key, over other tensors.

Each case calls an operator several times with operands of their own; what each result must be is known. Here the simulator
watches the short way as it watches the long one: for races, for deadlocks, for what is read before it is written.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import overlap.runtime.repeat.repeat as repeat_layer
from overlap.api.repeat import Known
from overlap.errors import DeadlockFault, RaceFault, RuntimeContractError, UsageError
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs
from overlap.runtime.launch.acts import OnLane
from overlap.sim import World
from overlap.sim.runtime import SimRuntime

pytestmark = pytest.mark.one_triton


@pytest.fixture(autouse=True)
def repeated(monkeypatch):
    """Names of the operators whose calls were repeated, one a call of a rank."""
    names: list[str] = []
    again = Known.again

    def watched(self, *call):
        found = again(self, *call)
        if found is not None:
            names.append(self._said.operator)
        return found

    monkeypatch.setattr(Known, "again", watched)
    return names


@dataclass
class Case:
    """Operands by rank and call, made ahead, since ranks share torch's generator; ``bias``: of every rank."""

    operator: Any
    world: int = 2
    rows: int = 9
    depth: int = 12
    columns: int = 10
    calls: int = 3
    bias: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.rows)
        self.xs, self.ws, self.biases = (
            [[self._random(generator, *size) for _ in range(self.world)] for _ in range(self.calls)]
            for size in (*self._sizes(), (self._sizes()[1][1],))
        )

    def _sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        rows, depth, world = self.rows * self.world, self.depth * self.world, self.world
        return {
            ag_gemm: ((self.rows, depth), (depth, self.columns)),
            ag_gemm_k: ((rows, self.depth), (depth, self.columns)),
            gemm_rs: ((rows, self.depth), (self.depth, self.columns)),
            gemm_ar: ((rows, self.depth), (self.depth, self.columns)),
            a2a_gemm: ((rows, self.depth), (depth, self.columns)),
            gemm_a2a: ((self.rows, depth), (depth, self.columns * world)),
        }[self.operator]

    @staticmethod
    def _random(generator: torch.Generator, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    def wanted(self, call: int, rank: int) -> torch.Tensor:
        xs, ws = ([t.double() for t in found[call]] for found in (self.xs, self.ws))
        bias = self.biases[call][rank].double() if self.bias else torch.zeros(1, dtype=torch.float64)
        if self.operator is ag_gemm:
            return torch.cat(xs) @ ws[rank] + bias
        if self.operator is ag_gemm_k:
            return torch.cat(xs, 1) @ ws[rank] + bias
        if self.operator is a2a_gemm:
            return torch.cat([x.chunk(self.world)[rank] for x in xs], 1) @ ws[rank] + bias
        if self.operator is gemm_a2a:
            columns = slice(rank * self.columns, (rank + 1) * self.columns)
            biases = [
                (b.double() if self.bias else torch.zeros(w.shape[1]))
                for b, w in zip(self.biases[call], ws, strict=True)
            ]
            return torch.cat([(x @ w + b)[:, columns] for x, w, b in zip(xs, ws, biases, strict=True)])
        total = sum(x @ w for x, w in zip(xs, ws, strict=True))
        if self.bias:
            total = total + self.biases[call][0].double()
        return total.chunk(self.world)[rank] if self.operator is gemm_rs else total

    def call(self, group: Any, call: int, **options: Any) -> torch.Tensor:
        rank = group.overlap_runtime.rank
        bias = {"bias": self.biases[call][rank]} if self.bias else {}
        return self.operator(
            self.xs[call][rank], self.ws[call][rank], group=group, **bias, **{**self.options, **options}
        )

    def run(self, seed: int = 0, **options: Any) -> None:
        """Makes all calls, and then compares, so that several are in flight."""

        def body(group: Any) -> list[torch.Tensor]:
            found = [self.call(group, call, **options) for call in range(self.calls)]
            group.overlap_runtime.synchronize()
            return [y.clone() for y in found]

        for rank, results in enumerate(World(self.world, seed=seed).run(body)):
            for call, y in enumerate(results):
                torch.testing.assert_close(y.double(), self.wanted(call, rank), rtol=1e-4, atol=1e-4)


CASES = {
    "ag_gemm": Case(ag_gemm, bias=True),
    "gemm_rs": Case(gemm_rs, world=3, bias=True, calls=2),
    "gemm_ar": Case(gemm_ar, calls=2),
    "ag_gemm_k": Case(ag_gemm_k, calls=2),
    "a2a_gemm": Case(a2a_gemm, bias=True, calls=2),
    "gemm_a2a": Case(gemm_a2a, calls=2),
    "one rank": Case(gemm_rs, world=1, calls=2),
}


@pytest.mark.parametrize("name", CASES)
def test_repeated_calls_find_their_own_operands(name, repeated):
    case = CASES[name]
    case.run(seed=len(name))
    assert len(repeated) == (case.calls - 1) * case.world


def test_the_first_call_of_a_group_is_known_although_it_makes_the_runtime(monkeypatch):
    """A process group has its runtime from its first call on, which is not there yet when the call is looked up."""
    import torch.distributed as dist

    from overlap.api import repeat
    from overlap.runtime.repeat import known_calls

    made: dict[Any, Any] = {}
    monkeypatch.setattr(known_calls, "known_runtime", made.get)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        asked = repeat.repeated("gemm_rs", None, (torch.empty(4, 3),), None, (), print)
        assert isinstance(asked, repeat.Asked)
        result, ready = torch.empty(2, 3), type("Ready", (), {})()
        asked.repeat([result]).ready = ready
        runtime = made[dist.group.WORLD] = type("Made", (), {})()
        asked.keep([result], None, forced=False)
        monkeypatch.setattr(Known, "again", lambda self, *call: [result] if self._launch() is ready else None)
        found = repeat.repeated("gemm_rs", dist.group.WORLD, (torch.empty(4, 3),), None, (), print)
    finally:
        dist.destroy_process_group()
    assert found == [result] and len(runtime.overlap_calls) == 1


def test_the_oldest_calls_go_with_what_was_made_ready_for_them(repeated, monkeypatch):
    from overlap.runtime.instances import instances
    from overlap.runtime.repeat import known_calls
    from overlap.runtime.repeat.repeat import ReadyLaunch

    monkeypatch.setattr(known_calls, "KEPT", 2)
    case = Case(gemm_rs, calls=4)

    def body(group):
        runtime, found = group.overlap_runtime, []
        for call, columns in enumerate((8, 6, 4, 6)):
            x, w = case.xs[call][runtime.rank], case.ws[call][runtime.rank][:, :columns]
            found.append(gemm_rs(x, w.contiguous(), group=group))
        ready = [each for made in instances(runtime).values() for each in made.prepared if type(each) is ReadyLaunch]
        runtime.synchronize()
        return len(ready), [y.clone() for y in found]

    for rank, (ready, results) in enumerate(World(2, seed=1).run(body)):
        assert ready == 2
        for call, y in enumerate(results):
            wanted = case.wanted(call, rank)[:, : y.shape[1]]
            torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-4)
    assert len(repeated) == 2


def test_another_layout_is_another_call(repeated):
    """Strides, alignment, dtype and options are in the key; none of these calls may run as another."""
    case = Case(gemm_rs, calls=1)
    x, w = case.xs[0], case.ws[0]

    def body(group):
        r = group.overlap_runtime.rank
        odd = torch.empty(x[r].numel() + 1)[1:].view(x[r].shape).copy_(x[r])
        wide = torch.empty(x[r].shape[0], x[r].shape[1] + 3)[:, : x[r].shape[1]].copy_(x[r])
        calls = [
            gemm_rs(x[r], w[r], group=group),
            gemm_rs(odd, w[r], group=group),
            gemm_rs(wide, w[r], group=group),
            gemm_rs(x[r].t().contiguous().t(), w[r].t().contiguous().t(), group=group),
            gemm_rs(x[r], w[r], group=group, split=1),
        ]
        group.overlap_runtime.synchronize()
        return [y.clone() for y in calls]

    for rank, results in enumerate(World(2).run(body)):
        for y in results:
            torch.testing.assert_close(y.double(), case.wanted(0, rank), rtol=1e-4, atol=1e-4)
    assert not repeated


def test_memory_that_grows_and_memory_that_is_released(repeated):
    """What was ready for the old memory is not used again: the call goes the long way once, and is right."""
    small, large = Case(gemm_rs, calls=1), Case(gemm_rs, calls=1, rows=20)
    lengths = []

    def body(group):
        import overlap

        found = [small.call(group, 0), small.call(group, 0), large.call(group, 0)]
        lengths.append(len(repeated))
        found += [small.call(group, 0), small.call(group, 0)]
        lengths.append(len(repeated))
        group.overlap_runtime.synchronize()
        kept = [y.clone() for y in found]
        overlap.release(group)
        assert not group.overlap_runtime.overlap_calls
        kept.append(small.call(group, 0))
        group.overlap_runtime.synchronize()
        return kept

    for rank, results in enumerate(World(2).run(body)):
        for number, y in enumerate(results):
            case = large if number == 2 else small
            torch.testing.assert_close(y.double(), case.wanted(0, rank), rtol=1e-4, atol=1e-4)
    assert len(repeated) == 4


def test_results_in_an_operands_memory_are_refused_each_time(repeated):
    case = Case(gemm_rs, calls=1)

    def body(group):
        r = group.overlap_runtime.rank
        x, w = case.xs[0][r], case.ws[0][r]
        y = torch.empty(case.rows, case.columns)
        gemm_rs(x, w, out=y, group=group)
        both = torch.empty(x.numel() + y.numel() - 4)
        operand, inside = both[: x.numel()].view(x.shape), both[x.numel() - 4 :].view(y.shape)
        with pytest.raises(UsageError, match="shares memory"):
            gemm_rs(operand, w, out=inside, group=group)
        gemm_rs(x, w, out=y, group=group)
        group.overlap_runtime.synchronize()
        return y

    for rank, y in enumerate(World(2).run(body)):
        torch.testing.assert_close(y.double(), case.wanted(0, rank), rtol=1e-4, atol=1e-4)
    assert len(repeated) == 2


def test_a_negated_view_is_not_taken_for_its_memory(repeated):
    case = Case(ag_gemm, calls=1)

    def body(group):
        for _ in range(2):
            case.call(group, 0)
        x = case.xs[0][group.overlap_runtime.rank]
        with pytest.raises(UsageError, match="negated"):
            ag_gemm(torch._neg_view(x), case.ws[0][group.overlap_runtime.rank], group=group)
        group.overlap_runtime.synchronize()

    World(2).run(body)
    assert len(repeated) == 2


def test_a_gathers_result_in_its_weights_memory_is_refused_each_time(repeated):
    case = Case(ag_gemm, calls=1)

    def body(group):
        r = group.overlap_runtime.rank
        x, w = case.xs[0][r], case.ws[0][r]
        y = torch.empty(2 * case.rows, case.columns)
        both = torch.empty(w.numel() + y.numel() - 4)
        weight, inside = both[: w.numel()].view(w.shape), both[w.numel() - 4 :].view(y.shape)
        for _ in range(2):
            ag_gemm(x, w, out=y, group=group)
            with pytest.raises(UsageError, match="shares memory"):
                ag_gemm(x, weight, out=inside, group=group)
        group.overlap_runtime.synchronize()

    World(2).run(body)
    assert len(repeated) == 2


def test_operands_in_one_memory_go_the_long_way(repeated):
    """Which of two tensors a view lies in could be meant otherwise in the next call."""
    case = Case(ag_gemm, calls=1)
    x, w = case.xs[0], case.ws[0]

    def body(group):
        r = group.overlap_runtime.rank
        found = []
        for _ in range(2):
            both = torch.cat([x[r].reshape(-1), w[r].reshape(-1)])
            found.append(
                ag_gemm(both[: x[r].numel()].view(x[r].shape), both[x[r].numel() :].view(w[r].shape), group=group)
            )
        group.overlap_runtime.synchronize()
        return [y.clone() for y in found]

    for rank, results in enumerate(World(2).run(body)):
        for y in results:
            torch.testing.assert_close(y.double(), case.wanted(0, rank), rtol=1e-4, atol=1e-4)
    assert not repeated


def test_settings_are_read_at_every_call(repeated, monkeypatch):
    """The plan of `gemm_ar` follows the setting also where a call like this one ran by another."""
    from overlap.ops import last_plan

    case, plans = Case(gemm_ar, calls=1, world=1), []

    def body(group):
        for limit in ("1", "1000000", "1"):
            monkeypatch.setenv("OVERLAP_ONE_SHOT_BELOW_BYTES", limit)
            case.call(group, 0)
            plans.append(last_plan("gemm_ar").plan)

    World(1).run(body)
    assert plans == ["all_reduce_two_shot", "all_reduce_one_shot", "all_reduce_two_shot"]
    assert repeated == ["gemm_ar"]


def test_a_trial_of_a_tuner_is_another_call(repeated):
    """What a tuner tries is not what calls without it repeat, nor the other way round."""
    from overlap.api.tuned import forced
    from overlap.autotune.config import Config
    from overlap.backends.base import Realization
    from overlap.ops import last_plan

    case, tried = Case(gemm_rs, calls=1, rows=12), Config(Realization(backend="copy_engine", split=3))

    def body(group):
        chunks = []
        for attempt in (False, True, False, True):
            with forced(tried) if attempt else nullcontext():
                case.call(group, 0)
            chunks.append(last_plan("gemm_rs").chunks)
        group.overlap_runtime.synchronize()
        return chunks

    for ordinary, trial, *again in World(2).run(body):
        assert ordinary != trial and again == [ordinary, trial]
    assert len(repeated) == 4


def test_a_repeated_launch_that_raises_half_way_poisons_its_workspace(repeated):
    """As the first would: later calls say so, and the ranks are not left waiting."""
    case = Case(gemm_rs, calls=1, world=1)

    def body(group):
        runtime = group.overlap_runtime
        case.call(group, 0)
        (known,) = runtime.overlap_calls.values()
        known._launch()._acts.insert(1, lambda now: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            case.call(group, 0)
        for _ in range(2):
            with pytest.raises(RuntimeContractError, match="an earlier launch of `.*` raised half-way") as error:
                case.call(group, 0)
            assert error.value.where is not None and error.value.where.path == __file__

    World(1).run(body)


def test_a_launch_that_raises_with_lanes_open_joins_them(repeated, monkeypatch):
    """What is enqueued on the caller's stream next, or frees what the launch was given, comes behind what lanes still read."""
    case, joined = Case(gemm_rs, calls=1), []
    plain = SimRuntime.join
    monkeypatch.setattr(SimRuntime, "join", lambda self, lane: (joined.append((self.rank, lane)), plain(self, lane)))

    def body(group):
        runtime = group.overlap_runtime
        case.call(group, 0)
        runtime.synchronize()
        runtime.agree("all have called", None)
        (known,) = runtime.overlap_calls.values()

        def fails(now):
            ends[runtime.rank] = set(now.lanes.values())
            raise ZeroDivisionError

        acts = known._launch()._acts
        acts.insert(next(n for n, act in enumerate(acts) if isinstance(act, OnLane)), fails)
        joined.clear()
        with pytest.raises(ZeroDivisionError):
            case.call(group, 0)

    ends: dict[int, set] = {}
    with suppress(DeadlockFault):  # what was enqueued waits for copies that were not
        World(2).run(body)
    assert all(ends.values()) and len(ends) == 2
    for rank, lanes in ends.items():
        assert lanes == {lane for other, lane in joined if other == rank}


def test_further_work_of_a_repeated_call_runs_before_peers_may_overwrite_what_it_reads(monkeypatch):
    """The second weight's product reads the buffer that a peer's next launch writes."""
    case = Case(ag_gemm, calls=4, rows=32, depth=8, columns=8, options={"plan": "all_gather_1d_push"})
    xs, ws = case.xs, case.ws

    def run(seed):
        def body(group):
            r = group.overlap_runtime.rank
            found = [
                ag_gemm(xs[n][r], [ws[n][r], ws[n][r][:, :4].clone()], group=group, **case.options) for n in range(4)
            ]
            group.overlap_runtime.synchronize()
            return [second.clone() for _, second in found]

        for rank, results in enumerate(World(2, seed=seed).run(body)):
            for n, y in enumerate(results):
                torch.testing.assert_close(y.double(), case.wanted(n, rank)[:, :4], rtol=1e-4, atol=1e-4)

    run(0)
    original = repeat_layer.carry_out

    def late(instance, acts, now):
        behind, now.behind = now.behind, None
        original(instance, acts, now)
        if behind is not None:
            behind()

    monkeypatch.setattr(repeat_layer, "carry_out", late)
    with pytest.raises(RaceFault, match="race"):
        for seed in range(6):
            run(seed)


def test_a_kernel_that_only_triton_knows_is_loaded_before_a_lane_is_held(monkeypatch):
    """Loading waits for the device, whose lane waits for what this kernel counts up: for ever, if the lane comes first."""
    from overlap.runtime.launch import launch
    from overlap.runtime.launch.variant import variant_of
    from overlap.sim.runtime import SimRuntime

    monkeypatch.setattr(launch, "variant_of", lambda *given: variant_of(*given)._replace(exact=False, guessed=True))
    seen: dict[int, list[str]] = {0: [], 1: []}
    warm, forks = SimRuntime.warm, SimRuntime.forks

    def warmed(self, kernel, *given, **options):
        seen[self.rank].append(f"load {kernel.__name__}")
        return warm(self, kernel, *given, **options)

    def forked(self, lanes):
        seen[self.rank].append("fork")
        return forks(self, lanes)

    monkeypatch.setattr(SimRuntime, "warm", warmed)
    monkeypatch.setattr(SimRuntime, "forks", forked)
    Case(gemm_rs, calls=3).run()
    for steps in seen.values():
        told = [step for step in steps if step == "fork" or "matmul" in step or "gemm" in step]
        assert told.count("fork") == 3
        assert all(told[at - 1].startswith("load") for at, step in enumerate(told) if step == "fork"), told
