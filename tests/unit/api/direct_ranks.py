"""Run by serial_ranks.py on three real ranks over gloo: plans of collectives, handed to torch.distributed."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.chunkplan.collectives.direct import direct_plan
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import PlanError, RuntimeContractError, UnsupportedError, UsageError
from overlap.sim.promise import Promise

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SHAPES = ((6, 9), (7, 5), (1, 2), (0, 4))
GROUPS = ((), (2, 0), (1,))


def box_of(chunks, name):
    return next((chunk.box for chunk in chunks if chunk.tensor == name), None)


def carried_out(plan, rank, **options):
    """What the ranks end with and what they must."""
    promise = Promise(plan, torch.float32, seed=5)
    given = {}
    for spec in plan.tensors:
        box = box_of(plan.before[rank], spec.name)
        # Strides are the caller's.
        value = torch.empty(0) if box is None else torch.from_numpy(promise.given(rank, spec.name, box).copy()).float()
        given[spec.name] = value.t().contiguous().t() if value.dim() == 2 else value
    got = overlap.transfer(plan, given, **options)
    got = got if isinstance(got, dict) else {plan.tensors[0].name: got}
    for chunk in plan.after[rank]:
        wanted = torch.from_numpy(promise.promised(rank, chunk)).float()
        assert torch.equal(got[chunk.tensor], wanted), (plan.name, rank, str(chunk), got[chunk.tensor], wanted)
    return got


def check_direct(rank: int, world: int) -> None:
    for kind, shape, ranks, dim in itertools.product(KINDS, SHAPES, GROUPS, (0, 1)):
        to_dim = 1 - dim if kind == "all_to_all" else None
        step = CollectiveStep(kind, TensorSpec("a", shape), world, dim, to_dim, ranks)
        carried_out(direct_plan(step), rank)
    # One behind the other, and side by side: gathered rows of a, and sums over some of the ranks, others for each.
    steps = [
        CollectiveStep("all_gather", TensorSpec("a", (5, 3)), world),
        CollectiveStep("all_reduce", TensorSpec("b", (4,)), world, ranks=(0, 2)),
        CollectiveStep("reduce_scatter", TensorSpec("c", (5,)), world, ranks=(2, 1)),
    ]
    plan = merge_plans([direct_plan(step) for step in steps])
    for _ in range(2):
        carried_out(plan, rank)

    x = torch.full((2, 3), float(rank))
    whole = overlap.transfer("all_gather", x, path="direct", dim=1)
    assert torch.equal(whole, torch.arange(3.0).repeat_interleave(3).expand(2, 9))
    out = torch.empty(2, 1)
    assert overlap.transfer("reduce_scatter", x, path="direct", dim=1, out=out) is out and (out == 3).all()
    made = overlap.transfer("all_to_all", torch.full((1, 3), rank, dtype=torch.int16), path="direct", to_dim=1)
    assert made.flatten().tolist() == [0, 1, 2] and made.dtype == torch.int16

    with pytest.raises(RuntimeContractError, match=r"rank \d of 3 holds .* of x\[7, 3\] before plan all_gather_direct"):
        overlap.transfer("all_gather", x[:0], path="direct", shape=(7, 3)) if rank < 2 else overlap.transfer(
            "all_gather", x, path="direct", shape=(7, 3)
        )
    with pytest.raises(UsageError, match="makes a plan of a collective"):
        overlap.transfer("all_gather_1d", x, path="direct")
    with pytest.raises(PlanError, match="unknown path `quick`"):
        overlap.transfer("all_gather", x, path="quick")
    with pytest.raises(RuntimeContractError, match="is for 2 ranks, the group has 3"):
        overlap.transfer(direct_plan(CollectiveStep("all_gather", TensorSpec("a", (4,)), 2)), x)
    with pytest.raises(PlanError, match="never joins"):
        overlap.transfer(replace(plan, ops=((), *plan.ops[1:])), x)
    with pytest.raises((RuntimeContractError, UnsupportedError), match="GPU|no "):
        overlap.transfer("all_gather_1d", x)  # by copy engine, which the CPU has not
    dist.barrier()
