"""Ranks that differ, fail, come late or compile for long: the others say who and what, and nothing hangs."""

import time

import pytest
import torch
import torch.distributed as dist

from overlap.errors import DeadlineError, OverlapError, RuntimeContractError
from overlap.runtime.cuda.runtime import CudaRuntime
from overlap.runtime.workspace import check, release
from tests.support.ranks import Product, template

from .children import run_on_every_rank
from .conftest import WORLD

pytestmark = pytest.mark.ranks(2)
LAST = WORLD - 1
GROUPED = template("grouped_gemm")
DEADLINE_S = 3


@pytest.fixture
def deadline(monkeypatch):
    monkeypatch.setenv("OVERLAP_DEADLINE_S", str(DEADLINE_S))


def me() -> int:
    return dist.get_rank()


def test_ranks_with_different_plans_are_told_the_first_difference(generated, group):
    pull, push = (generated(GROUPED, plan, "a[M]") for plan in ("all_gather_1d", "all_gather_1d_push"))
    product = Product(group, 512, 136, 96, torch.float16)
    with pytest.raises(RuntimeContractError, match=r"rank \d+ and rank \d+ call `matmul` differently: plan, line \d+:"):
        product.call(push if me() == LAST else pull, 0)


def test_ranks_with_different_shapes_are_told_both(generated, group):
    module = generated(GROUPED, "all_gather_1d", "a[M]")
    with pytest.raises(RuntimeContractError, match=r"differently: shape \(\d+, 96\) against \(\d+, 96\)"):
        Product(group, 520 if me() == LAST else 512, 136, 96, torch.float16).call(module, 0)
    Product(group, 512, 136, 96, torch.float16).check(module, 0)


def test_ranks_with_different_dtypes_are_told_both(generated, group):
    module = generated(GROUPED, "all_gather_1d", "a[M]")
    with pytest.raises(RuntimeContractError, match=r"differently: dtype torch\.\w+ against torch\.\w+"):
        Product(group, 512, 136, 96, torch.float16 if me() == LAST else torch.bfloat16).call(module, 0)


def test_one_rank_repeats_a_known_shape_while_the_others_call_a_new_one(generated, group, deadline):
    module = generated(GROUPED, "all_gather_1d", "a[M]")
    known, new = (Product(group, m, 136, 96, torch.float16) for m in (512, 520))
    known.check(module, 0)
    start = time.monotonic()
    # A `DeadlineError`, or, where the other rank has gone on to another meeting by then, that.
    with pytest.raises(RuntimeContractError, match=f"rank {me()}"):
        (known if me() == LAST else new).call(module, 1)
        check(group)
    assert time.monotonic() - start < 5 * DEADLINE_S


def test_a_rank_that_raises_in_a_first_call_is_quoted_at_once(generated, group):
    """The host body refuses on one rank only: its other argument does not fit."""
    module = generated(GROUPED, "all_gather_1d", "a[M]")
    product = Product(group, 512, 136, 96, torch.float16)
    shard, b = product.arguments(*product.data(0))
    start = time.monotonic()
    expected = ValueError if me() == LAST else RuntimeContractError
    with pytest.raises(expected) as caught:
        module.matmul(shard, b[:, 0] if me() == LAST else b, group=group, sizes=product.sizes)
    assert me() == LAST or f"rank {LAST} raised instead of coming to the first launch of `matmul`" in str(caught.value)
    assert time.monotonic() - start < 10
    product.check(module, 1)


def test_a_rank_that_compiles_longer_than_the_deadline_is_waited_for(generated, group, deadline, monkeypatch):
    module = generated(GROUPED, "all_gather_1d", "a[M]")
    warm, slept = CudaRuntime.warm, []

    def slow(self, *args, **kwargs):
        made = warm(self, *args, **kwargs)
        if not slept:
            slept.append(time.sleep(2 * DEADLINE_S + 1))
        return made

    if me() == LAST:
        monkeypatch.setattr(CudaRuntime, "warm", slow)
    start = time.monotonic()
    Product(group, 512, 136, 96, torch.float16).check(module, 0)
    check(group)
    assert time.monotonic() - start > 2 * DEADLINE_S


@pytest.mark.parametrize(
    ("plan", "awaited"),
    [
        ("all_gather_1d", rf"for rank {LAST} to be ready"),
        ("all_gather_1d_push", rf"a\[\d+:\d+, 0:96\] from rank {LAST} \(flag \d+ of rank \d+; rank {LAST} operation"),
        ("all_gather_ring", r"for rank \d+ to be ready"),
    ],
)
def test_a_rank_that_comes_too_late(generated, group, deadline, monkeypatch, plan, awaited):
    """The others' grids drain and say what they waited for, now and at every later call, until all release."""
    module = generated(GROUPED, plan, "a[M]")
    product = Product(group, 4096, 1024, 96, torch.float16)
    product.check(module, 0)
    if me() == LAST:
        time.sleep(3 * DEADLINE_S)
    else:
        start = time.monotonic()
        product.call(module, 1)
        with pytest.raises(DeadlineError, match=awaited) as caught:
            check(group)
        took = time.monotonic() - start
        assert 0.8 * DEADLINE_S < took < 2.5 * DEADLINE_S, f"drained after {took:.1f} s"
        assert f"rank {me()}: `matmul` waited {DEADLINE_S} s" in str(caught.value)
        assert "wanted launch 2, seen 1" in str(caught.value)
        assert plan == "all_gather_1d" or plan == "all_gather_ring" or "<plan of matmul>:" in str(caught.value)
        with pytest.raises(DeadlineError, match=awaited):
            product.call(module, 2)
    try:
        if me() == LAST:
            product.call(module, 1)
            check(group)
    except OverlapError as error:
        assert isinstance(error, DeadlineError)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    release(group)
    product.check(module, 3)
    check(group)


@pytest.mark.parametrize(
    ("scenario", "plan"),
    [
        ("killed_before_a_launch", "all_gather_1d"),
        ("killed_in_a_launch", "all_gather_1d"),
        ("killed_in_a_launch", "all_gather_1d_push"),
        ("raises_before_a_launch", "all_gather_ring"),
        ("killed_in_a_launch", "reduce_scatter_1d"),
    ],
)
def test_a_rank_that_goes(scenario, plan):
    """In processes of their own. The survivors raise within the deadline, at a check, a call or a meeting, and end."""
    child = run_on_every_rank(scenario, plan, env={"OVERLAP_DEADLINE_S": str(DEADLINE_S)}, seconds=90)
    if me() == LAST:
        assert child.status != 0
        return
    assert child.status == 0, child.text
    assert child.found["error"] == "DeadlineError", child.text
    assert f"rank {me()}" in child.found["message"] and "launch" in child.found["message"]
    assert child.found["seconds"] < 5 * DEADLINE_S
    assert child.found["first call of another shape"] in ("DeadlineError", "RuntimeContractError")


@pytest.mark.parametrize("leave", ["destroyed", "not_destroyed"])
def test_the_end_of_a_program_is_silent(leave):
    child = run_on_every_rank("ends", leave, seconds=90)
    assert child.status == 0, child.text
    noise = [line for line in child.errors.splitlines() if line.strip() and "destroy_process_group" not in line]
    assert noise == []


VARIABLES = {
    "blocking launches": {"CUDA_LAUNCH_BLOCKING": "1"},
    "one connection": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "nvshmem": {"OVERLAP_PROVIDER": "nvshmem"},
}


@pytest.mark.parametrize("name", VARIABLES)
def test_eager_and_captured_under_a_variable(name):
    plans = "all_gather_1d,all_gather_1d_push,all_gather_ring,reduce_scatter_1d,all_reduce_two_shot,all_to_all_1d"
    child = run_on_every_rank("right", plans, env=VARIABLES[name], seconds=150)
    assert child.status == 0, child.text
    provider = "nvshmem" if name == "nvshmem" else "torch"
    assert child.found == {"eager": [0, 360], "captured": [0, 120], "provider": provider}
    assert "freed implicitly" not in child.errors
