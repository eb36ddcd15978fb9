"""The plan verifier against plans carried out element by element: random plans, right and broken, and no disagreement."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from overlap.chunkplan.build import load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.structure import check_structure
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from tests.support.broken_plans import BREAKS
from tests.support.plan_model import faults_of
from tests.support.random_plans import Case, case, cases

COUNT = 20_000 if os.environ.get("OVERLAP_SWEEP") == "1" else 700
KINDS = {
    "never finishes",
    "race",
    "reads what is not there",
    "overwrites what is owned",
    "never arrives",
    "a part is missing",
    "counted twice",
}


def refusal(case: Case) -> str | None:
    try:
        verify_plan(case.plan)
    except PlanError as error:
        return error.message
    return None


def test_the_verifier_and_the_model_agree():
    seen: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for made in cases(COUNT):
        check_structure(made.plan)
        faults, said = faults_of(made.plan), refusal(made)
        assert bool(faults) == (said is not None), (
            f"seed {made.seed}, {made.broken or 'right'}\nmodel: {sorted(faults)}\nverifier: {said}\n{dump_plan(made.plan)}"
        )
        assert made.broken or not faults, f"seed {made.seed} was to be right\n{dump_plan(made.plan)}"
        seen.update(faults or ["right"])
        broken.update(made.broken)
    assert KINDS < set(seen) and COUNT / 3 < seen["right"] < COUNT * 2 / 3, seen
    assert set(BREAKS) <= set(broken), broken


@pytest.mark.parametrize("seed", [0, 4, 5])
def test_a_seed_gives_its_plan_again(seed):
    assert case(seed) == case(seed)


def test_every_plan_can_be_written_down():
    """So that a plan that fails elsewhere can be looked at, and read back, as text."""
    for made in cases(150):
        assert load_plan(dump_plan(made.plan)) == made.plan
