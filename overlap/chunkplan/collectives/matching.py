"""Matching chunks to free links over expanding time, greedily, in the manner of TACOS.

TACOS (Won et al., MICRO 2024) unrolls a network over time and, whenever links fall free, matches each with a chunk that
its source has and its destination still lacks. So it is here, without its dice:

    time 0         every link is free: each takes a chunk that its source holds
    at each end    the chunk is at its destination, the link is free: match again
    until          every rank has what it wants

Which chunk a link takes: one that fewest ranks have or await, so that rare chunks spread first, the source's own before
others. What a slow link would bring later than fast ones can from where the chunk is, or will be, it leaves to them.
Behind a switch a rank sends and receives one transfer at a time, and links are chosen by a largest matching of senders
to receivers: a uniform exchange among n ranks then takes exactly n - 1 rounds, since the demand that is left after a
perfect matching of a regular bipartite graph is regular again (Koenig).

A set of chunks is a bit mask. Same input, same result.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overlap.errors import PlanError

from .network import Network, Resource

NEXT_TO = 1 - 1e-9
"""Times closer than this ratio are one moment."""


@dataclass(frozen=True)
class Demand:
    """Who has what, and who wants it.

    Args:
        sizes: bytes of each chunk, above 0.
        origins: the rank that has it at the start.
        wants: for each rank of the world, the mask of chunks that it must end with.
        single: every chunk is wanted by one rank, and leaves a rank when it is sent on; otherwise chunks are copied.
        ready: the second at which its origin has each chunk; all from the start where it is empty.
        taken: links and ports that are in use at the start, and until when.
    """

    sizes: tuple[int, ...]
    origins: tuple[int, ...]
    wants: tuple[int, ...]
    single: bool = False
    ready: tuple[float, ...] = ()
    taken: Mapping[Resource, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """A chunk going over a link, from ``start`` to ``finish`` in seconds."""

    chunk: int
    src: int
    dst: int
    start: float
    finish: float


def match(demand: Demand, network: Network, *, patient: bool = True) -> tuple[Transfer, ...]:
    """Transfers that bring every rank what it wants, in order of their start; each brings a chunk to a rank once.

    Args:
        patient: a slow link stays idle rather than bring what fast ones can bring earlier; otherwise only while
            they keep up with their work, and never if the chunk is wanted by no other rank.

    Raises:
        PlanError: no links lead from a chunk's origin to a rank that wants it.
    """
    return _needed(_Matching(demand, network, patient).run(), demand)


def _needed(transfers: Sequence[Transfer], demand: Demand) -> tuple[Transfer, ...]:
    """Without those that bring a chunk where nobody wants it and nobody takes it from."""
    taken: set[tuple[int, int]] = set()
    kept: list[Transfer] = []
    for transfer in reversed(transfers):
        if demand.wants[transfer.dst] >> transfer.chunk & 1 or (transfer.dst, transfer.chunk) in taken:
            taken.add((transfer.src, transfer.chunk))
            kept.append(transfer)
    return tuple(reversed(kept))


class _Matching:
    def __init__(self, demand: Demand, network: Network, patient: bool) -> None:
        self.demand = demand
        self.network = network
        self.patient = patient
        world = network.world
        largest = max(demand.sizes, default=0)
        self.seconds = network.seconds(largest)
        self.distance = network.distances(largest)
        self.has = [0] * world
        self.coming = [0] * world
        """What a rank has or awaits."""
        self.flying: list[tuple[float, int, int, int, int]] = []
        """Transfers under way, and chunks that are not ready: (finish, number, source, destination, chunk)."""
        self.freed = sorted(((until, resource) for resource, until in demand.taken.items()), reverse=True)
        """Links and ports in use from before, those that fall free first at the end."""
        self.busy = set(demand.taken)
        self.wants = list(demand.wants)
        self.first = [0] * world
        for chunk, origin in reversed(list(enumerate(demand.origins))):
            self.coming[origin] |= 1 << chunk
            self.first[origin] = chunk
            if demand.ready and demand.ready[chunk] > 0:
                self.flying.append((demand.ready[chunk], chunk - len(demand.sizes), origin, origin, chunk))
            else:
                self.has[origin] |= 1 << chunk
        heapq.heapify(self.flying)
        self.missing = sum((wanted & ~had).bit_count() for wanted, had in zip(self.wants, self.coming, strict=True))
        self.found: list[Transfer] = []
        self._check_reachable()
        self.count = [1] * len(demand.sizes)
        self.levels = [0, (1 << len(demand.sizes)) - 1] + [0] * world
        """``levels[n]``: chunks that n ranks have or await."""
        self.far = [self._by_distance(rank) for rank in range(world)] if demand.single else []
        pairs = sorted(self.seconds, key=lambda pair: ((pair[0] - pair[1]) % world, pair[1]))
        self.plain = [pair for pair in pairs if network.link(*pair).name not in network.switched]
        self.ports = {
            name: [pair for pair in pairs if network.link(*pair).name == name] for name in sorted(network.switched)
        }
        self.uses = {pair: network.resources(*pair) for pair in pairs}
        self.onward = {pair: self._onward(*pair) for pair in pairs}
        self.roundabout = {
            (src, dst) for (src, dst), duration in self.seconds.items() if duration * NEXT_TO > self.distance[src][dst]
        }
        """Links that are slower than a way over other ranks."""
        self.faster = {pair: self._faster(*pair) for pair in pairs}
        self.promised = [0] * world
        """What relays are to bring to a rank."""
        self.through: dict[tuple[int, int], int] = defaultdict(int)
        """``[relay, rank]``: what this relay is to bring to the rank."""

    # What the links allow

    def _check_reachable(self) -> None:
        for rank, wanted in enumerate(self.wants):
            for chunk, origin in enumerate(self.demand.origins):
                if wanted >> chunk & 1 and self.distance[origin][rank] == float("inf"):
                    ends = (rank, origin) if self.network.turned else (origin, rank)
                    raise PlanError(
                        f"no links lead from rank {ends[0]} to rank {ends[1]}",
                        help="give a link table that joins the group",
                    )

    def _by_distance(self, rank: int) -> list[int]:
        """Masks of chunks, those with the longest way to go from ``rank`` first."""
        by: dict[float, int] = defaultdict(int)
        for target, wanted in enumerate(self.wants):
            by[self.distance[rank][target]] |= wanted
        return [by[length] for length in sorted(by, reverse=True)]

    def _onward(self, src: int, dst: int) -> list[int]:
        """Ranks to which a shortest way from ``src`` leads over ``dst``."""
        step = self.seconds[src, dst]
        return [
            rank
            for rank, wanted in enumerate(self.wants)
            if wanted
            and rank not in (src, dst)
            and (step + self.distance[dst][rank]) * NEXT_TO <= self.distance[src][rank]
        ]

    def _faster(self, src: int, dst: int) -> list[int]:
        """Ranks from which a chunk reaches ``dst`` sooner than over this link."""
        limit = self.seconds[src, dst] * NEXT_TO
        return [rank for rank in range(self.network.world) if rank != dst and self.distance[rank][dst] < limit]

    # Time

    def run(self) -> list[Transfer]:
        now = 0.0
        while self.missing:
            self._match(now, False)
            if not self.flying and not self.freed:
                self._match(now, True)
            if not self.missing:
                break
            moment = min(queue[at][0] for queue, at in ((self.flying, 0), (self.freed, -1)) if queue)
            while self.freed and self.freed[-1][0] * NEXT_TO <= moment:
                until, resource = self.freed.pop()
                now = max(now, until)
                self.busy.discard(resource)
            while self.flying and self.flying[0][0] * NEXT_TO <= moment:
                finish, _, src, dst, chunk = heapq.heappop(self.flying)
                now = max(now, finish)
                self.has[dst] |= 1 << chunk
                if src != dst:
                    self.busy.difference_update(self.uses[src, dst])
        return self.found

    def _match(self, now: float, forced: bool) -> None:
        """Links that are free take chunks. ``forced``: whatever helps, since nothing is under way that would."""
        for src, dst in self.plain:
            if self.uses[src, dst][0] not in self.busy:
                chunk = self._choice(src, dst, now, forced)
                if chunk is not None:
                    self._send(src, dst, chunk, now)
        for pairs in self.ports.values():
            edges: dict[int, list[int]] = defaultdict(list)
            for src, dst in pairs:
                if self.busy.isdisjoint(self.uses[src, dst]) and self._choice(src, dst, now, forced) is not None:
                    edges[src].append(dst)
            for src, dst in _largest_matching(edges):
                chunk = self._choice(src, dst, now, forced)
                if chunk is not None:
                    self._send(src, dst, chunk, now)

    def _send(self, src: int, dst: int, chunk: int, now: float) -> None:
        bit = 1 << chunk
        finish = now + self.network.link(src, dst).seconds(self.demand.sizes[chunk])
        self.found.append(Transfer(chunk, src, dst, now, finish))
        heapq.heappush(self.flying, (finish, len(self.found), src, dst, chunk))
        self.busy.update(self.uses[src, dst])
        self.coming[dst] |= bit
        if self.wants[dst] & bit:
            self.missing -= 1
        else:
            for rank in self.onward[src, dst]:
                if (
                    self.wants[rank] & ~self.coming[rank] & bit
                    and not self.promised[rank] & bit & ~self.through[src, rank]
                ):
                    self.promised[rank] |= bit
                    self.through[src, rank] &= ~bit
                    self.through[dst, rank] |= bit
        if self.demand.single:
            self.has[src] &= ~bit
            return
        self.levels[self.count[chunk]] &= ~bit
        self.count[chunk] += 1
        self.levels[self.count[chunk]] |= bit

    # Choice

    def _choice(self, src: int, dst: int, now: float, forced: bool) -> int | None:
        """The chunk that a link takes now, if any."""
        open_chunks = self.has[src] & ~self.coming[dst]
        if not open_chunks:
            return None
        useful = open_chunks & self.wants[dst]
        if self.demand.single and self.patient and not forced and (src, dst) in self.roundabout:
            useful = 0
        if useful != open_chunks:
            for rank in self.onward[src, dst]:
                left = open_chunks & self.wants[rank] & ~self.coming[rank]
                useful |= left if forced else left & (~self.promised[rank] | self.through[src, rank])
        if self.faster[src, dst] and not self.demand.single and not forced:
            useful = self._patience(src, dst, useful, now)
        if not useful:
            return None
        for level in self.far[src] if self.demand.single else self.levels:
            best = useful & level
            if best:
                own = best >> self.first[src]
                return _lowest(own) + self.first[src] if own else _lowest(best)
        raise AssertionError("every chunk is on some level")

    def _patience(self, src: int, dst: int, useful: int, now: float) -> int:
        """Those of ``useful`` that do not reach ``dst`` sooner another way."""
        until = now + self.seconds[src, dst]
        sooner = 0
        for rank in self.faster[src, dst]:
            sooner |= self.has[rank]
        for finish, _, _, rank, chunk in self.flying:
            if finish + self.distance[rank][dst] < until * NEXT_TO:
                sooner |= 1 << chunk
        rest = useful & ~sooner
        if rest or self.patient:
            return rest
        behind = (self.wants[dst] & ~self.coming[dst]).bit_count()
        rates: dict[Resource, float] = {}
        for (a, b), duration in self.seconds.items():
            if b == dst and duration < self.seconds[src, dst] * NEXT_TO:
                rates[self.uses[a, b][-1]] = 1 / duration
        return useful if rates and behind / sum(rates.values()) > self.seconds[src, dst] else 0


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _largest_matching(edges: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Pairs of a sender and a receiver, each at most once, as many as there can be (augmenting paths)."""
    sender: dict[int, int] = {}

    def place(src: int, seen: set[int]) -> bool:
        for dst in edges[src]:
            if dst not in seen:
                seen.add(dst)
                if dst not in sender or place(sender[dst], seen):
                    sender[dst] = src
                    return True
        return False

    for src in sorted(edges):
        place(src, set())
    return sorted((src, dst) for dst, src in sender.items())
