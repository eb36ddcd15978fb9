"""`Made`: how a decorated kernel's plans are made of collectives; and what plans depend on besides the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overlap.chunkplan.library import find_template
from overlap.pipeline import Request
from overlap.schedule.network import links_for


@dataclass(frozen=True)
class Made:
    """The path, the link file and the sizes, as pairs, as a `Request` has them."""

    path: str
    links: str | None = None
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def request(self) -> dict[str, Any]:
        """Arguments of `Request`."""
        return {"path": self.path, "links": self.links, "sizes": dict(self.sizes)}


def plan_facts(request: Request) -> list[str]:
    """What the plans of a request depend on: their text, or whatever they are made of.

    Raises:
        PlanError: there is no such plan, link file or machine.
    """
    if request.path is None:
        return [find_template(plan)[1] for plan in request.plans]
    links: object = None
    if request.path != "direct" and request.world is not None:
        links = links_for(request.world, file=request.links, machine=request.settings.get("machine"))
    return [request.path, repr(request.plans), repr(request.sizes), repr(links)]
