"""Numpy twins of the inline assembly that kernels use, by its text.

Each word of `overlap.language` that is written in assembly is registered here with its effect on the memory model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from overlap.errors import UnsupportedError

Twin = Callable[..., Sequence[np.ndarray]]
"""Called with the world and the operands' arrays; returns one array an output."""

_TWINS: dict[str, Twin] = {}


def _normal(asm: str) -> str:
    return re.sub(r"\s+", " ", asm.strip())


def register(asm: str, twin: Twin) -> None:
    """Declares what a piece of assembly does."""
    _TWINS[_normal(asm)] = twin


def twin_of(asm: str) -> Twin:
    """The twin of a piece of assembly.

    Raises:
        UnsupportedError: none is registered.
    """
    found = _TWINS.get(_normal(asm))
    if found is None:
        raise UnsupportedError(
            f"inline assembly that the simulator does not know: {_normal(asm)[:80]}",
            help="register its meaning with overlap.sim.asm.register(text, function)",
        )
    return found


def _fenced_identity(world: Any, index: np.ndarray, *_: np.ndarray) -> list[np.ndarray]:
    world.kernel_memory.proxy_fence()
    return [index]


def _landed(world: Any, *operands: np.ndarray) -> list[np.ndarray]:
    world.kernel_memory.wait_tma_stores()
    return [operands[0] if operands else np.zeros(1, np.int32)]


def _steps(world: Any, *_: np.ndarray) -> list[np.ndarray]:
    return [np.array([world.scheduler.steps], np.int64)]


def _barrier(world: Any, *operands: np.ndarray) -> list[np.ndarray]:
    world.kernel_memory.barrier()
    return [operands[0] if operands else np.zeros(1, np.int32)]


def _landed_if(world: Any, value: np.ndarray, there: np.ndarray) -> list[np.ndarray]:
    return _landed_barrier(world, value) if there.any() else [value]


def _landed_barrier(world: Any, *operands: np.ndarray) -> list[np.ndarray]:
    world.kernel_memory.wait_tma_stores()
    return _barrier(world, *operands)


register("fence.proxy.async.global; mov.b32 $0, $1;", _fenced_identity)
register("mov.b32 $0, $1;", lambda world, value, *_: [value])
register("cp.async.bulk.wait_group 0; mov.b32 $0, $1;", _landed)
register("cp.async.bulk.wait_group 0; mov.u32 $0, 0;", _landed)
register("cp.async.bulk.wait_group 0; bar.sync 0; mov.b32 $0, $1;", _landed_barrier)
register(
    "{ .reg .pred there; setp.ne.b32 there, $2, 0; @there cp.async.bulk.wait_group 0; @there bar.sync 0; mov.b32 $0, $1; }",
    _landed_if,
)
register("bar.sync 0; mov.b32 $0, $1;", _barrier)
register("mov.u64 $0, %globaltimer;", _steps)
register("mov.u32 $0, %smid;", lambda world, *_: [np.array([world.scheduler.current.agent.rank], np.int32)])
