"""The table of an in-tile loop's parts: what a launch is given as the third of our parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlap.errors import RuntimeContractError
from overlap.schedule.model import AxisTiles, RankSchedule
from overlap.schedule.ranges import schedule_range
from overlap.schedule.table import to_words

from ..calls.resolve import Bound

if TYPE_CHECKING:
    from ..instance import Instance


def range_arguments(instance: Instance, bound: Bound) -> dict[str, Any]:
    """The kernel argument that holds the parts' table, by name; none where no loop waits. Cached by extent and block.

    Raises:
        RuntimeContractError: an extent that the launch passes is not that of a gathered tensor.
    """
    schedule = range_schedule(instance, bound)
    if schedule is None:
        return {}
    key = ("parts table", *_sizes(instance, bound))
    table = instance.prepared.get(key)
    if table is None:
        words = to_words(schedule, instance.memory.room.flags, moves=instance.moves_ahead(schedule))
        table = instance.prepared[key] = instance.workspace.table(words)
    return {instance.operator.ours[2]: table}


def range_schedule(instance: Instance, bound: Bound) -> RankSchedule | None:
    """The schedule of the parts of the loop that waits for chunks; None where no loop does. Cached as its table is.

    Raises:
        RuntimeContractError: an extent that the launch passes is not that of a gathered tensor.
    """
    operator = instance.operator
    if not operator.ranges:
        return None
    (axis,) = operator.ranges
    extent, block = _sizes(instance, bound)
    key = ("parts", extent, block)
    schedule: RankSchedule | None = instance.prepared.get(key)
    if schedule is None:
        gathered = {c.tensor: c.dim for c in operator.comms if c.kind == "gather" and c.axis == axis.name}
        for tensor, dim in gathered.items():
            size = instance.parts[tensor].shape[dim]
            if size != extent:
                raise RuntimeContractError(
                    f"the launch passes {axis.extent}={extent}; `{tensor}` has {size} along {axis.name}"
                )
        schedule = instance.prepared[key] = schedule_range(
            instance.plan,
            gathered,
            AxisTiles(axis.name, extent, block),
            instance.runtime.rank,
            ordered=instance.ordered,
            machine=instance.machine,
            itemsize=instance.itemsize,
        )
    return schedule


def _sizes(instance: Instance, bound: Bound) -> tuple[int, int]:
    """Extent and block of the axis whose loop waits."""
    (axis,) = instance.operator.ranges
    return axis.sizes(bound.arguments)
