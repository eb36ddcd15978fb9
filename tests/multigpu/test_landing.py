"""What a flag stands for that is raised behind TMA stores into another rank's memory.

    python -m torch.distributed.run --nproc-per-node 2 -m pytest tests/multigpu/test_landing.py -q -s -o faulthandler_timeout=130

Two ranks store into each other's memory, in another page every round, count their programs and raise a flag; programs that
poll for it read at once. ``-s`` shows what every way of waiting for a store lets through.
"""

import time

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import overlap
import overlap.language as ol
from overlap.language.flags import landed

from .conftest import meet

PROGRAMS, ROWS, PAGES, ROUNDS = 64, 64, 256, 400
POLLS = tl.constexpr(1 << 24)
"""Of a flag before a program gives up: some seconds, in which a rank may compile."""
PAGE = PROGRAMS * ROWS
"""Rows of a page: a tile for each program."""

READ = tl.constexpr("cp.async.bulk.wait_group.read 0; bar.sync 0; mov.b32 $0, $1;")
FENCED = tl.constexpr("cp.async.bulk.wait_group 0; fence.proxy.async.global; bar.sync 0; mov.b32 $0, $1;")
SYSTEM = tl.constexpr(
    "cp.async.bulk.wait_group 0; fence.proxy.async.global; fence.acq_rel.sys; bar.sync 0; mov.b32 $0, $1;"
)
ALIAS = tl.constexpr("cp.async.bulk.wait_group 0; fence.proxy.alias; fence.acq_rel.sys; bar.sync 0; mov.b32 $0, $1;")


@triton.jit
def waited(value, HOW: tl.constexpr):
    """``value``, behind a barrier that stores have come to in one of the ways."""
    if HOW == "landed":
        value = landed(value)
    elif HOW == "read":
        value = tl.inline_asm_elementwise(READ, "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    elif HOW == "fenced":
        value = tl.inline_asm_elementwise(FENCED, "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    elif HOW == "alias":
        value = tl.inline_asm_elementwise(ALIAS, "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    else:
        value = tl.inline_asm_elementwise(SYSTEM, "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    return value


@triton.jit
def count(counter, flag, value, PROGRAMS: tl.constexpr):
    """The last program to come raises the flag."""
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="sys")
    if before == PROGRAMS - 1:
        tl.atomic_xchg(flag, value, sem="release", scope="sys")


@triton.jit
def wait(flag, value, limit):
    """What a flag has come to, at least ``value`` unless ``limit`` polls do not see that."""
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    spins = 0
    while (seen < value) & (spins < limit):
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        spins += 1
    return seen


@triton.jit
def exchange(
    there,
    here,
    flags,
    peer_flags,
    counters,
    wrongs,
    first,
    rounds,
    HOW: tl.constexpr,
    BY_TMA: tl.constexpr,
    PROGRAMS: tl.constexpr,
    PAGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``wrongs``: elements that did not hold what the flag stood for, then tiles with such, then waits in vain."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    limit = tl.zeros((), tl.int32) + POLLS
    for i in tl.range(0, rounds, num_stages=1):
        row = ((i * 97 % PAGES) * PROGRAMS + tl.program_id(0)) * ROWS
        number = ((first + i) % 251 + 1).to(tl.float32)
        value = (tl.zeros((ROWS, COLUMNS), tl.float32) + number).to(tl.bfloat16)
        at = i
        if BY_TMA:
            there.store([row, 0], value)
            at = waited(i, HOW)
        else:
            tl.store(there + (row + rows)[:, None] * COLUMNS + columns[None, :], value)
            tl.debug_barrier()
        count(counters + at, peer_flags, first + i + 1, PROGRAMS)
        seen = wait(flags, first + i + 1, limit)
        limit = tl.where(seen < first + i + 1, 1, limit)  # once in vain, no later one waits long
        begin = ol.after(row, seen)
        got = tl.load(here + (begin + rows)[:, None] * COLUMNS + columns[None, :])
        bad = tl.sum(tl.sum((got.to(tl.float32) != number).to(tl.int32), 1), 0)
        tl.atomic_add(wrongs, bad)
        tl.atomic_add(wrongs + 1, (bad > 0).to(tl.int32))
        tl.atomic_add(wrongs + 2, (seen < first + i + 1).to(tl.int32))
        tl.debug_barrier()
        count(counters + rounds + i, peer_flags + 4, first + i + 1, PROGRAMS)
        wait(flags + 4, first + i + 1, limit)


WAYS = ("store", "landed", "fenced", "system", "alias", "read")


@pytest.mark.parametrize("columns", [64, 128])
def test_a_flag_stands_for_what_was_stored_ahead_of_it(group, columns):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    pair = rank ^ 1 if rank ^ 1 < world else rank
    box = overlap.symmetric((PAGES * PAGE, columns), torch.bfloat16, zero=True, group=group)
    words = overlap.symmetric((8,), torch.int64, zero=True, group=group)
    target = box.peer(pair) if pair != rank else box.tensor
    peer_words = words.peer(pair) if pair != rank else words.tensor
    described = TensorDescriptor(target, list(target.shape), [columns, 1], [ROWS, columns])
    found, first = {}, 0
    for how in WAYS:
        wrongs = torch.zeros(3, device="cuda", dtype=torch.int32)
        for launch in range(4):
            counters = torch.zeros(2 * ROUNDS, device="cuda", dtype=torch.int64)
            if launch == 3:
                time.sleep(0.5)  # links that have been idle
            torch.cuda.synchronize()
            meet(f"{how} {launch}", rank)
            exchange[(PROGRAMS,)](
                described if how != "store" else target,
                box.tensor,
                words.tensor,
                peer_words,
                counters,
                wrongs,
                first,
                ROUNDS,
                HOW=how,
                BY_TMA=how != "store",
                PROGRAMS=PROGRAMS,
                PAGES=PAGES,
                ROWS=ROWS,
                COLUMNS=columns,
                num_warps=4,
            )
            first += ROUNDS
        found[how] = wrongs.tolist()
    told = ", ".join(f"{how}: {a} elements in {b} tiles, {c} waits in vain" for how, (a, b, c) in found.items())
    print(f"rank {rank}, {columns} columns, of {4 * ROUNDS * PROGRAMS} tiles were early: {told}", flush=True)
    assert found["store"] == found["landed"] == [0, 0, 0], told
