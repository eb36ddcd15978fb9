"""The links that ranks are joined by: of a link file, or of a machine."""

from __future__ import annotations

from pathlib import Path

from overlap.chunkplan.library import read_text
from overlap.chunkplan.linkfile import read_links
from overlap.chunkplan.links import Links
from overlap.chunkplan.mesh import Mesh
from overlap.errors import PlanError

from .machine import machine_for


def links_for(world: int, mesh: Mesh | None = None, *, file: str | None = None, machine: str | None = None) -> Links:
    """The link table of ``world`` ranks.

    Args:
        mesh: the grid they stand in, whose nodes the machine's are.
        file: a link file, which counts before any machine.
        machine: by name or file; None: `machine_for` them.

    Raises:
        PlanError: the file is missing, malformed or of another world; or as `machine_for`.
    """
    if file is None:
        return machine_for(world, mesh, machine).links(world)
    links = read_links(read_text(Path(file), file, "link"), file)
    if links.world != world:
        raise PlanError(
            f"link file {file} is for a world of {links.world}, not {world}",
            help=f"run it on {links.world} ranks, or write links of {world}",
        )
    return links
