"""What a program does to memory: loads, stores and atomics, each address checked, each access recorded.

The simulator's own implementation of Triton's memory operations; Triton's C++ loads, which would follow a wild
pointer, are never reached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .addresses import Addresses, where_in_kernel
from .clocks import Agent
from .dtypes import convert, is_narrow_float
from .fibres import Fibre
from .memory import Buffer
from .signals import check_not_lost

if TYPE_CHECKING:
    from .world import World

POLL_REPEATS = 2
"""A program that has read an unchanged word this often in a row, and done nothing else, sleeps until it changes."""

LOAD_REPEATS = 64
"""The same for plain scalar loads, which some kernels repeat without polling."""

_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "fadd": np.add,
    "min": np.minimum,
    "umin": np.minimum,
    "max": np.maximum,
    "umax": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


class KernelMemory:
    """Memory as the running program of ``world`` sees it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._memory = world.memory
        self._shadow = world.shadow
        self._scheduler = world.scheduler
        self._addresses = Addresses(world.memory, world.nodes)

    # plain accesses

    def load_one(self, address: int, dtype: np.dtype) -> np.ndarray:
        """The element at ``address``, as an array of one: the usual way to read tables and flags, so a short one."""
        fibre = self._scheduler.current
        buffer = self._memory.at(address)
        itemsize = dtype.itemsize
        if buffer is None or buffer.itemsize != itemsize or address + itemsize > buffer.end or address % itemsize:
            return self.load(np.array([address], np.uint64), None, None, dtype)
        if buffer.rank != fibre.agent.rank:
            self._addresses.check_reached(fibre, buffer, address - buffer.start, "reads")
        offset = address - buffer.start
        fibre.loads = fibre.loads + 1 if address == fibre.last_load else 0
        fibre.last_load = address
        spins = buffer.copies is not None or fibre.loads > LOAD_REPEATS
        if spins:
            self._scheduler.pause()
        access = self._shadow.access(fibre.agent, "reads", where_in_kernel(fibre))
        self._shadow.read_one(buffer, offset >> buffer.shift, access)
        place = offset // itemsize
        view = buffer.view(dtype)
        value = view[place : place + 1].copy()
        if spins and self._repeats(fibre, buffer, offset, value[0]) > LOAD_REPEATS:
            self._sleep(fibre)
            value = view[place : place + 1].copy()
        return value

    def load(
        self, ptrs: np.ndarray, mask: np.ndarray | None, other: np.ndarray | None, dtype: np.dtype, *, tma: bool = False
    ) -> np.ndarray:
        """The elements at ``ptrs``; ``other`` (default 0) where masked off. ``tma``: through the async proxy."""
        result = np.zeros(ptrs.shape, dtype) if other is None else np.array(np.broadcast_to(other, ptrs.shape), dtype)
        fibre = self._scheduler.current
        flat = result.reshape(-1)
        for buffer, offsets, chosen in self._addresses.resolve(fibre, ptrs, mask, dtype.itemsize, "reads"):
            if buffer.copies is not None:
                self._scheduler.pause()
            access = self._shadow.access(fibre.agent, "reads by TMA load" if tma else "reads", where_in_kernel(fibre))
            self._shadow.read(buffer, buffer.granules(offsets, dtype.itemsize), access, fenced=tma)
            values = buffer.view(dtype)[offsets // dtype.itemsize]
            if chosen is None:
                flat[:] = values
            else:
                flat[chosen] = values
            if ptrs.size > 1:
                self._progress(fibre)
            elif buffer.copies is not None and self._repeats(fibre, buffer, int(offsets[0]), values[0]) > LOAD_REPEATS:
                self._sleep(fibre)
                flat[0] = buffer.view(dtype)[offsets[0] // dtype.itemsize]
        return result

    def store(
        self,
        ptrs: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray | None,
        dtype: np.dtype,
        *,
        tma: bool = False,
        late: bool | None = None,
    ) -> None:
        """Stores ``values`` at ``ptrs`` where ``mask``; by ``tma``, ``late``: they land when waited for (None: as Triton's)."""
        fibre = self._scheduler.current
        flat = np.broadcast_to(values, ptrs.shape).reshape(-1)
        self._progress(fibre)
        for buffer, offsets, chosen in self._addresses.resolve(fibre, ptrs, mask, dtype.itemsize, "writes"):
            if buffer.copies is not None:
                self._scheduler.pause()
            late = tma and (self._world.late_tma_stores if late is None else late)
            agent = self._tma_agent(fibre) if late else fibre.agent
            access = self._shadow.access(agent, "writes by TMA store" if late else "writes", where_in_kernel(fibre))
            self._shadow.write(buffer, buffer.granules(offsets, dtype.itemsize), access)
            buffer.view(dtype)[offsets // dtype.itemsize] = flat if chosen is None else flat[chosen]
            self.changed(buffer)

    def check_box(self, corner: Sequence[int], block: Sequence[int]) -> None:
        """Raises StrayAccessFault for a box that TMA cannot store."""
        self._addresses.check_box(self._scheduler.current, corner, block)

    # atomics

    def atomic(
        self,
        op: str,
        ptrs: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray | None,
        dtype: np.dtype,
        sem: str,
        scope: str,
        expected: np.ndarray | None = None,
    ) -> np.ndarray:
        """A read-modify-write at every pointer; returns the old values. ``expected`` makes it a compare-and-swap."""
        fibre = self._scheduler.current
        result = np.zeros(ptrs.shape, dtype)
        old_flat, new_flat = result.reshape(-1), np.broadcast_to(values, ptrs.shape).reshape(-1)
        wanted = None if expected is None else np.broadcast_to(expected, ptrs.shape).reshape(-1)
        self._scheduler.pause()
        for buffer, offsets, chosen in self._addresses.resolve(fibre, ptrs, mask, dtype.itemsize, "updates"):
            picked = slice(None) if chosen is None else chosen
            view, places = buffer.view(dtype), offsets // dtype.itemsize
            new = new_flat[picked]
            swap = None if wanted is None else wanted[picked]
            old = view[places]
            after = self._apply(op, old, new, swap)
            if len(places) == 1 and after[0] == old[0]:
                if self._repeats(fibre, buffer, int(offsets[0]), old[0]) > POLL_REPEATS:
                    self._sleep(fibre)
                    old = view[places]
                    after = self._apply(op, old, new, swap)
                    fibre.polls[buffer.start + int(offsets[0])] = (old[0], POLL_REPEATS)
            else:
                self._progress(fibre)
            modifies = bool((after != old).any())
            lanes = np.arange(ptrs.size)[picked] if ptrs.size > 1 else None
            if op == "xchg" and dtype == np.int64 and buffer.copies is not None:
                check_not_lost(self._shadow, fibre, buffer, offsets)
            self._synchronise(fibre, buffer, offsets, dtype, sem, scope, modifies=modifies, lanes=lanes)
            if modifies and op == "add" and dtype == np.int64 and buffer.copies is not None:
                for offset, value in zip(offsets.tolist(), after.tolist(), strict=True):
                    buffer.word(offset).count(value)
            if op in ("add", "fadd") and len(places) > 1 and not is_narrow_float(dtype):
                np.add.at(view, places, new)
            else:
                view[places] = after
            old_flat[picked] = old
            self.changed(buffer)
        return result

    def atomic_load(
        self, ptrs: np.ndarray, mask: np.ndarray | None, dtype: np.dtype, sem: str, scope: str
    ) -> np.ndarray:
        """An atomic read."""
        return self.atomic("or" if dtype.kind in "iu" else "fadd", ptrs, np.zeros((), dtype), mask, dtype, sem, scope)

    def atomic_poll(self, ptrs: np.ndarray, expected: np.ndarray, dtype: np.dtype, sem: str, scope: str) -> np.ndarray:
        """Waits until the words equal ``expected`` (no timeout passes in a simulation)."""
        while not (self.atomic_load(ptrs, None, dtype, sem, scope) == expected).all():
            pass
        return np.ones(ptrs.shape, bool)

    @staticmethod
    def _apply(op: str, old: np.ndarray, new: np.ndarray, swap: np.ndarray | None) -> np.ndarray:
        if swap is not None:
            return np.where(old == swap, new, old)
        if is_narrow_float(old.dtype):
            return convert(_OPS[op](old.astype(np.float32), new.astype(np.float32)), old.dtype)
        return _OPS[op](old, new).astype(old.dtype)

    def _synchronise(
        self,
        fibre: Fibre,
        buffer: Buffer,
        offsets: np.ndarray,
        dtype: np.dtype,
        sem: str,
        scope: str,
        *,
        modifies: bool,
        lanes: np.ndarray | None = None,
    ) -> None:
        """Clock edges and shadow of an atomic.

        A single word makes edges both ways. Of a tensor-shaped atomic (``lanes``) every int64 word in symmetric memory, a
        counter or a flag, is acquired and released as by its own thread: what a lane learns, only that lane's later
        releases pass on, until a barrier tells it to all. Other tensor-shaped atomics move data and make no edges.
        """
        agent, shadow = fibre.agent, self._shadow
        where = where_in_kernel(fibre)
        publishes = modifies and sem in ("release", "acq_rel")
        if lanes is None:
            word = buffer.word(int(offsets[0]))
            if sem in ("acquire", "acq_rel"):
                word.acquire(agent, scope)
                word.heard = True
            if not modifies:
                self._note(agent, buffer, int(offsets[0]), word.last, sem, scope)
            if publishes:
                # Who reads a value that was there before learns nothing from its being written again.
                word.release(agent, scope)
                agent.releases.add(agent.step)
            if modifies:
                word.last = (agent, sem, scope)
                word.heard = False
        elif dtype == np.int64 and buffer.copies is not None:
            for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True):
                word = buffer.word(offset)
                learned = agent.lanes.setdefault(lane, {})
                if sem in ("acquire", "acq_rel"):
                    word.acquire_into(learned, agent.rank, scope)
                if publishes:
                    word.release(agent, scope, learned)
                if modifies:
                    word.last = (agent, sem, scope)
                else:
                    self._note(agent, buffer, offset, word.last, sem, scope)
            if publishes:
                agent.releases.add(agent.step)
        access = shadow.access(agent, "updates atomically" if modifies else "polls", where, scope)
        shadow.atomic(buffer, buffer.granules(offsets, dtype.itemsize), access, modifies=modifies)

    @staticmethod
    def _note(
        agent: Agent, buffer: Buffer, offset: int, last: tuple[Agent, str, str] | None, sem: str, scope: str
    ) -> None:
        """Remembers a read that looks like an acquire and is none, for the message of a race that follows."""
        if last is None or last[0] is agent:
            return
        writer, writer_sem, writer_scope = last
        word = buffer.element(offset >> buffer.shift)
        if writer_sem in ("relaxed", "acquire"):
            agent.hint = f'{word} was raised with {writer_sem} semantics, which publishes nothing: use sem="release"'
        elif writer.rank != agent.rank and writer_scope != "sys":
            agent.hint = f'{word} was raised at {writer_scope} scope by another rank: use scope="sys"'
        elif sem in ("relaxed", "release"):
            agent.hint = f'{word} was read with {sem} semantics, which learns nothing: use sem="acquire"'
        elif writer.rank != agent.rank and scope != "sys":
            agent.hint = f'{word} was read at {scope} scope though another rank raises it: use scope="sys"'
        else:
            agent.hint = ""

    # order inside a program

    def barrier(self) -> None:
        """A CTA barrier: releases that follow cover all stores before it, and all threads know what each has acquired."""
        agent = self._scheduler.current.agent
        for learned in agent.lanes.values():
            agent.see(learned)
        agent.lanes.clear()
        agent.tick()

    def proxy_fence(self) -> None:
        """TMA loads that follow see what the program has acquired so far."""
        agent = self._scheduler.current.agent
        agent.fenced = dict(agent.clock)

    def wait_tma_stores(self) -> None:
        """All TMA stores of the program have landed (``cp.async.bulk.wait_group 0``)."""
        fibre = self._scheduler.current
        if fibre.tma is not None:
            fibre.tma.tick()
            fibre.agent.see(fibre.tma.clock)

    @staticmethod
    def _tma_agent(fibre: Fibre) -> Agent:
        """The agent of the program's TMA stores, which act after what the program has done so far."""
        program = fibre.agent
        if fibre.tma is None:
            fibre.tma = Agent(program.name, program.rank, "tma", program.clock)
        fibre.tma.see(program.clock)
        fibre.tma.clock[program.id] = program.step
        return fibre.tma

    # polling

    def resolve(
        self, ptrs: np.ndarray, mask: np.ndarray | None, itemsize: int, verb: str
    ) -> list[tuple[Buffer, np.ndarray, np.ndarray | None]]:
        """The buffers that the running program's pointers lead to, as `Addresses.resolve`."""
        return self._addresses.resolve(self._scheduler.current, ptrs, mask, itemsize, verb)

    def sleep(self) -> None:
        """The running program sleeps until one of the words in its ``polls`` changes."""
        self._sleep(self._scheduler.current)

    def _progress(self, fibre: Fibre) -> None:
        fibre.polls.clear()
        self._scheduler.progress = True

    def _repeats(self, fibre: Fibre, buffer: Buffer, offset: int, value: Any) -> int:
        """How often in a row the program has now read this word and found it unchanged."""
        address = buffer.start + offset
        last = fibre.polls.get(address)
        if last is None or last[0] != value:
            fibre.polls[address] = (value, 1)
            self._scheduler.progress = True
            return 1
        fibre.polls[address] = (value, last[1] + 1)
        return last[1] + 1

    def _sleep(self, fibre: Fibre) -> None:
        """Sleeps until one of the words the program has been polling changes."""
        words = []
        for address, (value, _) in fibre.polls.items():
            buffer = self._memory.at(address)
            assert buffer is not None
            entry = (fibre, value)
            buffer.sleepers.setdefault(address - buffer.start, []).append(entry)
            words.append((buffer, address - buffer.start, entry))
        fibre.where = where_in_kernel(fibre)
        wanted = _wanted()
        most = max(count for _, count in fibre.polls.values())
        polled = [word for word, (_, count) in zip(words, fibre.polls.values(), strict=True) if count == most]
        texts = [buffer.element(offset >> buffer.shift) for buffer, offset, _ in polled]
        seen = [entry[1] for _, _, entry in polled]

        def what() -> str:
            listed = [f"{text} to reach {wanted}, saw {value}" if wanted is not None else f"{text}, saw {value}"
                      for text, value in zip(texts, seen, strict=True)]  # fmt: skip
            return " or ".join(listed)

        try:
            self._scheduler.sleep(what)
        finally:
            for buffer, offset, entry in words:
                waiting = buffer.sleepers.get(offset)
                if waiting is not None:
                    if entry in waiting:
                        waiting.remove(entry)
                    if not waiting:
                        del buffer.sleepers[offset]

    def sleep_on(self, buffer: Buffer, offset: int, what: Callable[[], str]) -> None:
        """Blocks the running fibre until the 64-bit word at byte ``offset`` changes; ``what`` says what it needs."""
        fibre = self._scheduler.current
        entry = (fibre, buffer.view(np.dtype(np.int64))[offset // 8])
        buffer.sleepers.setdefault(offset, []).append(entry)
        fibre.holds = True
        try:
            self._scheduler.block(what)
            fibre.holds = False
        finally:
            waiting = buffer.sleepers[offset]
            waiting.remove(entry)
            if not waiting:
                del buffer.sleepers[offset]

    def changed(self, buffer: Buffer) -> None:
        """Wakes programs whose polled word in ``buffer`` has changed."""
        if not buffer.sleepers:
            return
        for offset, waiting in buffer.sleepers.items():
            for fibre, seen in waiting:
                dtype = np.asarray(seen).dtype
                if buffer.view(dtype)[offset // dtype.itemsize] != seen:
                    self._scheduler.wake(fibre)


def _wanted() -> Any:
    """The value a poll in `overlap.language` waits for, read from its frame."""
    frame: Any = sys._getframe(2)
    for _ in range(40):
        if frame is None:
            return None
        if frame.f_code.co_name == "poll" and "wanted" in frame.f_locals:
            value = frame.f_locals["wanted"]
            data = getattr(getattr(value, "handle", None), "data", value)
            return np.asarray(data).reshape(-1)[0]
        frame = frame.f_back
    return None
