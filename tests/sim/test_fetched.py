"""Sums that are read where a peer made them, on simulated ranks: bit for bit those that are copied, and what orders them."""

from __future__ import annotations

import re

import pytest
import torch
from test_sums_early import ALL_REDUCES, TWO_SHOT, called

from overlap.api.trace import record, recording
from overlap.errors import RaceFault, RuntimeContractError
from overlap.ops import gemm_ar, gemm_rs
from overlap.runtime.instances import instances
from overlap.runtime.launch import launch
from overlap.schedule import steps as st
from overlap.sim import World

pytestmark = pytest.mark.one_triton
BELOW = "OVERLAP_FETCH_BELOW_BYTES"


@pytest.fixture(autouse=True)
def not_stored(monkeypatch):
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "0")


@pytest.fixture
def fetching(monkeypatch):
    monkeypatch.setenv(BELOW, str(1 << 40))


@pytest.mark.parametrize(("world", "programs", "options"), ALL_REDUCES)
def test_the_same_bits_as_copied(world, programs, options, monkeypatch):
    options = {"plan": TWO_SHOT, **options}
    copied, _ = called(monkeypatch, gemm_ar, world, programs, **options)
    monkeypatch.setenv(BELOW, str(1 << 40))
    found, _ = called(monkeypatch, gemm_ar, world, programs, seed=1, **options)
    for rank in range(world):
        for one, other in zip(found[rank], copied[rank], strict=True):
            assert torch.equal(one, other) and not one.isnan().any()


def fetched_of(world, operator=gemm_ar, **options):
    """How many operations of an instance are fetched, by rank."""
    x, w = torch.randn(64, 16).half(), torch.randn(16, 32).half()

    def body(group):
        operator(x, w, group=group, backend="copy_engine", **options)
        group.overlap_runtime.synchronize()
        return len(next(reversed(instances(group.overlap_runtime).values())).fetched)

    return set(World(world).run(body))


def test_what_is_fetched(monkeypatch):
    """Ranks have 22, 22 and 20 rows of 64 bytes; of three parts, two of them early, the last alone is fetched."""
    assert fetched_of(3, plan=TWO_SHOT) == {0}
    monkeypatch.setenv(BELOW, str(22 * 64))
    assert fetched_of(3, plan=TWO_SHOT) == {2}  # of the last rank, to two others; the others have as many bytes
    monkeypatch.setenv(BELOW, str(1 << 40))
    assert fetched_of(3, plan=TWO_SHOT) == {6}
    assert fetched_of(3, plan=TWO_SHOT, split=3) == {18}
    assert fetched_of(3, plan="all_reduce_one_shot") == fetched_of(3, operator=gemm_rs) == {0}
    monkeypatch.setenv("OVERLAP_SUM_SMS", "1")
    assert fetched_of(3, plan=TWO_SHOT, split=3) == {6}


def without(kind, *rest):
    return lambda rank, steps: tuple(step for step in steps if not isinstance(step, (kind, *rest)))


@pytest.mark.parametrize(("kind", "found"), [(st.Raise, "deadlock"), (st.Credit, "deadlock|race")])
def test_a_step_left_out_is_found(fetching, kind, found, monkeypatch):
    monkeypatch.setattr(launch, "STEP_FILTER", without(kind))
    with pytest.raises(Exception, match=found):
        called(monkeypatch, gemm_ar, 3, 0, plan=TWO_SHOT, calls=2)


def test_a_flag_ahead_of_the_sum_is_a_race(fetching, monkeypatch):
    """Lanes that send sums are forked behind them: one that is forked at the kernel raises too early."""

    def early(rank, steps):
        forks = [step for step in steps if isinstance(step, st.Fork)]
        kernel = next(i for i, step in enumerate(steps) if isinstance(step, st.Kernel))
        moved = [step for step in forks if steps.index(step) > kernel]
        rest = [step for step in steps if step not in moved]
        return (*rest[:kernel], *moved, *rest[kernel:])

    monkeypatch.setattr(launch, "STEP_FILTER", early)
    with pytest.raises(RaceFault):
        called(monkeypatch, gemm_ar, 2, 0, plan=TWO_SHOT, calls=1)


def test_hosts_that_wait(fetching, monkeypatch):
    found, _ = called(monkeypatch, gemm_ar, 2, 1, plan=TWO_SHOT, split=2, calls=2, host={"blocking": True})
    assert not any(y.isnan().any() for each in found for y in each)


def test_ranks_must_agree(monkeypatch):
    x, w = torch.randn(64, 16).half(), torch.randn(16, 32).half()

    def body(group):
        monkeypatch.setenv(BELOW, str(group.overlap_runtime.rank))
        gemm_ar(x, w, group=group, backend="copy_engine", plan=TWO_SHOT)

    with pytest.raises(RuntimeContractError, match="fetch_below_bytes"):
        World(2).run(body)


def test_a_traced_call_has_no_copies_of_them(fetching):
    x, w = torch.randn(64, 16).half(), torch.randn(16, 32).half()

    def body(group):
        with recording():
            return record(
                lambda: gemm_ar(x, w, group=group, backend="copy_engine", plan=TWO_SHOT),
                group,
                title="fetched",
                dtype="fp16",
                tile=lambda schedules, machine: 1e-6,
            )

    for found in World(2).run(body):
        chunks = [line for line in str(found).splitlines() if line.startswith("  push")]
        copied = [line for line in chunks if re.search(r"\d to \d", line[: line.rindex("(", 0, line.rindex("("))])]
        # Of each rank the summand that came is copied, and the peer's sum is seen when its flag is up, without a copy.
        assert (len(chunks), len(copied)) == (4, 2), found
