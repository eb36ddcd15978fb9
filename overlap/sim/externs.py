"""What NVSHMEM's device functions (`overlap.language.nvshmem`) do on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from overlap.language import nvshmem

from .interpreter import BUILDER, Handle
from .puts import SIGNAL_OPS


def _number(value: Any) -> int:
    value = getattr(value, "value", value)
    return int(np.asarray(getattr(getattr(value, "handle", None), "data", value)).reshape(-1)[0])


def _twin(act: Callable[..., Any]) -> Callable[..., Any]:
    def twin(*args: Any, _semantic: Any = None) -> Any:
        result = act(*map(_number, args))
        return tl.tensor(Handle(np.array([result or 0], np.int32), tl.int32), tl.int32)

    return twin


def _put_signal(dst: int, src: int, size: int, signal: int, value: int, op: int, pe: int) -> None:
    BUILDER.world.puts.put(dst, src, size, pe, (signal, value, SIGNAL_OPS[op]))


def _my_pe() -> int:
    return int(BUILDER.world.puts.pe_of(BUILDER.world.scheduler.current.agent.rank))


def nvshmem_twins() -> list[tuple[Any, str, Any]]:
    """(module, name, twin) of every function."""
    acts: dict[str, Callable[..., Any]] = {
        "put_nbi": lambda dst, src, size, pe: BUILDER.world.puts.put(dst, src, size, pe),
        "get_nbi": lambda dst, src, size, pe: BUILDER.world.puts.get(dst, src, size, pe),
        "put_signal": _put_signal,
        "quiet": lambda: BUILDER.world.puts.quiet(),
        "fence": lambda: BUILDER.world.puts.fence(),
        "my_pe": _my_pe,
    }
    return [(nvshmem, name, _twin(act)) for name, act in acts.items()]
