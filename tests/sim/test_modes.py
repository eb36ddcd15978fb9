"""What a rank sets of torch's modes neither reaches other ranks nor outlasts the run, in whatever order ranks take turns."""

import pytest
import torch

from overlap.errors import OverlapError
from overlap.ops import ag_gemm
from overlap.sim import World
from overlap.sim.modes import modes


@pytest.mark.one_triton
@pytest.mark.parametrize("seed", range(8))
def test_modes_are_each_rank_s_own(seed):
    before = modes()

    def body(group):
        runtime = group.overlap_runtime
        rank, seen = runtime.rank, []

        def look():
            runtime.agree("here", rank)
            seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))

        look()
        with torch.set_grad_enabled(rank != 0), torch.autocast("cpu", torch.float16, enabled=rank == 1):
            look()
            look()
        look()
        return seen

    outside = (True, False, torch.bfloat16)
    inside = [(False, False, torch.float16), (True, True, torch.float16), (True, False, torch.float16)]
    for rank, seen in enumerate(World(3, seed=seed).run(body)):
        assert seen == [outside, inside[rank], inside[rank], outside]
    assert modes() == before


@pytest.mark.one_triton
@pytest.mark.parametrize("seed", range(8))
def test_inference_mode_is_each_rank_s_own(seed):
    """In it, and behind it, tensors are what they should be on every rank."""
    before = modes()

    def body(group):
        runtime = group.overlap_runtime
        rank, seen = runtime.rank, []

        def look():
            runtime.agree("here", rank)
            made = torch.ones(2, requires_grad=True) * 2
            seen.append((torch.is_inference_mode_enabled(), made.is_inference(), made.requires_grad))

        look()
        with torch.inference_mode(rank == 1):
            look()
            look()
            with torch.inference_mode(rank == 2), torch.set_grad_enabled(rank == 0):
                look()
        look()
        return seen

    records, infers, neither = (False, False, True), (True, True, False), (False, False, False)
    inside = [(records, records), (infers, neither), (records, infers)]
    for rank, seen in enumerate(World(3, seed=seed).run(body)):
        outer, inner = inside[rank]
        assert seen == [records, outer, outer, inner, records]
    assert modes() == before


@pytest.mark.one_triton
def test_operators_on_tensors_made_in_inference_mode():
    """What a stream carries out for a rank, it does in the rank's mode."""
    x, w = torch.randn(4, 8), torch.randn(8, 5)

    def body(group):
        with torch.inference_mode(group.rank() == 1):
            y = ag_gemm(x * 2, w * 1, group=group) + 1
            group.overlap_runtime.synchronize()
        assert y.is_inference() == (group.rank() == 1)
        return y

    for y in World(2).run(body):
        torch.testing.assert_close(y, torch.cat([x, x]) * 2 @ w + 1)


@pytest.mark.one_triton
def test_modes_are_as_they_were_behind_a_run_that_fails():
    before = modes()

    def body(group):
        runtime = group.overlap_runtime
        with torch.no_grad():
            runtime.agree("here", None)
            if runtime.rank == 1:
                raise ValueError("a mistake of the user's")
            runtime.agree("never", None)

    with pytest.raises((ValueError, OverlapError)):
        World(3, seed=1).run(body)
    assert modes() == before
