"""The plan verifier: does a plan, carried out in any order it allows, leave every rank with what it promises?

Checked, in this order: every name, rank, index and box exists; collectives are joined by all their ranks; no cycle;
a source has its chunk before it is read; no two unordered writes, no write over owned data, no write beside an
unordered read; every chunk of ``after`` is there; every sum in ``after`` counts every rank once. An empty chunk reads
and writes nothing. Operations must not collide anywhere; values matter only where they reach what is promised.

A box names values: inside one tensor a chunk keeps its place. The value of a chunk of a reduced tensor, as an operation
sees it, is the rank's own part combined with exactly those reductions into it that happen before; a plain move that
happens before replaces it. Reductions that are not ordered with the operation are not seen, and collide with nothing.
Parts of a sum may come from another tensor, where no rank holds the sum's own (`summands.py`).
"""

from __future__ import annotations

from .contributions import Contributions
from .memory import check_after, check_place, places_of, reduced_tensors
from .order import happens_before
from .plan import CommPlan
from .structure import check_structure

__all__ = ["check_structure", "verify_contributions", "verify_plan"]


def verify_plan(plan: CommPlan) -> None:
    """Returns if the plan keeps its promise.

    Raises:
        PlanError: it does not; the message says which rank, operation and chunk, and which two collide.
    """
    check_structure(plan)
    order = happens_before(plan)
    places = places_of(plan)
    reduced = reduced_tensors(plan)
    for at, place in places.items():
        check_place(plan, order, at, place, at[1] in reduced)
    for rank, chunks in enumerate(plan.after):
        for chunk in chunks:
            check_after(plan, places, rank, chunk)
    if reduced:
        Contributions(plan, order, places, reduced).check()


def verify_contributions(plan: CommPlan, tensor: str) -> None:
    """Returns if every chunk of ``tensor`` in ``after`` is the sum of one part from each rank, each counted once.

    What a rank holds of the tensor at the start is its own part. `verify_plan`, which the plan must have passed, asks
    this of every tensor that the plan reduces; ask it of one that is meant to be reduced, whatever the plan does.

    Raises:
        KeyError: the plan has no such tensor.
        PlanError: a part is counted twice or is missing; the message says which, where, and through which operation.
    """
    plan.tensor(tensor)
    Contributions(plan, happens_before(plan), places_of(plan), frozenset((tensor,))).check()
