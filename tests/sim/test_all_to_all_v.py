"""The all-to-all whose pieces have any sizes, and collectives of groups, carried out on simulated ranks."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.groups import over_axis
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.sim import check_plan

pytestmark = pytest.mark.one_triton

PATH, TEXT = find_template("all_to_all_v")
SWEEP = bool(os.environ.get("OVERLAP_SWEEP"))


def plan_of(counts: list[list[int]], spare: int = 0, **more) -> CommPlan:
    rows = sum(map(sum, counts)) + spare
    return build_plan(
        TEXT, world=len(counts), tensor=TensorSpec("x", (rows, 3)), dim=0, path=PATH, counts={"sent": counts}, **more
    )


def some_counts(dice: random.Random, world: int) -> list[list[int]]:
    return [[dice.choice((0, 0, 1, 4, 9)) for _ in range(world)] for _ in range(world)]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_random_counts(world):
    dice = random.Random(world)
    for number in range(20 if SWEEP else 3):
        plan = plan_of(
            some_counts(dice, world), spare=number % 2, direction=("pull", "push")[number % 2], split=1 + number % 2
        )
        report = check_plan(plan, seeds=range(10) if SWEEP else (number,))
        assert report.ok, report


@pytest.mark.parametrize("counts", [[[0]], [[0, 0], [0, 0]], [[5, 0], [0, 0]], [[0, 7], [0, 0]], [[0, 0, 3]] * 3])
def test_ranks_that_send_or_get_nothing(counts):
    report = check_plan(plan_of(counts))
    assert report.ok, report


@pytest.mark.parametrize(("name", "axis"), [("all_reduce_two_shot", "node"), ("all_gather_ring", "gpu")])
def test_groups_of_an_axis_at_once(name, axis):
    """Every group has values of its own, so one that took another's would end with wrong ones."""
    mesh = parse_mesh("node=2,gpu=3")
    path, text = find_template(name)
    size = mesh.sizes[mesh.axis(axis)]
    one = build_plan(text, world=size, tensor=TensorSpec("a", (7, 3)), dim=0, path=path, direction="push")
    plan = over_axis(one, mesh, axis)
    report = check_plan(plan, seeds=range(5) if SWEEP else (0,))
    assert report.ok, report
    if name == "all_reduce_two_shot":
        one_tensor = replace(plan, tensors=(TensorSpec("a", (7, 3)),))
        assert not check_plan(one_tensor, verified=False).ok
