"""Reductions: what happens to a chunk that arrives where a partial result already is.

`REDUCTIONS` is an open registry: a new kind of merge is a new entry, and plans may name it from then on. What the
verifier and the language need to know about a reduction stands in its `ReductionFacts`; how it is computed is the
runtime's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.errors import PlanError

from .document import nearest


@dataclass(frozen=True)
class ReductionFacts:
    """What is known about a kind of reduction. All kinds are associative and commutative up to rounding.

    ``accumulators`` are the types it can be carried out in, the default first. ``idempotent`` says that merging the
    same partial result twice changes nothing, as with a maximum: then a rank may be counted twice.
    """

    name: str
    accumulators: tuple[str, ...]
    idempotent: bool = False


@dataclass(frozen=True)
class Reduction:
    """How an operation merges what it brings into what is there: ``op`` names an entry of `REDUCTIONS`.

    ``accumulate`` is the type the merge is carried out in; the parts are widened to it and the result is rounded once.
    """

    op: str = "sum"
    accumulate: str = "fp32"

    @property
    def facts(self) -> ReductionFacts:
        """The entry of the registry.

        Raises:
            PlanError: there is none of that name.
        """
        try:
            return REDUCTIONS[self.op]
        except KeyError:
            raise PlanError(f"unknown reduction `{self.op}`", help=nearest(self.op, REDUCTIONS)) from None

    def __str__(self) -> str:
        return self.op


REDUCTIONS: dict[str, ReductionFacts] = {"sum": ReductionFacts("sum", ("fp32", "fp64"))}


def register_reduction(facts: ReductionFacts) -> None:
    """Makes a kind of reduction known.

    Raises:
        PlanError: another one has the name, or it names no accumulator.
    """
    if REDUCTIONS.get(facts.name, facts) != facts:
        raise PlanError(f"the reduction `{facts.name}` is registered already", help="choose another name")
    if not facts.accumulators:
        raise PlanError(f"the reduction `{facts.name}` has no accumulator", help='such as accumulators=("fp32",)')
    REDUCTIONS[facts.name] = facts


def check_reduction(reduction: Reduction) -> None:
    """The reduction exists and can be carried out in its accumulator.

    Raises:
        PlanError: unknown name or accumulator; the nearest one is named.
    """
    known = reduction.facts.accumulators
    if reduction.accumulate not in known:
        raise PlanError(
            f"a {reduction.op} is not carried out in `{reduction.accumulate}`",
            help=nearest(reduction.accumulate, known),
        )
