"""`check_plan`: a plan on its own, without a kernel, on simulated ranks against what it promises.

    report = check_plan(plan, seeds=range(20))
    assert report.ok, report

It finds races, deadlocks and missing writes as `check_module` does, also between operations that only this executor keeps
apart (places.py), and compares every element that a rank ends with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from overlap import settings
from overlap.chunkplan.plan import Chunk, CommPlan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import MismatchFault, SimFault
from overlap.runtime.dtypes import dtype_of
from overlap.runtime.transfer.transfer import Transfer, carried, carry_out, transfer_for
from overlap.schedule.transfer import transfer_steps
from overlap.schedule.verify_transfer import verify_transfer

from .explore import explore as explore_orders
from .fibres import Chooser
from .memory import array_of
from .places import PlanPlaces
from .promise import Promise
from .report import Fault, PlanReport
from .verify import StepFilter, check_written, step_filter
from .world import World


class PlanCheck:
    """A plan with data for several launches in a row. See `check_plan` for the arguments."""

    def __init__(
        self,
        plan: CommPlan,
        *,
        dtype: str = "fp32",
        launches: int = 2,
        sms: int | None = None,
        verified: bool = True,
        mutate_steps: StepFilter | None = None,
        blocking: bool = False,
    ) -> None:
        if verified:
            verify_plan(plan)
            moved, values = carried(plan)
            steps = [transfer_steps(moved, rank, values) for rank in range(plan.world)]
            verify_transfer(steps, moved, blocking=True, values=values)
        self.plan = plan
        self.dtype = dtype_of(dtype)
        self.sms = settings.get("sim_sms", sms)
        self.verified = verified
        self.mutate_steps = mutate_steps
        self.blocking = blocking
        self.promises = [Promise(plan, self.dtype, seed) for seed in range(launches)]
        self.report = PlanReport(plan, dtype, launches, self.sms)
        self._places: PlanPlaces | None = None

    def run(self, seed: int, chooser: Chooser | None = None) -> SimFault | None:
        """One simulation; the fault it found, if any.

        Raises:
            OverlapError: the plan cannot be carried out at all.
        """
        world = World(self.plan.world, sms=self.sms, seed=seed, chooser=chooser, blocking=self.blocking)
        self._places = None
        try:
            with step_filter(self.mutate_steps):
                world.run(lambda group: self._rank(world, group))
        except SimFault as fault:
            return fault
        finally:
            self.report.steps += world.scheduler.steps
        return None

    def _rank(self, world: World, group: Any) -> None:
        """One rank's host code: all launches in a row, then every result is looked at."""
        runtime, plan = group.overlap_runtime, self.plan
        transfer = transfer_for(plan, runtime, [self.dtype] * len(plan.tensors), lenient=not self.verified)
        if self._places is None:
            self._places = PlanPlaces(world, transfer.plan)
        self._places.watch(transfer)
        memory = self._memory(world, transfer)
        results = []
        for promise in self.promises:
            for name, tensors in memory.items():
                for box, tensor in zip(transfer.parts[name].before, tensors, strict=True):
                    value = torch.from_numpy(promise.given(runtime.rank, name, box).copy()).to(self.dtype)
                    runtime.fill(tensor, value)
            ends: dict[str, torch.Tensor] = {}
            for name, part in transfer.parts.items():
                ends[name], buffer = world.memory.allocate(runtime.rank, part.held.shape, self.dtype)
                buffer.describe(ends[name], f"{name} as rank {runtime.rank} ends with it")
            carry_out(transfer, memory, ends)
            results.append(ends)
        runtime.synchronize()
        runtime.agree("all launches have ended", None)
        world.shadow.check_early_reads()
        for number, (ends, promise) in enumerate(zip(results, self.promises, strict=True)):
            for name, part in transfer.parts.items():
                for box in part.after:
                    if not box.empty:
                        inside = tuple(
                            slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, part.held.lo, strict=True)
                        )
                        told = f"{Chunk(name, box)} of rank {runtime.rank}, launch {number + 1}"
                        self._compare(
                            world,
                            runtime,
                            told,
                            ends[name][inside],
                            box,
                            promise.promised(runtime.rank, Chunk(name, box)),
                        )

    def _memory(self, world: World, transfer: Transfer) -> dict[str, list[torch.Tensor]]:
        """What the rank gives, allocated once."""
        found: dict[str, list[torch.Tensor]] = {}
        rank = transfer.runtime.rank
        for name, part in transfer.parts.items():
            found[name] = []
            for box in part.before:
                tensor, buffer = world.memory.allocate(rank, box.shape, self.dtype)
                buffer.describe(tensor, f"{name} as rank {rank} holds it")
                found[name].append(tensor)
        return found

    def _compare(self, world: World, runtime: Any, name: str, got: torch.Tensor, box: Any, wanted: np.ndarray) -> None:
        check_written(world, runtime, name, got)
        one = array_of(got.contiguous()).astype(np.float64)
        wrong = np.argwhere(one != wanted)
        if len(wrong):
            where = tuple(int(i) for i in wrong[0])
            place = ", ".join(str(i + o) for i, o in zip(where, box.lo, strict=True))
            raise MismatchFault(
                f"mismatch: {len(wrong)} of {one.size} elements of {name} are not what plan {self.plan.name} promises, "
                f"the first is [{place}]: {one[where]:g} instead of {wanted[where]:g}"
            )


def check_plan(
    plan: CommPlan,
    *,
    seeds: Sequence[int] = (0,),
    launches: int = 2,
    dtype: str = "fp32",
    verified: bool = True,
    explore: int = 0,
    preemptions: int = 2,
    sms: int | None = None,
    mutate_steps: StepFilter | None = None,
    blocking: bool = False,
    progress: Callable[..., None] | None = None,
) -> PlanReport:
    """Carries a plan out on simulated ranks, once a seed, and compares what every rank ends with.

    Args:
        seeds: orders to try; stops at the first that shows a fault.
        launches: calls in a row in each run, each with new data in the same memory.
        dtype: of all tensors: fp32, bf16, fp16, ...
        verified: refuses a plan that `verify_plan` refuses. Otherwise any plan whose names, ranks and boxes exist is carried
            out as far as it goes, so that the fault is found in running.
        explore: besides, at most so many runs that go through every order within ``preemptions``.
        preemptions: how often a part of the run that could go on is made to wait.
        sms: programs of a rank that are resident at a time; the setting ``sim_sms`` by default.
        mutate_steps: changes a rank's launch steps, for tests that drop one.
        blocking: the host waits for every kernel, as with ``CUDA_LAUNCH_BLOCKING=1``.
        progress: called after every seed.

    Raises:
        PlanError: the plan does not keep its promise (``verified``), or names what does not exist.
        UnsupportedError: a collective, or a reduction that is not carried out.
    """
    check = PlanCheck(
        plan,
        dtype=dtype,
        launches=launches,
        sms=sms,
        verified=verified,
        mutate_steps=mutate_steps,
        blocking=blocking,
    )
    report = check.report
    for seed in seeds:
        fault = check.run(seed)
        report.seeds.append(seed)
        if progress is not None:
            progress()
        if fault is not None:
            report.faults.append(Fault(seed, fault))
            return report
    if explore:
        found = explore_orders(lambda chooser: check.run(0, chooser), preemptions=preemptions, limit=explore)
        report.explored, report.complete = found.runs, found.complete
        if found.fault is not None:
            report.faults.append(Fault(-1, found.fault))
    return report
