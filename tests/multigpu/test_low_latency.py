"""Low-latency collectives on real ranks, by words and by blocks: the bits of one order and one rounding, whatever the delays."""

import itertools
import random
import time

import pytest
import torch
import torch.distributed as dist

from overlap.api.fallback import Choice
from overlap.api.small import BLOCKS, COLLECTIVE, WORDS, words_of
from overlap.chunkplan.region import shard_interval
from overlap.errors import DeadlineError, OverlapError
from overlap.ops import (
    a2a_gemm,
    ag_gemm,
    ag_gemm_k,
    gather_gemm,
    gemm_a2a,
    gemm_ar,
    gemm_rs,
    last_plan,
    reduce_gemm,
    scatter_gemm,
)
from overlap.runtime.group.collectives import add_in_order
from overlap.runtime.packets import low_latency
from overlap.runtime.workspace import check, release
from tests.support.ranks import delay
from tests.support.rehearsal import Rehearsal

from .children import run_on_every_rank
from .conftest import WORLD

pytestmark = pytest.mark.ranks(2)
LAST = WORLD - 1
DEADLINE_S = 3
NAN = float("nan")
LONG = 300_000
"""Bytes: several tiles for every program."""
BELOW, BLOCKS_FROM = "OVERLAP_LOW_LATENCY_BELOW_BYTES", "OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES"
LIMITS = {
    "words": {BELOW: str(4 << 20), BLOCKS_FROM: str(4 << 20)},
    "blocks": {BELOW: str(64 << 20), BLOCKS_FROM: "0"},
}
"""Settings by which all calls go by the one or by the other."""


def limit(patch, carried_by):
    for variable, value in LIMITS[carried_by].items():
        patch.setenv(variable, value)


@pytest.fixture(autouse=True)
def words_alone(monkeypatch):
    limit(monkeypatch, "words")


@pytest.fixture(params=LIMITS)
def carried_by(request, monkeypatch, words_alone):
    """All calls go by the one, and then by the other."""
    limit(monkeypatch, request.param)
    return request.param


@pytest.fixture
def words(group, carried_by):
    found = words_of(group, Choice("serial", "a test"), torch.empty(1, device="cuda"))
    assert found is not None
    return found


def me():
    return dist.get_rank()


def made(shape, dtype, *seeds):
    """A tensor that every rank can make."""
    number = 0
    for seed in seeds:
        number = 1009 * number + seed + 1
    generator = torch.Generator("cuda").manual_seed(number)
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)
    return torch.randint(-100, 100, shape, device="cuda", generator=generator).to(dtype)


def poisoned(shape, dtype):
    return torch.full(shape, NAN if dtype.is_floating_point else -77, dtype=torch.float32, device="cuda").to(dtype)


def narrow(tensor, dim, rank):
    low, high = shard_interval(tensor.shape[dim], WORLD, rank)
    return tensor.narrow(dim, low, high - low)


def differs(found, wanted):
    """On the device: whether any bit does."""
    return (found.contiguous().view(torch.uint8) != wanted.contiguous().view(torch.uint8)).any()


class Case:
    """One collective with a place for its result, whose inputs can be refilled."""

    def __init__(self, kind, shape, dtype, dims=()):
        self.kind, self.shape, self.dtype, self.dims = kind, shape, dtype, dims
        self.given = self.inputs(0)[me()].contiguous()
        self.out = torch.empty_like(self.wanted(0))

    def inputs(self, seed):
        """Every rank's."""
        if self.kind in ("all_reduce", "reduce_scatter"):
            return [made(self.shape, self.dtype, rank, seed) for rank in range(WORLD)]
        whole = made(self.shape, self.dtype, 77, seed)
        return [narrow(whole, self.dims[0], rank) for rank in range(WORLD)]

    def wanted(self, seed):
        inputs = self.inputs(seed)
        if self.kind in ("all_gather", "all_to_all"):
            whole = torch.cat(inputs, self.dims[0])
            return whole if self.kind == "all_gather" else narrow(whole, self.dims[1], me()).contiguous()
        total = add_in_order(inputs).to(self.dtype)
        return total if self.kind == "all_reduce" else narrow(total, self.dims[0], me()).contiguous()

    def fill(self, seed):
        self.given.copy_(self.inputs(seed)[me()])
        self.out.copy_(poisoned(self.out.shape, self.dtype))

    def call(self, words):
        assert getattr(words, self.kind)(self.given, *self.dims, self.out)

    def check(self, words, seed):
        """Whether a call on the data of ``seed`` was wrong, on the device."""
        self.fill(seed)
        self.call(words)
        return differs(self.out, self.wanted(seed))


def specs():
    """Kernels differ by dtype, width of words and whether boxes are flat: each is there once or more, not every combination."""
    shapes = [(1, 1), (16, 4096), (7, 33), (3, 5, 64), (LONG // 64, 32)]
    for number, shape in enumerate(shapes):
        for dtype in (torch.bfloat16, torch.float32, *((torch.float16, torch.float64) if number < 2 else ())):
            yield "all_reduce", shape, dtype
            for dim in range(len(shape)):
                yield "reduce_scatter", shape, dtype, (dim,)
        for dtype in (torch.bfloat16, *((torch.uint8, torch.float64) if number == 2 else ())):
            for dim in range(len(shape)):
                yield "all_gather", shape, dtype, (dim,)
            for dims in itertools.permutations(range(len(shape)), 2):
                yield "all_to_all", shape, dtype, dims


IN_TWO_STEPS = [
    ("all_reduce", shape, dtype)
    for shape in ((1,), (37,), (16, 4096), (LONG // 2,))
    for dtype in (torch.bfloat16, torch.float32)
]


MANY_BLOCKS = [
    ("all_reduce", (5 << 20,), torch.bfloat16), ("all_reduce", ((5 << 19) - 1,), torch.float32),
    ("reduce_scatter", (1000, 8191), torch.bfloat16, (1,)), ("reduce_scatter", (4099, 2048), torch.bfloat16, (0,)),
    ("all_gather", (1001, 4096), torch.bfloat16, (0,)), ("all_gather", (2048, 2056), torch.float32, (1,)),
    ("all_to_all", (2048, 4096), torch.bfloat16, (0, 1)), ("all_to_all", (515, 6151), torch.uint8, (1, 0)),
]  # fmt: skip


IN_TURN = [
    ("all_reduce", (37,), torch.bfloat16), ("all_reduce", (16, 4096), torch.bfloat16),
    ("reduce_scatter", (8, 4096), torch.float32, (0,)), ("reduce_scatter", (3, 5), torch.float16, (1,)),
    ("all_gather", (1, 64), torch.uint8, (0,)), ("all_gather", (64, 1024), torch.bfloat16, (0,)),
    ("all_to_all", (33, 66), torch.bfloat16, (0, 1)), ("all_reduce", (LONG // 2,), torch.bfloat16),
]  # fmt: skip
IN_A_GRAPH = [
    ("all_reduce", (16, 4096), torch.bfloat16), ("reduce_scatter", (9, 64), torch.float32, (0,)),
    ("all_gather", (31, 17), torch.bfloat16, (1,)), ("all_to_all", (8, 256), torch.float16, (1, 0)),
]  # fmt: skip


def play(group, carried_by, two_steps, kind, shape, dtype, dims=()):
    """One call of a rank, for its kernel alone."""
    whole, rank = torch.empty(shape, dtype=dtype), group.rank()
    given = narrow(whole, dims[0], rank).contiguous() if kind in ("all_gather", "all_to_all") else whole
    out = narrow(whole, dims[-1], rank).contiguous() if kind in ("reduce_scatter", "all_to_all") else whole.clone()
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, carried_by)
        if two_steps:
            patch.setattr(low_latency, "in_two_steps", lambda *_: True)
        assert getattr(low_latency.low_latency_of(group.overlap_runtime), kind)(given, *dims, out)


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    for by in LIMITS:
        for spec in specs():
            yield Rehearsal(f"test_every_collective_has_the_right_bits[{by}]", play, (by, False, *spec))
        for spec in IN_TURN:
            yield Rehearsal(f"test_a_thousand_calls_with_delays[{by}]", play, (by, False, *spec))
        for spec in IN_A_GRAPH:
            yield Rehearsal(f"test_graphs_replayed_with_new_data[{by}]", play, (by, False, *spec))
        yield Rehearsal(
            f"test_a_rank_that_comes_too_late[{by}]", play, (by, False, "all_reduce", (100, 100), torch.bfloat16)
        )
        for spec in IN_TWO_STEPS:
            yield Rehearsal(f"test_an_all_reduce_in_two_steps[{by}]", play, (by, True, *spec))
        yield Rehearsal(f"test_a_rank_that_is_killed[{by}]", play, (by, False, "all_reduce", (1000,), torch.float32))
    for spec in MANY_BLOCKS:
        yield Rehearsal("test_messages_of_many_blocks_for_every_program[blocks]", play, ("blocks", WORLD > 2, *spec))


def test_every_collective_has_the_right_bits(words):
    wrong = {spec: Case(*spec).check(words, seed) for seed, spec in enumerate(specs())}
    assert [what for what, bad in wrong.items() if bad] == []


def test_an_all_reduce_in_two_steps(words, monkeypatch):
    monkeypatch.setattr(low_latency, "in_two_steps", lambda *_: True)
    several = [Case(*spec) for spec in IN_TWO_STEPS]
    wrong = []
    for seed in range(100):
        delay(seed, me(), 0.5)
        wrong.append(several[seed % len(several)].check(words, seed))
    tensor = made((777,), torch.bfloat16, me(), 0)
    assert words.all_reduce(tensor, tensor)
    wrong.append(differs(tensor, Case("all_reduce", (777,), torch.bfloat16).wanted(0)))
    assert not torch.stack(wrong).any()


def test_a_thousand_calls_with_delays(words, group):
    """Sizes, kinds and programs change from call to call; ranks are late in turn, on the host or on the stream."""
    some = [Case(*spec) for spec in IN_TURN]
    wrong, order = torch.zeros((), dtype=torch.int32, device="cuda"), random.Random(3)
    for seed in range(1000):
        delay(seed, me(), 0.5)
        wrong += order.choice(some).check(words, seed)
    check(group)
    assert not wrong


@pytest.mark.parametrize("carried_by", ["blocks"], indirect=True)
def test_messages_of_many_blocks_for_every_program(words, group):
    """As large as go by blocks, in place too, ragged, at odd addresses; ranks are late in turn."""
    several = [Case(*spec) for spec in MANY_BLOCKS]
    wrong = []
    for seed in range(60):
        delay(seed, me(), 0.5)
        wrong.append(several[seed % len(several)].check(words, seed))
    whole = several[0]
    for seed in range(5):
        tensor = made(whole.shape, whole.dtype, me(), seed)
        assert words.all_reduce(tensor, tensor) == "blocks"
        wrong.append(differs(tensor, whole.wanted(seed)))
        odd = torch.cat([poisoned((3,), whole.dtype), made(whole.shape, whole.dtype, me(), seed)])[3:]
        assert words.all_reduce(odd, whole.out) == "blocks"
        wrong.append(differs(whole.out, whole.wanted(seed)))
    check(group)
    assert not torch.stack(wrong).any()


def test_ranks_run_ahead_of_each_other(words, group):
    """Nothing but the collectives holds ranks together; inputs and results of all calls are there from the start."""
    pairs = []
    for seed in range(200):
        case = Case("all_reduce", (1 + 517 * (seed % 5),), torch.bfloat16)
        case.fill(seed)
        case.call(words)
        pairs.append((case, case.wanted(seed)))
        if seed % 40 == 0:
            delay(seed, me(), 5)
    torch.cuda.synchronize()
    assert not torch.stack([differs(case.out, wanted) for case, wanted in pairs]).any()
    check(group)


def test_graphs_replayed_with_new_data(words, group):
    """Ten calls in one graph, replays and eager calls in turn: the epoch is the device's."""
    several = [Case(*spec) for spec in IN_A_GRAPH]
    for case in several:
        case.check(words, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for case in several:
            case.call(words)
    wrong = []
    for seed in range(1, 101):
        delay(seed, me(), 0.5)
        for case in several:
            case.fill(seed)
        graph.replay()
        wrong += [differs(case.out, case.wanted(seed)) for case in several]
        if seed % 7 == 0:
            wrong.append(several[0].check(words, seed + 1000))
    assert not torch.stack(wrong).any()
    check(group)


def test_a_first_call_in_a_capture_is_left_to_the_library(words):
    out = torch.zeros(5, 3, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out += 1
        assert not words.all_reduce(out, torch.empty_like(out))


def operators(group):
    """(name, call) of small calls of every operator."""
    rank = me()
    rows, depth, columns = 16 * WORLD, 64 * WORLD, 32 * WORLD
    x, w = made((rows, depth), torch.bfloat16, 1), made((depth, columns), torch.bfloat16, 2)
    own = narrow(x, 0, rank)
    across = narrow(x, 1, rank).contiguous()
    part = narrow(w, 0, rank).contiguous()
    return {
        "ag_gemm": lambda **how: ag_gemm(own, w, group=group, **how),
        "ag_gemm_k": lambda **how: ag_gemm_k(across, w, group=group, **how),
        "gemm_rs": lambda **how: gemm_rs(across, part, group=group, **how),
        "gemm_ar": lambda **how: gemm_ar(across, part, group=group, **how),
        "a2a_gemm": lambda **how: a2a_gemm(across, w, group=group, **how),
        "gemm_a2a": lambda **how: gemm_a2a(own, w, group=group, **how),
    }


def test_operators_take_them_for_small_tensors_and_say_so(group, monkeypatch, carried_by):
    ours = {"words": WORDS, "blocks": BLOCKS}[carried_by]
    for name, call in operators(group).items():
        y = call()
        assert last_plan(name).plan == ours and ours in str(last_plan(name)), name
        other = call(backend="serial")
        assert last_plan(name).plan == COLLECTIVE, name
        torch.testing.assert_close(y.float(), other.float(), rtol=2e-2, atol=0.3)
        if name == "gemm_ar":
            several = [torch.empty_like(y) for _ in range(WORLD)]
            dist.all_gather(several, y, group=group)
            assert all(torch.equal(y, each) for each in several), "every rank has the same bits"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = call()
        assert last_plan(name).plan == ours, name
        graph.replay()
        assert torch.equal(again, y), name
        with monkeypatch.context() as patch:
            patch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "0")
            call()
            assert last_plan(name).plan == COLLECTIVE, name


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_calls_like_an_earlier_one_take_the_short_way(group, monkeypatch, bias):
    """With other operands and places for results; nothing is chosen again."""
    rank, dtype = me(), torch.bfloat16
    shapes = {ag_gemm: ((16, 64), (64, 40)), gemm_rs: ((16 * WORLD, 64), (64, 40)), gemm_ar: ((16, 64), (64, 40))}
    for op, (left, right) in shapes.items():
        x, w = made(left, dtype, rank, 1), made(right, dtype, rank, 2)
        added = made(right[1:], dtype, 3) if bias else None
        op(x, w, bias=added, group=group)
        with monkeypatch.context() as patch:
            for module in (gather_gemm, scatter_gemm, reduce_gemm):
                patch.setattr(module, "run", None)
            results = []
            for seed in range(5):
                x, w = made(left, dtype, rank, seed), made(right, dtype, rank, seed + 9)
                added = made(right[1:], dtype, seed) if bias else None
                results.append((x, w, added, op(x, w, bias=added, group=group)))
                assert last_plan(op.__name__).plan == WORDS
        for x, w, added, y in results:
            torch.testing.assert_close(y, op(x, w, bias=added, group=group, backend="serial"), rtol=2e-2, atol=0.3)


def test_a_rank_that_comes_too_late(words, group, monkeypatch):
    monkeypatch.setenv("OVERLAP_DEADLINE_S", str(DEADLINE_S))
    case = Case("all_reduce", (100, 100), torch.bfloat16)
    assert not case.check(words, 0)
    if me() == LAST:
        time.sleep(3 * DEADLINE_S)
    else:
        start = time.monotonic()
        case.call(words)
        with pytest.raises(DeadlineError, match=f"waited {DEADLINE_S} s for rank {LAST} to send") as caught:
            check(group)
        took = time.monotonic() - start
        assert 0.8 * DEADLINE_S < took < 2.5 * DEADLINE_S, f"drained after {took:.1f} s"
        assert f"rank {me()}: " in str(caught.value)
        with pytest.raises(DeadlineError, match=f"for rank {LAST} to send"):
            case.call(words)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    try:
        if me() == LAST:
            case.call(words)
            check(group)
    except OverlapError as error:
        assert isinstance(error, DeadlineError)
    release(group)
    assert not case.check(words, 3)
    check(group)


def test_a_rank_that_is_killed(carried_by):
    child = run_on_every_rank("killed_in_words", carried_by, env={"OVERLAP_DEADLINE_S": str(DEADLINE_S)}, seconds=60)
    if me() == LAST:
        assert child.status != 0
        return
    assert child.status == 0, child.text
    assert child.found["error"] == "DeadlineError", child.text
    assert f"for rank {WORLD - 1} to send" in child.found["message"]
    assert child.found["seconds"] < 5 * DEADLINE_S
