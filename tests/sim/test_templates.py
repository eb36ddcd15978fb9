"""Every shipped template x ranks x pieces x dimensions x parts, carried out on simulated ranks against what it promises.

CI runs a subset in which every pair of values meets; ``make sweep`` (OVERLAP_SWEEP=1) runs all of them with two seeds.
`all_to_all_v` has its own (test_transfer_v.py).
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import pytest
from test_proof_matrix import pairwise

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.errors import PlanError
from overlap.runtime.transfer.transfer import carried
from overlap.schedule import steps as st
from overlap.schedule.transfer import transfer_steps
from overlap.sim import check_plan

pytestmark = pytest.mark.one_triton

TWO_AXES = ("all_gather_2d", "all_gather_double_ring", "all_reduce_2d", "all_to_all_2d", "reduce_scatter_2d")
ONE_AXIS = tuple(name for name in list_templates() if name not in (*TWO_AXES, "all_to_all_v"))
PIECES = ("even", "uneven", "empty")
FACTORS = (
    (ONE_AXIS, ("1", "2", "3", "5"), PIECES, (0, 1), (1, 2)),
    (TWO_AXES, ("2x2", "3x2", "2x3"), PIECES, (0, 1), (1, 2)),
)
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
CASES = [case for factors in FACTORS for case in (itertools.product(*factors) if SWEEP else pairwise(factors))]
SEEDS = (0, 1) if SWEEP else (0,)


def shape_of(pieces: str, world: int) -> tuple[int, int]:
    """Global shapes whose pieces, along either dimension, are even, uneven with none empty, or empty for some ranks."""
    if pieces == "even":
        return (2 * world, world)
    if pieces == "uneven":
        return (3 * world - 1, 2 * world - (world > 1))
    return (max(1, world - 1), max(1, world - 2)) if world > 1 else (0, 3)


def made(name: str, mesh: str, shape: tuple[int, int], dim=0, split=1, direction=None) -> CommPlan:
    path, text = find_template(name)
    grid = parse_mesh(mesh)

    def build(direction: str) -> CommPlan:
        return build_plan(
            text,
            world=grid.world,
            tensor=TensorSpec("k" if name == "kv_ring" else "x", shape),
            dim=dim,
            to_dim=1 - dim if "all_to_all" in name else None,
            split=split,
            direction=direction,
            path=path,
            mesh=grid,
        )

    plan = build(direction or "pull")
    return build("push") if direction is None and reduced_tensors(plan) else plan


@pytest.mark.parametrize(("name", "mesh", "pieces", "dim", "split"), CASES)
def test_ranks_end_with_what_the_template_promises(name, mesh, pieces, dim, split):
    plan = made(name, mesh, shape_of(pieces, parse_mesh(mesh).world), dim, split)
    launches = 2 if SWEEP or plan.world < 5 else 1
    report = check_plan(plan, seeds=SEEDS, launches=launches, dtype=("fp32", "bf16", "fp16")[len(name) % 3])
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("name", "mesh", "direction"),
    [
        ("all_reduce_ring", "3", "pull"),  # pulls of sums, which are turned into pushes
        ("all_gather_ring_both_ways", "4", "push"),
        ("all_to_all_2d", "2x2", "pull"),
    ],
)
def test_the_other_direction_and_hosts_that_wait_for_kernels(name, mesh, direction):
    plan = made(name, mesh, (7, 5), direction=direction)
    report = check_plan(plan, seeds=(0, 1), blocking=True)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("name", "mesh"), [("all_gather_ring", "3"), ("all_reduce_two_shot", "2"), ("halo", "2"), ("kv_ring", "2")]
)
def test_a_dropped_step_is_found(name, mesh):
    """Of rank 1. A join orders nothing that flags do not order too, where all that arrives is waited for; captures need it."""
    plan = made(name, mesh, (5, 3))
    moved, values = carried(plan)
    steps = transfer_steps(moved, 1, values)
    for i, step in enumerate(steps):
        if isinstance(step, st.Join):
            continue

        def without(rank, own, i=i):
            return own[:i] + own[i + 1 :] if rank == 1 else own

        report = check_plan(plan, seeds=range(3), launches=3, mutate_steps=without)
        assert not report.ok, f"without {step}:\n{report}"


def test_every_order_of_a_small_plan():
    plan = made("all_reduce_one_shot", "2", (1, 1))
    report = check_plan(plan, seeds=(), launches=1, explore=30, preemptions=1)
    assert report.ok and report.explored == 30, str(report)
    assert "orders explored: 30" in str(report)


# Plans that are wrong


ROW = Chunk("x", Box((0,), (4,)))
HALF = Chunk("x", Box((0,), (2,)))


def plan_of(ops, *, before=((ROW,), (), ()), after=((ROW,), (ROW,), (ROW,))) -> CommPlan:
    return CommPlan("small", 3, (TensorSpec("x", (4,)),), before, after, ops)


def hop(a: int, b: int, *depends, chunk=ROW, channel=0) -> P2P:
    return P2P("push", a, b, chunk, chunk, depends=tuple(depends), channel=channel)


WRONG = {
    "a relay that does not wait": (((hop(0, 1),), (hop(1, 2),), ()), {"race", "unwritten"}),
    "two that wait for each other": (((hop(0, 1, (1, 0)),), (hop(1, 2, (0, 0)),), ()), {"deadlock"}),
    "one that nobody sends": (((hop(0, 1),), (), ()), {"unwritten"}),
    "half of what is promised": (((hop(0, 1), hop(0, 2, chunk=HALF)), (), ()), {"unwritten"}),
    "two that write at once": (((hop(0, 1), hop(0, 2)), (hop(1, 2, (0, 0)),), ()), {"race"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_plan_that_is_refused_shows_its_fault_when_it_is_carried_out(wrong):
    ops, kinds = WRONG[wrong]
    plan = plan_of(ops)
    with pytest.raises(PlanError):
        check_plan(plan)
    report = check_plan(plan, verified=False, seeds=range(4))
    assert not report.ok and report.faults[0].kind in kinds, str(report)
    assert f"fault: {report.faults[0].kind} with seed {report.faults[0].seed}" in str(report)


def test_a_sum_may_replace_what_a_rank_holds_once_that_is_staged():
    """Ranks 0 and 1 hold one part, rank 2 the other; rank 1 takes no part before the sum replaces what it holds."""
    add = P2P("push", 2, 0, ROW, ROW, reduce=Reduction())
    spread = tuple(hop(0, to, (2, 0)) for to in (1, 2))
    plan = plan_of((spread, (), (add,)), before=((ROW,), (ROW,), (ROW,)))
    plan = replace(plan, tensors=(TensorSpec("x", (4,), parts=(0, 0, 1)),))
    report = check_plan(plan, seeds=range(4))
    assert report.ok, str(report)

    def unready(rank, steps):
        return (replace(steps[0], ready=False), *steps[1:])

    report = check_plan(plan, seeds=range(8), mutate_steps=unready)
    assert not report.ok and report.faults[0].kind == "race", str(report)


def test_the_same_plan_put_right_is_sound():
    report = check_plan(plan_of(((hop(0, 1),), (hop(1, 2, (0, 0)),), ())), seeds=range(4))
    assert report.ok and str(report).endswith("\nok"), str(report)
