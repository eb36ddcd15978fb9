"""A wait with a spin limit: it gives up, says what it waited for, and no later wait of the rank is as patient.

The simulator lets a poll sleep until its word changes, so limits here are negative: used up before the first repeat.
"""

import pytest
import torch

from overlap.runtime.faults.faults import INSTANCE_WORD, LIMIT_WORD, RECORD_WORD, RECORD_WORDS
from overlap.runtime.kernels.entry import entry_kernel, wait_kernel
from overlap.schedule.table import S_EPOCH, S_READY, SLOT_WORDS, flag_base, state_words
from overlap.sim import World


def armed(runtime, limit, flags=2):
    """State words with a spin limit, the record they name, and their flags."""
    state = runtime.symmetric([state_words(runtime.world, flags)], torch.int64, zero=True)
    record = runtime.table([0] * RECORD_WORDS, bits=64)
    state[S_EPOCH * SLOT_WORDS] = 7
    state[LIMIT_WORD] = limit
    state[RECORD_WORD] = record.data_ptr()
    state[INSTANCE_WORD] = 3
    first = flag_base(runtime.world)
    return state, record, [state[(first + i) * SLOT_WORDS :][:1] for i in range(flags)]


def test_a_wait_in_vain_is_recorded_and_the_next_gives_up_at_once():
    def body(group):
        runtime = group.overlap_runtime
        state, record, flags = armed(runtime, -1)
        flags[1][:] = 6
        for flag in (flags[1], flags[0]):
            runtime.launch(
                wait_kernel, (1, 1, 1), (), {"flag": flag, "state": state, "num_warps": 1}, runtime.main_stream()
            )
        runtime.synchronize()
        assert record.tolist() == [1, flags[1].data_ptr(), 7, 6, 3], "the first wait's record stays"
        return state[LIMIT_WORD].item()

    assert World(1).run(body) == [1]


@pytest.mark.parametrize("seen", [7, 8])
def test_a_wait_that_is_served_leaves_nothing(seen):
    def body(group):
        runtime = group.overlap_runtime
        state, record, flags = armed(runtime, 5)
        flags[0][:] = seen
        arguments = {"flag": flags[0], "state": state, "num_warps": 1}
        runtime.launch(wait_kernel, (1, 1, 1), (), arguments, runtime.main_stream())
        runtime.synchronize()
        return record.tolist(), state[LIMIT_WORD].item()

    assert World(1).run(body) == [([0] * RECORD_WORDS, 5)]


def test_the_entry_of_a_rank_whose_peer_never_comes_names_its_ready_word():
    def body(group):
        runtime = group.overlap_runtime
        state, record, _ = armed(runtime, -1)
        state[S_EPOCH * SLOT_WORDS] = 0
        peers = runtime.table([runtime.peer(state, p).data_ptr() for p in range(2)], bits=64)
        runtime.agree("states", None)
        if runtime.rank == 0:
            zeros = {f"{letter}{i}": 0 for letter in "nsd" for i in range(4)}
            arguments = {
                "src": state, "dst": state, "state": state, "peers": peers, "rank": 0, "world": 2, "programs": 1,
                "instance": 4, "first_counter": 0, "counters": 0, **zeros, "DIMS": 0, "WIDE": False, "WAIT_DONE": True,
                "PUBLISH": True, "READY": True, "COUNTERS": False, "BLOCK": 64,
            }  # fmt: skip
            runtime.launch(entry_kernel, (1, 1, 1), (), arguments, runtime.main_stream())
            runtime.synchronize()
            return record.tolist(), state[(S_READY + 1) * SLOT_WORDS :].data_ptr()
        return None

    (record, ready), _ = World(2).run(body)
    assert record == [1, ready, 1, 0, 4]
