"""The static verifier against the simulator: small random plans, right and broken, and no disagreement in either direction.

A plan that the verifier accepts is carried out in every order tried without a race, a deadlock, an unwritten or a wrong
element; in one that it refuses the simulator, which does not ask it, finds a fault. `make sweep` (OVERLAP_SWEEP=1) runs 2,000.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.plan import CommPlan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from overlap.runtime.transfer.memory import transfer_resources
from overlap.runtime.transfer.transfer import transfer_for
from overlap.sim import World, check_plan
from tests.support.random_plans import cases

pytestmark = pytest.mark.one_triton

SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
BLOCKS = 20
PLANS = 2000 if SWEEP else 80
SEEDS = (0, 1) if SWEEP else (0,)


def said_by_the_verifier(plan: CommPlan) -> str | None:
    try:
        verify_plan(plan)
    except PlanError as error:
        return error.message
    return None


def found_by_the_simulator(plan: CommPlan) -> str | None:
    report = check_plan(plan, verified=False, seeds=SEEDS)
    return None if report.ok else f"{report.faults[0].kind}: {report.faults[0].error.message}"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_verifier_and_the_simulator_agree(block):
    count = PLANS // BLOCKS
    seen: Counter[bool] = Counter()
    for made in cases(count, first=block * count):
        said, found = said_by_the_verifier(made.plan), found_by_the_simulator(made.plan)
        assert (said is None) == (found is None), (
            f"seed {made.seed}, {' and '.join(made.broken) or 'right'}\n"
            f"verifier: {said}\nsimulator, seeds {SEEDS}: {found}\n{dump_plan(made.plan)}"
        )
        assert made.broken or said is None, f"seed {made.seed} was to be right: {said}\n{dump_plan(made.plan)}"
        seen[said is None] += 1
    assert seen[True] and (seen[False] or count < 20), seen


def test_a_transfer_makes_as_much_memory_as_is_said():
    """The resources that `overlap check` shows are those of the ranks that run."""
    for made in (made for made in cases(24) if not made.broken):
        plan = made.plan
        said = transfer_resources(plan, {spec.name: 2 for spec in plan.tensors})
        dtypes = [torch.float16] * len(plan.tensors)
        ranks = World(plan.world).run(
            lambda group, plan=plan, dtypes=dtypes: transfer_for(plan, group.overlap_runtime, dtypes)
        )
        for found, transfer in zip(said, ranks, strict=True):
            assert found.memory == {name: 2 * part.size for name, part in transfer.parts.items()}
            assert (found.flags, found.counters) == (len(transfer.slots[found.rank]), transfer.need.counters)
        assert max(found.flags for found in said) == ranks[0].need.flags
