"""The protocol's own kernels for more ranks than there are GPUs: the state words of all ranks are tensors of this one."""

import pytest
import torch

from overlap.runtime.faults.faults import LIMIT_WORD, RECORD_WORD, RECORD_WORDS
from overlap.runtime.kernels.credits import credits_kernel
from overlap.runtime.kernels.entry import entry_kernel
from overlap.runtime.kernels.reduce import sum_kernel
from overlap.runtime.kernels.stage import as_words, staging
from overlap.runtime.launch.opening import ENTRY_BLOCK
from overlap.runtime.tables.sums import ACCUMULATORS, Addition, Operand, sum_table
from overlap.schedule.table import (
    S_COUNTER,
    S_EPOCH,
    S_READY,
    SLOT_WORDS,
    SUMS_WORD,
    counter_base,
    done_base,
    flag_base,
    state_words,
)

DEVICE = "cuda"
FLAGS, COUNTERS = 4, 6
SPINS = 50_000_000
"""Polls after which a wait gives up: some tens of seconds."""
WORDS = 70_001


class States:
    """State words of ``world`` ranks, of which this one is in the middle."""

    def __init__(self, world):
        self.world, self.rank = world, world // 2
        self.record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=DEVICE)
        words = state_words(world, FLAGS, COUNTERS)
        self.all = [torch.zeros(words, dtype=torch.int64, device=DEVICE) for _ in range(world)]
        self.own = self.all[self.rank]
        self.own[LIMIT_WORD] = SPINS
        self.own[RECORD_WORD] = self.record.data_ptr()
        self.others = [p for p in range(world) if p != self.rank]

    def set(self, first, value):
        """Raises the words of all others in this rank's memory, as they would."""
        for p in self.others:
            self.own[(first + p) * SLOT_WORDS] = value

    def told(self, first):
        """This rank's word in the memory of every rank."""
        return [int(state[(first + self.rank) * SLOT_WORDS]) for state in self.all]

    def addresses(self, slot=0, ranks=None):
        ranks = range(self.world) if ranks is None else ranks
        return torch.tensor([self.all[p].data_ptr() + 8 * SLOT_WORDS * slot for p in ranks], device=DEVICE)

    def enter(self, src, dst, programs):
        copy = staging(src, dst)
        entry_kernel[programs, 1, 1](
            as_words(src, copy.dtype), as_words(dst, copy.dtype), self.own, self.addresses(), rank=self.rank,
            world=self.world, programs=programs, instance=3, first_counter=counter_base(self.world, FLAGS),
            counters=COUNTERS, **copy.arguments(), DIMS=copy.dims, WIDE=False, WAIT_DONE=True, PUBLISH=True, READY=True,
            COUNTERS=True, BLOCK=ENTRY_BLOCK, FLAT=copy.flat, ROW=min(copy.row, ENTRY_BLOCK), num_warps=8,
        )  # fmt: skip


@pytest.mark.parametrize("world", [2, 3, 8, 40])
def test_an_entry_waits_for_all_and_tells_all(world):
    states = States(world)
    src = torch.arange(WORDS, device=DEVICE)
    for launch in (1, 2):
        dst = torch.full_like(src, -1)
        states.set(done_base(world), launch - 1)
        states.set(S_READY, launch)
        states.own[counter_base(world, FLAGS) * SLOT_WORDS :: SLOT_WORDS] = 7
        states.enter(src, dst, programs=1 + 4 * launch)
        assert torch.equal(src, dst)
        assert states.told(S_READY) == [0 if p == states.rank else launch for p in range(world)]
        assert int(states.own[S_EPOCH * SLOT_WORDS]) == launch and int(states.own[S_COUNTER * SLOT_WORDS]) == 0
        assert not states.own[counter_base(world, FLAGS) * SLOT_WORDS :: SLOT_WORDS].any()
        assert not states.record.any()


@pytest.mark.parametrize(
    ("shape", "columns", "dtype", "row"),
    [
        ((301, 1024), 4096, torch.bfloat16, 256),
        ((33, 96), 250, torch.int64, 32),
        ((5, 3, 40, 128), 130, torch.float32, 0),
        ((5, 3, 40, 128), 132, torch.float32, 64),
        ((7, 5, 4096), 8192, torch.int64, 4096),
        ((61, 33), 64, torch.bfloat16, 0),
    ],
)
def test_an_entry_stages_rows_and_nothing_beside_them(shape, columns, dtype, row):
    """Into columns of more, of all but the last matrix, and out of them again; rows of 16-byte blocks and others."""
    states = States(2)
    src = torch.arange(torch.Size(shape).numel(), device=DEVICE).view(shape).to(dtype)
    whole = torch.full((*shape[:-2], shape[-2] + 3, columns), -1, device=DEVICE).to(dtype)
    inside = (..., slice(1, shape[-2] + 1), slice(columns - shape[-1] - columns % 2, columns - columns % 2))
    expected, back = whole.clone(), torch.full_like(src, -1)
    expected[inside] = src
    assert staging(src, whole[inside]).row == row
    for launch, (given, to) in enumerate(((src, whole[inside]), (whole[inside], back)), 1):
        states.set(done_base(2), launch - 1)
        states.set(S_READY, launch)
        states.enter(given, to, programs=5)
    assert torch.equal(whole, expected) and torch.equal(back, src)


@pytest.mark.parametrize("world", [2, 3, 40])
@pytest.mark.parametrize("which", ["done", "ready"])
def test_an_entry_waits_for_the_one_that_is_late(world, which):
    states = States(world)
    src = torch.arange(WORDS, device=DEVICE)
    # Loaded ahead of the launch that spins, as what ends it is.
    states.set(S_READY, 1)
    states.enter(src, torch.empty_like(src), 2)
    torch.cuda._sleep(1)
    states.set(done_base(world), 1)
    states.set(S_READY, 2)
    first = {"done": done_base(world), "ready": S_READY}[which]
    late = states.own[(first + states.others[-1]) * SLOT_WORDS :][:1]
    late.sub_(1)
    late.copy_(late.clone())
    dst, raised, side = torch.empty_like(src), late + 1, torch.cuda.Stream()
    torch.cuda.synchronize()
    states.enter(src, dst, 2)
    entered, slept = torch.cuda.Event(), torch.cuda.Event()
    entered.record()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        slept.record()
        slept.synchronize()
        early = entered.query()
        late.copy_(raised)
    torch.cuda.synchronize()
    assert not early and torch.equal(src, dst)
    assert int(states.own[S_EPOCH * SLOT_WORDS]) == 2 and not states.record.any()


@pytest.mark.parametrize("world", [2, 3, 40])
def test_credits_by_a_kernel_and_by_the_last_program_of_a_sum(world):
    states = States(world)
    own = S_EPOCH * SLOT_WORDS
    to = states.addresses(done_base(world) + states.rank, states.others)
    parts = torch.randn(3, WORDS, device=DEVICE)
    flag = flag_base(world) * SLOT_WORDS
    summands = tuple((Operand(i * WORDS, (1,)), flag if i else -1) for i in range(3))
    table = sum_table([Addition((WORDS,), summands, Operand(0, (1,)), None)], 4, 8)
    words = torch.tensor(table.values, device=DEVICE)

    def add(programs):
        out = torch.full((WORDS,), float("nan"), device=DEVICE)
        sum_kernel[programs, 1, 1](
            parts, out, words, states.own, pieces=table.pieces, programs=programs, peers=to, credits=len(states.others),
            DIMS=table.dims, WIDE=False, VEC=table.vec, SUMMANDS=4, ACCUMULATOR=ACCUMULATORS["fp32"], BLOCK=table.block,
            CREDITS=True, num_warps=8,
        )  # fmt: skip
        return out

    for epoch, programs in enumerate((1, 7, table.blocks, 300, 2), start=1):
        states.own[own] = epoch
        states.own[flag] = epoch
        assert torch.equal(add(programs), (parts[0] + parts[1]) + parts[2])
        assert states.told(done_base(world)) == [0 if p == states.rank else epoch for p in range(world)]
        assert int(states.own[SUMS_WORD]) == 0
    states.own[own] = 9
    credits_kernel[1, 1, 1](to, len(states.others), states.own, num_warps=1)
    assert states.told(done_base(world)) == [0 if p == states.rank else 9 for p in range(world)]
