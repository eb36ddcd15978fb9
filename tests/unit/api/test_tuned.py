"""Where a call's backend comes from: keyword > lock > cache > shipped defaults > built-in, by rank 0's answer, asked once."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import overlap
from overlap import ops
from overlap.api import tuned
from overlap.api.auto import Problem
from overlap.api.fallback import Choice
from overlap.api.report import LastPlan
from overlap.autotune import cache
from overlap.autotune.config import Config
from overlap.autotune.entry import Entry
from overlap.autotune.lock import write_lock
from overlap.backends.base import Realization
from overlap.backends.capabilities import Need
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, UsageError
from overlap.ops import arguments, gather_call
from overlap.ops.tuned import key_of, tuned_choice
from overlap.ops.tuning import problem_of

H100 = "NVIDIA H100 80GB HBM3"
PROBLEM = Problem("ag_gemm", 8192, 28672, 8192, torch.bfloat16, "all_gather_1d", 1, open=True)


class Ranks:
    """Runtimes of ranks that call one after the other: what rank 0 brings to a meeting is there for the others."""

    def __init__(self, monkeypatch, world: int = 4) -> None:
        self.meetings: list[list] = []
        self.world = world
        self.runtimes = [SimpleNamespace(rank=rank, world=world, agree=self._agree(rank)) for rank in range(world)]
        self.now = 0
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(tuned, "impossible", lambda group, tensor: "")
        monkeypatch.setattr(tuned, "machine_world", lambda group: world)
        monkeypatch.setattr("overlap.ops.tuned.machine_world", lambda group: world)
        monkeypatch.setattr(tuned, "runtime_of", lambda group: self.runtimes[self.now])
        monkeypatch.setattr("overlap.ops.tuned.device_name", lambda device: H100)

    def _agree(self, rank: int):
        seen = iter(range(1000))

        def agree(what, value, *, seconds=None):
            number = next(seen)
            if rank == 0:
                self.meetings.append([value] * self.world)
            told = self.meetings[number]
            if isinstance(told[0], BaseException) and rank:
                raise RuntimeContractError(f"rank 0 raised instead of coming to {what}")
            return told

        return agree

    def choose(self, problem: Problem = PROBLEM, ranks=None) -> list[Choice | None]:
        found = []
        for rank in ranks if ranks is not None else range(self.world):
            self.now = rank
            found.append(tuned_choice(object(), torch.empty(1), problem))
        return found


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERLAP_LOCK", raising=False)
    return Ranks(monkeypatch)


def kept(backend: str, **options) -> Entry:
    return Entry(key_of(PROBLEM, 4, torch.device("cpu")), Config(Realization(backend, **options), "all_gather_1d"))


def test_lock_cache_defaults_and_nothing(ranks, tmp_path):
    (shipped, *_) = found = ranks.choose()
    assert (
        found == [shipped] * 4 and shipped.source == "shipped defaults" and shipped.config.plan == "all_gather_1d_push"
    )
    assert ranks.choose() == found and len(ranks.meetings) == 1, "asked once"
    cache.write(kept("ldst_reserved", split=2, comm_sms=8))
    assert ranks.choose() == found, "until somebody says that there is more"
    for ranks.now in range(4):
        tuned.forget(object())
    (cached, *_) = ranks.choose()
    assert (cached.source, cached.backend, cached.programs) == ("cache", "ldst_reserved", 8)
    assert cached.of("x", 1) == ("all_gather_1d", 2)
    write_lock(tmp_path / "overlap.lock", [kept("serial")])
    for ranks.now in range(4):
        tuned.forget(object())
    (pinned, *_) = ranks.choose()
    assert pinned.source == f"lock {tmp_path / 'overlap.lock'}" and pinned.backend == "serial" and pinned.why_serial
    unknown = replace(PROBLEM, n=100)
    assert ranks.choose(unknown) == [None] * 4 and len(ranks.meetings) == 4


def test_rank_0_decides(ranks, monkeypatch, tmp_path):
    """The others' files are not even looked for."""
    cache.write(kept("ldst_reserved"))
    first = ranks.choose(ranks=[0])
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setenv("OVERLAP_LOCK", str(tmp_path / "none"))
    assert ranks.choose(ranks=[1, 2, 3]) == first * 3 and first[0].backend == "ldst_reserved"


def test_a_broken_lock_raises_everywhere(ranks, tmp_path):
    (tmp_path / "overlap.lock").write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        ranks.choose(ranks=[0])
    with pytest.raises(RuntimeContractError, match="rank 0 raised"):
        ranks.choose(ranks=[1])


def test_what_cannot_serve_the_call_is_told_of_and_left(ranks, caplog):
    for entry, why in (
        (kept("tma_reserved"), "asleep"),
        (replace(kept("copy_engine"), config=Config(Realization(), "no_such_plan")), "unknown plan"),
        (kept("copy_engine", comm_sms=4), "takes no programs"),
    ):
        cache.write(entry)
        problem = replace(PROBLEM, lacking=lambda name: "asleep" * (name == "tma_reserved"))
        with caplog.at_level(logging.WARNING, "overlap"):
            assert ranks.choose(problem) == [None] * 4
        assert why in caplog.text and caplog.text.count("is not used") == 1
        caplog.clear()
        for ranks.now in range(4):
            tuned.forget(object())
    old = Need("ag_gemm", moves="input", triton=(3, 0))
    assert "needs Triton" in tuned.refusal(Config(Realization("copy_engine")), old, lambda name: "")


def test_a_later_call_of_a_problem_that_cannot_take_it_is_left_without_it(ranks):
    """Batches of short matrices, say, where the first call was one matrix; nobody meets for it, and others still take it."""
    cache.write(kept("tma_reserved"))
    other = replace(PROBLEM, lacking=lambda name: "rows that TMA does not take" * (name == "tma_reserved"))
    assert other == PROBLEM
    assert ranks.choose()[0].backend == "tma_reserved"
    assert ranks.choose(other) == [None] * 4 and len(ranks.meetings) == 1
    assert ranks.choose()[0].backend == "tma_reserved" and len(ranks.meetings) == 1


def test_switched_off_alone_simulated_or_named(ranks, monkeypatch):
    assert tuned_choice(object(), torch.empty(1), replace(PROBLEM, open=False)) is None
    assert tuned_choice(None, torch.empty(1), PROBLEM) is None
    assert tuned_choice(SimpleNamespace(overlap_runtime=None), torch.empty(1), PROBLEM) is None
    monkeypatch.setenv("OVERLAP_TUNED", "0")
    assert ranks.choose() == [None] * 4
    monkeypatch.setenv("OVERLAP_TUNED", "1")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert ranks.choose() == [None] * 4 and not ranks.meetings, "no meeting in a capture"
    with tuned.forced(Config(Realization("serial"))):
        assert [choice.source for choice in ranks.choose()] == [tuned.TRIAL] * 4
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert ranks.choose()[0].source == "shipped defaults"


def test_an_operator_with_reserved_memory_keeps_to_it(ranks, monkeypatch):
    group = object()
    monkeypatch.setattr("overlap.ops.tuned.known_runtime", lambda group: ranks.runtimes[ranks.now])
    monkeypatch.setattr("overlap.ops.tuned.resolve_group", lambda group: group)
    monkeypatch.setattr(sys.modules["overlap.ops.reserve"], "reserve_operator", lambda *_: None)
    assert ranks.choose()[0] is not None
    for ranks.now in range(4):
        ops.reserve(group, max_tokens=8192, hidden=8192)
    assert ranks.choose() == [None] * 4
    assert ranks.choose(replace(PROBLEM, op="gemm_rs", n=8192))[0].source == "shipped defaults"


CALLS = {
    "ag_gemm": (lambda **o: ops.ag_gemm(torch.ones(4, 8), torch.ones(8, 2), **o), True),
    "ag_gemm_k": (lambda **o: ops.ag_gemm_k(torch.ones(4, 8), torch.ones(8, 2), **o), True),
    "gemm_rs": (lambda **o: ops.gemm_rs(torch.ones(4, 8), torch.ones(8, 2), **o), False),
    "gemm_ar": (lambda **o: ops.gemm_ar(torch.ones(4, 8), torch.ones(8, 2), **o), False),
    "a2a_gemm": (lambda **o: ops.a2a_gemm(torch.ones(4, 8), torch.ones(8, 2), **o), True),
    "gemm_a2a": (lambda **o: ops.gemm_a2a(torch.ones(4, 8), torch.ones(8, 2), **o), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_calls_that_name_nothing_are_open(name, monkeypatch):
    """What each operator asks for, as a tuner takes it for what is built in, and that its last_plan says who decided."""
    call, programs = CALLS[name]
    asked: list[Problem] = []

    def record(group, x, problem):
        asked.append(problem)

    monkeypatch.setattr(arguments, "tuned_choice", record)
    monkeypatch.setattr(gather_call, "tuned_choice", record)
    call()
    assert asked[-1].open and asked[-1].op == name and (asked[-1].m, asked[-1].k) == (4, 8)
    if asked[-1].produced:
        assert "one for each tile" in asked[-1].lacking("words_inline")
    begun = problem_of(name, {"M": 4, "N": 2, "K": 8}, torch.float32, 1)
    assert (asked[-1].plan, asked[-1].split) == (begun.plan, begun.split)
    assert ops.last_plan(name).source == tuned.BUILT_IN
    for options in ({"split": 7}, {"plan": "all_reduce_ring"}, *([{"comm_sms": 3}] if programs else [])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gather_call, "check_programs", lambda *_: None)
            try:
                call(**options)
            except UsageError:
                assert "comm_sms" in options  # serial takes no programs
        assert not asked[-1].open, options
    count = len(asked)
    call(backend="serial")
    assert len(asked) == count and ops.last_plan(name).source == tuned.KEYWORD


def test_a_kernel_says_who_decided_its_last_launch(monkeypatch, repo):
    """Also where it does just what it did before, as the winner of a tuning does whose last trial it was."""
    module = load_module(str(repo / "templates/kernels/grouped_gemm.py"))
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(module.matmul_kernel)
    done = LastPlan("matmul_kernel", "copy_engine", "all_gather_1d", 3, 4, 0, (8, 4), "torch.float16")
    monkeypatch.setattr(kernel, "variant_of", lambda config: SimpleNamespace(launch=lambda *args, **kwargs: done))
    told = []
    for source in (tuned.TRIAL, "cache", "cache", "lock here"):
        choice = tuned.choice_of(Config(Realization()), source)
        told.append(kernel._tuned(choice, None, (1,), (), {}, None, None, None))
        assert kernel.last_plan is told[-1] and told[-1].source == source
    assert told[1] is told[2], "what is told of once is one object"
