"""Whether the tiles of a launch add up the rank's own part of the result themselves, and what its kernel is given for it.

    tiles that are sent | own tiles: wait, add, store          no sum behind them
    tiles that are sent | own tiles, stored in the partial     a sum: tiles make parts of two pieces, or TMA takes no such result

Either way it is the same kernel: without anything to finish its second loop is empty.

Own tiles wait for tiles that other ranks make and send. So all programs of a launch must be resident, or those that wait would
keep others from starting, here and on every rank; the host must go on to the copies, which are enqueued behind the kernel; and
copies must not stand behind it in the one queue that CUDA_DEVICE_MAX_CONNECTIONS=1 leaves, which nobody has tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from overlap.schedule.pieces import Piece

from ..calls.resolve import Bound
from ..tables.moves import Grid
from ..tables.tile_sums import can_finish, finish_arguments
from .in_place import read_by

if TYPE_CHECKING:
    from ..instance import Instance, LaunchTable


class Finish(NamedTuple):
    """``pieces``: of the result, that tiles add up. ``arguments``: what the kernel is given, by parameter; ``callers``: those
    that lie in a tensor of the call."""

    pieces: tuple[Piece, ...] = ()
    arguments: dict[str, Any] = {}
    callers: frozenset[str] = frozenset()


def finish_table(
    instance: Instance, bound: Bound, grid: Grid, results: Mapping[str, torch.Tensor]
) -> tuple[LaunchTable, Finish]:
    """The table of a launch, and what tiles finish of its results."""
    if not instance.operator.parameter("summands"):
        return instance.table(bound), Finish()
    (out,) = results.values()
    table = instance.table(bound, finish=True)
    if not (_can_wait(instance, grid) and can_finish(instance, table, out)) or read_by(out, bound):
        table = instance.table(bound)
        return table, Finish((), finish_arguments(instance, table, bound, None))
    assert table.finished is not None
    pieces = tuple(dict.fromkeys(piece for piece in table.finished if piece is not None))
    callers = frozenset((instance.operator.parameter("result"),))
    return table, Finish(pieces, finish_arguments(instance, table, bound, out), callers)


def _can_wait(instance: Instance, grid: Grid) -> bool:
    """Whether programs may wait for what others make: one a multiprocessor is resident, whatever it takes."""
    runtime = instance.runtime
    copies_go = not (runtime.blocking or runtime.one_queue)
    return runtime.world == 1 or (prod(grid) <= runtime.sm_count and copies_go)
