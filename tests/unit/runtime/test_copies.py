"""Strided copies as 1-D and 2-D pieces, against torch's own copy."""

import ctypes

import pytest
import torch

from overlap.runtime.kernels.stage import collapse
from overlap.runtime.memory.copies import plan_copy


def carry_out(dst: torch.Tensor, src: torch.Tensor) -> int:
    pieces = list(plan_copy(dst, src))
    for piece in pieces:
        for row in range(piece.rows):
            ctypes.memmove(piece.dst + row * piece.dst_pitch, piece.src + row * piece.src_pitch, piece.width)
    return len(pieces)


def views():
    base = torch.arange(6 * 8 * 10, dtype=torch.int32).reshape(6, 8, 10)
    yield "whole", base, 1
    yield "rows", base[2:4], 1
    yield "columns", base[:, 3:5], 1
    yield "inner", base[:, :, 2:7], 1
    yield "box", base[1:3, 2:5, 1:4], 2
    yield "transposed", base.permute(2, 0, 1), 1
    yield "one", base[1:2, 3:4, 5:6], 1
    yield "column of a transpose", base.permute(0, 2, 1)[:, 4:6], 6


@pytest.mark.parametrize("name,src,pieces", list(views()), ids=lambda v: v if isinstance(v, str) else "")
def test_pieces_move_exactly_the_view(name, src, pieces):
    whole = torch.full((6, 8, 10), -1, dtype=torch.int32)
    offset = src.storage_offset()
    dst = whole.as_strided(src.shape, src.stride(), offset)
    made = carry_out(dst, src)
    assert made <= pieces
    expected = torch.full_like(whole, -1)
    expected.as_strided(src.shape, src.stride(), offset).copy_(src)
    assert torch.equal(whole, expected)


def test_different_layouts():
    src = torch.arange(24, dtype=torch.int16).reshape(4, 6).t()
    dst = torch.zeros(6, 4, dtype=torch.int16)
    carry_out(dst, src)
    assert torch.equal(dst, src)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 1, 3, 1, 4, 2), ()])
def test_collapse_enumerates_the_same_elements(shape):
    src = torch.randn(shape) if shape else torch.randn(())
    dst = torch.zeros(shape)
    sizes, s, d = collapse(src, dst)
    assert len(sizes) == len(s) == len(d) == 4
    flat = torch.as_strided(dst, sizes, d)
    flat.copy_(torch.as_strided(src, sizes, s))
    assert torch.equal(dst, src)


def test_collapse_refuses_five_loops():
    from overlap.errors import RuntimeContractError

    src = torch.randn(2, 3, 2, 3, 2).permute(4, 2, 0, 3, 1)
    with pytest.raises(RuntimeContractError, match="5 loops"):
        collapse(src, torch.zeros(src.shape))
