"""Which axis each ``program_id`` of an n-D grid enumerates."""

from __future__ import annotations

from overlap.errors import PragmaError

from .index import IndexExpr
from .pragmas import Pragma
from .values import Value


def grid_axes(pid_map: Pragma, values: dict[str, Value]) -> tuple[str, ...]:
    """``grid_axes[d]`` is the axis of ``program_id(d)``.

    ``values`` are the pid-map variables as the kernel computes them. Decided for ``pid_m = tl.program_id(0)`` and for
    ``tl.swizzle2d(i, j, ...)``, whose results run over the same extents as its first two arguments.

    Raises:
        PragmaError: anything else.
    """
    found: dict[int, str] = {}
    for axis, variable in pid_map.pairs:
        value = values.get(variable)
        d = _grid_dimension(value)
        if d is None:
            raise PragmaError(
                f"cannot tell which grid dimension axis {axis} has: `{variable}` is {value}",
                where=pid_map.span,
                help=_instead(variable, value),
            )
        if d in found:
            raise PragmaError(
                f"axes {found[d]} and {axis} both come from program_id({d})",
                where=pid_map.span,
                help="on a 1-D grid put `# @overlap.tile_id` above the assignment of tl.program_id(0)",
            )
        found[d] = axis
    if sorted(found) != list(range(len(found))):
        missing = next(d for d in range(max(found) + 1) if d not in found)
        raise PragmaError(
            f"the grid's dimension {missing} has no axis in the pid_map",
            where=pid_map.span,
            help=f"add an axis for program_id({missing})",
        )
    return tuple(found[d] for d in range(len(found)))


def _instead(variable: str, value: Value | None) -> str:
    """What to write for a variable that is no program id."""
    atom = value.as_atom() if isinstance(value, IndexExpr) else None
    shared = _grid_dimension(atom.args[0]) if atom is not None and atom.kind in ("floordiv", "mod") else None
    if shared is not None:
        return (
            f"program_id({shared}) numbers tiles of several axes: give it one axis of its own, `X = tl.program_id({shared})` "
            "with `# @overlap.axis_count X block=1` and the number of all of them as the parameter X, and compute "
            f"`{variable}` behind the region"
        )
    return f"write `{variable} = tl.program_id(0)` directly, or number the tiles by one `# @overlap.tile_id`"


def _grid_dimension(value: Value | None) -> int | None:
    atom = value.as_atom() if isinstance(value, IndexExpr) else None
    if atom is None:
        return None
    if atom.kind == "program_id":
        return atom.args[0].as_int() if atom.args else None
    return None


def swizzled(arguments: list[Value]) -> tuple[Value, Value] | None:
    """``swizzle2d(i, j, size_i, size_j, group)`` permutes its grid: result d enumerates what argument d does."""
    if len(arguments) >= 4 and all(_grid_dimension(a) is not None for a in arguments[:2]):
        return arguments[0], arguments[1]
    return None
