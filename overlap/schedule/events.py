"""The event model: what happens when, on every rank, under a plan, on a machine, with or without tiles.

    copy     starts when the one before it in its channel and all it depends on have landed, what it sends is made (or
             summed) or staged, or the caller's (`givens`), and the ports it goes through are free; takes the latency of its link
             and its bytes at the link's rate
    flag     behind each copy: from then on waiters know, and the channel goes on
    tiles    runs wait for what they read (`work.Work`); tiles go to the first free unit, and runs share waves
    stored   what a sum stores at peers itself (`carried.by_sums`) goes behind it, at the rate of programs, without flags; the sum
             is shorter by what that takes
    sum      behind the rank's tiles and all that it adds, one after another: the protocol's order (`steps`); what it reads and
             writes, at the rate of memory. Of what a run of tiles `keeps` behind that run, by the units that are free as long as
             tiles run

Ports are taken whole, in the order in which copies ask for them, and of those that ask at one moment in the order of the plan.
Sharing them fairly moves no byte sooner or later in total,
makes every chunk but the last of a crowd later, and costs a recomputation of all that is under way at each start and end;
a queue costs the same for every operation, and on NVLink copies from one peer after another were measured no slower
than from all at once. What lands on a rank takes memory traffic from its tiles (`Machine.contention`). Not modelled: the
insides of switches, and what the host takes to enqueue (launches are replays of a graph).

Without tiles all times are whole ticks (`links.ticks`), so that every rank that simulates a plan finds the same ones.

The work is a constant number of steps for each operation, dependency and run, and a heap entry for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from overlap import settings
from overlap.chunkplan.links import Link, Links, ticks
from overlap.chunkplan.order import happens_before, name_op
from overlap.chunkplan.plan import Collective, CommPlan, OpId
from overlap.errors import PlanError, ScheduleError

from .carried import Carry
from .collective import collective_seconds
from .collector import no_collector
from .handout import HandOut
from .machine import Machine
from .records import COPY, FLAG, SUM, Ends
from .staging import held_bytes, read_bytes
from .timeline import Timeline
from .work import Work

NO_CARRIES: Mapping[OpId, Carry] = {}
ItemSize = float | Mapping[str, float]
"""Bytes of an element of all tensors of a plan, or of each by its name."""


def simulate(
    plan: CommPlan,
    machine: Machine,
    work: Sequence[Work] = (),
    *,
    itemsize: ItemSize = 2,
    links: Links | None = None,
    carries: Mapping[OpId, Carry] = NO_CARRIES,
) -> Timeline:
    """The timeline of one launch of ``plan``.

    Args:
        plan: a plan that `verify_plan` accepts.
        machine: rates, latencies and costs.
        work: what each rank computes; nothing at all where it is empty.
        itemsize: bytes of an element, of all tensors or of each.
        links: which ranks are joined, by what, and which share ports, instead of the machine's own.
        carries: how operations go that are no copies by copy engine (`carried`).

    Raises:
        PlanError: an operation between ranks without a link, a cyclic plan, or a world that the machine does not have.
        ScheduleError: tiles that wait for what tiles behind them make, or work for another number of ranks.
    """
    with no_collector():
        return _Run(plan, machine, work, itemsize, links, carries).timeline()


def simulate_ends(
    plan: CommPlan,
    machine: Machine,
    work: Sequence[Work] = (),
    *,
    itemsize: ItemSize = 2,
    links: Links | None = None,
    carries: Mapping[OpId, Carry] = NO_CARRIES,
) -> Ends:
    """As `simulate`, for callers that only want to know when it ends."""
    with no_collector():
        return _Run(plan, machine, work, itemsize, links, carries).ends()


def landing_times(
    plan: CommPlan, machine: Machine, *, itemsize: ItemSize = 2, links: Links | None = None
) -> dict[OpId, float]:
    """When the flag of each operation is up, in seconds from the launch, if tiles hold nothing up.

    It depends on plan, machine and sizes alone: every rank that asks is told the same. Arguments and errors as `simulate`.
    """
    with no_collector():
        return _Run(plan, machine, (), itemsize, links).landed()


SUM_DRAW = 3.0
"""How much of memory's rate a unit draws that adds, in shares of one unit."""


class _Ports:
    """When the ports of one class of links are free, and the record that holds each until then; ``sent``: when those out of ranks
    are but for flags that an engine writes, which hold up no program."""

    def __init__(self, world: int) -> None:
        self.out, self.into, self.sent = [0.0] * world, [0.0] * world, [0.0] * world
        self.out_by, self.into_by = [-1] * world, [-1] * world


class _Run(HandOut):
    """One simulation. Records become events."""

    def __init__(
        self,
        plan: CommPlan,
        machine: Machine,
        work: Sequence[Work],
        itemsize: ItemSize,
        links: Links | None,
        carries: Mapping[OpId, Carry] = NO_CARRIES,
    ) -> None:
        if links is None:
            machine.check_world(plan.world)
        elif links.world != plan.world:
            raise PlanError(f"links of {links.world} ranks for a plan of {plan.world}")
        super().__init__(plan, work, machine, frozenset(op_id for op_id, carry in carries.items() if carry.by_sum))
        self.links = links
        self.carries = (
            {node: carries[op_id] for node, op_id in enumerate(self.ids) if op_id in carries} if carries else {}
        )
        # By tensor, the bytes of an element.
        self.width = (
            dict(itemsize) if isinstance(itemsize, Mapping) else {spec.name: float(itemsize) for spec in plan.tensors}
        )
        self.ports: dict[str, _Ports] = {}
        self.wires: dict[tuple[str, int, int], tuple[float, int]] = {}
        self.lasts: dict[tuple[int, float], float] = {}
        self.overs: dict[tuple[int, int], Link] = {}
        self.arrived: dict[int, int] = defaultdict(int)
        self.flag = ticks(machine.flag)
        staged = self._staged()
        staging = 2 * held_bytes(plan, self.width, staged) / machine.memory
        self.apart = self._apart(staging)
        """Whether what ranks hold is staged behind the entry, while they push it."""
        if self.apart:
            staging = 2 * read_bytes(plan, self.width, staged, map(self.ids.__getitem__, self.carries)) / machine.memory
            staging = 0.0 if self._read_in_place() else staging + machine.kernel
        self.begun = ticks(machine.entry)
        self.entry = ticks(machine.entry + staging)
        """From when on what is staged is there."""
        slowing = machine.contention or machine.contention_sent
        self._start_tiles(slowing > 0 or any(carry.contention for carry in self.carries.values()))
        self.sum_free = [0.0] * plan.world
        self.sum_by = [-1] * plan.world
        self._go()

    def _staged(self) -> set[str]:
        """The tensors that ranks copy to where others reach them, and tiles read them: all that others pull, and of a launch
        with a kernel whatever its tiles do not make. The slowest holds all up."""
        kernel = any(work.runs for work in self.work)
        staged = {
            op.src.tensor for op in self.ops if not isinstance(op, Collective) and (kernel or op.direction == "pull")
        }
        return staged - self.made

    def _apart(self, staging: float) -> bool:
        """As launches decide it of contiguous shards, those of the rank that holds most."""
        pulls = any(not isinstance(op, Collective) and op.direction == "pull" for op in self.ops)
        least = 2 * settings.get("given_bytes") / self.machine.memory
        return staging > 0 and not pulls and staging >= least and any(map(self._given, self.first))

    def _read_in_place(self) -> bool:
        """Whether tiles read what ranks hold where callers have it, and so does all that is sent of it."""
        return not self.carries and all(work.in_place for work in self.work)

    def _given(self, node: int) -> bool:
        """Whether the first operation of a channel is a copy out of the caller's tensor: nothing has come that it could send on,
        and no tile makes it."""
        op = self.ops[node]
        return not (
            isinstance(op, Collective)
            or op.direction != "push"
            or op.src_rank == op.dst_rank
            or node in self.carries
            or self.pending[node] > 1
        )

    # Time

    def _go(self) -> None:
        heap, next_of, followers, freed = self.heap, self.next, self.followers, self._freed
        for rank, work in enumerate(self.work):
            self._let_in(rank, work)
        for rank, sums in enumerate(self.rank_sums):
            if not (self.work and self.work[rank].runs):
                for node in sums:
                    self._freed(node, self.entry, -1)
        for node in self.first:
            self._freed(node, self.begun if self.apart and self._given(node) else self.entry, -1)
        count, nodes = self.run_base, len(self.pending)
        landed = 0
        while heap:
            now, node, by = heappop(heap)
            if node >= nodes:
                asked = node - nodes
                if asked < count:
                    self._copy(asked, now, by)
                else:
                    freed(asked, now, by)
                continue
            if node < count:
                landed += 1
                if next_of[node] >= 0:
                    freed(next_of[node], now, by)
            if node in followers:
                for follower in followers[node]:
                    freed(follower, now, by)
        if landed < count or any(self.undone):
            self._stuck()

    def _freed(self, node: int, now: float, by: int) -> None:
        """One of the things that ``node`` waits for has come, by record ``by``."""
        self.pending[node] -= 1
        if self.pending[node]:
            return
        if node < self.run_base:
            if node in self.group:
                self._meet(node, now, by)
            else:
                # Behind all that ends at this moment, so that the order of the plan decides who asks first.
                heappush(self.heap, (now, len(self.pending) + node, by))
        elif node < self.sum_base:
            self._runnable(node, now, by)
        else:
            self._add(node, now, by)

    def _copy(self, node: int, now: float, by: int) -> None:
        op = self.ops[node]
        assert not isinstance(op, Collective)
        size = self.width[op.dst.tensor]
        for low, high in zip(op.dst.box.lo, op.dst.box.hi, strict=True):
            size *= high - low
        source, target = op.src_rank, op.dst_rank
        carry, contention = self.carries.get(node), self.machine.contention
        sent_contention = self.machine.contention_sent
        if carry is not None and carry.at_once:
            # Tiles have stored it.
            start, end = now, now
        elif source == target or not size:
            # Of nothing only the flag goes anywhere.
            start, end = now, now + ticks(2 * size / self.machine.memory)
            if source != target:
                self._link(node, source, target)
        else:
            link = self._link(node, source, target)
            # Many copies are of one size: what they take is worked out once.
            if carry is not None:
                contention = carry.contention
                key = id(link), id(carry)
                link = self.overs.get(key) or self.overs.setdefault(key, carry.over(link))
            seconds = self.lasts.get((id(link), size))
            if seconds is None:
                seconds = self.lasts[id(link), size] = link.seconds(size)
            start = now
            index = len(self.records)
            if self.machine.own_wires if self.links is None else link.name not in self.links.switched:
                wire = (link.name, source, target)
                free, holder = self.wires.get(wire, (0.0, -1))
                if free > start:
                    start, by = free, holder
                end = start + seconds
                self.wires[wire] = (end, index)
            else:
                ports = self.ports.get(link.name)
                if ports is None:
                    ports = self.ports[link.name] = _Ports(self.plan.world)
                left = ports.out[source] if carry is None else ports.sent[source]
                if left > start:
                    start, by = left, ports.out_by[source]
                if ports.into[target] > start:
                    start, by = ports.into[target], ports.into_by[target]
                end = start + seconds
                ports.out[source] = max(ports.out[source], end)  # an engine may still write a flag
                ports.sent[source] = ports.into[target] = end
                ports.out_by[source] = ports.into_by[target] = index
                if self.machine.one_engine and carry is None:
                    # It writes the flag too, which is recorded behind the copy, and copies nothing meanwhile.
                    pulled = op.direction == "pull"
                    free_at, held_by = (ports.into, ports.into_by) if pulled else (ports.out, ports.out_by)
                    rank = target if pulled else source
                    free_at[rank], held_by[rank] = end + self.flag, index + 1
            self.debt[target] += (end - start) * contention
            if sent_contention and carry is None and op.src.tensor in self.made:
                self.debt[source] += (end - start) * sent_contention
        self._landed(node, start, end, by)

    def _landed(self, node: int, start: float, end: float, by: int) -> None:
        """Records the copy and its flag; whoever waits for it goes on at the end of the flag."""
        carry = self.carries.get(node)
        rank, told = self.ids[node][0], end + (0.0 if carry is not None and carry.by_sum else self.flag)
        copied = len(self.records)
        self.records.append((rank, COPY, node, start, end, by))
        self.records.append((rank, FLAG, node, end, told, copied))
        heappush(self.heap, (told, node, copied + 1))

    def _link(self, node: int, source: int, target: int) -> Link:
        link = self.machine.link(source, target) if self.links is None else self.links.classes.get((source, target))
        if link is None:
            op_id = self.ids[node]
            raise PlanError(
                f"plan {self.plan.name}, {name_op(self.plan, op_id)}: there is no link from rank {source} to rank {target}",
                where=self.plan.where(op_id),
                help="go by way of a rank that is joined to both",
            )
        return link

    def _meet(self, node: int, now: float, by: int) -> None:
        """A collective starts when the last of its ranks has come."""
        nodes = self.group[node]
        self.arrived[nodes[0]] += 1
        op = self.ops[node]
        assert isinstance(op, Collective)
        if self.arrived[nodes[0]] < len(op.ranks):
            return
        for member in nodes:
            op = self.ops[member]
            assert isinstance(op, Collective)
            self._landed(member, now, now + ticks(collective_seconds(op, self.machine, self.width[op.dst.tensor])), by)

    def _add(self, node: int, now: float, by: int) -> None:
        rank, chunk, elements = self.sums[node - self.sum_base]
        start = now
        if node not in self.meanwhile and self.work and self.tiles_end[rank] > start:
            start, by = self.tiles_end[rank], self.last_run[rank]
        if self.sum_free[rank] > start:
            start, by = self.sum_free[rank], self.sum_by[rank]
        seconds = elements * self.width[chunk.tensor] / self.machine.memory
        if node in self.meanwhile:
            # By the free units until the tiles would end if they never waited, then by all.
            free, units = self.work[rank].free, self.machine.units
            share = min(1.0, SUM_DRAW * free / (units + free))
            beside = max(0.0, self.entry + self.machine.kernel + self._alone(self.work[rank]) - start)
            seconds = min(seconds / share, beside + max(0.0, seconds - beside * share))
        seconds = max(0.0, seconds - self._stored_seconds(node))
        end = start + ticks(self.machine.kernel + seconds)
        if node in self.placing:
            # Behind the tiles and all sums; what came before the last part is in its place by then, if there was time.
            last = self.placing[node] * self.width[chunk.tensor] / self.machine.memory
            idle = max(self.tiles_end[rank], self.sum_free[rank])
            start = max(idle, now - (seconds - last))
            end = max(idle + ticks(self.machine.kernel + seconds), now + ticks(last))
        record = self._record(rank, SUM, node, start, end, by)
        self.sum_free[rank], self.sum_by[rank] = end, record
        heappush(self.heap, (end, node, record))

    def _stored_seconds(self, node: int) -> float:
        """What a sum takes to store what it adds, while it adds."""
        return sum(
            self.width[op.dst.tensor] * op.dst.box.size / self.carries[follower].bytes_per_s
            for follower in (self.followers.get(node, ()) if self.stored else ())
            if follower < self.run_base and self.ids[follower] in self.stored
            for op in (self.ops[follower],)
        )

    def _stuck(self) -> None:
        happens_before(self.plan)
        if not any(self.undone):
            raise PlanError(f"plan {self.plan.name} never ends: a collective is missing some of its ranks")
        rank = next(r for r, left in enumerate(self.undone) if left)
        raise ScheduleError(
            f"plan {self.plan.name}: the tiles of rank {rank} never end, some wait for what others behind them make",
            help="let the runs that make chunks stand before those that wait for what becomes of them",
        )
