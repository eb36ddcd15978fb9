"""What the entry kernel stages on simulated ranks: sizes around whole blocks, several programs, with and without `FLAT`."""

import pytest
import torch

from overlap.runtime.kernels.entry import entry_kernel
from overlap.runtime.kernels.stage import as_words, staging
from overlap.schedule.table import state_words
from overlap.sim import World

BLOCK = 64


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("words", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 7 * BLOCK + 5])
@pytest.mark.parametrize("columns", ["all", "some"])
def test_every_word_is_staged_once_and_no_other_is_written(words, programs, columns):
    def body(group):
        runtime = group.overlap_runtime
        state = runtime.symmetric([state_words(1, 0)], torch.int64, zero=True)
        peers = runtime.table([state.data_ptr()], bits=64)
        whole = runtime.symmetric([words + 2, 2], torch.int64, zero=True)
        given = torch.arange(2 * words).view(words, 2) + 7
        # Both columns lie one word behind the other; one of them does not.
        src, dst = (given, whole[1:-1]) if columns == "all" else (given[:, :1], whole[1:-1, :1])
        copy = staging(src, dst)
        assert copy.flat == (columns == "all")
        arguments = {
            "src": as_words(src, copy.dtype), "dst": as_words(dst, copy.dtype), "state": state, "peers": peers, "rank": 0,
            "world": 1, "programs": programs, "instance": 1, "first_counter": 0, "counters": 0, **copy.arguments(),
            "DIMS": copy.dims, "WIDE": False, "WAIT_DONE": True, "PUBLISH": True, "READY": True, "COUNTERS": False,
            "BLOCK": BLOCK, "FLAT": copy.flat,
        }  # fmt: skip
        runtime.launch(entry_kernel, (programs, 1, 1), (), arguments, runtime.main_stream())
        runtime.synchronize()
        expected = torch.zeros_like(whole)
        (expected[1:-1] if columns == "all" else expected[1:-1, :1]).copy_(src)
        return torch.equal(whole, expected)

    assert World(1).run(body) == [True]
