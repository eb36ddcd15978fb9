"""The runtime contract, one suite for every kind of runtime: nothing in a test body knows which one it is on.

A test body is one rank's host code. The importing folder's fixtures say where it runs: `group_of_ranks(world, body)`
runs it on that many ranks and returns what each returned, `world` is every size it can have and `several` one above 1,
`another_stream(runtime)` makes another stream the caller's for a while.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from overlap.errors import RuntimeContractError
from overlap.runtime.protocol import Runtime


@triton.jit
def put(dst, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + i, value, mask=i < n)


@triton.jit
def add_one(dst, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(dst + i, tl.load(dst + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def move(dst, src, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(dst + i, tl.load(src + i, mask=i < n), mask=i < n)


@triton.jit
def raise_word(word, value):
    tl.debug_barrier()
    tl.atomic_xchg(word, value, sem="release", scope="sys")


@triton.jit
def wait_word(word, value):
    while tl.atomic_add(word, 0, sem="acquire", scope="sys") < value:
        pass


@triton.jit
def meet(word, programs):
    tl.atomic_add(word, 1, sem="release", scope="gpu")
    while tl.atomic_add(word, 0, sem="acquire", scope="gpu") < programs:
        pass


def filled(runtime, tensor, value, stream=None):
    """Fills a flat tensor with a kernel."""
    n = tensor.numel()
    runtime.launch(
        put, (triton.cdiv(n, 64),), (tensor, n, value), {"BLOCK": 64, "num_warps": 4}, stream or runtime.main_stream()
    )


def ordered_behind_all(runtime, word, epoch):
    """Device-side barrier over all ranks on the main stream, with words of symmetric memory."""
    main = runtime.main_stream()
    for p in range(runtime.world):
        target = runtime.peer(word, p)[runtime.rank * 4 : runtime.rank * 4 + 1]
        runtime.launch(raise_word, (1,), (target, epoch), {"num_warps": 1}, main)
    for p in range(runtime.world):
        runtime.launch(wait_word, (1,), (word[p * 4 : p * 4 + 1], epoch), {"num_warps": 1}, main)


def test_it_is_a_runtime_and_knows_its_place(group_of_ranks, world):
    def body(runtime):
        assert isinstance(runtime, Runtime)
        assert runtime.sm_count >= 1
        assert torch.empty(1, device=runtime.device).device.type == torch.device(runtime.device).type
        return runtime.rank, runtime.world

    assert group_of_ranks(world, body) == [(rank, world) for rank in range(world)]


def test_agree_gives_every_ranks_value_in_rank_order(group_of_ranks, world):
    def body(runtime):
        first = runtime.agree("first", runtime.rank * 10)
        return first, runtime.agree("second", {"rank": runtime.rank})

    for first, second in group_of_ranks(world, body):
        assert first == [rank * 10 for rank in range(world)]
        assert second == [{"rank": rank} for rank in range(world)]


def test_ranks_that_agree_on_different_things_are_told(group_of_ranks):
    def body(runtime):
        runtime.agree("left" if runtime.rank == 0 else "right", None)

    with pytest.raises(RuntimeContractError, match="left|right"):
        group_of_ranks(2, body)


def test_ranks_that_allocate_differently_are_told(group_of_ranks):
    def body(runtime):
        runtime.symmetric([4 + runtime.rank], torch.float32)

    with pytest.raises(RuntimeContractError, match="symmetric"):
        group_of_ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_symmetric_memory_is_contiguous_and_zeroed_when_asked(group_of_ranks, several, dtype):
    def body(runtime):
        tensor = runtime.symmetric([3, 5], dtype, zero=True)
        assert tensor.is_contiguous() and tensor.shape == (3, 5) and tensor.dtype == dtype
        return tensor.cpu().clone()

    for tensor in group_of_ranks(several, body):
        assert (tensor == 0).all()


def test_a_peers_view_is_that_ranks_memory(group_of_ranks, several):
    def body(runtime):
        tensor = runtime.symmetric([runtime.world * 8], torch.float32, zero=True)
        words = runtime.symmetric([runtime.world * 4], torch.int64, zero=True)
        assert runtime.peer(tensor, runtime.rank) is tensor
        for p in range(runtime.world):
            mine = runtime.peer(tensor, p)[runtime.rank * 8 : runtime.rank * 8 + 8]
            assert mine.shape == (8,) and mine.dtype == tensor.dtype
            filled(runtime, mine, 1.0 + runtime.rank)
        view = tensor.view(runtime.world, 2, 4).transpose(1, 2)
        other = runtime.peer(view, (runtime.rank + 1) % runtime.world)
        assert (other.shape, other.stride()) == (view.shape, view.stride())
        ordered_behind_all(runtime, words, 1)
        runtime.agree("end", None)
        out = torch.empty(runtime.world * 8, device=runtime.device)
        runtime.launch(move, (1,), (out, tensor, out.numel()), {"BLOCK": 64}, runtime.main_stream())
        runtime.synchronize()
        return out.cpu()

    for out in group_of_ranks(several, body):
        assert out.tolist() == [1.0 + i // 8 for i in range(8 * several)]


def test_a_table_holds_what_it_was_given(group_of_ranks):
    def body(runtime):
        narrow, wide = runtime.table([-1, 2, 2**31 - 1]), runtime.table([2**40, 0], bits=64)
        assert (narrow.dtype, wide.dtype) == (torch.int32, torch.int64)
        return narrow.tolist(), wide.tolist()

    assert group_of_ranks(2, body) == [([-1, 2, 2**31 - 1], [2**40, 0])] * 2


def test_a_table_inside_another(group_of_ranks):
    def body(runtime):
        whole = runtime.table([0] * 8)
        part = runtime.table([5, 6], into=whole[3:5])
        assert part.data_ptr() == whole[3:].data_ptr()
        return part.tolist(), whole.tolist()

    assert group_of_ranks(2, body) == [([5, 6], [0, 0, 0, 5, 6, 0, 0, 0])] * 2


@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize(
    "part",
    [
        pytest.param((slice(2, 5), slice(None)), id="rows: 1-D"),
        pytest.param((slice(None), slice(1, 4)), id="columns: 2-D"),
        pytest.param((slice(3, 4), slice(2, 3)), id="one element"),
        pytest.param((slice(2, 2), slice(None)), id="nothing"),
    ],
)
def test_copies_between_ranks(group_of_ranks, several, pull, part):
    """A copy behind a flag, in either direction, of contiguous and strided boxes."""

    def body(runtime):
        rank = runtime.rank
        source = runtime.symmetric([6, 7], torch.float32, zero=True)
        target = runtime.symmetric([6, 7], torch.float32, zero=True)
        words = runtime.symmetric([runtime.world * 4], torch.int64, zero=True)
        filled(runtime, source.view(-1), 1.0 + rank)
        ordered_behind_all(runtime, words, 1)
        other = (rank + 1) % runtime.world
        side = runtime.fork(0)
        if pull:
            runtime.copier(target[part], runtime.peer(source, other)[part])(side)
        else:
            runtime.copier(runtime.peer(target, other)[part], source[part])(side)
        runtime.join(side)
        ordered_behind_all(runtime, words, 2)
        out = torch.empty(6, 7, device=runtime.device)
        runtime.launch(move, (1,), (out, target, 42), {"BLOCK": 64}, runtime.main_stream())
        ordered_behind_all(runtime, words, 3)
        runtime.synchronize()
        return out.cpu()

    for rank, out in enumerate(group_of_ranks(several, body)):
        expected = torch.zeros(6, 7)
        expected[part] = 1.0 + (rank + 1) % several if pull else 1.0 + (rank - 1) % several
        assert torch.equal(out, expected)


def test_copies_of_different_shapes_are_refused(group_of_ranks):
    def body(runtime):
        tensor = runtime.symmetric([4, 4], torch.float32, zero=True)
        runtime.copier(tensor[:2], tensor[:3])(runtime.main_stream())

    with pytest.raises(RuntimeContractError, match="copy"):
        group_of_ranks(1, body)


def test_launches_on_one_stream_run_in_order(group_of_ranks):
    def body(runtime):
        tensor = torch.empty(40, device=runtime.device)
        filled(runtime, tensor, 1.0)
        for _ in range(5):
            runtime.launch(add_one, (1,), (tensor, 40), {"BLOCK": 64, "num_warps": 4}, runtime.main_stream())
        runtime.synchronize()
        return tensor.cpu()

    for tensor in group_of_ranks(2, body):
        assert tensor.eq(6).all()


def test_as_many_programs_as_are_resident_can_wait_for_each_other(group_of_ranks):
    def body(runtime):
        word = torch.empty(1, dtype=torch.int64, device=runtime.device)
        filled(runtime, word, 0)
        arguments = {"word": word, "programs": 2**20, "num_warps": 4}
        programs = runtime.resident(meet, (1, 1, 1), arguments)
        runtime.launch(meet, (programs, 1, 1), (), {**arguments, "programs": programs}, runtime.main_stream())
        runtime.synchronize()
        return programs, runtime.sm_count, word.cpu().item()

    for programs, multiprocessors, met in group_of_ranks(1, body):
        assert programs >= multiprocessors and met == programs


def test_fork_and_join_order_a_side_stream(group_of_ranks):
    """main: 1, fork, (side: +1), join, +1. Any missing edge is a race or a wrong sum."""

    def body(runtime):
        tensor = torch.empty(40, device=runtime.device)
        filled(runtime, tensor, 1.0)
        for lane in (0, 1, 0):
            side = runtime.fork(lane)
            runtime.launch(add_one, (1,), (tensor, 40), {"BLOCK": 64}, side)
            runtime.join(side)
        runtime.launch(add_one, (1,), (tensor, 40), {"BLOCK": 64}, runtime.main_stream())
        runtime.synchronize()
        return tensor.cpu()

    for tensor in group_of_ranks(2, body):
        assert tensor.eq(5).all()


def test_calls_in_order_span_streams(group_of_ranks, another_stream):
    def body(runtime):
        tensor = torch.empty(40, device=runtime.device)
        filled(runtime, tensor, 1.0)
        with runtime.in_order("call", runtime.main_stream()) as capturing:
            assert not capturing
        with another_stream(runtime), runtime.in_order("call", runtime.main_stream()):
            runtime.launch(add_one, (1,), (tensor, 40), {"BLOCK": 64}, runtime.main_stream())
        with runtime.in_order("call", runtime.main_stream()):
            runtime.launch(add_one, (1,), (tensor, 40), {"BLOCK": 64}, runtime.main_stream())
        runtime.synchronize()
        return tensor.cpu()

    for tensor in group_of_ranks(1, body):
        assert tensor.eq(3).all()


def test_a_call_that_raises_is_not_recorded(group_of_ranks):
    """The next call is ordered behind the last that went through."""

    def body(runtime):
        with runtime.in_order("call", runtime.main_stream()):
            pass
        with pytest.raises(ValueError, match="half-way"), runtime.in_order("call", runtime.main_stream()):
            raise ValueError("half-way")
        with runtime.in_order("call", runtime.main_stream()):
            pass
        runtime.synchronize()

    group_of_ranks(1, body)


@triton.jit
def count_up(words, data, n, value, BLOCK: tl.constexpr):
    """Every program stores its part of ``data`` and adds one to the first of ``words``."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(data + i, value, mask=i < n)
    tl.debug_barrier()
    tl.atomic_add(words, 1, sem="release", scope="sys")


@triton.jit
def clear_word(words):
    tl.store(words, tl.full((), 0, tl.int64))


def test_a_stream_is_held_until_a_word_has_been_counted_up(group_of_ranks, several):
    """The copy of a lane takes all that the kernel on the main stream stored before it counted; in two launches."""
    n, block = 256, 64

    def body(runtime):
        words = runtime.symmetric([8], torch.int64, zero=True)
        made = runtime.symmetric([n], torch.float32)
        got = runtime.symmetric([n], torch.float32)
        barrier = runtime.symmetric([runtime.world * 4], torch.int64, zero=True)
        target = runtime.peer(got, (runtime.rank + 1) % runtime.world)
        hold, copy = runtime.holder(words[4:5], n // block), runtime.copier(target, made)
        results = []
        # Loading a module waits for the device: what ends a hold is loaded ahead of it.
        arguments = {"words": words[4:5], "data": made, "n": n, "value": 10.5, "BLOCK": block}
        runtime.warm(count_up, (n // block, 1, 1), arguments)
        for launch in (1, 2):
            main = runtime.main_stream()
            runtime.launch(clear_word, (1,), (words[4:5],), {"num_warps": 1}, main)
            side = runtime.fork(0)
            hold(side)
            copy(side)
            runtime.launch(
                count_up, (n // block,), (words[4:5], made, n, 10.0 * launch + runtime.rank), {"BLOCK": block}, main
            )
            runtime.join(side)
            ordered_behind_all(runtime, barrier, 2 * launch - 1)
            out = torch.empty(n, device=runtime.device)
            runtime.launch(move, (1,), (out, got, n), {"BLOCK": n}, main)
            ordered_behind_all(runtime, barrier, 2 * launch)
            runtime.synchronize()
            results.append(out.cpu())
        return results

    for rank, results in enumerate(group_of_ranks(several, body)):
        for launch, out in enumerate(results, 1):
            assert out.eq(10.0 * launch + (rank - 1) % several).all()


def test_a_word_that_has_its_value_holds_nothing(group_of_ranks):
    def body(runtime):
        words = runtime.symmetric([4], torch.int64, zero=True)
        runtime.holder(words[:1], 0)(runtime.main_stream())
        runtime.synchronize()

    group_of_ranks(1, body)


def test_marks_are_passed_in_the_order_of_their_streams(group_of_ranks, several):
    """Also behind a word that a peer's copy raises, on a stream that is held until then."""

    def body(runtime):
        words = runtime.symmetric([12], torch.int64, zero=True)
        barrier = runtime.symmetric([runtime.world * 4], torch.int64, zero=True)
        filled(runtime, words[8:9], 3)
        ordered_behind_all(runtime, barrier, 1)
        begun = runtime.mark(runtime.main_stream())
        side = runtime.fork(0)
        runtime.copier(runtime.peer(words, (runtime.rank + 1) % runtime.world)[4:5], words[8:9])(runtime.main_stream())
        runtime.holder(words[4:5], 3)(side)
        raised = runtime.mark(side)
        runtime.join(side)
        ended = runtime.mark(runtime.main_stream())
        runtime.synchronize()
        assert all(runtime.passed(mark) for mark in (begun, raised, ended))
        return [runtime.elapsed(begun, mark) for mark in (begun, raised, ended)]

    for moments in group_of_ranks(several, body):
        assert moments[0] == 0 and moments == sorted(moments), moments


def test_a_failure_is_told_to_the_ranks_that_wait(group_of_ranks, several):
    """The rank that failed goes on at once; the others raise, and all are still in step."""

    def body(runtime):
        if runtime.rank == 1:
            assert runtime.agree("the first launch", ValueError("no such block")) == []
        else:
            with pytest.raises(RuntimeContractError, match="rank 1 raised instead.*no such block"):
                runtime.agree("the first launch", None)
        return runtime.agree("again", runtime.rank)

    assert group_of_ranks(several, body) == [list(range(several))] * several


def test_a_watched_state_without_a_late_wait_has_no_record(group_of_ranks):
    def body(runtime):
        state = runtime.symmetric([64], torch.int64, zero=True)
        return runtime.watch(state)()

    assert group_of_ranks(1, body) == [None]


def test_a_view_of_ordinary_memory_has_no_peers(group_of_ranks):
    def body(runtime):
        runtime.peer(torch.empty(4, device=runtime.device), 1)

    with pytest.raises(RuntimeContractError, match="not symmetric"):
        group_of_ranks(2, body)
