"""Who carries each operation of a launch out, as the event model sees it: how fast, and what it takes from the tiles.

    lanes      copies by copy engine                 as the machine's links say
    moves      programs of the launch move chunks    their rate by how many there are; so many units fewer compute
    shared     the programs that compute move them   the rate of all units, which compute less meanwhile
    stores     tiles are stored where they go        nothing is copied; tiles take longer by their bytes over the link
    words      tiles are sent in words, in one launch  so too, of twice the bytes; no entry, no flag, no launch that adds
    copies     whoever makes them, staged first      as the machine's links say: where it does not know how fast programs are
    sums       what adds them stores them (`by_sums`)  the rate of all units, one flag for all; of ways by lanes

What tiles store they have made: operations that wait for others go by lanes whoever stores. Operations of one plan may each go
another way, over the same wires.

How fast programs copy is the machine's to say (``programs:`` of its file, which ``overlap calibrate`` measures): of a machine
that does not, ways by programs are not predicted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from overlap import settings
from overlap.chunkplan.links import Link
from overlap.chunkplan.plan import P2P, CommOp, CommPlan, OpId
from overlap.errors import PlanError

from .far import CARRY_PROGRAMS
from .machine import Machine
from .stored_sums import stored_sums
from .work import Work

Form = Literal["lanes", "moves", "shared", "stores", "words", "copies", "serial", "around"]
SHARE = 8
"""Of the units, one in so many moves chunks, where nobody says how many."""
FEWEST_UNITS = 4
"""Moving programs take no more than one unit in so many."""
MOVES_BESIDE, MOVES_AHEAD = 0.5, 1.0
"""What tiles lose of the time in which programs that compute move chunks: a part of it where each moves, between tiles that wait
for nothing, what later ones read, all of it where every tile waits. Measured: 0.2 to 1.0 and 1.3 to 1.9 of that time, 8192 rows
and more on two H200s (bench/results/backends)."""
CARRYING = CARRY_PROGRAMS // 2
"""Moving programs that copy as fast as those of a kernel beside the launch: theirs have half as many threads."""
WORDS_SENT = 2
"""Bytes of words for each that they bring: half of a word is the mark of its call."""


@dataclass(frozen=True)
class Way:
    """A way to carry out a plan: the backend's name, its form, how many programs move (``moves``; 0: an eighth), whether an
    input goes by whoever has it (``pushed``), by what programs copy (``by``: ``tma``, ``nvshmem``, else load/store), and how many
    units the kernel leaves to sums that are made while it runs (``free``, of ``lanes``; where they cannot be, sums follow it).

    ``tile_sums``, of ``lanes``: tiles add what comes of the part that their rank keeps, and nothing is left free; where they
    cannot, sums do. None: as the setting says."""

    name: str
    form: Form
    programs: int = 0
    pushed: bool = False
    by: str = ""
    free: int = 0
    tile_sums: bool | None = None

    def __str__(self) -> str:
        if self.free:
            return f"{self.name} with {self.free} units for sums"
        return f"{self.name} with {self.programs} programs" if self.programs else self.name


LANES = Way("copy_engine", "lanes")


def as_copies(way: Way) -> Way:
    """A way without programs whose speed somebody must know: moves at the speed of links, of what is staged as ever."""
    return replace(way, form="copies") if way.form in ("moves", "shared") else LANES


WayOf = Callable[[CommOp], Way]
"""Who carries an operation out."""


@dataclass(frozen=True)
class Carry:
    """How an operation goes that is no copy by copy engine.

    ``bytes_per_s``: at most the link's; infinite: it takes no time of its own. ``contention``: seconds that the tiles of the rank
    that it lands on lose for each of its own. ``by_sum``: what adds it stores it, meanwhile, and raises its flag.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    contention: float = 0.0
    by_sum: bool = False

    @property
    def at_once(self) -> bool:
        return math.isinf(self.bytes_per_s)

    def over(self, link: Link) -> Link:
        """A link as it carries this."""
        rate, latency = min(link.bytes_per_s, self.bytes_per_s), min(link.latency_s, self.latency_s)
        return replace(link, bytes_per_s=rate, latency_s=latency)


@dataclass(frozen=True)
class Carried:
    """A launch whose operations are carried out by several.

    Args:
        machine: without the units that only move chunks.
        carries: of operations that are no copies.
        storing: by rank, the seconds that its tiles together take to store what they make over the link.
    """

    machine: Machine
    carries: Mapping[OpId, Carry] = field(default_factory=dict, hash=False)
    storing: tuple[float, ...] = ()

    def slowed(self, works: Sequence[Work], scale: float = 1.0) -> tuple[Work, ...]:
        """The work of all ranks, its tiles longer by what they store; ``scale``: bytes, against those of the plan."""
        if not any(self.storing):
            return tuple(works)
        return tuple(self._longer(work, scale * spent) for work, spent in zip(works, self.storing, strict=True))

    def _longer(self, work: Work, seconds: float) -> Work:
        tiles = max(1, work.tiles)
        longer = seconds / tiles * min(tiles, self.machine.units)
        return replace(work, runs=tuple(replace(run, seconds=run.seconds + longer) for run in work.runs))


def frees_tried(machine: Machine, produced: bool, form: Form, split: object) -> tuple[int, ...]:
    """Numbers of units worth a prediction that are left to sums which are made while the kernel runs; 0: they follow it."""
    if not produced or form != "lanes" or split == 1:
        return (0,)
    return (0, *sorted({max(1, machine.units // share) for share in (32, 16)}))


def own_programs(machine: Machine) -> int:
    """Moving programs of a launch where nobody says how many."""
    return max(1, machine.units // SHARE)


def programs_tried(machine: Machine, direction: str, *, by: str = "") -> tuple[int, ...]:
    """Numbers of moving programs worth a prediction: those that were measured, as far as most units go on computing."""
    most = max(1, machine.units // FEWEST_UNITS)
    return tuple(count for count in sorted(_rates(machine, direction, by)) if count <= most)


def _rates(machine: Machine, direction: str, by: str) -> Mapping[int, float]:
    """By the number of programs, how fast they copy; as by load/store where only that was measured."""
    plain = machine.programs.get(direction, {})
    return machine.programs.get(f"{direction}_{by}", plain) if by else plain


def rate_of_programs(machine: Machine, direction: str, count: int, *, by: str = "") -> float:
    """Bytes a second that so many programs copy, between what was measured; never more than the link carries.

    Raises:
        PlanError: nobody measured it.
    """
    known = sorted(_rates(machine, direction, by).items())
    if not known:
        raise PlanError(
            f"machine {machine.name} does not say how fast programs copy",
            help="measure it: overlap calibrate writes a machine file, and the setting machine names it",
        )
    low = max((pair for pair in known if pair[0] <= count), default=(0, 0.0))
    high = min((pair for pair in known if pair[0] >= count), default=known[-1])
    share = 0.0 if high[0] <= low[0] else (count - low[0]) / (high[0] - low[0])
    rate = low[1] + share * (high[1] - low[1])
    return min(rate, machine.inside.bytes_per_s)


def carried(
    plan: CommPlan, machine: Machine, ways: WayOf, *, itemsize: float | Mapping[str, float], waiting: bool = False
) -> Carried:
    """A launch of ``plan`` on a machine.

    Args:
        ways: of each operation between two ranks.
        itemsize: bytes of an element, of all tensors or of each.
        waiting: every tile waits for chunks of others.

    Raises:
        PlanError: the machine does not say how fast programs copy, or words are to go where they cannot (`_in_words`).
    """
    found = {op_id: (op, ways(op)) for op_id, op in plan.items() if isinstance(op, P2P) and op.src_rank != op.dst_rank}
    if any(way.form == "words" for _, way in found.values()):
        machine = _in_words(plan, machine, [way for _, way in found.values()])
    by_tiles = ("stores", "words")
    stored = {op_id: each for op_id, each in found.items() if each[1].form in by_tiles and not each[0].depends}
    moved = {op_id: each for op_id, each in found.items() if each[1].form in ("moves", "shared")}
    carries: dict[OpId, Carry] = {}
    storing = [0.0] * plan.world
    for op_id, (op, way) in stored.items():
        carries[op_id] = Carry(math.inf)
        width = itemsize.get(op.src.tensor, 0.0) if isinstance(itemsize, Mapping) else itemsize
        rate = rate_of_programs(machine, "push", machine.units, by=way.by)
        storing[op.src_rank] += (WORDS_SENT if way.form == "words" else 1) * op.src.box.size * width / rate
    lanes = {op_id for op_id, (_, way) in found.items() if way.form == "lanes" and not way.by}
    carries.update((op_id, carry) for op_id, carry in by_sums(plan, machine).items() if op_id in lanes)
    carries.update(_by_library({op_id: each for op_id, each in found.items() if each[1].form == "lanes"}, machine))
    links = Carry(sys.float_info.max, math.inf, machine.contention)
    carries.update({op_id: links for op_id, (_, way) in found.items() if way.form == "copies"})
    left = machine.units
    for way in dict.fromkeys(way for _, way in moved.values()):
        mine = {op_id: op for op_id, (op, by) in moved.items() if by == way}
        count = machine.units if way.form == "shared" else way.programs or own_programs(machine)
        rate = min(rate_of_programs(machine, d, count, by=way.by) for d in _directions(mine.values()))
        # A move is no copy that the driver starts: what it costs besides its bytes is the flag.
        meanwhile = (MOVES_AHEAD if waiting else MOVES_BESIDE) if way.form == "shared" else 0.0
        carry = Carry(rate, min(machine.inside.latency_s, machine.flag), machine.contention + meanwhile)
        near = (op_id for op_id, op in mine.items() if machine.link(op.src_rank, op.dst_rank) == machine.inside)
        carries.update(dict.fromkeys(near, carry))
        if way.form == "moves":
            left -= count
    if left < machine.units:
        left = max(1, left)
        machine = replace(machine.scaled(compute=left / machine.units), units=left)
    return Carried(machine, carries, tuple(storing))


def _by_library(found: Mapping[OpId, tuple[P2P, Way]], machine: Machine) -> dict[OpId, Carry]:
    """Operations in a node that kernels of a library carry out beside the launch, where the machine knows how fast."""
    made: dict[OpId, Carry] = {}
    for op_id, (op, way) in found.items():
        direction = _directions([op])[0]
        near = machine.link(op.src_rank, op.dst_rank) == machine.inside
        if near and way.by and f"{direction}_{way.by}" in machine.programs:
            made[op_id] = Carry(rate_of_programs(machine, direction, CARRYING, by=way.by), math.inf, machine.contention)
    return made


def _in_words(plan: CommPlan, machine: Machine, ways: Collection[Way]) -> Machine:
    """The machine as a launch sees it that sends words: it begins with its tiles, and where it would be followed by a launch that
    adds it waits until the last word has crossed the link.

    Raises:
        PlanError: some operation goes another way, sends what others have sent, or goes where no pointer reaches.
    """
    if any(way.form != "words" for way in ways) or any(op.depends for _, op in plan.items()):
        raise PlanError(
            f"plan {plan.name}: words of a kernel's own launch wait for nothing else, and send what tiles make",
            help="a plan of one step, all of it in words; or copy_engine",
        )
    if plan.world > machine.node:
        raise PlanError(
            f"words go by pointer, and {machine.name} has nodes of {machine.node} ranks", help="copy_engine"
        )
    crossing = min(machine.inside.latency_s, machine.flag)
    return replace(machine, entry=max(0.0, machine.kernel - crossing), kernel=crossing, flag=0.0)


def by_sums(plan: CommPlan, machine: Machine) -> dict[OpId, Carry]:
    """The operations of a plan by lanes that sums carry out, where ranks reach each other's memory and `store_sums` says so."""
    made = {op.dst.tensor for _, op in plan.items() if isinstance(op, P2P) and op.reduce}
    if not made or plan.world > machine.node or not settings.get("store_sums"):
        return {}
    measured = bool(_rates(machine, "push", ""))
    rate = rate_of_programs(machine, "push", machine.units) if measured else machine.inside.bytes_per_s
    return dict.fromkeys(stored_sums(plan, made), Carry(rate, contention=machine.contention, by_sum=True))


def _directions(ops: Collection[P2P]) -> list[str]:
    return sorted({op.direction for op in ops if op.direction != "local"}) or ["push"]
