"""Host code on simulated ranks: the device it sees, memory never written, streams that starve, absent ranks."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from overlap.errors import DeadlockFault, KernelCrashFault, RuntimeContractError, UnwrittenFault
from overlap.sim import World
from overlap.sim.memory import array_of


@triton.jit
def copy_kernel(dst, src, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(dst + i, tl.load(src + i, mask=i < n), mask=i < n)


@triton.jit
def wait_for(word, value):
    while tl.atomic_add(word, 0, sem="acquire", scope="sys") < value:
        pass


def test_host_code_sees_the_simulated_device():
    def body(group):
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        active = triton.runtime.driver.active
        sms = active.utils.get_device_properties(active.get_current_device())["multiprocessor_count"]
        made = (
            torch.empty(3, device="cuda"),
            torch.zeros((2,), device=torch.device("cuda", 0)),
            torch.ones(2).to("cuda"),
        )
        assert [tensor.device.type for tensor in made] == ["cpu"] * 3
        return properties.multi_processor_count, sms, group.overlap_runtime.sm_count

    assert World(2, sms=7).run(body) == [(7, 7, 7)] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(6),
        lambda: torch.empty((2, 3), dtype=torch.bfloat16),
        lambda: torch.zeros(6).new_empty(6),
        lambda: torch.empty_like(torch.zeros(2, 3).half()),
        lambda: torch.empty_strided((2, 3), (1, 2)),
    ],
)
def test_memory_from_torch_empty_is_nan_until_written(make):
    def body(group):
        tensor = make()
        assert np.isnan(array_of(tensor).astype(np.float32)).all()
        runtime = group.overlap_runtime
        runtime.launch(
            copy_kernel, (1,), (torch.zeros(6, dtype=tensor.dtype), tensor, 6), {"BLOCK": 8}, runtime.main_stream()
        )

    with pytest.raises(UnwrittenFault, match=r"reads .*src\[0(, 0)?\] of rank 0 and 5 more elements"):
        World(1).run(body)


def test_what_host_code_writes_is_written():
    def body(group):
        tensor, out = torch.empty(6), torch.empty(6)
        tensor.fill_(2.0)
        runtime = group.overlap_runtime
        runtime.launch(copy_kernel, (1,), (out, tensor, 6), {"BLOCK": 8}, runtime.main_stream())
        torch.cuda.synchronize()
        return out.tolist()

    assert World(1).run(body) == [[2.0] * 6]


@pytest.mark.parametrize("seed", range(5))
def test_torch_operations_of_host_code_run_in_stream_order(seed):
    """They come behind the kernels launched before them and ahead of those launched after, as on a device."""

    def body(group):
        runtime = group.overlap_runtime
        tensor, out, last = torch.empty(6), torch.empty(6), torch.empty(6)
        tensor.fill_(1.0)
        runtime.launch(copy_kernel, (1,), (out, tensor, 6), {"BLOCK": 8}, runtime.main_stream())
        tensor.fill_(2.0)
        doubled = out.t() * 2 + tensor
        runtime.launch(copy_kernel, (1,), (last, doubled, 6), {"BLOCK": 8}, runtime.main_stream())
        del doubled
        assert out.sum().item() == 6.0
        runtime.synchronize()
        return out.tolist(), last.tolist()

    assert World(3, seed=seed).run(body) == [([1.0] * 6, [4.0] * 6)] * 3


def test_a_torch_operation_on_memory_never_written():
    with pytest.raises(UnwrittenFault, match=r"runs add.Tensor on memory from torch.empty.* nobody ever writes"):
        World(1).run(lambda group: (torch.empty(6) + 1, group.overlap_runtime.synchronize()))


def spinning(local):
    """A grid that fills every SM and waits for a copy: from a peer it comes, inside the rank it starves."""

    def body(group):
        runtime = group.overlap_runtime
        word = runtime.symmetric([4], torch.int64, zero=True)
        one = runtime.symmetric([4], torch.int64, zero=True)
        one.fill_(1)
        runtime.synchronize()
        runtime.agree("the ones are there", None)
        side = runtime.fork(0)
        runtime.launch(wait_for, (runtime.sm_count,), (word, 1), {"num_warps": 4}, runtime.main_stream())
        runtime.copier(word[:1], (one if local else runtime.peer(one, 1 - runtime.rank))[:1])(side)
        runtime.join(side)
        runtime.synchronize()

    return body


def test_a_copy_between_ranks_passes_a_spinning_grid():
    for seed in range(6):
        World(2, sms=2, seed=seed).run(spinning(local=False))


def test_a_local_copy_starves_behind_a_spinning_grid():
    faults = []
    for seed in range(6):
        try:
            World(2, sms=2, seed=seed).run(spinning(local=True))
        except DeadlockFault as fault:
            faults.append(fault.render())
    assert len(faults) >= 3
    assert all("waits for a free SM: a local copy runs as a kernel" in text for text in faults)


def test_one_warp_fits_beside_a_full_grid():
    """The wait kernel of a relay must not need a slot of its own."""

    def body(group):
        runtime = group.overlap_runtime
        word = runtime.symmetric([4], torch.int64, zero=True)
        other = runtime.symmetric([4], torch.int64, zero=True)
        one = runtime.symmetric([4], torch.int64, zero=True)
        one.fill_(1)
        runtime.synchronize()
        runtime.agree("the ones are there", None)
        peer = 1 - runtime.rank
        side = runtime.fork(0)
        runtime.launch(wait_for, (runtime.sm_count,), (word, 1), {"num_warps": 4}, runtime.main_stream())
        runtime.copier(runtime.peer(other, peer)[:1], one[:1])(side)
        runtime.launch(wait_for, (1,), (other, 1), {"num_warps": 1}, side)
        runtime.copier(runtime.peer(word, peer)[:1], one[:1])(side)
        runtime.join(side)
        runtime.synchronize()

    for seed in range(6):
        World(2, sms=1, seed=seed).run(body)


def test_a_rank_that_never_comes_is_named():
    def body(group):
        if group.overlap_runtime.rank != 1:
            group.overlap_runtime.agree("shapes", 1)

    with pytest.raises(DeadlockFault, match="waits for rank 1 to call agree\\('shapes'\\)"):
        World(3).run(body)


def test_a_host_that_raises_ends_the_run_and_cleans_up():
    closed = []

    def body(group):
        try:
            if group.overlap_runtime.rank == 2:
                raise ValueError("no luck")
            group.overlap_runtime.agree("for ever", None)
        finally:
            group.overlap_runtime.join(group.overlap_runtime.fork(0))
            closed.append(group.overlap_runtime.rank)

    with pytest.raises(KernelCrashFault, match="rank 2 host: ValueError: no luck"):
        World(3).run(body)
    assert sorted(closed) == [0, 1, 2] or 2 in closed


def test_ordinary_memory_of_a_peer_is_out_of_reach():
    shared = {}

    def body(group):
        runtime = group.overlap_runtime
        mine = torch.empty(4)
        shared[runtime.rank] = mine
        runtime.agree("made", None)
        runtime.copier(mine, shared[1 - runtime.rank])

    with pytest.raises(RuntimeContractError, match="ordinary memory of rank"):
        World(2).run(body)


def test_a_view_of_ordinary_memory_has_no_peer():
    with pytest.raises(RuntimeContractError, match="is not symmetric memory"):
        World(2).run(lambda group: group.overlap_runtime.peer(torch.zeros(4), 1 - group.overlap_runtime.rank))
