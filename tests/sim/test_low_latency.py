"""Low-latency collectives on simulated ranks: right to the bit, free of races in every order, and what is left out is found."""

from __future__ import annotations

import contextlib
import inspect
import itertools

import pytest
import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import OverlapError, RuntimeContractError
from overlap.language.packets import MARKS
from overlap.runtime.collectives import add_in_order
from overlap.runtime.faults import LIMIT_WORD, RECORD_WORD, RECORD_WORDS
from overlap.runtime.packets import kernels as packet_kernels
from overlap.runtime.packets import lines as packet_lines
from overlap.runtime.packets import low_latency
from overlap.runtime.packets.boxes import pieces, unit_of, whole
from overlap.runtime.packets.lines import CLEAN_EVERY
from overlap.runtime.packets.low_latency import SUMMED, in_two_steps, low_latency_of
from overlap.sim import World
from overlap.sim.runtime import SimRuntime
from tests.support.sweep import SWEEP, every

pytestmark = pytest.mark.one_triton

WORLDS = (1, 2, 3, 5) if SWEEP else (1, 3)
NAN = float("nan")


@pytest.fixture(autouse=True)
def few_lines(monkeypatch):
    """Programs of few lines, so that small messages take several, and slots that are no larger than they must be."""
    monkeypatch.setattr(low_latency, "BLOCK", 8)
    monkeypatch.setattr(low_latency, "A_MULTIPROCESSOR", 1)
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "6000")


def made(shape, dtype, *seeds):
    """A tensor that every rank can make."""
    number = 0
    for seed in seeds:
        number = 1009 * number + seed + 1
    generator = torch.Generator().manual_seed(number)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def poisoned(shape, dtype):
    return torch.full(shape, NAN if dtype.is_floating_point else -77, dtype=dtype)


def narrow(tensor, dim, world, rank):
    low, high = shard_interval(tensor.shape[dim], world, rank)
    return tensor.narrow(dim, low, high - low)


def same(found, wanted):
    return found.shape == wanted.shape and torch.equal(
        found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)
    )


def on_ranks(world, body, **options):
    return World(world, **options).run(lambda group: body(group.overlap_runtime))


def summed(world, shape, dtype, call):
    return add_in_order([made(shape, dtype, rank, call) for rank in range(world)])


def reduce_all(runtime, shape, dtype, call, out_dtype=None):
    out = poisoned(shape, out_dtype or dtype)
    assert low_latency_of(runtime).all_reduce(made(shape, dtype, runtime.rank, call), out)
    runtime.synchronize()
    assert same(out, summed(runtime.world, shape, dtype, call).to(out.dtype)), (runtime.rank, call)


def scatter(runtime, shape, dim, dtype, call):
    total = summed(runtime.world, shape, dtype, call).to(dtype)
    wanted = narrow(total, dim, runtime.world, runtime.rank)
    out = poisoned(wanted.shape, dtype)
    assert low_latency_of(runtime).reduce_scatter(made(shape, dtype, runtime.rank, call), dim, out)
    runtime.synchronize()
    assert same(out, wanted), (runtime.rank, call)


def gather(runtime, shape, dim, dtype, call):
    wanted = made(shape, dtype, 7, call)
    out = poisoned(shape, dtype)
    assert low_latency_of(runtime).all_gather(narrow(wanted, dim, runtime.world, runtime.rank), dim, out)
    runtime.synchronize()
    assert same(out, wanted), (runtime.rank, call)


def exchange(runtime, shape, from_dim, to_dim, dtype, call):
    tensor = made(shape, dtype, 8, call)
    wanted = narrow(tensor, to_dim, runtime.world, runtime.rank)
    out = poisoned(wanted.shape, dtype)
    held = narrow(tensor, from_dim, runtime.world, runtime.rank)
    assert low_latency_of(runtime).all_to_all(held, from_dim, to_dim, out)
    runtime.synchronize()
    assert same(out, wanted), (runtime.rank, call)


@pytest.mark.parametrize(("dtype", "world"), every(2, itertools.product(SUMMED, WORLDS), start=1))
def test_sums_have_the_bits_of_one_order_and_one_rounding(dtype, world):
    def body(runtime):
        for call, shape in enumerate([(1,), (37,), (5, 24), (2, 3, 7), (3, 1), (0, 4)]):
            reduce_all(runtime, shape, dtype, call)
            for dim in range(len(shape)):
                scatter(runtime, shape, dim, dtype, call)
        reduce_all(runtime, (129,), dtype, 9, torch.float32)

    on_ranks(world, body, seed=world)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "dtype", every(2, [torch.uint8, torch.float8_e4m3fn, torch.bfloat16, torch.int32, torch.float64])
)
def test_what_is_only_moved_arrives_bit_by_bit(world, dtype):
    def body(runtime):
        for call, shape in enumerate([(1, 1), (11, 24), (2, 5, 7), (3, 2)]):
            dims = range(len(shape))
            for dim in dims:
                gather(runtime, shape, dim, dtype, call)
            for from_dim, to_dim in itertools.permutations(dims, 2):
                exchange(runtime, shape, from_dim, to_dim, dtype, call)

    on_ranks(world, body, seed=3)


def kinds(runtime, call):
    """One call of each kind, of sizes that differ from call to call, so that programs and slots do."""
    size = (1, 40, 3, 131)[call % 4]
    (
        lambda: reduce_all(runtime, (size,), torch.bfloat16, call),
        lambda: scatter(runtime, (size, 6), 1, torch.float32, call),
        lambda: gather(runtime, (size, 3), 0, torch.uint8, call),
        lambda: exchange(runtime, (5, size), 0, 1, torch.float16, call),
    )[call % 3 if call % 2 else 3 - call % 4]()


@pytest.mark.parametrize("seed", range(20 if SWEEP else 2))
@pytest.mark.parametrize("world", [2, 3])
def test_calls_one_behind_the_other_in_many_orders(world, seed):
    """The host waits for nobody between calls: results are looked at when all have been enqueued."""

    def body(runtime):
        words, pending = low_latency_of(runtime), []
        for call in range(10):
            size = (1, 40, 3, 131)[call % 4]
            out = poisoned((size,), torch.bfloat16)
            assert words.all_reduce(made((size,), torch.bfloat16, runtime.rank, call), out)
            pending.append((out, summed(world, (size,), torch.bfloat16, call).to(torch.bfloat16)))
            shape = (4, size)
            wanted = made(shape, torch.uint8, 7, call)
            out = poisoned(shape, torch.uint8)
            assert words.all_gather(narrow(wanted, 1, world, runtime.rank), 1, out)
            pending.append((out, wanted))
        runtime.synchronize()
        assert all(same(out, wanted) for out, wanted in pending)

    on_ranks(world, body, seed=seed)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_memory_at_any_address_and_of_any_strides(offset):
    def body(runtime):
        words, world = low_latency_of(runtime), runtime.world
        summand = poisoned((60,), torch.bfloat16)[offset : offset + 45]
        summand.copy_(made((45,), torch.bfloat16, runtime.rank, 0))
        wide = poisoned((9, 10), torch.bfloat16)
        out = wide[:, :5]
        assert words.all_reduce(summand.view(9, 5), out)
        runtime.synchronize()
        assert same(out, summed(world, (45,), torch.bfloat16, 0).to(torch.bfloat16).view(9, 5))
        assert same(wide[:, 5:], poisoned((9, 5), torch.bfloat16))
        wanted = made((6, 7), torch.float32, 1)
        place = poisoned((7, 6), torch.float32).t()
        assert words.all_gather(narrow(wanted, 0, world, runtime.rank).t().contiguous().t(), 0, place)
        runtime.synchronize()
        assert same(place, wanted)

    on_ranks(2, body)


def test_a_sum_in_place():
    def body(runtime):
        tensor = made((77,), torch.bfloat16, runtime.rank, 0)
        assert low_latency_of(runtime).all_reduce(tensor, tensor)
        runtime.synchronize()
        assert same(tensor, summed(3, (77,), torch.bfloat16, 0).to(torch.bfloat16))

    on_ranks(3, body)


def start_at(runtime, epoch):
    """Brings a group to the call behind ``epoch``, its slots as so many calls would have left them."""
    memory = low_latency_of(runtime)._memory
    memory.calls.fill_(epoch)
    runtime.synchronize()
    runtime.agree("the epoch", epoch)


@pytest.mark.parametrize("epoch", [2**31 - 3, 2**32 - 4, 3 * MARKS - 2, 2**40 + 5])
def test_the_epoch_may_be_of_any_size(epoch):
    def body(runtime):
        reduce_all(runtime, (150,), torch.bfloat16, 0)
        start_at(runtime, epoch)
        for call in range(1, 8):
            kinds(runtime, call)

    on_ranks(2, body, seed=5)


def stale(clean=True):
    """A word that was sent 2^32 - 2 calls ago and never since bears the mark of today's. Calls between were small."""

    def body(runtime):
        start = CLEAN_EVERY - 4
        reduce_all(runtime, (4,), torch.float32, 0)
        start_at(runtime, start)
        reduce_all(runtime, (150,), torch.float32, 1)
        reduce_all(runtime, (150,), torch.float32, 2)
        if clean:
            for call in range(4):  # those that clear are among them
                reduce_all(runtime, (4,), torch.float32, call)
        start_at(runtime, start + MARKS)
        for call in (3, 4):
            reduce_all(runtime, (150,), torch.float32, call)

    return body


@pytest.mark.parametrize("seed", range(10 if SWEEP else 1))
def test_a_mark_that_comes_round_again_finds_its_lines_cleared(seed):
    on_ranks(2, stale(), seed=seed)


def test_without_the_calls_that_clear_an_old_word_is_taken_for_a_new_one():
    with pytest.raises((OverlapError, AssertionError)):
        for seed in range(6):
            on_ranks(2, stale(clean=False), seed=seed)


@pytest.fixture
def two_steps(monkeypatch):
    """All-reduces go in two steps whatever their size."""
    monkeypatch.setattr(low_latency, "SAVED_BYTES", 0)


@pytest.mark.parametrize(("dtype", "world"), every(2, itertools.product(SUMMED, (3, 4) if SWEEP else (3,))))
def test_an_all_reduce_in_two_steps_has_the_same_bits(two_steps, dtype, world):
    def body(runtime):
        for call, shape in enumerate([(1,), (137,), (5, 24), (2,), (0, 4), (11, 3)]):
            reduce_all(runtime, shape, dtype, call)
            exchange(runtime, (5, 1 + call), 0, 1, torch.float16, call)

    on_ranks(world, body, seed=world)


def test_an_all_reduce_in_two_steps_in_place_and_at_any_address(two_steps):
    def body(runtime):
        words = low_latency_of(runtime)
        tensor = made((77,), torch.bfloat16, runtime.rank, 0)
        assert words.all_reduce(tensor, tensor)
        summand, out = (poisoned((90,), torch.bfloat16)[skipped : skipped + 77] for skipped in (1, 3))
        summand.copy_(made((77,), torch.bfloat16, runtime.rank, 1))
        assert words.all_reduce(summand, out)
        runtime.synchronize()
        for call, found in enumerate((tensor, out)):
            assert same(found, summed(3, (77,), torch.bfloat16, call).to(torch.bfloat16))

    on_ranks(3, body)


@pytest.mark.parametrize("seed", range(20 if SWEEP else 2))
def test_steps_of_calls_one_behind_the_other(two_steps, seed):
    def body(runtime):
        words, pending = low_latency_of(runtime), []
        for call in range(8):
            size = (1, 140, 3, 40)[call % 4]
            out = poisoned((size,), torch.bfloat16)
            assert words.all_reduce(made((size,), torch.bfloat16, runtime.rank, call), out)
            pending.append((out, summed(3, (size,), torch.bfloat16, call).to(torch.bfloat16)))
        runtime.synchronize()
        assert all(same(out, wanted) for out, wanted in pending)

    on_ranks(3, body, seed=seed)


def test_a_second_step_is_taken_where_it_saves_enough():
    assert not in_two_steps(1 << 30, 2)
    assert in_two_steps(256 << 10, 4) and not in_two_steps(255 << 10, 4)


def test_a_message_that_is_too_long_is_left_to_others(monkeypatch):
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "400")

    def body(runtime):
        words = low_latency_of(runtime)
        big, out = torch.ones(100), torch.empty(100)
        assert not words.all_reduce(big[:67], out[:67])  # 268 bytes from each of two
        assert words.all_reduce(big[:49], out[:49])
        assert words.all_gather(big[:40], 0, torch.empty(120))
        assert not words.all_reduce(torch.ones(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32))
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "4000")
        assert words.all_reduce(big, out), "memory grows"
        runtime.synchronize()
        assert torch.equal(out, torch.full((100,), 3.0))

    on_ranks(3, body)


def test_ranks_with_shorter_pieces_answer_as_the_others(monkeypatch):
    """5 x 5 over 3 ranks: pieces of 2 x 2, and the last rank gets 2 x 1 and less."""
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "60")  # 2 x 2 x 8 bytes from each of two are more

    def body(runtime):
        tensor, rank = made((5, 5), torch.float64, 1), runtime.rank
        held, out = narrow(tensor, 0, 3, rank), narrow(tensor, 1, 3, rank).clone()
        return low_latency_of(runtime).all_to_all(held, 0, 1, out)

    assert on_ranks(3, body) == [False] * 3


def test_ranks_that_call_differently_are_told():
    def body(runtime):
        low_latency_of(runtime).all_reduce(torch.ones(4 + runtime.rank), torch.empty(4 + runtime.rank))

    with pytest.raises(RuntimeContractError, match="differently"):
        on_ranks(2, body)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "two steps"])
def test_a_wait_in_vain_is_recorded_by_the_rank_that_does_not_send(monkeypatch, kind):
    """The simulator lets a look sleep until a word changes, so the limit is negative: used up before the first repeat."""
    if kind == "two steps":
        monkeypatch.setattr(low_latency, "SAVED_BYTES", 0)

    def body(runtime):
        def call(number):
            if kind == "all_gather":
                gather(runtime, (9, 40), 0, torch.uint8, number)
            else:
                reduce_all(runtime, (100,), torch.float32, number)

        call(0)
        memory = low_latency_of(runtime).memory
        record = runtime.table([0] * RECORD_WORDS, bits=64)
        memory.state[LIMIT_WORD], memory.state[RECORD_WORD] = -1, record.data_ptr()
        runtime.agree("armed", None)
        if runtime.rank != 2:
            # Which of the others is missed first is open: the one that comes may not have sent yet.
            with contextlib.suppress(AssertionError):
                call(1)
        runtime.synchronize()
        taken, address, wanted, *_ = record.tolist()
        return taken, taken and memory.sender(address, 3, runtime.rank), wanted, memory.state[LIMIT_WORD].item()

    ends = on_ranks(3, body)
    assert ends[2] == (0, 0, 0, -1)
    for rank in (0, 1):
        taken, sender, wanted, limit = ends[rank]
        assert (taken, wanted, limit) == (1, 2, 1) and sender in {0, 1, 2} - {rank}


def test_pieces_are_those_of_torch_chunk():
    for world, shape, dim in itertools.product(WORLDS, [(7, 3), (2, 5, 4)], (0, 1)):
        boxes, tensor = pieces(shape, dim, world), torch.arange(torch.Size(shape).numel()).view(shape)
        rows = tensor.reshape(boxes.rows, boxes.total)
        for rank in range(world):
            begin = min(rank * boxes.chunk, boxes.total)
            part = rows[:, begin : min(begin + boxes.chunk, boxes.total)]
            assert torch.equal(part.flatten(), narrow(tensor, dim, world, rank).flatten())


def test_words_are_as_wide_as_memory_allows():
    tensor = torch.empty(64, dtype=torch.bfloat16)
    start = tensor.data_ptr() % 8 // 2
    for skipped, unit in ((0, 8), (1, 2), (2, 4), (4, 8)):
        part = tensor[(4 - start) % 4 + skipped :][:32]
        assert unit_of(part, whole((32,))) == unit
    assert unit_of(tensor, whole((63,))) == 2


# What is left out is found.

ROUNDS = range(20 if SWEEP else 2)


def mutated(monkeypatch, *edits):
    """The kernels with lines of theirs replaced, as `LowLatency` finds them."""
    parts, text = (inspect.getsource(module) for module in (packet_lines, packet_kernels))
    begin = text.index("from .lines import")
    text = text[:begin] + parts.split("from __future__ import annotations")[1] + text[text.index(")", begin) + 1 :]
    for old, new in edits:
        assert text.count(old), old
        text = text.replace(old, new)
    return text


@pytest.fixture
def mutate(monkeypatch, tmp_path):
    def make(*edits):
        from overlap.codegen.module_io import load_module

        path = tmp_path / "mutated.py"
        path.write_text(mutated(monkeypatch, *edits))
        module = load_module(str(path))
        for name in ("exchange_kernel", "sum_packets_kernel", "two_step_kernel"):
            monkeypatch.setattr(low_latency, name, getattr(module, name))

    return make


def found(world=3, calls=4, body=None):
    """How runs of several seeds end: the faults by their first word, or ``wrong``."""
    ends = []

    def default(runtime):
        for call in range(calls):
            reduce_all(runtime, (40,), torch.bfloat16, call)
            exchange(runtime, (5, 1 + call), 0, 1, torch.float16, call)

    for seed in ROUNDS:
        try:
            on_ranks(world, body or default, seed=seed)
            ends.append("")
        except OverlapError as error:
            ends.append(error.message.split(":")[0])
        except AssertionError:
            ends.append("wrong")
    return ends


def test_the_kernels_as_they_are(mutate):
    mutate()
    assert found() == [""] * len(ROUNDS)


def test_one_side_instead_of_two(mutate):
    mutate(("(epoch & 1) * _STEPS", "(epoch & 0) * _STEPS"))
    assert found() == ["race"] * len(ROUNDS)


def test_a_mark_that_does_not_depend_on_the_call(mutate):
    mutate(("mark = mark_of(epoch)", "mark = mark_of(epoch * 0 + 1)"))
    assert all(found())


def test_an_epoch_that_does_not_grow(mutate):
    mutate(("    tl.store(calls + pid, epoch)\n", ""))
    assert all(found())


def test_programs_that_a_launch_has_not_are_left_behind(mutate):
    """A later call of more programs then has two epochs."""
    mutate(("mask=others >= programs", "mask=others < 0"))

    def body(runtime):
        for call, size in enumerate((1, 200, 1, 1, 200)):
            scatter(runtime, (size,), 0, torch.float32, call)

    assert found(body=body) == ["deadlock"] * len(ROUNDS)


def test_sums_sent_on_the_first_steps_side(two_steps, mutate):
    mutate(("second = side + world * wide", "second = side"))
    assert all(found())


def test_empty_pieces_that_say_nothing(mutate):
    """Ranks without a piece are then heard of by nobody, who may be two calls ahead of them."""
    mutate(("tl.maximum((elements + UNITS - 1) // UNITS, 1)", "(elements + UNITS - 1) // UNITS"))

    def body(runtime):
        words, kept = low_latency_of(runtime), []
        for call in range(6):
            wanted = made((1, 40), torch.uint8, 7, call)
            kept.append((poisoned((1, 40), torch.uint8), wanted))
            assert words.all_gather(narrow(wanted, 0, 3, runtime.rank), 0, kept[-1][0])
        runtime.synchronize()
        assert all(same(*pair) for pair in kept)

    assert "race" in found(body=body)


def test_lines_taken_before_they_have_come(mutate):
    mutate(("data, left, seen = receive(place, inside, mark, state)",
            "data, left, seen = receive(place, inside & (line < 0), mark, state)"))  # fmt: skip
    assert all(found())


def test_a_line_that_is_not_sent(mutate):
    mutate(("_LINE, data, mark, inside)", "_LINE, data, mark, inside & (line != 0))"))
    assert found() == ["deadlock"] * len(ROUNDS)


def test_more_programs_than_are_resident(monkeypatch):
    """Some programs then wait for peers' that wait for a multiprocessor."""
    monkeypatch.setattr(low_latency, "A_MULTIPROCESSOR", 100)
    monkeypatch.setattr(SimRuntime, "resident", lambda *_: 100)

    def body(runtime):
        scatter(runtime, (400,), 0, torch.float32, 0)

    assert "deadlock" in found(body=body)
