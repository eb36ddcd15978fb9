"""What no device can hold is left out before anything is compiled, each refusal counted by its reason.

Bounds are lower ones: the buffers and accumulators that a tile takes whatever the compiler does. What it needs besides is seen
when it compiles; a config that does not fit then fails its trial, which is counted as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from overlap.backends import backends
from overlap.chunkplan.cuts import units_in

from .config import Config

REGISTERS = 255
"""Of a thread, at most."""

Refuse = Callable[[Config], str]
"""Why a config cannot be, as a reason that many share; empty where it can."""


@dataclass(frozen=True)
class Limits:
    """Of a device: bytes of shared memory of a block, threads of a block, multiprocessors."""

    shared: int
    threads: int
    units: int


@dataclass(frozen=True)
class Tile:
    """What a config makes of a product's tile, by the kernel's parameters.

    ``m``, ``n``, ``k``: names of its block sizes. ``warps``, ``stages``: where the config does not say. ``result``: bytes of an
    element of the result, where a tile of it is stored from shared memory; 0: it is not.
    """

    m: str = "BLOCK_M"
    n: str = "BLOCK_N"
    k: str = "BLOCK_K"
    warps: int = 4
    stages: int = 3
    result: int = 0

    def refuse(self, config: Config, limits: Limits, itemsize: int) -> str:
        """Why a tile of these blocks cannot be; empty where it can, or where the config says nothing of it."""
        meta = dict(config.realization.meta)
        if not {self.m, self.n} <= set(meta):
            return ""
        m, n, k = meta[self.m], meta[self.n], meta.get(self.k, 16)
        if any(size < 1 or size & (size - 1) for size in (m, n, k)):
            return "block sizes that are no powers of two"
        threads = 32 * (config.realization.num_warps or self.warps)
        if threads > limits.threads:
            return "more threads than a block has"
        stages = config.realization.num_stages or self.stages
        if stages * (m + n) * k * itemsize + m * n * self.result > limits.shared:
            return "more shared memory than a block has"
        if m * n > threads * REGISTERS:
            return "more registers than a thread has"
        return ""


def by_limits(limits: Limits, itemsize: int, tile: Tile | None = None) -> Refuse:
    """What a device's limits refuse."""
    tile = tile or Tile()

    def refuse(config: Config) -> str:
        if config.serial:
            return ""
        if config.realization.comm_sms >= limits.units:
            return "no multiprocessor left to compute"
        return tile.refuse(config, limits, itemsize)

    return refuse


def by_rows(rows: int) -> Refuse:
    """Chunks of less than a row, where a shard has ``rows``."""
    return lambda config: (
        "chunks of less than a row" if not config.serial and units_in(config.realization.split) > rows else ""
    )


def in_words(config: Config) -> bool:
    """Whether a config's kernel sends what it makes in words that carry their own flag."""
    name = config.realization.backend
    return name in backends and backends[name].words


def by_words(received: int, most: int) -> Refuse:
    """Words of a result of which a rank gets ``received`` bytes, ``most`` or more: half of every word is its mark."""
    return lambda config: "too many bytes for words" if received >= most and in_words(config) else ""


@dataclass(frozen=True)
class Pruned:
    """What is left of a space, in its order, and how many were refused by reason."""

    kept: tuple[Config, ...]
    refused: Counter[str]

    def __str__(self) -> str:
        reasons = "; ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        return f"{len(self.kept)} configs" + (f", {sum(self.refused.values())} refused: {reasons}" if reasons else "")


def prune(configs: Iterable[Config], refusals: Iterable[Refuse]) -> Pruned:
    """Leaves out what any of ``refusals`` refuses, and what was there before; the first reason counts."""
    refusals = tuple(refusals)
    kept: dict[Config, None] = {}
    counted: Counter[str] = Counter()
    for config in configs:
        why = next(filter(None, (refuse(config) for refuse in refusals)), "")
        if why:
            counted[why] += 1
        else:
            kept.setdefault(config)
    return Pruned(tuple(kept), counted)
