"""`check_ranks`: host code and kernels of a user on simulated ranks, in many orders.

    def body(group):                                             # every rank's host code
        box = overlap.symmetric((1024,), torch.float32, group=group)
        kernel[(1,)](box.tensor, box.handle, ...)
        return out

    report = check_ranks(body, world=4, seeds=range(20))
    assert report.ok, report

Races, deadlocks, lost signals, stray accesses and results that nobody wrote are found whether or not the numbers came out
right; an ``assert`` in the body is checked in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from overlap import settings
from overlap.errors import DeadlockFault, SimFault, UsageError

from .explore import explore as explore_orders
from .fibres import Chooser
from .report import Fault, RanksReport
from .signals import unheard
from .verify import check_written
from .world import World


def check_ranks(
    body: Callable[[Any], Any],
    *,
    world: int,
    seeds: Sequence[int] = tuple(range(5)),
    explore: int = 0,
    preemptions: int = 2,
    sms: int | None = None,
    **options: Any,
) -> RanksReport:
    """Runs ``body(group)`` as every rank's host code, once a seed, and says what went wrong.

    Args:
        body: host code; ``group`` has ``rank()`` and ``size()`` and goes to `overlap.symmetric` and to operators. Its
            tensors lie on the CPU, also where it asks for a GPU. What it returns must have been written.
        world: number of ranks.
        seeds: orders to try; stops at the first that shows a fault.
        explore: besides, at most so many runs that go through every order within ``preemptions``; for small kernels.
        preemptions: how often a part of the run that could go on is made to wait.
        sms: programs of a rank that are resident at a time; the setting ``sim_sms`` by default.
        options: ``flattened``, ``late_tma_stores``, ``autotune_choice``, ``blocking`` of `World`.

    Raises:
        UsageError: a number of ranks, or a seed, that cannot be.
        OverlapError: the body raised one, such as ranks that do not call the same.
    """
    for name, value, low in (("world", world, 1), ("explore", explore, 0), ("preemptions", preemptions, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise UsageError(f"{name} is an integer of at least {low}, not {value!r}")
    if not callable(body):
        raise UsageError(f"the body is host code, a function of the group, not {body!r}")
    report = RanksReport(getattr(body, "__name__", "body"), world, settings.get("sim_sms", sms))
    run = partial(_run, report, body, options)
    for seed in seeds:
        report.seeds.append(seed)
        fault = run(seed, None)
        if fault is not None:
            report.found.append(Fault(seed, fault))
            return report
    if explore:
        tried = explore_orders(lambda chooser: run(0, chooser), preemptions=preemptions, limit=explore)
        report.explored, report.complete = tried.runs, tried.complete
        if tried.fault is not None:
            report.found.append(Fault(-1, tried.fault))
    return report


def _run(
    report: RanksReport, body: Callable[[Any], Any], options: dict[str, Any], seed: int, chooser: Chooser | None
) -> SimFault | None:
    """One simulation; the fault it found, if any."""
    world = World(report.world, sms=report.sms, seed=seed, chooser=chooser, **options)
    wrong: list[SimFault] = []
    try:
        results = world.run(partial(_rank, world, body, wrong))
    except DeadlockFault as fault:
        # Peers of a rank that has given up may wait for it.
        return wrong[0] if wrong else fault
    except SimFault as fault:
        return fault
    finally:
        report.steps += world.scheduler.steps
    if wrong:
        return wrong[0]
    if chooser is None:
        report.results[seed] = results
    report.unheard += [text for text in unheard(world) if text not in report.unheard]
    return None


def _rank(world: World, body: Callable[[Any], Any], wrong: list[SimFault], group: Any) -> Any:
    """One rank's host code, and a look at what it returns.

    Wrong numbers are mostly the work of a race, which says more: an ``assert`` that fails goes to ``wrong``, and the run on.
    """
    runtime = group.overlap_runtime
    try:
        result = body(group)
    except AssertionError as error:
        fault = world.crash(error, world.scheduler.current)
        assert isinstance(fault, SimFault)
        wrong.append(fault)
        return None
    runtime.synchronize()
    world.shadow.check_early_reads()
    for number, one in enumerate(tree_leaves(result)):
        if isinstance(one, torch.Tensor) and one.numel():
            check_written(world, runtime, f"result {number} of rank {runtime.rank}", one)
    return result
