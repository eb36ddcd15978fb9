"""Packets in PTX: whole words of 64 bits, sent and looked at by the accesses that the words name, in a loop that looks again."""

import re

import pytest
import torch
import triton.language as tl

from overlap.build import compile_kernel, facts, parse_target
from overlap.language.packets import SENDERS
from overlap.runtime.packets.kernels import exchange_kernel, sum_packets_kernel, two_step_kernel

from .support import meta

UNITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
TARGET = parse_target("sm_90")
LOOP = re.compile(r"^again:$(.*?)bra again;", re.MULTILINE | re.DOTALL)


def tensors(unit, to_unit, to_dtype=None):
    return dict(
        src=meta(4096, dtype=UNITS[unit]), out=meta(4096, dtype=to_dtype or UNITS[to_unit]),
        slots=meta(4096, dtype=torch.int64), peers=meta(8, dtype=torch.int64), calls=meta(1024, dtype=torch.int64),
        state=meta(64, dtype=torch.int64), rank=1, world=1, programs=1, capacity=1, rows=1, chunk=1, total=1,
    )  # fmt: skip


def exchange(unit, to_unit, *, flat=True, parts=False):
    boxes = dict(to_rows=1, to_chunk=1, to_total=1, FLAT=flat, TO_FLAT=flat, PARTS=parts)
    arguments = tensors(unit, to_unit) | boxes | dict(UNIT=unit, TO_UNIT=to_unit, BLOCK=256)
    return compile_kernel(exchange_kernel, arguments, TARGET, {"num_warps": 8})


def summing(unit, to_unit, *, senders=2, dtype=tl.bfloat16, to_dtype=None, parts=False):
    wide = tl.float64 if dtype == tl.float64 else tl.float32
    options = dict(
        UNIT=unit, TO_UNIT=to_unit, FLAT=not parts, PARTS=parts, SENDERS=senders, DTYPE=dtype, ACCUMULATOR=wide
    )
    arguments = tensors(unit, to_unit, to_dtype) | options | dict(BLOCK=256)
    return compile_kernel(sum_packets_kernel, arguments, TARGET, {"num_warps": 8})


def in_two_steps(unit, to_unit, *, senders=4, dtype=tl.bfloat16):
    options = dict(UNIT=unit, TO_UNIT=to_unit, SENDERS=senders, DTYPE=dtype, ACCUMULATOR=tl.float32)
    arguments = {name: value for name, value in tensors(unit, to_unit).items() if name != "rows"}
    arguments |= options | dict(size=1, to_size=1, BLOCK=256)
    return compile_kernel(two_step_kernel, arguments, TARGET, {"num_warps": 8})


MADE = {
    "moved": lambda: exchange(8, 8),
    "moved, pieces": lambda: exchange(4, 8, flat=False, parts=True),
    "moved, bytes": lambda: exchange(1, 1, flat=False, parts=True),
    "added": lambda: summing(8, 8, senders=4),
    "added, pieces": lambda: summing(2, 2, parts=True),
    "added in fp64": lambda: summing(8, 8, dtype=tl.float64, senders=1),
    "added in two steps": lambda: in_two_steps(8, 8),
    "added to fp32": lambda: summing(8, 0, to_dtype=torch.float32),
}


@pytest.mark.parametrize("name", MADE)
def test_words_are_sent_and_looked_at_whole(name):
    made = MADE[name]()
    text = made.assembly
    sent = re.findall(r"st\.relaxed\.sys\S*", text)
    assert sent and set(sent) == {"st.relaxed.sys.global.v2.b64"}
    looked = re.findall(r"ld\.relaxed\.sys\S*", text)
    assert looked and set(looked) == {"ld.relaxed.sys.global.v2.b64"}
    # Nothing else reaches other ranks: no release, no acquire, no fence at system scope.
    assert not re.search(r"(acquire|release|acq_rel)\.sys|sys\.(acquire|release|acq_rel)|membar|fence", text)
    found = facts(made)
    # Elements stay in the threads that look at their words.
    assert found.shared_bytes == 0
    assert found.spill_bytes in (0, None)


@pytest.mark.parametrize("name", MADE)
def test_the_next_epoch_is_stored_once_every_thread_has_read_this_one(name):
    """A warp whose lines have come is not ahead of one that has not begun."""
    told = MADE[name]().assembly.rsplit("bra again", 1)[1]
    assert told.count("bar.sync") == 1
    ahead, behind = (part.count("st.global.b64") for part in told.split("bar.sync"))
    assert ahead >= 5 and behind >= 2, "a record of a wait in vain; then the program's epoch, and those of others"


@pytest.mark.parametrize("senders", SENDERS)
def test_a_look_is_inside_the_loop_and_all_are_under_way_at_once(senders):
    loops = LOOP.findall(summing(8, 8, senders=senders).assembly)
    assert loops
    for loop in loops:
        assert len(re.findall(r"ld\.relaxed\.sys", loop)) == senders
        last, first_use = loop.rindex("ld.relaxed.sys"), loop.index("mov.b64 {")
        assert last < first_use


def test_no_kernel_is_another_one_for_some_rank_size_or_number_of_programs():
    """All arguments above are 1, which would be a constant."""
    text = summing(8, 8).assembly
    assert len(re.findall(r"\.param \.[us]32", text)) == 7
