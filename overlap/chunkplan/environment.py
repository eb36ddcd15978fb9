"""The values behind the names of a plan file: what every rank knows, and what one rank knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .expr import size_key
from .mesh import Mesh
from .template import PlanTemplate


def world_env(template: PlanTemplate, world: int, grid: Mesh | None) -> dict[str, Any]:
    """What is known before any counts and any tensor are: the world, and the sizes of mesh axes."""
    env: dict[str, Any] = {"world": world}
    if grid is not None and template.axes:
        env |= {size_key(name): size for name, size in zip(grid.names, grid.sizes, strict=True)}
    return env


def rank_env(template: PlanTemplate, symbols: Mapping[str, Any], grid: Mesh | None, rank: int) -> dict[str, Any]:
    """``symbols``, which every rank knows, with a rank's own number and its local ranks."""
    env = {**symbols, "rank": rank}
    if grid is not None and template.axes:
        env |= zip(grid.names, grid.coordinates(rank), strict=True)
    return env
