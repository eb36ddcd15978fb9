"""What still moves while every multiprocessor spins, and what is refused because it would not."""

import time

import pytest
import torch
import triton

import overlap.language as ol
from overlap.errors import UnsupportedError
from overlap.runtime.cuda.compiled import compiled, multiprocessor, require_room
from overlap.runtime.cuda.runtime import runtime_for_group
from overlap.schedule.table import SLOT_WORDS, flag_base, state_words

pytestmark = pytest.mark.ranks(2)


@triton.jit
def spin(flag, state):
    """Every program waits for the flag: nothing ends before the copies have raised it."""
    ol.poll(flag, 1, state)


WARPS = 32
FULL = 2048


def spinner(runtime, flag, state):
    """The kernel, its arguments and a grid that fills every thread of the device."""
    arguments = {"flag": flag, "state": state, "num_warps": WARPS}
    threads = multiprocessor(runtime.device.index).threads
    assert threads == FULL and compiled(spin, (1, 1, 1), arguments).n_regs <= 32
    return arguments, (runtime.sm_count * threads // (32 * WARPS), 1, 1)


PARTS = {
    "1-D": (slice(8, 40), slice(None)),
    "2-D": (slice(None), slice(16, 48)),
    "one element": (slice(3, 4), slice(2, 3)),
    "large": (slice(None), slice(None)),
}


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("part", PARTS)
def test_copies_make_progress_while_every_multiprocessor_spins(group, part, direction, monkeypatch):
    """The flag that ends the spinning is itself raised by a copy behind the chunk's: starved, the wait gives up."""
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "3")
    runtime = runtime_for_group(group)
    world, rank = runtime.world, runtime.rank
    other = (rank + 1) % world
    source = runtime.symmetric([1024, 1024], torch.float32)
    target = runtime.symmetric([1024, 1024], torch.float32, zero=True)
    state = runtime.symmetric([state_words(world, 1)], torch.int64, zero=True)
    ones = runtime.symmetric([4], torch.int64)
    late = runtime.watch(state)
    source.fill_(1.0 + rank)
    ones.fill_(1)
    slot = flag_base(world) * SLOT_WORDS
    flag = state[slot : slot + 1]
    arguments, grid = spinner(runtime, flag, state)
    box = PARTS[part]
    if direction == "pull":
        chunk = runtime.copier(target[box], runtime.peer(source, other)[box])
        raised = runtime.copier(flag, runtime.peer(ones, other)[:1])
    else:
        chunk = runtime.copier(runtime.peer(target, other)[box], source[box])
        raised = runtime.copier(runtime.peer(state, other)[slot : slot + 1], ones[:1])
    torch.cuda.synchronize()
    runtime.agree("all is filled", None)
    side = runtime.fork(0)
    runtime.launch(spin, grid, (), arguments, runtime.main_stream())
    time.sleep(0.02)
    chunk(side)
    raised(side)
    runtime.join(side)
    torch.cuda.synchronize()
    assert late() is None
    wanted = torch.zeros(1024, 1024, device="cuda")
    wanted[box] = 1.0 + (other if direction == "pull" else (rank - 1) % world)
    assert torch.equal(target, wanted)
    runtime.agree("all is read", None)


def test_a_wait_kernel_beside_a_grid_that_leaves_no_room_is_refused(group):
    runtime = runtime_for_group(group)
    state = torch.zeros(state_words(1, 1), dtype=torch.int64, device="cuda")
    arguments, grid = spinner(runtime, state, state)
    made = compiled(spin, grid, arguments)
    with pytest.raises(UnsupportedError, match="threads leave no room for a warp"):
        require_room(made, grid, runtime.device)
    require_room(made, (grid[0] - 1, 1, 1), runtime.device)
