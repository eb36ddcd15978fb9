"""Flags on a stream beside their lane: the same results, and what orders them."""

from __future__ import annotations

import pytest
import torch

from overlap.errors import RaceFault
from overlap.ops import a2a_gemm, ag_gemm, gemm_ar, gemm_rs
from overlap.runtime.instance import instances
from overlap.sim import World
from overlap.sim.runtime import SimRuntime

pytestmark = pytest.mark.one_triton

CALLS = [
    (ag_gemm, 3, {"split": 2}),
    (ag_gemm, 2, {"plan": "all_gather_1d_push", "split": 3}),
    (ag_gemm, 4, {"plan": "all_gather_ring"}),
    (gemm_rs, 3, {"split": 3}),
    (gemm_ar, 3, {"plan": "all_reduce_two_shot", "split": 2}),
    (a2a_gemm, 3, {"split": 4}),
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache folder for all tests here: operators keep their modules while the process lives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def beside(monkeypatch):
    monkeypatch.setenv("OVERLAP_FLAGS_BESIDE", "1")


def called(operator, world, *, seed=0, calls=3, **options):
    """Results by rank and call; the first call goes the long way, later ones repeat it."""
    generator = torch.Generator().manual_seed(5)
    rows, columns, depth = 70, 40, 24
    width = depth * world if operator is a2a_gemm else depth
    xs, ws = (
        [[torch.randn(*size, generator=generator).half() for _ in range(world)] for _ in range(calls)]
        for size in ((rows, depth), (width, columns))
    )

    def body(group):
        rank = group.overlap_runtime.rank
        found = [
            operator(x[rank], w[rank], group=group, backend="copy_engine", **options)
            for x, w in zip(xs, ws, strict=True)
        ]
        group.overlap_runtime.synchronize()
        assert instances(group.overlap_runtime), "nothing was fused"
        return found

    return World(world, seed=seed).run(body)


@pytest.mark.parametrize(("operator", "world", "options"), CALLS)
def test_the_same_bits(operator, world, options, monkeypatch):
    monkeypatch.setenv("OVERLAP_FLAGS_BESIDE", "0")
    usual = called(operator, world, **options)
    monkeypatch.setenv("OVERLAP_FLAGS_BESIDE", "1")
    for seed in range(2):
        for one, other in zip(called(operator, world, seed=seed, **options), usual, strict=True):
            assert all(torch.equal(a, b) and not a.isnan().any() for a, b in zip(one, other, strict=True))


def test_only_flags_that_a_copy_follows_are_beside(beside, monkeypatch):
    given = []
    chained = SimRuntime.chained

    def kept(self, enqueues, beside=()):
        given.append((len(enqueues), tuple(sorted(beside))))
        return chained(self, enqueues, beside)

    monkeypatch.setattr(SimRuntime, "chained", kept)
    called(ag_gemm, 3, split=2, calls=1)
    # Copy, flag, of two chunks of two peers each; and credits.
    assert set(given) == {(8, (1, 3, 5)), (2, ())}


def test_a_flag_that_is_not_behind_its_copy(beside, monkeypatch):
    behind = SimRuntime.behind

    def wrong(self, stream, other):
        if not stream.name.startswith("beside"):
            behind(self, stream, other)

    monkeypatch.setattr(SimRuntime, "behind", wrong)
    with pytest.raises(RaceFault):
        called(ag_gemm, 3, split=2, calls=1)


def test_a_lane_that_leaves_its_flags_behind(beside, monkeypatch):
    """The epoch that a flag copies is the next launch's before it was copied."""
    behind = SimRuntime.behind

    def wrong(self, stream, other):
        if not other.name.startswith("beside"):
            behind(self, stream, other)

    monkeypatch.setattr(SimRuntime, "behind", wrong)
    with pytest.raises(RaceFault):
        for seed in range(4):
            called(ag_gemm, 3, split=2, seed=seed)
