"""Copies straight out of the caller's tensor: what of a call can go so, and such copies made ready.

    main    entry (credits, epoch) | stage | kernel ............. | join | credits
    lane                           \\ copy, flag | copy, flag ... /

The caller's stream waits for the lanes before the call returns, so whatever the caller does with its tensor next, or whoever is
given its memory, comes behind the copies. Small shards are not worth the launch that staging then takes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import torch

from overlap import settings
from overlap.chunkplan.plan import P2P, OpId
from overlap.schedule.givens import needs_no_stage, sent_as_given
from overlap.schedule.pieces import Piece
from overlap.schedule.steps import Step, launch_steps

from ..bound_plan import BoundPlan
from ..instance import Instance
from ..memory.copies import plan_copy
from ..memory.part import Part
from ..repeat.places import Place, within
from ..tracing.recording import marked
from .opening import layout_key
from .prepared import Enqueue

WIDE = 2048
"""Bytes of a row from which on copies of rows are as fast as of one piece."""
MOST_PITCH = 2**31 - 1
"""Between two rows, of any device."""


def steps_for(
    instance: Instance, given: Mapping[str, torch.Tensor], in_place: bool = False, finished: tuple[Piece, ...] = ()
) -> tuple[Step, ...]:
    """The steps of a launch for what a call gives; the same object for all of one layout.

    Args:
        in_place: tiles store what stays of a result in the result itself (`launch_steps`).
        finished: pieces of a result that tiles add up.
    """
    if not _possible(instance):
        return _steps(instance, frozenset(), in_place, finished)
    key = ("steps", layout_key(given), settings.get("given_bytes"), in_place, finished)
    found: tuple[Step, ...] | None = instance.prepared.get(key)
    if found is None:
        found = instance.prepared[key] = _steps(instance, _taken(instance, given), in_place, finished)
    return found


def _possible(instance: Instance) -> frozenset[OpId]:
    """Operations that lanes of this rank may copy out of the caller's tensor."""
    found: frozenset[OpId] | None = instance.prepared.get("given operations")
    if found is None:
        found = frozenset()
        if not instance.direct and instance.words is None:
            found = sent_as_given(instance.plan, instance.runtime.rank, _produced(instance))
            found = frozenset(op for op in found if op not in instance.moved and not instance.by_network(op))
        instance.prepared["given operations"] = found
    return found


def _produced(instance: Instance) -> list[str]:
    return [part.name for part in instance.parts.values() if part.made]


def _steps(instance: Instance, taken: frozenset[OpId], in_place: bool, finished: tuple[Piece, ...]) -> tuple[Step, ...]:
    """The steps of a launch that copies these operations so; the same object each time."""
    if not (taken or in_place or finished):
        return instance.steps
    key = ("steps", taken, in_place, finished)
    found: tuple[Step, ...] | None = instance.prepared.get(key)
    if found is None:
        found = instance.prepared[key] = launch_steps(
            instance.plan,
            instance.runtime.rank,
            produced=_produced(instance),
            stores=instance.stored,
            moves=instance.moved,
            early=instance.early,
            given=taken,
            sums_store=instance.sums_store,
            in_place=in_place,
            finished=finished,
        )
    return found


def all_given(instance: Instance, given: Mapping[str, torch.Tensor]) -> bool:
    """Whether all that is sent of what a call gives is copied out of its tensors, so that nobody but tiles reads it staged."""
    rank = instance.runtime.rank
    copied = [i for i in range(len(instance.plan.ops[rank])) if (rank, i) not in instance.moved]
    return not instance.direct and needs_no_stage(instance.plan, rank, copied, _taken(instance, given))


def _taken(instance: Instance, given: Mapping[str, torch.Tensor]) -> frozenset[OpId]:
    size = sum(tensor.nbytes for name, tensor in given.items() if not instance.parts[name].made)
    if size < settings.get("given_bytes"):
        return frozenset()
    return frozenset(op for op in _possible(instance) if _one_copy(instance, op, given))


def _one_copy(instance: Instance, op_id: OpId, given: Mapping[str, torch.Tensor]) -> bool:
    """Whether an operation is one fast copy out of what is given."""
    name = instance.plan.op(op_id).src.tensor
    if name not in given or given[name].dtype != instance.parts[name].dtype:
        return False
    pieces = list(islice(plan_copy(instance.parts[name].destination(op_id), _given_view(instance, op_id, given)), 2))
    if len(pieces) != 1:
        return False
    (piece,) = pieces
    pitches = piece.src_pitch, piece.dst_pitch
    return piece.rows == 1 or (piece.width >= WIDE and all(piece.width <= pitch <= MOST_PITCH for pitch in pitches))


def given_copy(
    instance: BoundPlan, op_id: OpId, given: Mapping[str, torch.Tensor], places: Mapping[str, Place]
) -> Enqueue:
    """The copy of an operation out of a tensor of each call; ``given`` shows the layouts, and is not kept."""
    op = instance.plan.op(op_id)
    view, to = _given_view(instance, op_id, given), instance.parts[op.dst.tensor].destination(op_id)
    place = within(places[op.src.tensor], given[op.src.tensor], view)
    return marked(instance, op_id, instance.runtime.copier(to, view, place))


def _given_view(instance: BoundPlan, op_id: OpId, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What an operation sends, where the caller has it."""
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    part = instance.parts[op.src.tensor]
    assert isinstance(part, Part)
    inside = (slice(a - o, b - o) for a, b, o in zip(op.src.box.lo, op.src.box.hi, part.held.lo, strict=True))
    return given[op.src.tensor][tuple(inside)]
