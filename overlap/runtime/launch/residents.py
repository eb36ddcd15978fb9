"""Launches whose programs wait for words of one another (`overlap.runtime.tables.inline_words`): all must be resident at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from overlap.errors import UnsupportedError
from overlap.language.packets import MOST_PROGRAMS
from overlap.schedule.words import LANES

from ..calls.resolve import Bound
from ..instance import Instance
from ..tables.moves import Grid
from .variant import variant_of


def alone_grid(instance: Instance) -> Grid:
    """Its grid: no more programs than find something to do."""
    assert instance.words is not None
    lines = sum(piece.chunk.box.size for piece in instance.words.pieces) // instance.words.elements
    return max(1, min(instance.runtime.sm_count, -(-lines // LANES), MOST_PROGRAMS)), 1, 1


def all_resident(
    instance: Instance, kernel: Any, bound: Bound, arguments: Mapping[str, Any], grid: Grid
) -> tuple[dict[str, int], Grid]:
    """The grid of a launch whose programs wait for one another, and the arguments that stand for their number.

    Where programs walk over tiles there are as many as are resident at a time.

    Raises:
        UnsupportedError: more than are resident, so that some would wait for others that cannot start.
    """
    operator, programs = instance.operator, math.prod(grid)
    key = ("resident", kernel, variant_of(kernel, arguments).key)
    room = instance.prepared.get(key)
    if room is None:
        found = instance.runtime.resident(kernel, grid, dict(arguments))
        room = instance.prepared[key] = min(found, MOST_PROGRAMS)
    if programs <= room:
        return {}, grid
    names = operator.programs
    if names is not None and grid[1:] == (1, 1) and all(bound.arguments[name] == grid[0] for name in names):
        return dict.fromkeys(names, room), (room, 1, 1)
    raise UnsupportedError(
        f"words_inline has programs wait for words of all others: `{operator.name}` launches {programs}, and {room} are "
        "resident at a time",
        where=operator.span(operator.source.kernel_line),
        help='larger tiles, a kernel whose programs walk over tiles, or backend="copy_engine"',
    )
