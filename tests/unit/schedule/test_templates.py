"""The plan templates that ship, through schedule, steps and both verifiers."""

from __future__ import annotations

from itertools import product

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.verify import verify_plan
from overlap.chunkplan.window import kernel_window
from overlap.schedule.model import TensorRead
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import launch_steps
from overlap.schedule.verify import flatten_safe, verify_schedule
from overlap.schedule.verify_steps import verify_steps

from .oracle import check
from .plans import gemm_axes, reads_a, reads_b, writes_c
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


PRODUCING = {
    "reduce_scatter_1d": "reduce_scatter",
    "all_reduce_one_shot": "all_reduce",
    "all_reduce_two_shot": "all_reduce",
    "all_to_all_1d": "all_to_all",
}


def built(name: str, world: int, tensor: TensorSpec, split: int, direction: str, to_dim: int | None):
    path, text = find_template(name)
    plan = build_plan(
        text, world=world, tensor=tensor, dim=0, to_dim=to_dim, split=split, direction=direction, path=path
    )
    verify_plan(plan)
    return plan


@pytest.mark.parametrize("name", PRODUCING)
@pytest.mark.parametrize("world", range(1, 7))
def test_every_template_that_produces(name, world):
    kind = PRODUCING[name]
    to_dim = 1 if kind == "all_to_all" else None
    for (m, block), split in product(((0, 16), (1, 16), (3, 32), (130, 32), (1000, 128)), (1, 2)):
        if m == 1000 and split > 1:
            continue
        plan = built(name, world, TensorSpec("c", (m, 4)), split, "push", to_dim)
        windows = [{"c": kernel_window(plan, "c", kind, True, rank)} for rank in range(world)]
        axes = [gemm_axes(*own["c"].shape, block, 2) for own in windows]
        how = {"writes": writes_c(), "windows": windows}
        schedules = schedule_all(plan, (), axes, **how)
        for flattened in (False, True):
            verify_schedule(schedules, plan, (), axes, flattened=flattened, **how)
        assert flatten_safe(schedules, plan, writes_c())
        if m != 1000:
            check(schedules, plan, (), axes, **how)
        steps = [launch_steps(plan, rank, produced=("c",)) for rank in range(world)]
        verify_steps(steps, plan, ("c",), blocking=True)
        if m == 3:
            results: list = []
            assert outcome(plan, steps, seed=world, produced=("c",), results=results) == "ok"
            for rank, found in enumerate(results):
                assert len(found) == sum(chunk.box.size for chunk in plan.after[rank])
                if kind != "all_to_all":
                    assert all(sorted(ranks) == list(range(world)) for _, ranks in found.values())


@pytest.mark.parametrize("world", range(1, 6))
def test_an_input_that_is_exchanged(world):
    """a[K, M], before sharded along K: a rank's kernel reads all of K and its part of M."""
    for (k, m), direction in product(((0, 5), (3, 3), (8, 130), (6, 1)), ("pull", "push")):
        plan = built("all_to_all_1d", world, TensorSpec("a", (k, m)), 1, direction, 1)
        windows = [{"a": kernel_window(plan, "a", "all_to_all", False, rank)} for rank in range(world)]
        axes = [gemm_axes(own["a"].shape[1], 6, 16, 4) for own in windows]
        reads = (TensorRead("a", (None, "M"), (False, False)),)
        schedules = schedule_all(plan, reads, axes, windows=windows)
        check(schedules, plan, reads, axes, windows=windows)
        for flattened in (False, True):
            verify_schedule(schedules, plan, reads, axes, windows=windows, flattened=flattened)
        steps = [launch_steps(plan, rank) for rank in range(world)]
        verify_steps(steps, plan)
