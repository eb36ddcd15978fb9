"""What `overlap.language.awaits` does on simulated ranks: each lane acquires its own flag, and tells the others by a barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overlap.language.awaits import STREAM, await_assembly, barrier_assembly

from .addresses import where_in_kernel
from .asm import register

if TYPE_CHECKING:
    from .world import World

_WORD = np.dtype(np.int64)


def _await(world: World, address: Any, wanted: Any, there: Any, limit: Any) -> list[np.ndarray]:
    memory, fibre = world.kernel_memory, world.scheduler.current
    shape = np.broadcast(address, wanted, there).shape
    addresses, least, chosen = (np.broadcast_to(part, shape).reshape(-1) for part in (address, wanted, there))
    seen = least.astype(np.int64).copy()
    left = [lane for lane in range(seen.size) if chosen[lane]]
    looks, most = 0, _word(world, int(np.asarray(limit).reshape(-1)[0]))
    while left:
        world.scheduler.pause()
        missing = None
        for lane in list(left):
            at = int(addresses[lane])
            ((buffer, offsets, _),) = memory.resolve(np.array([at], np.uint64), None, 8, "polls")
            offset = int(offsets[0])
            value, word = buffer.view(_WORD)[offset // 8], buffer.word(offset)
            word.acquire_into(fibre.agent.lanes.setdefault(lane, {}), fibre.agent.rank, "sys")
            word.heard = True
            access = world.shadow.access(fibre.agent, "polls", where_in_kernel(fibre), "sys")
            world.shadow.atomic(buffer, buffer.granules(offsets, 8), access, modifies=False)
            seen[lane] = value
            if value >= least[lane]:
                left.remove(lane)
            elif missing is None:
                missing = at, value
        if missing is None:
            break
        looks += 1
        if most[0] and looks >= int(most[0]):
            most[0] = 1
            break
        fibre.polls = {missing[0]: (missing[1], 1)}
        memory.sleep()
    fibre.polls.clear()
    world.scheduler.progress = True
    return [seen.reshape(shape)]


def _word(world: World, address: int) -> Any:
    buffer = world.memory.at(address)
    assert buffer is not None
    place = (address - buffer.start) // 8
    return buffer.view(_WORD)[place : place + 1]


register(await_assembly(), _await)


def _barrier(world: World, number: Any) -> list[np.ndarray]:
    world.kernel_memory.barrier()
    return [np.asarray(number)]


register(barrier_assembly(), _barrier)
register(STREAM, lambda world, *_: [np.zeros(1, np.int32)])  # launches begin in the order of their stream
