"""A link table as synthesis and prediction see it: durations, shortest ways, and what transfers have to share.

Two transfers over one link go one behind the other: two streams that share a link finish no earlier together than in
turn, and in turn the first chunk is there earlier. Where a class of links goes through a switch, as NVLink does in a
node with NVSwitch, each rank has one port into it, which bounds all its links of the class together.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from overlap.errors import PlanError

from ..document import nearest
from ..links import Link, Links, Pair

Resource = tuple[str, int, int]
"""Something that one transfer at a time uses: a link, or a port into or out of a switch."""


SHORTEST = 1e-12
"""Seconds that every link takes at the least."""


class Network:
    """Links with the classes that are ``switched``, by the table or beside it: of those a rank sends one transfer at a time,
    and receives one.

    Raises:
        PlanError: a switched class that no link is of.
    """

    def __init__(self, links: Links, switched: Collection[str] = (), turned: bool = False) -> None:
        names = {link.name for link in links.classes.values()}
        for name in sorted(switched):
            if name not in names and links.classes:
                raise PlanError(f"no link is of the switched class `{name}`", help=nearest(name, sorted(names)))
        self.links = links
        self.switched = frozenset((*switched, *links.switched))
        self.turned = turned

    @property
    def world(self) -> int:
        return self.links.world

    def transposed(self) -> Network:
        """Every link turned round."""
        turned = replace(self.links, classes={(b, a): link for (a, b), link in self.links.classes.items()})
        return Network(turned, self.switched, not self.turned)

    def link(self, src: int, dst: int) -> Link:
        """The link from ``src`` to ``dst``.

        Raises:
            PlanError: there is none.
        """
        link = self.links.between(src, dst)
        if link is None:
            raise PlanError(
                f"there is no link from rank {src} to rank {dst}",
                help='go by way of other ranks: `path="synth"` does, over any links that join the ranks',
            )
        return link

    def resources(self, src: int, dst: int) -> tuple[Resource, ...]:
        """What a transfer from ``src`` to ``dst`` uses up while it lasts."""
        name = self.link(src, dst).name
        if name in self.switched:
            return (f"out {name}", src, -1), (f"in {name}", -1, dst)
        return (("link", src, dst),)

    def seconds(self, size: float) -> dict[Pair, float]:
        """Duration of a transfer of ``size`` bytes over every link alone; above 0, so that no way leads in a circle."""
        return {pair: max(link.seconds(size), SHORTEST) for pair, link in self.links.pairs()}

    def distances(self, size: float) -> list[list[float]]:
        """``[a][b]``: seconds from a to b by the shortest way; infinite where there is none (Floyd and Warshall)."""
        found = [[0.0 if a == b else math.inf for b in range(self.world)] for a in range(self.world)]
        for (a, b), duration in self.seconds(size).items():
            found[a][b] = duration
        for via in range(self.world):
            onward = found[via]
            for a in range(self.world):
                first = found[a][via]
                if first < math.inf:
                    found[a] = [min(old, first + rest) for old, rest in zip(found[a], onward, strict=True)]
        return found
