"""The pytest plugin of this package: `overlap_sim` runs a signalling kernel of anybody's on simulated ranks.

Loaded into every pytest where this package is installed, so it imports nothing but pytest until the fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

Body = Callable[[Any], Any]
Simulate = Callable[..., Callable[[Body], Any]]


@pytest.fixture
def overlap_sim() -> Iterator[Simulate]:
    """``report = overlap_sim(world=4)(body)`` runs ``body(group)`` as every rank's host code, in many orders.

    Keywords are those of `overlap.sim.check_ranks`, the report is its. The story of a fault is printed, which pytest shows
    where the test fails; a test that does not look at the report's ``ok`` or ``faults`` fails if there was one. Kernels
    are interpreted, whether or not TRITON_INTERPRET is set, on tensors that lie on the CPU; no GPU is used. Where a
    package is missing that this needs, the test is skipped and says which.
    """
    check_ranks = _check_ranks()
    reports: list[Any] = []

    def simulate(world: int, **options: Any) -> Callable[[Body], Any]:
        def run(body: Body) -> Any:
            report = check_ranks(body, world=world, **options)
            reports.append(report)
            if report.found:
                print(report)
            return report

        return run

    yield simulate
    for report in reports:
        if not report.asked and not report.ok:
            pytest.fail(f"nobody looked at this report of overlap_sim\n{report}", pytrace=False)


def _check_ranks() -> Callable[..., Any]:
    try:
        from overlap.sim import check_ranks
    except ImportError as error:
        pytest.skip(f"overlap_sim needs a package that is missing here: {error}")
    return check_ranks
