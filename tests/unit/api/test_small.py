"""Which calls go as low-latency words, which by the library, and that each says so."""

from types import SimpleNamespace

import pytest
import torch

from overlap.api import small
from overlap.api.fallback import ASKED, Choice
from overlap.api.report import LastPlan
from overlap.errors import UnsupportedError
from overlap.runtime.packets.low_latency import LowLatency

HERE = Choice("serial", "8 bytes are below serial_below_bytes=9")


class Group:
    """Stands for a process group."""


class FakeRuntime:
    """A rank whose peers are all reached."""

    rank, world, nodes, provider = 0, 4, (0, 0, 0, 0), "a provider"


def on_gpu():
    return SimpleNamespace(device=SimpleNamespace(type="cuda"))


@pytest.fixture
def runtime(monkeypatch):
    made = FakeRuntime()
    monkeypatch.setattr(small, "impossible", lambda group, tensor: "")
    monkeypatch.setattr(small, "runtime_of", lambda group: made)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def test_ranks_that_reach_each_other_have_words(runtime):
    group = Group()
    found = small.words_of(group, HERE, on_gpu())
    assert isinstance(found, LowLatency) and small.words_of(group, HERE, on_gpu()) is found


def test_who_asks_for_serial_gets_the_librarys_collective(runtime):
    assert small.words_of(Group(), Choice("serial", ASKED), on_gpu()) is None


def test_without_a_gpu_or_a_group_there_are_none(runtime):
    assert small.words_of(Group(), HERE, torch.empty(1)) is None
    assert small.words_of(None, HERE, on_gpu()) is None


@pytest.mark.parametrize("name", ["world", "nodes"])
def test_alone_or_across_nodes_there_are_none(runtime, name):
    setattr(runtime, name, {"world": 1, "nodes": (0, 0, 1, 1)}[name])
    assert small.words_of(Group(), HERE, on_gpu()) is None


def test_peers_out_of_reach_have_none(runtime, monkeypatch):
    monkeypatch.setattr(small, "impossible", lambda group, tensor: "rank 1 has no peer access to rank 0")
    assert small.words_of(Group(), HERE, on_gpu()) is None


def test_without_symmetric_memory_there_are_none(runtime, monkeypatch):
    def refuse(self):
        raise UnsupportedError("no symmetric memory here")

    monkeypatch.setattr(FakeRuntime, "provider", property(refuse))
    assert small.words_of(Group(), HERE, on_gpu()) is None


def test_nobody_looks_while_a_graph_is_captured(runtime, monkeypatch):
    group = Group()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert small.words_of(group, HERE, on_gpu()) is None
    found = small.words_of(group, HERE, on_gpu())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert found is not None and small.words_of(group, HERE, on_gpu()) is found


@pytest.mark.parametrize("taken", ["words", "blocks", ""])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "all_gather"])
def test_what_words_leave_goes_by_the_library(monkeypatch, kind, taken):
    called = []
    words = SimpleNamespace(**{kind: lambda *args: called.append("words") or taken}, latest="a launch")
    monkeypatch.setattr(small, "words_of", lambda group, choice, tensor: words)
    for name in ("all_reduce", "reduce_scatter", "all_to_all"):
        monkeypatch.setattr(small.collectives, name, lambda *args, **how: called.append("library"))
    monkeypatch.setattr(small.serial, "gather", lambda *args: called.append("library"))
    x = torch.empty(4, 4)
    if kind == "all_gather":
        went_by = small.gather(Group(), HERE, x, (8, 4), 0)[1]
    else:
        dims = {"all_reduce": (), "reduce_scatter": (0,), "all_to_all": (0, 1)}[kind]
        went_by = getattr(small, kind)(Group(), HERE, x, *dims, torch.empty(4, 4))
    said = {"words": small.WORDS, "blocks": small.BLOCKS, "": small.COLLECTIVE}[taken]
    assert (called, went_by) == (["words"] if taken else ["words", "library"], said)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_to_all", "all_gather"])
def test_calls_like_one_by_words_are_made_by_its_launch(monkeypatch, kind):
    """For as long as that makes them; who makes one that it does not says what makes the next ones."""
    made, lookups, makes = [], [], [True]

    def launch(number):
        return lambda src, out: makes[0] and (made.append((number, src, out)) or True)

    def long(*args):
        lookups.append(args)
        words.latest = launch(len(lookups))
        return "words"

    words = SimpleNamespace(**{kind: long}, latest=None)
    monkeypatch.setattr(small, "words_of", lambda group, choice, tensor: words)
    dims = {"all_reduce": (), "reduce_scatter": (0,), "all_to_all": (0, 1), "all_gather": ()}[kind]
    again = small.Again()

    def call():
        x, y = torch.empty(4, 4), torch.empty(4, 4)
        if kind == "all_gather":
            y, went_by = small.gather(Group(), HERE, x, (8, 4), 0, again=again)
        else:
            went_by = getattr(small, kind)(Group(), HERE, x, *dims, y, again=again)
        assert went_by == small.WORDS
        return x, y

    call()
    x, y = call()
    assert len(lookups) == 1 and made[-1][0] == 1 and made[-1][1] is x and made[-1][2] is y
    makes[0] = False
    call()
    makes[0] = True
    x, y = call()
    assert len(lookups) == 2 and made[-1][0] == 2 and made[-1][1] is x and made[-1][2] is y and len(made) == 2


@pytest.mark.parametrize("went_by", [small.WORDS, small.BLOCKS, small.COLLECTIVE])
def test_a_report_says_what_a_call_went_by(went_by):
    said = LastPlan(
        "gemm_ar", "serial", went_by, 0, 4, 0, (8, 8), "torch.bfloat16", why_serial="small", kind="all_reduce"
    )
    assert (f"by {went_by}: small" in str(said)) == (went_by != small.COLLECTIVE)
