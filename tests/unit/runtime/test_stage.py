"""Staging: the words that the entry kernel would copy are the elements that the tensors have."""

import pytest
import torch

from overlap.runtime.kernels.stage import DIMS, as_words, filling, staging


def carried_out(src, dst):
    """What the entry kernel does, in Python over flat memory."""
    copy = staging(src, dst)
    if not copy.dims:
        return copy
    source, target = as_words(src, copy.dtype), as_words(dst, copy.dtype)
    # Flat words of each whole storage, from the tensor's first word on.
    flat_src = torch.empty(0, dtype=copy.dtype).set_(source.untyped_storage())[source.storage_offset() :]
    flat_dst = torch.empty(0, dtype=copy.dtype).set_(target.untyped_storage())[target.storage_offset() :]
    for i in range(copy.words):
        index, at, to = i, 0, 0
        for d in reversed(range(DIMS)):
            at += index % copy.sizes[d] * copy.src_strides[d]
            to += index % copy.sizes[d] * copy.dst_strides[d]
            index //= copy.sizes[d]
        flat_dst[to] = flat_src[at]
    return copy


SHARDS = {
    "rows": (lambda t: torch.arange(6 * 8, dtype=torch.float16).view(6, 8), (20, 8)),
    "odd rows": (lambda t: torch.arange(5 * 7, dtype=torch.float16).view(5, 7), (20, 7)),
    "columns": (lambda t: torch.arange(6 * 4, dtype=torch.float16).view(6, 4), (6, 16)),
    "transposed": (lambda t: torch.arange(6 * 8, dtype=torch.float16).view(8, 6).t(), (20, 8)),
    "one row": (lambda t: torch.arange(8, dtype=torch.float16).view(1, 8), (3, 8)),
    "batched": (lambda t: torch.arange(2 * 3 * 8, dtype=torch.float16).view(2, 3, 8), (2, 9, 8)),
    "stride 0": (lambda t: torch.arange(8, dtype=torch.float16).expand(6, 8), (20, 8)),
    "offset view": (lambda t: torch.arange(6 * 9, dtype=torch.float16).view(6, 9)[:, 1:], (20, 8)),
    "aligned offset": (lambda t: torch.arange(6 * 12, dtype=torch.float16).view(6, 12)[:, 4:], (20, 8)),
    "floats": (lambda t: torch.arange(6 * 6, dtype=torch.float32).view(6, 6), (20, 6)),
    "bytes": (lambda t: torch.arange(6 * 16, dtype=torch.uint8).view(6, 16), (20, 16)),
    "longs": (lambda t: torch.arange(6 * 3).view(6, 3), (20, 3)),
}


@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_every_element_arrives_and_no_other_changes(name, at):
    make, shape = SHARDS[name]
    src = make(None)
    whole = torch.full(shape, 99, dtype=src.dtype)
    dim = next((d for d, (n, m) in enumerate(zip(src.shape, shape, strict=True)) if n != m), 0)
    dst = whole.narrow(dim, at, src.shape[dim])
    expected = whole.clone()
    expected.narrow(dim, at, src.shape[dim]).copy_(src)
    carried_out(src, dst)
    assert torch.equal(whole, expected)


def test_contiguous_rows_are_one_run_of_wide_words():
    copy = carried_out(torch.zeros(6, 8, dtype=torch.float16), torch.zeros(20, 8, dtype=torch.float16)[2:8])
    assert (copy.dtype, copy.dims, copy.words, copy.flat) == (torch.int64, 1, 12, True)


def test_words_that_do_not_lie_one_behind_the_other_are_not_flat():
    halves = torch.zeros(6, 8, dtype=torch.float16)
    assert not staging(halves[:, :4], halves.clone()[:, 4:]).flat  # rows with gaps
    assert not staging(halves.flatten()[::2], torch.zeros(24, dtype=torch.float16)).flat
    assert not staging(halves[:0], halves[:0]).flat
    assert not filling(torch.zeros(24), lambda values, bits: torch.tensor(values, dtype=torch.int64))[1].flat


@pytest.mark.parametrize(
    ("columns", "first", "pitch", "row"),
    [(128, 8, 400, 32), (384, 0, 400, 32), (4096, 8, 8192, 1024), (64, 8, 400, 0), (128, 8, 404, 0), (128, 2, 400, 0)],
    ids=["32 words", "96 words", "wide", "few words", "odd pitch", "no words"],
)
def test_rows_are_blocks_of_words_that_begin_at_even_ones(columns, first, pitch, row):
    """Halves, four a word; either side may be the one whose rows lie apart."""
    dense, apart = (
        torch.zeros(6, columns).half(),
        torch.zeros(6, max(pitch, columns + first)).half()[:, first:][:, :columns],
    )
    assert staging(dense, apart).row == staging(apart, dense).row == row
    assert staging(dense, dense.clone()).row == staging(dense.t(), torch.zeros(columns, 6).half()).row == 0


def test_words_are_narrow_where_an_address_is_odd():
    narrow = staging(torch.zeros(49, dtype=torch.float16)[1:].view(6, 8), torch.zeros(6, 8, dtype=torch.float16))
    assert narrow.dtype == torch.float16


def test_an_empty_shard_stages_nothing():
    copy = staging(torch.zeros(0, 8), torch.zeros(0, 8))
    assert (copy.dims, copy.words) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_filling_writes_every_element_of_a_dense_tensor(dtype, count):
    whole = torch.full((count + 2,), 1.0).to(dtype)
    target = whole[:count]
    zero, copy = filling(target, lambda values, bits: torch.tensor(values, dtype=torch.int64))
    if not count:
        assert copy.dims == 0
        return
    assert (copy.dims, copy.src_strides, copy.dst_strides) == (1, (0,) * 4, (0, 0, 0, 1))
    assert copy.words * copy.dtype.itemsize == count * dtype.itemsize
    words = target.view(torch.uint8).view(copy.dtype)
    for i in range(copy.words):
        words[i] = zero[0]
    assert target.float().eq(0).all() and whole[count:].float().eq(1).all()


def test_filling_needs_whole_words_that_begin_on_a_boundary():
    whole = torch.ones(64, dtype=torch.bfloat16)
    kinds = [
        filling(whole[a:b], lambda values, bits: torch.tensor(values, dtype=torch.int64))[1].dtype
        for a, b in ((0, 64), (0, 63), (1, 61))
    ]
    assert kinds == [torch.int64, torch.bfloat16, torch.bfloat16]
