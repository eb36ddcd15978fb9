"""`Rebase`: a dispatch region's slice under fresh names, on a run's own counts."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import DispatchRegion, SliceStatement

from .context import Context
from .locate import Substitute, names_in


class Rebase:
    """Fresh names and statements for one dispatch region.

    Two users: the kernel (tile id and counts come from the table) and the host's tile map (they are
    parameters). ``tile`` and ``run`` are the kernel's names for the position in the run and the run.
    """

    def __init__(self, context: Context, region: DispatchRegion) -> None:
        self.context = context
        self.region = region
        names, index = context.names, region.index
        self.run = names.local("run", index)
        self.tile = names.local(region.tile_id or "tile", index)
        self.counts = {a.name: context.count_local(a, index) for a in context.axes}
        renamed = {a.count_name: self.counts[a.name] for a in context.axes if a.count_name}
        if region.tile_id:
            renamed[region.tile_id] = self.tile
        self.extents = {a.extent: a for a in context.axes if a.extent not in renamed}
        renamed.update({extent: names.local(extent, index) for extent in self.extents})
        self.grid = region.grid_axes
        self.moved = _moved(region.slice, set(renamed), context, bool(self.grid))
        for statement in self.moved:
            renamed.update({t: names.local(t, index) for t in statement.targets})
        self.names: Mapping[str, str] = renamed
        self.assigns_tile_id = any(s.inside and s.targets == (region.tile_id,) for s in region.slice)

    def virtual_ids(self) -> dict[int, str]:
        """Names of the run's own program ids, on an n-D grid."""
        return {d: self.context.names.local(f"pid_{d}", self.region.index) for d in range(len(self.grid))}

    def keeps(self, statement: cst.CSTNode) -> bool:
        """Whether a region statement stays as it is: the one that assigns the tile id itself."""
        return self.assigns_tile_id and m.matches(
            statement,
            m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name(self.region.tile_id or ""))])]),
        )

    def substitute(self) -> Substitute:
        """The transformer for the region's own statements."""
        counts = {(a.extent, a.block or ""): self.counts[a.name] for a in self.context.axes}
        grid_counts = {d: self.counts[axis] for d, axis in enumerate(self.grid)}
        ids = self.virtual_ids() if self.grid else {0: self.tile}
        return Substitute(self.names, counts, ids, grid_counts)

    def prologue(self, used: set[str]) -> list[str]:
        """Kernel statements before the region, whose rewritten statements use the names ``used``."""
        context, names = self.context, self.context.names
        ol, table = names.language, names.local("table")
        lines = []
        position = self.region.tile_id
        if position is None or self.assigns_tile_id:
            position = self.tile
            lines.append(f"{position} = {ol}.position()")
        lines.append(f"{self.run} = {ol}.find_run({table}, {position})")
        lines.append(f"{self.tile} = {ol}.rebase({table}, {self.run}, {position})")
        behind = self.virtual_lines(self.tile) + self.moved_lines()
        used = used.union(*(names_in(cst.parse_module(line)) for line in behind))
        for axis in context.axes:
            if self.counts[axis.name] in used:
                lines.append(
                    f"{self.counts[axis.name]} = {ol}.count({table}, {self.run}, {context.axis_index(axis.name)})"
                )
        return lines + behind

    def virtual_lines(self, position: str) -> list[str]:
        """Program ids inside the run, first grid dimension fastest, as the hardware counts."""
        lines, ids = [], self.virtual_ids()
        left = position
        for d, axis in enumerate(self.grid):
            count = self.counts[axis]
            if d < len(self.grid) - 1:
                lines.append(f"{ids[d]} = {left} % {count}")
                left = f"{left} // {count}"
            else:
                lines.append(f"{ids[d]} = {left}")
        return lines

    def moved_lines(self) -> list[str]:
        """Statements of the slice that stand outside the region, under fresh names, behind the run's own extents."""
        substitute = self.substitute()
        moved = [cst.Module([cst.parse_statement(s.text).visit(substitute)]).code.rstrip("\n") for s in self.moved]  # type: ignore[list-item]
        inside = [cst.parse_statement(s.text).visit(substitute) for s in self.region.slice if s.inside]
        used = set().union(*(names_in(s) for s in inside), *(names_in(cst.parse_module(line)) for line in moved))  # type: ignore[arg-type]
        return [*self._extent_lines(used), *moved]

    def _extent_lines(self, used: set[str]) -> list[str]:
        """Whole tiles: a map that divides an extent by the block finds the run's count, and what else it does with it is as
        right as the map is one to one on the run, which is proven when tables are built."""
        lines = []
        for extent, axis in self.extents.items():
            if self.names[extent] in used:
                times = "" if axis.block == "1" else f" * {axis.block}"
                lines.append(f"{self.names[extent]} = {self.counts[axis.name]}{times}")
        return lines


def _moved(
    slice_: tuple[SliceStatement, ...], seeds: set[str], context: Context, grid: bool
) -> tuple[SliceStatement, ...]:
    """Outside statements that depend on counts, tile ids or program ids; what depends on none of them keeps its value."""
    tainted = set(seeds)
    blocks = {(a.extent, a.block) for a in context.axes}
    moved = []
    for statement in slice_:
        if statement.inside:
            continue
        node = cst.parse_statement(statement.text)
        probe = Substitute(
            {}, {(e, b or ""): "x" for e, b in blocks}, {d: "x" for d in range(3)}, {d: "x" for d in range(3)}
        )
        node.visit(probe)
        if probe.changes or names_in(node) & tainted:
            moved.append(statement)
            tainted.update(statement.targets)
    return tuple(moved)
