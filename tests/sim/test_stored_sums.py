"""Sums that what adds them stores where they go, on simulated ranks: bit for bit those that are copied, and what orders them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_mutations_producers import first_to_end, not_reset, relaxed, without_barrier
from test_sums_early import ALL_REDUCES, TWO_SHOT, called

from overlap.errors import RuntimeContractError
from overlap.ops import gemm_ar, gemm_rs
from overlap.runtime.instances import instances
from overlap.runtime.kernels import reduce
from overlap.runtime.launch import launch, prepared
from overlap.runtime.tables import sums
from overlap.schedule import steps as st
from overlap.sim import World

pytestmark = pytest.mark.one_triton
STORE = "OVERLAP_STORE_SUMS"


@pytest.fixture
def storing(monkeypatch):
    monkeypatch.setenv(STORE, "1")


@pytest.mark.parametrize(("world", "programs", "options"), ALL_REDUCES)
def test_the_same_bits_as_copied(world, programs, options, monkeypatch):
    options = {"plan": TWO_SHOT, **options}
    monkeypatch.setenv(STORE, "0")
    copied, _ = called(monkeypatch, gemm_ar, world, programs, **options)
    monkeypatch.setenv(STORE, "1")
    found, early = called(monkeypatch, gemm_ar, world, programs, seed=1, **options)
    assert early == {bool(programs)}
    for rank in range(world):
        for one, other in zip(found[rank], copied[rank], strict=True):
            assert torch.equal(one, other) and not one.isnan().any()


def steps_of(world, operator=gemm_ar, **options):
    """By rank, the launch steps of a call."""
    x, w = torch.randn(64, 16).half(), torch.randn(16, 32).half()

    def body(group):
        operator(x, w, group=group, backend="copy_engine", **options)
        group.overlap_runtime.synchronize()
        return next(reversed(instances(group.overlap_runtime).values())).steps

    return World(world).run(body)


@pytest.mark.parametrize("programs", [0, 1])
def test_sums_are_on_no_lane(storing, programs, monkeypatch):
    """Beside the kernel and behind it: what is left to copy is what tiles made; other lanes add up, and put in place."""
    monkeypatch.setenv("OVERLAP_SUM_SMS", str(programs))
    for steps in steps_of(3, plan=TWO_SHOT, split=2):
        sent = [step for step in steps if isinstance(step, st.Sum) and step.stores]
        assert [(len(step.stores), step.lane is None) for step in sent] == [(2, not programs), (2, True)]
        assert sum(isinstance(step, st.Copy) for step in steps) == 4
        assert {step.lane for step in steps if isinstance(step, st.Fork)} == ({0, 2, 3} if programs else {0})
    for steps in steps_of(3, operator=gemm_rs):
        assert not any(isinstance(step, st.Sum) and step.stores for step in steps)


@pytest.fixture
def several_programs(storing, monkeypatch):
    """Sums take more programs than one."""
    counts = []
    monkeypatch.setattr(sums, "WARP_ELEMENTS", 4)
    whole = prepared.SumLaunch

    def watched(grid, arguments, results):
        counts.append(grid[0] if arguments["STORES"] else 0)
        return whole(grid, arguments, results)

    monkeypatch.setattr(prepared, "SumLaunch", watched)
    yield
    assert max(counts) > 2


@pytest.mark.parametrize("programs", [0, 1])
def test_sums_of_several_programs(several_programs, programs, monkeypatch):
    found, _ = called(monkeypatch, gemm_ar, 3, programs, plan=TWO_SHOT, split=2, shape=(80, 8, 8))
    for rank in range(3):
        assert all(map(torch.equal, found[rank], found[0])) and not found[rank][-1].isnan().any()


@pytest.mark.parametrize(
    ("counts_out", "kind"),
    [(first_to_end, "race"), (relaxed, "race"), (without_barrier, "race"), (not_reset, "deadlock")],
)
def test_flags_raised_too_early_or_never(several_programs, monkeypatch, counts_out, kind):
    """By a program that is not the last, with nothing between it and what others store, or from a count that goes on."""
    monkeypatch.setattr(reduce, "last_to_end", counts_out)
    with pytest.raises(Exception, match=kind):
        called(monkeypatch, gemm_ar, 2, 0, plan=TWO_SHOT, shape=(20, 8, 8))


def test_nothing_stored_is_missed(storing, monkeypatch):
    def less(rank, steps):
        return tuple(replace(step, stores=()) if isinstance(step, st.Sum) else step for step in steps)

    monkeypatch.setattr(launch, "STEP_FILTER", less)
    with pytest.raises(Exception, match="deadlock"):
        called(monkeypatch, gemm_ar, 2, 0, plan=TWO_SHOT, calls=1)


@pytest.mark.parametrize("kind", [st.Whole, st.Raise, st.Hold, st.Credit], ids=lambda kind: kind.__name__)
def test_a_step_left_out_is_found(storing, kind, monkeypatch):
    monkeypatch.setattr(
        launch, "STEP_FILTER", lambda rank, steps: tuple(step for step in steps if not isinstance(step, kind))
    )
    with pytest.raises(Exception, match="race" if kind in (st.Whole, st.Hold) else "deadlock"):
        called(monkeypatch, gemm_ar, 2, 1, plan=TWO_SHOT, split=2, calls=2)


@pytest.mark.parametrize("host", [{"blocking": True}, {"sms": 1}], ids=["hosts that wait", "nothing free"])
def test_nobody_waits_for_what_is_enqueued_or_started_later(storing, host, monkeypatch):
    found, early = called(monkeypatch, gemm_ar, 2, 1, plan=TWO_SHOT, split=3, calls=2, host=host)
    assert early == {True} and not any(y.isnan().any() for each in found for y in each)


def test_ranks_must_agree(monkeypatch):
    x, w = torch.randn(64, 16).half(), torch.randn(16, 32).half()

    def body(group):
        monkeypatch.setenv(STORE, str(group.overlap_runtime.rank))
        gemm_ar(x, w, group=group, backend="copy_engine", plan=TWO_SHOT)

    with pytest.raises(RuntimeContractError, match="store_sums"):
        World(2).run(body)
