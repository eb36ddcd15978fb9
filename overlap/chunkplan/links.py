"""The link table: which pairs of ranks are joined, by what, and whether a pointer reaches across.

    full_mesh(8)                        every rank beside every other, as in one NVLink node
    ring(8)                             each rank joined to the two beside it
    two_level(2, 4)                     2 nodes of 4: fast links inside a node, slow ones between nodes
    full_mesh(8).without(0, 3)          the same with one pair missing, both ways

Ranks are global ranks. A link has a direction: ``(a, b)`` carries what goes from a to b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from overlap.errors import PlanError

Pair = tuple[int, int]
"""``(from, to)``, two different ranks."""

TICK = 2.0**-44
"""Seconds. Durations are whole ticks, whose sums floating point holds exactly up to 512 s: what comes by two ways at one
moment is found to, and every rank and machine finds the same."""


def ticks(seconds: float) -> float:
    """The same duration as a whole number of ticks, in seconds."""
    return round(seconds / TICK) * TICK if seconds < 512 else seconds


@dataclass(frozen=True)
class Link:
    """A class of links.

    Args:
        name: such as ``nvlink``.
        latency_s: seconds before the first byte of a transfer arrives.
        bytes_per_s: rate of a transfer after that.
        pointer: whether a kernel reads and writes the other rank's memory through a pointer; without, it takes a
            network library.

    Raises:
        PlanError: a negative or infinite latency, or a rate that is not above 0.
    """

    name: str
    latency_s: float
    bytes_per_s: float
    pointer: bool

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < math.inf:
            raise PlanError(f"link {self.name}: a latency of {self.latency_s} s", help="give 0 seconds or more")
        if not self.bytes_per_s > 0:
            raise PlanError(f"link {self.name}: {self.bytes_per_s} bytes a second", help="give a rate above 0")

    def seconds(self, size: float) -> float:
        """Duration of a transfer of ``size`` bytes over this link alone, in whole ticks."""
        return ticks(self.latency_s + size / self.bytes_per_s)


NVLINK = Link("nvlink", 10e-6, 377e9, True)
PCIE = Link("pcie", 12e-6, 25e9, True)
NETWORK = Link("network", 20e-6, 50e9, False)
"""A port of 400 Gb/s for each rank."""

KNOWN_LINKS: Mapping[str, Link] = {link.name: link for link in (NVLINK, PCIE, NETWORK)}
"""Links that a table may name without saying what they are. Round figures: measure, where it matters."""


@dataclass(frozen=True)
class Links:
    """A link table.

    Args:
        world: number of ranks.
        classes: the link of each joined pair, by ``(from, to)``; a pair that is not in it is not joined.
        switched: names of classes that go through a switch, as ``nvlink`` does with NVSwitch: over all its links of the class
            together a rank sends one transfer at a time, and receives one.

    Raises:
        PlanError: a world without ranks, a rank that is not in it, or a rank joined to itself.
    """

    world: int
    classes: Mapping[Pair, Link] = field(hash=False)
    switched: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.world < 1:
            raise PlanError(f"links in a world of {self.world} ranks", help="a world has 1 rank or more")
        for a, b in self.classes:
            self._rank(a)
            self._rank(b)
            if a == b:
                raise PlanError(f"a link from rank {a} to itself", help="a rank reaches its own memory without a link")

    def _rank(self, rank: int) -> None:
        if not 0 <= rank < self.world:
            raise PlanError(
                f"there is no rank {rank} in a link table of {self.world}",
                help=f"a link table speaks of global ranks, 0 to {self.world - 1}",
            )

    def between(self, a: int, b: int) -> Link | None:
        """The link from ``a`` to ``b``; None where there is none (and for a rank and itself).

        Raises:
            PlanError: there is no such rank.
        """
        self._rank(a)
        self._rank(b)
        return self.classes.get((a, b))

    def pointer(self, a: int, b: int) -> bool:
        """Whether ``a`` reaches ``b``'s memory by a pointer. A rank reaches its own."""
        link = self.between(a, b)
        return a == b or (link is not None and link.pointer)

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The ranks to which ``rank`` has a link, ascending."""
        self._rank(rank)
        return tuple(sorted(b for a, b in self.classes if a == rank))

    def pairs(self) -> Iterator[tuple[Pair, Link]]:
        """Every joined pair with its link, ascending."""
        yield from sorted(self.classes.items(), key=lambda entry: entry[0])

    def without(self, a: int, b: int) -> Links:
        """The table with the links between ``a`` and ``b`` missing, both ways.

        Raises:
            PlanError: the two are not joined.
        """
        if self.between(a, b) is None and self.between(b, a) is None:
            raise PlanError(f"ranks {a} and {b} are not joined", help="take away a link that is there")
        return replace(
            self, classes={pair: link for pair, link in self.classes.items() if pair not in ((a, b), (b, a))}
        )


def full_mesh(world: int, link: Link = NVLINK) -> Links:
    """Every rank joined to every other."""
    return Links(world, {(a, b): link for a in range(world) for b in range(world) if a != b})


def ring(world: int, link: Link = NVLINK) -> Links:
    """Each rank joined to the one before it and the one behind it, the last to the first."""
    steps = (-1, 1)
    return Links(world, {(a, (a + s) % world): link for a in range(world) for s in steps if (a + s) % world != a})


def two_level(nodes: int, ranks_per_node: int, inside: Link = NVLINK, across: Link = NETWORK) -> Links:
    """Every rank joined to every other: by ``inside`` in a node, by ``across`` between nodes.

    Rank r stands in node ``r // ranks_per_node``, as ranks of a 2-D mesh ``nodes x ranks_per_node`` do.

    Raises:
        PlanError: no node, or nodes without ranks.
    """
    if nodes < 1 or ranks_per_node < 1:
        raise PlanError(f"{nodes} nodes of {ranks_per_node} ranks", help="give 1 or more of both")
    world = nodes * ranks_per_node
    return Links(
        world,
        {
            (a, b): inside if a // ranks_per_node == b // ranks_per_node else across
            for a in range(world)
            for b in range(world)
            if a != b
        },
    )
