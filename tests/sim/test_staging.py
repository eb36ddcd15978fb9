"""What the entry kernel stages on simulated ranks: sizes around whole blocks, several programs, dense words (`FLAT`), rows in
blocks (`ROW`), and words one by one."""

import pytest
import torch

from overlap.runtime.kernels.entry import entry_kernel
from overlap.runtime.kernels.stage import as_words, staging
from overlap.schedule.table import state_words
from overlap.sim import World

BLOCK = 64
ALL = slice(None)


def check_staged(given, shape, place, *, programs, flat, row=0):
    """Every word of ``given`` is staged in its ``place`` in symmetric memory of ``shape``, and no other is written."""

    def body(group):
        runtime = group.overlap_runtime
        state = runtime.symmetric([state_words(1, 0)], torch.int64, zero=True)
        peers = runtime.table([state.data_ptr()], bits=64)
        whole = runtime.symmetric(shape, given.dtype, zero=True)
        dst = whole[place]
        copy = staging(given, dst)
        assert (copy.flat, min(copy.row, BLOCK)) == (flat, row)
        arguments = {
            "src": as_words(given, copy.dtype), "dst": as_words(dst, copy.dtype), "state": state, "peers": peers, "rank": 0,
            "world": 1, "programs": programs, "instance": 1, "first_counter": 0, "counters": 0, **copy.arguments(),
            "DIMS": copy.dims, "WIDE": False, "WAIT_DONE": True, "PUBLISH": True, "READY": True, "COUNTERS": False,
            "BLOCK": BLOCK, "FLAT": copy.flat, "ROW": min(copy.row, BLOCK),
        }  # fmt: skip
        runtime.launch(entry_kernel, (programs, 1, 1), (), arguments, runtime.main_stream())
        runtime.synchronize()
        expected = torch.zeros_like(whole)
        expected[place].copy_(given)
        return torch.equal(whole, expected)

    assert World(1).run(body) == [True]


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("words", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 7 * BLOCK + 5])
@pytest.mark.parametrize("columns", ["all", "some"])
def test_every_word_is_staged_once_and_no_other_is_written(words, programs, columns):
    """Both columns lie one word behind the other; one of them does not."""
    given = torch.arange(2 * words).view(words, 2) + 7
    if columns == "some":
        given = given[:, :1]
    place = slice(1, -1), slice(0, given.shape[1])
    check_staged(given, [words + 2, 2], place, programs=programs, flat=columns == "all")


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize(
    ("shape", "room", "place", "row"),
    [
        ((5, 32), (7, 100), (slice(1, 6), slice(2, 34)), 32),
        ((5, 96), (5, 100), (ALL, slice(4, 100)), 32),
        ((9, 192), (11, 256), (slice(2, 11), slice(0, 192)), BLOCK),
        ((2, 3, 32), (2, 4, 64), (ALL, slice(1, 4), slice(32, 64)), 32),
        ((3, 2, 2, 64), (3, 3, 3, 66), (ALL, slice(1, 3), slice(0, 2), slice(2, 66)), BLOCK),
        ((5, 32), (5, 101), (ALL, slice(2, 34)), 0),
        ((5, 48), (5, 100), (ALL, slice(0, 48)), 0),
    ],
    ids=["one block a row", "three blocks", "wide rows", "in two dimensions", "in three", "at odd words", "few words"],
)
def test_rows_are_staged_in_blocks_of_words(shape, room, place, row, programs):
    given = torch.arange(torch.Size(shape).numel()).view(shape) + 7
    check_staged(given, room, place, programs=programs, flat=False, row=row)


def test_rows_of_halves_are_staged_as_words():
    given = torch.arange(6 * 256).view(6, 256).half()[1:, 128:]
    check_staged(given, (8, 400), (slice(1, 6), slice(8, 136)), programs=2, flat=False, row=32)
