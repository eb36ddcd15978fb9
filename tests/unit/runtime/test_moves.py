"""Pieces of moves: the words that source and destination allow, carried out as the moving programs do."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from overlap.backends.base import Realization
from overlap.backends.registry import backend
from overlap.errors import SourceSpan, UnsupportedError
from overlap.runtime.memory.copies import CopyPiece, plan_copy
from overlap.runtime.tables import moves
from overlap.runtime.tables.moves import piece_words, programs_for, reserved
from overlap.schedule.moves import BOXES


def carry_out(words):
    kind, src, dst, count, row, src_pitch, dst_pitch = words
    if kind == BOXES:
        # What the hardware wants of a descriptor, and rows by it.
        assert src % 16 == dst % 16 == 4 * src_pitch % 16 == 4 * dst_pitch % 16 == 0
        assert 0 < row <= min(src_pitch, dst_pitch) and 0 < count < 2**31
        for r in range(count):
            ctypes.memmove(dst + 4 * r * dst_pitch, src + 4 * r * src_pitch, 4 * row)
        return
    size = kind or 16
    unit = min(size, 8)
    assert src % size == 0 and dst % size == 0 and count % row == 0
    for i in range(count):
        r, c = divmod(i, row)
        at, to = (base + r * pitch * unit + c * size for base, pitch in ((src, src_pitch), (dst, dst_pitch)))
        ctypes.memmove(to, at, size)


def memory(nbytes, offset):
    """Bytes that begin ``offset`` behind a multiple of 16."""
    base = torch.zeros(nbytes + 32, dtype=torch.uint8)
    start = -base.data_ptr() % 16 + offset
    return base[start : start + nbytes]


@pytest.mark.parametrize(
    ("here", "there", "width", "kinds"),
    [
        (0, 0, 64, [0]),
        (2, 2, 100, [1, 0, 1]),
        (4, 4, 64, [4, 0, 4]),
        (12, 12, 4, [4]),
        (3, 3, 5, [1]),
        (0, 4, 64, [4]),
        (0, 2, 64, [1]),
        (0, 0, 7, [1]),
    ],
)
def test_a_row_has_the_widest_words_between_its_ends(here, there, width, kinds):
    src, dst = memory(width, here), memory(width, there)
    src.copy_(torch.arange(1, width + 1, dtype=torch.uint8))
    found = list(piece_words(CopyPiece(dst.data_ptr(), src.data_ptr(), width)))
    assert [words[0] for words in found] == kinds
    for words in found:
        carry_out(words)
    assert torch.equal(dst, src)


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.float64])
@pytest.mark.parametrize(
    "columns", [slice(0, 24), slice(3, 20), slice(8, 16), slice(5, 6), slice(3, 500), slice(0, 544)]
)
@pytest.mark.parametrize("pitch", [544, 545])
def test_rows_move_exactly_the_view(dtype, columns, pitch, boxes):
    src = torch.randint(0, 100, (6, 5, pitch)).to(dtype)
    dst = torch.zeros_like(src)
    view, to = src[1:4, :, columns], dst[1:4, :, columns]
    for piece in plan_copy(to, view):
        for words in piece_words(piece, boxes=boxes):
            carry_out(words)
    expected = torch.zeros_like(src)
    expected[1:4, :, columns] = view
    assert torch.equal(dst, expected)


@pytest.mark.parametrize(
    ("nbytes", "at", "kinds"),
    [
        (64 * 256, 0, [BOXES]),
        (64 * 256 + 48, 0, [BOXES, 16]),
        (64 * 256 + 48, 4, [4, BOXES, 16, 4]),
        (64 * 256 + 5, 3, [1, BOXES, 16, 4]),
        (4096, 0, [BOXES]),
        (4100, 0, [BOXES, 4]),
        (4080, 0, [16]),
        (100, 0, [16, 4]),
    ],
)
def test_a_row_is_boxes_and_what_they_leave(nbytes, at, kinds):
    src, dst = memory(nbytes, at), memory(nbytes, at)
    src.copy_(torch.arange(nbytes) % 251)
    found = list(piece_words(CopyPiece(dst.data_ptr(), src.data_ptr(), nbytes), boxes=True))
    assert sorted(words[0] for words in found) == sorted(kinds)
    for words in found:
        carry_out(words)
    assert torch.equal(dst, src)


@pytest.mark.parametrize(
    ("width", "rows", "pitch", "kinds"),
    [
        (256, 64, 1024, [BOXES]),
        (1000, 5, 1024, [BOXES, 4]),
        (1001, 5, 1024, [BOXES, 1]),
        (256, 16, 272, [BOXES]),
        (256, 15, 272, [16]),
        (240, 1000, 272, [16]),
        (128, 1000, 144, [16]),
        (256, 64, 1028, [4]),
        (256, 64, 1030, [1]),
    ],
)
def test_parts_of_rows_are_boxes_where_tma_takes_them_and_they_pay(width, rows, pitch, kinds):
    piece = CopyPiece(1 << 40, 1 << 41, width, rows, pitch, 2 * pitch)
    found = list(piece_words(piece, boxes=True))
    assert [words[0] for words in found] == kinds
    if kinds[0] == BOXES:
        assert found[0][3:] == (rows, width // 16 * 4, pitch // 2, pitch // 4)


def test_aligned_rows_move_in_wide_words():
    src = torch.zeros(8, 64, dtype=torch.bfloat16)
    src = src[:, -src.data_ptr() % 16 // 2 :][:, :32]
    piece = CopyPiece(src.data_ptr() + 4096, src.data_ptr(), 64, 8, 128, 128)
    assert [words[0] for words in piece_words(piece)] == [16]


def test_pieces_that_32_bits_cannot_number_are_cut(monkeypatch):
    monkeypatch.setattr(moves, "MOST_WORDS", 10)
    src, dst = memory(700, 4), memory(700, 4)
    src.copy_(torch.arange(700) % 251)
    pieces = [CopyPiece(dst.data_ptr(), src.data_ptr(), 400)]
    pieces.append(CopyPiece(dst.data_ptr() + 400, src.data_ptr() + 400, 52, 3, 100, 100))
    for piece in pieces:
        for words in piece_words(piece):
            assert words[3] <= 10
            carry_out(words)
    rows = [*range(400), *(400 + 100 * r + i for r in range(3) for i in range(52))]
    assert torch.equal(dst[rows], src[rows]) and dst.count_nonzero() == src[rows].count_nonzero()


def operator(programs):
    moved = Realization("ldst_reserved", comm_sms=programs)
    return SimpleNamespace(name="matmul", realization=moved, mover=backend(moved.backend))


@pytest.mark.parametrize("multiprocessors", [1, 7, 78, 108, 114, 132, 144])
def test_the_number_of_programs_follows_the_device(multiprocessors):
    assert programs_for(operator(0), multiprocessors, 2 * multiprocessors) == max(1, multiprocessors // 8)
    assert programs_for(operator(3), multiprocessors, 200) == 3


@pytest.mark.parametrize("capability", [(8, 0), (8, 9)])
def test_a_device_without_tma_is_refused_by_name(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    made = SimpleNamespace(
        name="matmul",
        mover=backend("tma_reserved"),
        source=SimpleNamespace(kernel_line=3),
        span=lambda line: SourceSpan("kernels.py", line, 1, "def matmul", 3),
    )
    instance = SimpleNamespace(runtime=None, operator=made, state=SimpleNamespace(device=torch.device("cuda")))
    with pytest.raises(UnsupportedError, match=f"tma_reserved needs sm_90, here is sm_8{capability[1]}") as caught:
        reserved(instance, (), None, (1, 1, 1), {}, 1)
    assert caught.value.where.line == 3 and "ldst_reserved" in caught.value.help


def test_somebody_must_compute():
    with pytest.raises(UnsupportedError, match="none is left to compute") as caught:
        programs_for(operator(132), 132, 132)
    assert caught.value.help == "comm_sms=131 at most"


def test_a_device_refuses_a_triton_that_is_too_old(monkeypatch):
    """Before anything of the launch is looked at."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    operator = SimpleNamespace(
        name="matmul", mover=backend("tma_inline"), source=SimpleNamespace(kernel_line=9),
        span=lambda line: SourceSpan("kernel.py", line, 0),
    )  # fmt: skip
    instance = SimpleNamespace(runtime=None, operator=operator, state=SimpleNamespace(device=torch.device("cuda")))
    monkeypatch.setattr(moves, "triton_here", lambda: (3, 5))
    with pytest.raises(UnsupportedError, match=r"tma_inline needs Triton 3\.6, here is 3\.5"):
        reserved(instance, (), None, (1, 1, 1), {}, 4)
    monkeypatch.setattr(moves, "triton_here", lambda: (3, 6))
    with pytest.raises(AttributeError, match="resident"):  # it goes on, to what is not there
        reserved(instance, (), None, (1, 1, 1), {}, 4)
