"""The robustness runs for every realization that the capability table has, on one gather and one reduce-scatter: launches with
delays on two streams, replays, sub-groups, ranks that come late or go, hosts that wait for each kernel.

    python -m torch.distributed.run --nproc-per-node 2 -m pytest -q tests/multigpu/test_realizations.py

Modules are compiled once for all tests. Ranks go or come late under one realization a form of waiting, and launches are some
hundreds; OVERLAP_SWEEP=1 has ranks go and come late under each, and a thousand launches. A library's collective has no deadline
of ours, so ranks do neither under that.
"""

import os
import time

import pytest
import torch
import torch.distributed as dist

from overlap.errors import DeadlineError, OverlapError
from overlap.runtime.workspace import check, release
from tests.support.ranks import Product, delay, template
from tests.support.realizations import REALIZATIONS, missing
from tests.support.rehearsal import products

from .children import run_on_every_rank
from .conftest import WORLD, meet
from .test_graphs import Captured

LAST = WORLD - 1
DEADLINE_S = 1
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
LAUNCHES = 1000 if SWEEP else 300
OURS = [name for name, how in REALIZATIONS.items() if not how.library]
FORMS = ["gather, ldst_reserved", "gather, ldst_inline", "scatter, tma_inline", "gather, nvshmem"]
"""Programs of their own, programs between their tiles, tiles that are stored, signals of far peers."""
GONE = OURS if SWEEP else FORMS
"""Under which ranks go or come late."""


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    for test, rows, world in (
        ("test_launches_over_two_streams_with_delays", [515], 0),
        ("test_a_graph_replayed_between_calls", [1000], 0),
        ("test_two_sub_groups_of_a_2x2_mesh_at_once", [515], 2),
        ("test_a_rank_that_comes_too_late", [515], 0),
        ("test_a_rank_killed_in_a_launch", [515], 0),
        ("test_hosts_that_wait_for_each_kernel", [515, 64, 1], 0),
    ):
        for name, how in REALIZATIONS.items():
            if missing(name) or how.far and (world or len(rows) > 1) or "rank" in test and name not in GONE:
                continue
            way, calls = (how.plan, how.on, how.backend), [((m, 136, 96), torch.float16) for m in rows]
            node = max(1, WORLD // 2) if how.far else 0
            yield products(f"{test}[{name}]", template(how.kernel), way, *calls, world=world, node=node)


def each(found):
    """Realizations as parameters; those that this machine has no library for say so."""
    return [pytest.param(name, marks=[pytest.mark.skipif(bool(missing(name)), reason=missing(name))]) for name in found]


def nodes_of(name: str) -> dict[str, str]:
    """The halves of the ranks are nodes for what reaches far peers."""
    return {"OVERLAP_NODE_RANKS": str(max(1, WORLD // 2))} if REALIZATIONS[name].far else {}


@pytest.fixture
def realized(generated, monkeypatch):
    """``realized(name, group, m)``: its module, and a product of ``m`` rows on the group."""

    def make(name, group, m=515):
        for variable, value in nodes_of(name).items():
            monkeypatch.setenv(variable, value)
        how = REALIZATIONS[name]
        module = generated(template(how.kernel), how.plan, how.on, how.backend)
        return module, Product(group, m, 136, 96, torch.float16, on=how.on)

    return make


@pytest.mark.parametrize("name", each(REALIZATIONS))
def test_launches_over_two_streams_with_delays(realized, group, name):
    """New data each time; nothing but the runtime orders one call behind the other."""
    module, product = realized(name, group)
    product.check(module, 0)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for seed in range(1, LAUNCHES + 1):
        with torch.cuda.stream(streams[seed % 2]):
            delay(seed, product.rank)
            wrong[seed % 2] += product.wrong(*product.call(module, seed))
    torch.cuda.synchronize()
    check(group)
    found = sum(int(w) for w in wrong)
    assert found == 0, f"{found} of {LAUNCHES} launches are wrong on rank {product.rank}"


@pytest.mark.parametrize("name", each(REALIZATIONS))
def test_a_graph_replayed_between_calls(realized, group, name):
    module, product = realized(name, group, 1000)
    product.check(module, 0)
    captured, wrong = Captured(module, product), []
    for seed in range(60):
        delay(seed, product.rank)
        wrong.append(captured.replay(seed))
        if seed % 10 == 0:
            wrong.append(product.wrong(*product.call(module, seed + 1000)))
    found = torch.stack(wrong).nonzero().flatten().tolist()
    assert not found, f"replays and calls {found} are wrong on rank {product.rank}"
    check(group)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", each(name for name, how in REALIZATIONS.items() if not how.far))
def test_two_sub_groups_of_a_2x2_mesh_at_once(realized, process_group, name):
    """A global rank used for a rank of the group would read another group's memory."""
    groups = []
    for sets in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]):
        made = [dist.new_group(ranks, backend="cpu:gloo,cuda:nccl") for ranks in sets]
        groups.append(
            next((g, i) for i, (g, ranks) in enumerate(zip(made, sets, strict=True)) if dist.get_rank() in ranks)
        )
    for seed in range(10):
        for group, number in groups:
            module, product = realized(name, group)
            product.check(module, 100 * number + seed)
    for group, _ in groups:
        release(group)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", each(GONE))
def test_a_rank_that_comes_too_late(realized, group, monkeypatch, name):
    """The others' grids drain within the deadline and say what they waited for, until all release."""
    module, product = realized(name, group)
    # Compiles, and starts the libraries of the oracle, under the deadline of all tests; memory keeps the one it was made under.
    product.check(module, 0)
    release(group)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", str(DEADLINE_S))
    product.check(module, 0)
    torch.cuda.synchronize()
    meet(f"{name} on all ranks", True)
    if product.rank == LAST:
        time.sleep(2 * DEADLINE_S)
    start = time.monotonic()
    try:
        product.call(module, 1)
        check(group)
        said = None
    except OverlapError as error:
        said = error
    took = time.monotonic() - start
    if product.rank != LAST:
        assert isinstance(said, DeadlineError), f"{said!r} after {took:.1f} s"
        assert f"rank {product.rank}: `matmul` waited {DEADLINE_S} s" in str(said), str(said)
        assert took < 2 * DEADLINE_S + 1, f"drained after {took:.1f} s: {said}"
    else:
        assert said is None or isinstance(said, DeadlineError), repr(said)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    release(group)
    product.check(module, 3)
    check(group)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", each(GONE))
def test_a_rank_killed_in_a_launch(name):
    """The survivors raise within the deadline and end."""
    child = run_on_every_rank("killed_in_a_launch", name, env={"OVERLAP_DEADLINE_S": "3", **nodes_of(name)}, seconds=60)
    if dist.get_rank() == LAST:
        assert child.status != 0, child.text
        return
    assert child.status == 0, child.text
    assert child.found["error"] == "DeadlineError", child.text
    assert f"rank {dist.get_rank()}" in child.found["message"], child.text
    assert child.found["seconds"] < 15, child.text


@pytest.mark.ranks(2)
def test_hosts_that_wait_for_each_kernel():
    """CUDA_LAUNCH_BLOCKING=1, in a process of its own, all realizations of near peers one after another."""
    found = [name for name, how in REALIZATIONS.items() if not how.far and not missing(name)]
    child = run_on_every_rank("right_by", ";".join(found), env={"CUDA_LAUNCH_BLOCKING": "1"}, seconds=80)
    assert child.status == 0, child.text
    assert child.found == {name: [0, 15] for name in found}, child.text
