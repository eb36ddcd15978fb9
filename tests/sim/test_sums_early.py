"""Sums that are made while the kernel runs, on simulated ranks: bit for bit those that follow it, and what it takes."""

from __future__ import annotations

import pytest
import torch

from overlap.api.tuned import forced
from overlap.autotune.config import Config
from overlap.errors import RaceFault, RuntimeContractError
from overlap.ops import gemm_a2a, gemm_ar, gemm_exchange, gemm_rs, partials, reserve
from overlap.runtime.faults.faults import LIMIT_WORD, RECORD_WORD, RECORD_WORDS
from overlap.runtime.instances import instances
from overlap.runtime.kernels.entry import gather_kernel
from overlap.runtime.launch import launch
from overlap.schedule import steps as st
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, flag_base, state_words
from overlap.sim import World

pytestmark = pytest.mark.one_triton

TWO_SHOT = "all_reduce_two_shot"
ALL_REDUCES = [
    (1, 0, {}),
    (2, 0, {"split": 1}),
    (3, 0, {"split": 2, "out_dtype": torch.float32}),
    (3, 1, {"split": 2}),
    (4, 1, {"split": 3, "shape": (9, 41, 24)}),
    (5, 0, {"split": 1, "shape": (3, 40, 24), "transport_dtype": torch.float32}),
    (4, 0, {"plan": "all_reduce_ring"}),
]
"""World, multiprocessors left to sums, and options of all-reduces whose sums other tests carry out otherwise."""


def called(monkeypatch, operator, world, programs, *, shape=(150, 40, 24), seed=0, calls=3, host=None, **options):
    """Results by rank and call, and whether sums were early; the first call goes the long way, later ones repeat it."""
    monkeypatch.setenv("OVERLAP_SUM_SMS", str(programs))
    generator = torch.Generator().manual_seed(4)
    rows, columns, depth = shape
    xs, ws = (
        [[torch.randn(*size, generator=generator).half() for _ in range(world)] for _ in range(calls)]
        for size in ((rows, depth), (depth, columns))
    )

    def body(group):
        rank = group.overlap_runtime.rank
        found = [
            operator(x[rank], w[rank], group=group, backend="copy_engine", **options)
            for x, w in zip(xs, ws, strict=True)
        ]
        group.overlap_runtime.synchronize()
        return found, next(reversed(instances(group.overlap_runtime).values())).early

    results = World(world, seed=seed, **(host or {})).run(body)
    return [found for found, _ in results], {early for _, early in results}


@pytest.mark.parametrize(
    ("operator", "world", "options"),
    [
        (gemm_rs, 3, {"split": 3}),
        (gemm_rs, 2, {"split": 2, "scatter_dim": 1}),
        (gemm_ar, 3, {"split": 2, "plan": TWO_SHOT}),
        (gemm_ar, 4, {"split": 4, "plan": TWO_SHOT, "shape": (9, 40, 24)}),
        (gemm_ar, 2, {"split": 3, "plan": "all_reduce_one_shot", "shape": (70, 33, 16)}),
        (gemm_a2a, 2, {"split": 2}),
        (gemm_a2a, 3, {"split": 2, "shape": (50, 40, 24)}),
        (gemm_a2a, 4, {"split": 3, "shape": (9, 41, 24)}),
    ],
)
def test_the_same_bits_as_behind_the_kernel(operator, world, options, monkeypatch):
    late, were = called(monkeypatch, operator, world, 0, **options)
    assert were == {False}
    early, were = called(monkeypatch, operator, world, 1, seed=1, **options)
    assert were == {True}
    for rank in range(world):
        for one, other in zip(early[rank], late[rank], strict=True):
            assert torch.equal(one, other)
            assert not one.isnan().any()


def test_pieces_that_are_exchanged_are_cut_and_put_in_place_early_where_they_are_large(monkeypatch):
    """All ranks leave as many multiprocessors to that, though their shards differ."""
    asked = []

    def offered(rows, columns, depth, *, split, exchanged, **how):
        asked.append((rows, columns, depth, split, exchanged))
        return 1

    monkeypatch.setattr(gemm_exchange, "PARTS_FROM", 1)
    monkeypatch.setattr(partials, "offered_sums", offered)
    x, w = torch.randn(50, 24).half(), torch.randn(24, 40).half()
    exact = (x.double() @ w.double()).float()

    def body(group):
        rank = group.overlap_runtime.rank
        y = gemm_a2a(x.chunk(4)[rank].clone(), w, group=group, gather_size=50)
        group.overlap_runtime.synchronize()
        return y, next(reversed(instances(group.overlap_runtime).values())).early

    found = World(4).run(body)
    assert all(early for _, early in found) and set(asked) == {(13, 40, 24, 2, True)}
    assert torch.allclose(torch.cat([y for y, _ in found], 1).float(), exact, atol=2e-2, rtol=2e-3)


@pytest.mark.parametrize("host", [{"blocking": True}, {"sms": 1}], ids=["hosts that wait", "nothing free"])
def test_nobody_waits_for_what_is_enqueued_or_started_later(host, monkeypatch):
    options = {"plan": TWO_SHOT, "split": 3, "calls": 2}
    late, _ = called(monkeypatch, gemm_ar, 2, 0, **options)
    early, were = called(monkeypatch, gemm_ar, 2, 1, host=host, **options)
    assert were == {True} and all(map(torch.equal, early[0] + early[1], late[0] + late[1]))


def test_what_has_one_chunk_is_as_it_was(monkeypatch):
    _, were = called(monkeypatch, gemm_ar, 2, 1, plan=TWO_SHOT, split=1, calls=1)
    assert were == {False}


def test_a_config_says_how_many(monkeypatch):
    """Tuned or pinned, whatever the setting is."""
    config = Config.from_json({"backend": "copy_engine", "plan": TWO_SHOT, "split": 2, "sum_sms": 1})

    def operator(x, w, group, backend):
        with forced(config):
            return gemm_ar(x, w, group=group)

    _, were = called(monkeypatch, operator, 2, 0, calls=1)
    assert were == {True} and Config.from_json(config.to_json()) == config


def test_what_is_reserved_holds_the_counters_of_own_parts(monkeypatch):
    monkeypatch.setenv("OVERLAP_SUM_SMS", "1")
    x, w = torch.randn(96, 16).half(), torch.randn(16, 40).half()

    def body(group):
        reserve(group, max_tokens=96, hidden=40, dtype=torch.float16, operator="gemm_rs", split=24)
        made = gemm_rs(x, w, group=group, backend="copy_engine", split=24)
        group.overlap_runtime.synchronize()
        return made, next(reversed(instances(group.overlap_runtime).values())).need.counters

    for made, counters in World(2).run(body):
        assert not made.isnan().any() and counters == 24 + 23


def without(kind):
    return lambda rank, steps: tuple(step for step in steps if not isinstance(step, kind))


@pytest.mark.parametrize("kind", [st.Whole, st.Branch, st.Raise, st.Hold], ids=lambda kind: kind.__name__)
def test_a_step_left_out_is_found(kind, monkeypatch):
    """But for `Gather`: the sum kernel looks at the flags as well, and is only kept from holding what it waits for."""
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "0")  # of sums that are stored no lane follows any
    monkeypatch.setattr(launch, "STEP_FILTER", without(kind))
    with pytest.raises(Exception, match="deadlock" if kind is st.Raise else "race") as raised:
        called(monkeypatch, gemm_ar, 2, 1, plan=TWO_SHOT, split=2, calls=2)
    assert kind is st.Raise or isinstance(raised.value, RaceFault)


def test_ranks_must_agree(monkeypatch):
    x, w = torch.randn(64, 16).half(), torch.randn(16, 32).half()

    def body(group):
        monkeypatch.setenv("OVERLAP_SUM_SMS", str(group.overlap_runtime.rank))
        gemm_rs(x, w, group=group, backend="copy_engine")

    with pytest.raises(RuntimeContractError, match="sum_sms"):
        World(2).run(body)


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_a_gather_waits_for_every_flag(missing):
    """By what it records when it gives up, after a look: without ranks, in Triton's interpreter alone."""
    state, record = torch.zeros(state_words(1, 3), dtype=torch.int64), torch.zeros(RECORD_WORDS, dtype=torch.int64)
    state[S_EPOCH * SLOT_WORDS] = 5
    state[LIMIT_WORD], state[RECORD_WORD] = 1, record.data_ptr()
    flags = [(flag_base(1) + number) * SLOT_WORDS for number in range(3)]
    for number, flag in enumerate(flags):
        state[flag] = 4 if number == missing else 5
    gather_kernel[(1, 1, 1)](torch.tensor(flags), len(flags), state)
    late = [] if missing is None else [1, state.data_ptr() + 8 * flags[missing], 5, 4, 0]
    assert record.tolist() == (late or [0] * RECORD_WORDS)
