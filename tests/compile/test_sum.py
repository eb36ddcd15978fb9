"""The sum kernel: one access a word, every flag acquired before what it guards is read."""

import re

import pytest
import torch
import triton.language as tl

from overlap.build import check, compile_kernel, parse_target
from overlap.runtime.kernels.reduce import sum_kernel
from overlap.runtime.launch.prepared import SUM_WARPS
from overlap.runtime.tables.sums import WARP_ELEMENTS

from .support import meta, state


def built(
    *,
    dims=2,
    vec=8,
    dtype=torch.bfloat16,
    out=torch.bfloat16,
    summands=4,
    wide=False,
    credits=False,
    stores=False,
    target="sm_90",
    warps=SUM_WARPS,
):
    tensors = dict(
        data=meta(4096, dtype=dtype),
        out=meta(4096, dtype=out),
        table=meta(64, dtype=torch.int64),
        state=state(),
        peers=meta(4, dtype=torch.int64),
    )
    sizes = dict(
        pieces=2,
        programs=264,
        credits=3,
        CREDITS=credits or stores,
        STORES=stores,
        DIMS=dims,
        WIDE=wide,
        VEC=vec,
        SUMMANDS=summands,
        BLOCK=WARP_ELEMENTS * warps // vec,
    )
    return compile_kernel(
        sum_kernel, tensors | sizes | dict(ACCUMULATOR=tl.float32), parse_target(target), {"num_warps": warps}
    )


@pytest.mark.parametrize(
    ("dtype", "out", "vec"),
    [
        (torch.bfloat16, torch.bfloat16, 8),
        (torch.float16, torch.float32, 8),
        (torch.float32, torch.bfloat16, 4),
        (torch.float8_e4m3fn, torch.bfloat16, 16),
    ],
)
@pytest.mark.parametrize("dims", [1, 2, 4])
def test_words_are_loaded_by_one_access(dtype, out, vec, dims):
    ptx = built(dtype=dtype, out=out, vec=vec, dims=dims, wide=dims == 4).assembly
    assert re.search(r"ld\.global\.v4\.b32", ptx)
    # All that is read otherwise are the table's words, the state's and the record's.
    assert not re.search(r"ld\.global\.(v\d\.)?b(8|16)\b", ptx)


@pytest.mark.parametrize("summands", [2, 4])
def test_summands_are_on_their_way_together(summands):
    """Loads of all words of a block, two a thread, stand ahead of a barrier, what is computed from them behind it."""
    text = built(dims=1, summands=summands).assembly
    first_sum = text.index("add.f32")
    barrier = text.rindex("bar.red", 0, first_sum)
    loads = [found.start() for found in re.finditer(r"ld\.global\.v4\.b32", text) if found.start() < first_sum]
    moved = 2
    assert len(loads) == moved + 2 * summands and loads[-1] < barrier


def test_what_is_not_aligned_is_read_element_by_element():
    ptx = built(vec=1).assembly
    assert re.search(r"ld\.global\.b16", ptx) and not re.search(r"ld\.global\.v", ptx)


@pytest.mark.parametrize(
    ("dtype", "vec"), [(torch.int8, 16), (torch.int16, 8), (torch.int32, 4), (torch.int64, 2), (torch.int64, 1)]
)
def test_what_is_only_moved_goes_as_integers(dtype, vec):
    """As transfers move tensors of any dtype: one summand a piece, and no arithmetic on the way."""
    made = built(dtype=dtype, out=dtype, vec=vec, summands=2)
    assert check(made, guarded=["data"], flags="state") == []
    assert re.search(r"ld\.global\.(v4\.b32|v2\.b64)" if vec > 1 else r"ld\.global\.b64", made.assembly)


@pytest.mark.parametrize("vec", [1, 8])
def test_it_obeys_the_rules(vec):
    made = built(vec=vec)
    assert check(made, guarded=["data"], flags="state") == []
    assert "sys.acquire" in made.assembly


def test_credits_stand_behind_what_every_program_has_read():
    """Counted out behind a barrier, with release and acquire; given behind another, at system scope, in one instruction."""
    made = built(credits=True)
    assert check(made, guarded=["data"], flags="state") == []
    text = made.assembly
    count, give = (text.index(f"atom.global.{what}") for what in ("gpu.acq_rel.add", "sys.release.exch.b64"))
    last_load = max(found.start() for found in re.finditer(r"ld\.global\.v4", text))
    assert last_load < count < give and text.count("sys.release.exch.b64") == 1
    assert "bar.sync" in text[last_load:count] and "bar.sync" in text[count:give]
    assert "sys.release" not in built().assembly and "acq_rel" not in built().assembly


def test_flags_of_what_is_stored_stand_behind_what_every_program_has_stored():
    """Counted out at system scope, since it lies in peers' memory, then raised as credits are; stores are of whole words."""
    made = built(stores=True)
    assert check(made, guarded=["data"], flags="state") == []
    text = made.assembly
    count, give = (text.index(f"atom.global.{what}") for what in ("sys.acq_rel.add", "sys.release.exch.b64"))
    stores = [found.start() for found in re.finditer(r"st\.global\.v4\.b32", text)]
    # In each of both branches, of what is added and of what is moved: peers, the kept sum, the result.
    assert len(stores) >= 6 and max(stores) < count < give and text.count("sys.release.exch.b64") == 1
    assert "bar.sync" in text[max(stores) : count] and "bar.sync" in text[count:give]
    assert not re.search(r"st\.global\.b(8|16)\b", text)
