"""NVSHMEM's puts, gets and signals: each an agent of its own, whose writes land late and in any order.

    program   put A | put B | quiet ................ | barrier | release of a flag, which stands for A and B
    A                 reads ... writes ... |
    B                 reads ..... writes ....... |

What a put reads must be there when it is started: complete at the last barrier, or learnt. What it writes is ordered behind
nothing and ahead of nothing but its own signal, until a quiet has seen it land; a fence lets it land ahead of later puts to the
same rank. Addresses are of the rank's own memory, and the number of a rank is not the rank, so that taking one for the other
is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from overlap.errors import StrayAccessFault

from .addresses import where_in_kernel
from .clocks import Agent
from .fibres import Condition, Fibre
from .memory import Buffer
from .shadow import span

if TYPE_CHECKING:
    from .world import World

_WORD = np.dtype(np.int64)
SIGNAL_OPS = {9: "set", 10: "add"}


class _Put:
    """One put or get under way: its agent, the rank it goes to or comes from, and the puts that must land first."""

    def __init__(self, agent: Agent, rank: int, first: list[_Put]) -> None:
        self.agent = agent
        self.rank = rank
        self.first = first
        self.landed = False


class Puts:
    """What NVSHMEM does for the programs of a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._landed = Condition(world.scheduler)
        self._under_way: dict[int, list[_Put]] = {}
        """By program, the agent's id: what its next quiet waits for."""
        self._fenced: dict[int, list[_Put]] = {}
        """By program: what a fence lets land ahead of later puts."""

    def pe_of(self, rank: int) -> int:
        """The number of a rank."""
        return self._world.runtimes[rank].pes[rank]

    def _rank(self, pe: int) -> int:
        pes = self._world.runtimes[0].pes
        if pe not in pes:
            self._fault(
                f"names a rank by {pe}, and NVSHMEM's numbers of the ranks are {', '.join(map(str, sorted(pes)))}"
            )
        return pes.index(pe)

    def put(self, dst: int, src: int, size: int, pe: int, signal: tuple[int, int, str] | None = None) -> None:
        """Copies ``size`` bytes to the rank numbered ``pe``; ``signal``: address, value and ``set`` or ``add``, behind them."""
        there = self._rank(pe)
        flag = None
        if signal is not None:
            word, at = self._own(signal[0], 8, "signals at")
            flag = (self._copy_of(word, there), at, signal[1], signal[2])
        target, to = self._own(dst, size, "puts to")
        source, at = self._own(src, size, "puts from")
        self._start("put to", there, (source, at), (self._copy_of(target, there), to), size, flag)

    def get(self, dst: int, src: int, size: int, pe: int) -> None:
        """Copies ``size`` bytes from the rank numbered ``pe``."""
        there = self._rank(pe)
        target, to = self._own(dst, size, "gets to")
        source, at = self._own(src, size, "gets from")
        self._start("get from", there, (self._copy_of(source, there), at), (target, to), size, None)

    def quiet(self) -> None:
        """All that the program has started is complete, once it has passed a barrier."""
        program = self._world.scheduler.current.agent
        mine = self._under_way.pop(program.id, [])
        self._fenced.pop(program.id, None)
        self._landed.wait(lambda: all(put.landed for put in mine), "its puts to land")
        for put in mine:
            put.agent.retired = (program, program.step)

    def fence(self) -> None:
        """What the program puts from now on lands behind what it has put to the same rank."""
        program = self._world.scheduler.current.agent
        self._fenced[program.id] = [p for p in self._under_way.get(program.id, []) if p.agent.kind == "put"]

    def _start(
        self,
        what: str,
        rank: int,
        source: tuple[Buffer, int],
        target: tuple[Buffer, int],
        size: int,
        flag: tuple[Buffer, int, int, str] | None,
    ) -> None:
        fibre = self._world.scheduler.current
        program = fibre.agent
        agent = Agent(f"{program.name}, {what} rank {rank},", program.rank, what.split()[0], program.clock)
        first = [put for put in self._fenced.get(program.id, []) if put.rank == rank]
        put = _Put(agent, rank, first)
        self._under_way.setdefault(program.id, []).append(put)
        where = where_in_kernel(fibre)
        fibre.polls.clear()

        def carry() -> None:
            self._landed.wait(lambda: all(p.landed for p in put.first), "an earlier put to land")
            for earlier in put.first:
                agent.see(earlier.agent.clock)
            self._copy(agent, source, target, size, where)
            agent.tick()
            if flag is not None:
                self._signal(agent, *flag, where)
            put.landed = True
            self._landed.notify()

        self._world.scheduler.spawn(agent, carry)
        self._world.scheduler.pause()

    def _copy(
        self, agent: Agent, source: tuple[Buffer, int], target: tuple[Buffer, int], size: int, where: tuple[str, int]
    ) -> None:
        """Reads, then writes, in parts whose order nobody knows."""
        world = self._world
        (here, at), (there, to) = source, target
        cuts = self._cuts(size, max(here.itemsize, there.itemsize))
        reading = world.shadow.access(agent, f"reads (for rank {there.rank})", where)
        writing = world.shadow.access(agent, f"writes (from rank {here.rank})", where)
        held = []
        for begin, end in cuts:
            world.scheduler.pause()
            world.shadow.read(here, _granules(here, at + begin, at + end), reading)
            held.append((begin, end, here.bytes[at + begin : at + end].copy()))
        while held:
            world.scheduler.pause()
            begin, end, values = held.pop(world.scheduler.chooser.number(len(held)))
            world.shadow.write(there, _granules(there, to + begin, to + end), writing)
            there.bytes[to + begin : to + end] = values
            world.scheduler.progress = True
            world.kernel_memory.changed(there)

    def _signal(self, agent: Agent, buffer: Buffer, offset: int, value: int, op: str, where: tuple[str, int]) -> None:
        world = self._world
        world.scheduler.pause()
        view, place = buffer.view(_WORD), offset // 8
        after = value if op == "set" else int(view[place]) + value
        word = buffer.word(offset)
        if after != view[place]:
            word.release(agent, "sys", replace=op == "set")
            word.last = (agent, "release", "sys")
            word.heard = False
        access = world.shadow.access(agent, "signals", where, "sys")
        world.shadow.atomic(buffer, _granules(buffer, offset, offset + 8), access, modifies=True)
        view[place] = after
        agent.tick()
        world.scheduler.progress = True
        world.kernel_memory.changed(buffer)

    def _cuts(self, size: int, unit: int) -> list[tuple[int, int]]:
        units = -(-size // unit)
        parts = min(units, 1 + self._world.scheduler.chooser.number(3))
        edges = [min(size, units * i // parts * unit) for i in range(parts + 1)] if parts else []
        return list(zip(edges, edges[1:], strict=False))

    def _own(self, address: int, size: int, verb: str) -> tuple[Buffer, int]:
        """The symmetric buffer of the running program's rank that holds an address, and the offset in it."""
        rank = self._world.scheduler.current.agent.rank
        buffer = self._world.memory.at(address)
        if buffer is None or address + size > buffer.end:
            self._fault(f"{verb} {size} bytes at address {address:#x}, which no tensor holds")
        if buffer.copies is None:
            self._fault(f"{verb} {buffer.name} of rank {buffer.rank}, which is not symmetric memory")
        if buffer.rank != rank:
            self._fault(
                f"{verb} {buffer.element((address - buffer.start) >> buffer.shift)}: NVSHMEM takes addresses of rank "
                f"{rank}'s own memory, and finds the peer's itself"
            )
        return buffer, address - buffer.start

    @staticmethod
    def _copy_of(buffer: Buffer, rank: int) -> Buffer:
        assert buffer.copies is not None
        return buffer.copies[rank]

    def _fault(self, what: str) -> NoReturn:
        fibre: Fibre = self._world.scheduler.current
        raise StrayAccessFault(f"stray access: {fibre.agent.name} {what}", where=span(where_in_kernel(fibre)))


def _granules(buffer: Buffer, begin: int, end: int) -> np.ndarray:
    """Shadow indices of bytes ``begin`` to ``end``."""
    return np.arange(begin >> buffer.shift, ((end - 1) >> buffer.shift) + 1)
