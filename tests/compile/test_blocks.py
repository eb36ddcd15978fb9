"""Collectives by blocks in PTX: 16 bytes an access, a release at system scope behind a barrier, and acquires at system scope."""

import re

import pytest
import torch
import triton.language as tl

from overlap.build import compile_kernel, facts, parse_target
from overlap.runtime.packets.block_kernels import exchange_blocks_kernel, sum_blocks_kernel, two_step_blocks_kernel
from overlap.runtime.packets.blocks import BLOCK_BYTES, REGISTERS, THREADS
from overlap.runtime.packets.transport import SUMMED

from .support import meta

TARGET = parse_target("sm_90")


def made(kernel, dtype, unit, *, to_dtype=None, early=False, share=1, **options):
    arguments = dict(
        src=meta(4096, dtype=dtype), out=meta(4096, dtype=to_dtype or dtype), slots=meta(4096, dtype=torch.int64),
        peers=meta(8, dtype=torch.int64), calls=meta(1024, dtype=torch.int64), state=meta(64, dtype=torch.int64),
        VEC=unit // dtype.itemsize, UNITS=BLOCK_BYTES // share // unit, BYTES=BLOCK_BYTES // share, RANKS=4,
        LANES=THREADS // share, EARLY=early,
        **options,
    )  # fmt: skip
    numbers = {name: 1 for name in kernel.arg_names if name not in arguments}
    limit = {"maxnreg": REGISTERS} if kernel is two_step_blocks_kernel else {}
    return compile_kernel(kernel, arguments | numbers, TARGET, {"num_warps": THREADS // share // 32, **limit})


def moved(dtype, unit, *, flat=True, parts=False):
    return made(exchange_blocks_kernel, dtype, unit, FLAT=flat, TO_FLAT=flat, PARTS=parts)


def summed(dtype, unit, *, parts=False, to_dtype=None):
    wide = SUMMED[dtype][1]
    return made(
        sum_blocks_kernel, dtype, unit, to_dtype=to_dtype, FLAT=not parts, PARTS=parts, ACCUMULATOR=wide, SENDERS=4
    )


def in_two_steps(dtype, unit, share=1):
    return made(two_step_blocks_kernel, dtype, unit, share=share, ACCUMULATOR=SUMMED[dtype][1], SENDERS=4)


WIDE = {
    "moved": lambda: moved(torch.int64, 16),
    "moved, pieces": lambda: moved(torch.int64, 16, flat=False, parts=True),
    "added": lambda: summed(torch.bfloat16, 16),
    "added, pieces": lambda: summed(torch.float16, 16, parts=True),
    "added to fp32": lambda: summed(torch.bfloat16, 16, to_dtype=torch.float32),
    "added in fp64": lambda: summed(torch.float64, 16, parts=True),
    "two steps": lambda: in_two_steps(torch.bfloat16, 16),
    "two steps, halved": lambda: in_two_steps(torch.bfloat16, 16, share=2),
    "two steps, fp32": lambda: in_two_steps(torch.float32, 16),
}
NARROW = {
    "moved, bytes": lambda: moved(torch.int8, 1, flat=False, parts=True),
    "added, elements": lambda: summed(torch.bfloat16, 2, parts=True),
    "two steps, elements": lambda: in_two_steps(torch.float16, 2),
}
LOOK = "ld.acquire.sys.global.b64"
VECTOR = re.compile(r"\b(?:ld|st)\.global\.v(\d)\.b(\d+)")


@pytest.mark.parametrize("name", WIDE)
def test_data_are_moved_16_bytes_at_a_time(name):
    found = VECTOR.findall(WIDE[name]().assembly)
    assert found and {int(count) * int(bits) for count, bits in found} == {128}


@pytest.mark.parametrize("name", {**WIDE, **NARROW})
def test_flags_are_released_behind_a_barrier_and_acquired_at_system_scope(name):
    artifact = {**WIDE, **NARROW}[name]()
    text = re.sub(r"\s\.loc\s.*", "", artifact.assembly)
    raised = re.findall(r"\batom\S*(?:release|exch)\S*sys\S*|\batom\S*sys\S*release\S*", text)
    assert len(raised) == (2 if "two steps" in name else 1)
    assert all("sys" in each and "release" in each for each in raised)
    # Every thread comes to a barrier behind its last store, and from there the way leads nowhere but to the release.
    for part in re.split(r"\batom\S*sys\.release\S*", text)[:-1]:
        since = part.rsplit("bar.sync", 1)[1]
        assert not re.search(r"\bst\.global|^\s*\$L|\bbra\b", since, re.MULTILINE), since
    # Looks are acquires, ahead of which the limit's is on its way, and what is loaded behind them is behind a barrier.
    looks = text.split(LOOK)
    assert len(looks) - 1 == len(raised)
    for behind in looks[1:]:
        assert re.search(r"ld\.relaxed\.gpu\.global\.b64 most, \S+\s*$", text[: text.index(behind) - len(LOOK)])
        assert "bar.sync" in behind[: re.search(r"\bld\.global\.", behind).start()]


@pytest.mark.parametrize("name", WIDE)
def test_data_stay_in_registers_of_two_programs_a_multiprocessor(name):
    """The assembler gives up one or two for that."""
    found = facts(WIDE[name]())
    assert (found.spill_bytes or 0) <= 16 and found.registers * THREADS * 2 <= 65536


@pytest.mark.parametrize("name", ["added", "added, pieces", "two steps", "two steps, halved", "two steps, fp32"])
def test_all_ranks_blocks_are_loaded_ahead_of_the_first_sum(name):
    """No load goes behind a barrier, and no sum ahead of this one, of which nobody knows what it answers."""
    text = WIDE[name]().assembly
    loads, sums = text[text.index(LOOK) :].split("bar.red.or.pred", 1)
    assert loads.count("ld.global.v4") == 8 and "add.f32" not in loads
    assert "add.f32" in sums and "bar.red" not in sums


def test_a_launch_that_begins_early_waits_ahead_of_all_it_reads():
    options = {"ACCUMULATOR": tl.float32, "SENDERS": 4}
    early = made(two_step_blocks_kernel, torch.bfloat16, 16, early=True, **options).assembly
    ahead, _, behind = early.partition("griddepcontrol.wait;")
    assert behind and not re.search(r"\b(?:ld|st|atom)\.(?!param)", ahead)
    assert "griddepcontrol" not in made(two_step_blocks_kernel, torch.bfloat16, 16, **options).assembly


@pytest.mark.parametrize("name", ["moved", "added", "two steps"])
def test_the_next_epoch_is_stored_once_every_thread_has_read_this_one(name):
    told = WIDE[name]().assembly.rsplit("bar.sync", 1)[1]
    assert told.count("st.global.b64") >= 2, "the program's, and those of others"


def test_no_kernel_is_another_one_for_some_rank_size_or_number_of_programs():
    """All numbers above are 1, which would be a constant."""
    text = summed(torch.bfloat16, 16).assembly
    assert len(re.findall(r"\.param \.[us]32", text)) == 8


def test_sums_are_made_in_registers():
    assert facts(in_two_steps(torch.bfloat16, 16)).shared_bytes <= 64
    assert SUMMED[torch.bfloat16] == (tl.bfloat16, tl.float32)
