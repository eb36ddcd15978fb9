"""What packets (`overlap.language.packets`) do on simulated ranks.

    send      each word lands by itself, in any order
    receive   looks, sleeps until a word that is missing changes, looks again

A word orders nothing but itself, so neither is a release or an acquire for anything else. What a call may rely on is the end
of kernels: a word tells its reader what its sender's kernel was launched behind, and the reader's stream knows that once the
reading kernel has ended. A word that is sent over one whose reader is not known to be done is a race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overlap.language.packets import SENDERS, receive_assembly, send_assembly

from .addresses import where_in_kernel
from .asm import register
from .clocks import Clock
from .memory import Buffer

if TYPE_CHECKING:
    from .world import World

_WORD = np.dtype(np.int64)
_HALF = np.int64(0xFFFFFFFF)


class Packets:
    """Packets of the programs of a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._senders: list[Clock] = [{}]
        """What senders were launched behind; words name it by number."""
        self._numbers: dict[int, int] = {}
        self._sent: dict[int, np.ndarray] = {}
        """By buffer, for each word: the number of its sender."""

    def send(self, address: np.ndarray, data: np.ndarray, mark: np.ndarray, there: np.ndarray) -> None:
        """Stores words one by one, in an order that the run chooses."""
        chooser = self._world.scheduler.chooser
        address, data, mark = (part.reshape(-1) for part in (address, data, mark))
        chosen = there.reshape(-1) != 0
        middle = chooser.number(len(address) + 1)
        parts = [(half, behind) for half in (0, 1) for behind in (False, True)]
        while parts:
            half, behind = parts.pop(chooser.number(len(parts)))
            mask = chosen.copy()
            mask[: middle if behind else None] &= not behind
            mask[None if behind else middle :] &= behind
            words = data >> np.int64(32 * half) & _HALF | mark.astype(np.int64) << np.int64(32)
            self._store(address + 8 * half, words, mask)

    def _store(self, address: np.ndarray, words: np.ndarray, mask: np.ndarray) -> None:
        world, fibre = self._world, self._world.scheduler.current
        fibre.polls.clear()
        for buffer, offsets, chosen in self._resolve(address, mask, "sends to"):
            world.scheduler.pause()
            access = world.shadow.access(fibre.agent, "sends", where_in_kernel(fibre), "sys")
            world.shadow.send(buffer, buffer.granules(offsets, 8), access)
            buffer.view(_WORD)[offsets // 8] = words if chosen is None else words[chosen]
            self._numbers_of(buffer)[offsets // 8] = self._number(fibre.agent)
            world.scheduler.progress = True
            world.kernel_memory.changed(buffer)

    def receive(
        self, addresses: list[np.ndarray], mark: np.ndarray, wanted: np.ndarray, limit: int
    ) -> list[np.ndarray]:
        """Data of every sender's lines, the lines left (bits), the mark of one that was left."""
        world, fibre = self._world, self._world.scheduler.current
        shape = wanted.shape
        left, seen = wanted.reshape(-1).astype(np.int32).copy(), np.zeros(wanted.size, np.int32)
        wanted_mark = mark.reshape(-1).astype(np.int64) & _HALF
        data = [np.zeros(wanted.size, np.int64) for _ in addresses]
        looks = 0
        while True:
            world.scheduler.pause()
            missing: list[int] = []
            for k, address in enumerate(addresses):
                opened = (left >> k) & 1 != 0
                first, second = (self._look(address.reshape(-1) + 8 * half, opened) for half in (0, 1))
                come = opened & ((first >> 32) & _HALF == wanted_mark) & ((second >> 32) & _HALF == wanted_mark)
                seen[opened] = ((first >> 32) & _HALF).astype(np.uint32).view(np.int32)[opened]
                data[k][come] = (first & _HALF | second << np.int64(32))[come]
                for half in (0, 1):
                    self._take(address.reshape(-1) + 8 * half, come)
                left[come] &= ~np.int32(1 << k)
                for lane in np.flatnonzero(opened & ~come)[:1]:
                    late = 0 if (first[lane] >> 32) & _HALF != wanted_mark[lane] else 8
                    missing.append(int(address.reshape(-1)[lane]) + late)
            if not missing:
                break
            looks += 1
            most = self._limit(limit)
            if most and looks >= int(most[0]):
                most[0] = 1
                break
            self._sleep(missing[0])
        fibre.polls.clear()
        return [*(part.reshape(shape) for part in data), left.reshape(shape), seen.reshape(shape)]

    def _look(self, address: np.ndarray, mask: np.ndarray) -> np.ndarray:
        found = np.zeros(len(address), np.int64)
        for buffer, offsets, chosen in self._resolve(address, mask, "looks at"):
            found[slice(None) if chosen is None else chosen] = buffer.view(_WORD)[offsets // 8]
        return found

    def _take(self, address: np.ndarray, mask: np.ndarray) -> None:
        """Notes that words have been read, and what their senders were launched behind."""
        world, fibre = self._world, self._world.scheduler.current
        for buffer, offsets, _ in self._resolve(address, mask, "takes"):
            access = world.shadow.access(fibre.agent, "takes", where_in_kernel(fibre))
            world.shadow.take(buffer, buffer.granules(offsets, 8), access)
            for number in np.unique(self._numbers_of(buffer)[offsets // 8]).tolist():
                for agent, step in self._senders[number].items():
                    if fibre.agent.heard.get(agent, 0) < step:
                        fibre.agent.heard[agent] = step

    def _sleep(self, address: int) -> None:
        world = self._world
        fibre = world.scheduler.current
        buffer = world.memory.at(address)
        assert buffer is not None
        fibre.polls = {address: (buffer.view(_WORD)[(address - buffer.start) // 8], 1)}
        world.kernel_memory.sleep()

    def _limit(self, address: int) -> Any:
        buffer = self._world.memory.at(address)
        assert buffer is not None
        place = (address - buffer.start) // 8
        word = buffer.view(_WORD)[place : place + 1]
        return word if word[0] else None

    def _resolve(self, address: np.ndarray, mask: np.ndarray, verb: str) -> Any:
        if not mask.any():
            return []
        return self._world.kernel_memory.resolve(address.astype(np.uint64), mask, 8, verb)

    def _numbers_of(self, buffer: Buffer) -> np.ndarray:
        found = self._sent.get(buffer.start)
        if found is None:
            found = self._sent[buffer.start] = np.zeros(len(buffer.bytes) // 8 + 1, np.int32)
        return found

    def _number(self, agent: Any) -> int:
        found = self._numbers.get(agent.id)
        if found is None:
            found = self._numbers[agent.id] = len(self._senders)
            self._senders.append(agent.begun)
        return found


def _send(world: World, address: Any, data: Any, mark: Any, there: Any) -> list[np.ndarray]:
    world.packets.send(address, data, mark, there)
    return [np.zeros(address.shape, np.int32)]


def _receive(world: World, *operands: Any) -> list[np.ndarray]:
    *addresses, mark, wanted, limit = operands
    return world.packets.receive(addresses, mark, wanted, int(limit.reshape(-1)[0]))


register(send_assembly(), _send)
for _senders in SENDERS:
    register(receive_assembly(_senders), _receive)
