"""What a plan says one rank gives and gets, worked out once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.plan import Chunk, Collective, CommPlan
from overlap.chunkplan.region import Box, bounding
from overlap.runtime.transfer.memory import boxes_of

_KEPT = 256
_FORMS: OrderedDict[tuple[int, int], Form] = OrderedDict()
"""By a plan's identity and the rank; a form holds its plan, so that no other one comes to have that identity."""


class Form:
    """The boxes in which ``rank`` gives and gets the tensors of ``plan``.

    ``direct``: the plan has collectives, for a library. ``reduced``: it adds. ``ending``: tensors that some rank ends with.
    ``held``: by tensor, the bounding box of what this rank ends with; ``inside``: places of its chunks in that.
    ``proven``: set once the plan is known to keep its promise.
    """

    def __init__(self, plan: CommPlan, rank: int) -> None:
        self.plan = plan
        self.rank = rank
        self.names = [spec.name for spec in plan.tensors]
        self.direct = any(isinstance(op, Collective) for _, op in plan.items())
        self.reduced = bool(reduced_tensors(plan))
        after = {chunk.tensor for chunks in plan.after for chunk in chunks}
        before = {chunk.tensor for chunks in plan.before for chunk in chunks}
        self.ending = [name for name in self.names if name in after]
        self.holding = [name for name in self.names if name in before]
        self.before = {name: self._boxes(plan.before[rank], name) for name in self.names}
        self.given = {name: [box for box in boxes if not box.empty] for name, boxes in self.before.items()}
        self.after = {name: self._boxes(plan.after[rank], name) for name in self.names}
        self.held = {name: bounding(boxes) or boxes[0] for name, boxes in self.after.items()}
        self.inside = {name: [self._place(box, self.held[name]) for box in boxes] for name, boxes in self.after.items()}
        self.proven = False

    def _boxes(self, chunks: Iterable[Chunk], name: str) -> tuple[Box, ...]:
        return boxes_of(chunks, name, len(self.plan.tensor(name).shape))

    @staticmethod
    def _place(box: Box, around: Box) -> tuple[slice, ...]:
        return tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, around.lo, strict=True))


def form_of(plan: CommPlan, rank: int) -> Form:
    """The form of a plan on a rank."""
    key = (id(plan), rank)
    found = _FORMS.get(key)
    if found is None:
        found = _FORMS[key] = Form(plan, rank)
        while len(_FORMS) > _KEPT:
            _FORMS.popitem(last=False)
    return found
