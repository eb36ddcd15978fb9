"""The plan templates that ship, through schedule, steps and both verifiers."""

from __future__ import annotations

from itertools import product

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.verify import verify_plan
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import launch_steps
from overlap.schedule.verify import verify_schedule
from overlap.schedule.verify_steps import verify_steps

from .oracle import check
from .plans import gemm_axes, reads_a, reads_b
from .protocol_model import outcome

NAMES = ("all_gather_1d", "all_gather_1d_pull", "all_gather_1d_push", "all_gather_ring")


@pytest.mark.parametrize("name", NAMES)
def test_every_template(name):
    path, text = find_template(name)
    for world, (split, dim), direction in product((1, 2, 3, 5), ((1, 0), (2, 0), (3, 1)), ("pull", "push")):
        for size, block in ((136, 32), (3, 32), (1000, 128), (0, 16)):
            shape = (size, 6) if dim == 0 else (6, size)
            plan = build_plan(
                text, world=world, tensor=TensorSpec("a", shape), dim=dim, split=split, direction=direction, path=path
            )
            verify_plan(plan)
            axes = gemm_axes(size, 40, block, 32) if dim == 0 else gemm_axes(40, size, 32, block)
            reads = reads_a(wraps=size == 3) if dim == 0 else reads_b(tensor="a")
            schedules = schedule_all(plan, reads, axes)
            verify_schedule(schedules, plan, reads, axes)
            verify_schedule(schedules, plan, reads, axes, flattened=True)
            if size != 1000:
                check(schedules, plan, reads, axes)
            for schedule in schedules:
                # A rank with a whole tile of its own starts with it.
                own = plan.before[schedule.rank][0].box
                lo, hi = own.lo[dim], own.hi[dim]
                first = -(-lo // block)
                if lo < hi and (first + 1) * block <= hi:
                    assert schedule.runs[0].chunk is None
            steps = [launch_steps(plan, rank) for rank in range(world)]
            verify_steps(steps, plan)
            if size == 3:
                assert outcome(plan, steps, seed=world) == "ok"
