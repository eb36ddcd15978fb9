"""The words for users' kernels on GPUs: the kernels of the simulator's tests, and a wait that nobody ends."""

import pytest
import torch
import triton
import triton.language as tl

import overlap
import overlap.language as ol
from overlap.errors import DeadlineError, RuntimeContractError
from tests.support import language_page
from tests.support.ranks import delay
from tests.support.signal_kernels import exchange, through_tma

from .conftest import WORLD

LAUNCHES = 50


def test_the_pages_host_code_runs_as_it_stands(group, tmp_path):
    _, text = language_page.example()
    language_page.host_code(tmp_path, "page", text)(group)
    overlap.check(group)


@pytest.mark.parametrize("pull", [False, True], ids=["puts", "gets"])
@pytest.mark.parametrize(("n", "dtype"), [(1000, torch.float32), (7, torch.bfloat16), (1, torch.int8)])
def test_put_and_get_reach_every_rank(group, n, dtype, pull):
    me = group.rank()
    box = overlap.symmetric((WORLD, n), dtype, signals=WORLD + 1, group=group)
    wrong = []
    for launch in range(1, LAUNCHES + 1):
        x = torch.arange(n, device="cuda").add(launch + me).remainder(11).to(dtype)
        wanted = sum(torch.arange(n, device="cuda").add(launch + peer).remainder(11) for peer in range(WORLD)).to(dtype)
        out = torch.full((n,), -1, dtype=dtype, device="cuda")
        delay(launch, me)
        exchange[(1,)](x, out, box.tensor, box.handle, n, launch, BLOCK=1024, PULL=pull)
        wrong.append((out != wanted).any())
    assert not torch.stack(wrong).any()
    overlap.check(group)


def test_words_for_descriptors(group):
    side = 64
    box = overlap.symmetric((side, side), torch.float32, signals=2, group=group)
    wrong = []
    for launch in range(1, LAUNCHES + 1):
        x = torch.full((side, side), 10.0 * launch + group.rank(), device="cuda")
        out = torch.empty_like(x)
        delay(launch, group.rank())
        through_tma[(1,)](x, out, box.tensor, box.handle, launch, SIDE=side, FENCED=True, LANDED=True)
        wrong.append((out != 10 * launch + (group.rank() - 1) % WORLD).any())
    assert not torch.stack(wrong).any()
    overlap.check(group)


@triton.jit
def tell_the_first(h, number, BLOCK: tl.constexpr):
    if ol.rank(h) == 0:
        ol.wait(h, 0, number)
    else:
        ol.notify(h, 0, 0, 1, "add")


@pytest.mark.ranks(2)
def test_a_wait_that_nobody_ends_is_named(group, monkeypatch):
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "2")
    box = overlap.symmetric((1,), torch.float32, group=group)
    tell_the_first[(1,)](box.handle, WORLD, BLOCK=1)
    if group.rank():
        overlap.check(group)
        return
    with pytest.raises(DeadlineError, match=rf"rank 0 waited 2 s for signal 0 .*wanted {WORLD}, seen {WORLD - 1}"):
        overlap.check(group)


def test_memory_goes_back_and_comes_anew(group):
    for round in range(3):
        box = overlap.symmetric((1000 + round,), torch.float32, zero=True, group=group)
        assert box.tensor.sum().item() == 0 and box.peer((group.rank() + 1) % WORLD).shape == box.tensor.shape
        box.release()
        with pytest.raises(RuntimeContractError, match="was released"):
            _ = box.handle
