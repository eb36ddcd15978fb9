"""Tiles of a last wave that few multiprocessors take part in, or of a chunk that the product has waited for, made by a launch of
smaller ones behind the fused kernel.

    1856 tiles on 132 multiprocessors       14 waves of 132                               | 8 tiles, a whole wave's time
    the last 8 left to a second launch      14 waves of 132 | 64 blocks of an eighth of a tile, on 64 multiprocessors

    the last chunk feeds 24 tiles           ... nothing to do | it is here | 24 tiles, a whole tile's time
    left to a second launch                 ... nothing to do | it is here | 192 blocks of an eighth, on all multiprocessors

A persistent kernel makes its tiles in the order of the rank's schedule; those left out are the last ones of it, so whole waves
stay whole whatever divides what. The second launch follows on the same stream, behind every copy. A block adds up along K as
its tile would: the same products in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from overlap import settings
from overlap.api.auto import DTYPES
from overlap.chunkplan.cuts import Split, cut, weights_at
from overlap.runtime.calls.resolve import Bound
from overlap.runtime.instance import Instance
from overlap.runtime.kernels.entry import run_kernel
from overlap.runtime.protocol import Runtime
from overlap.runtime.repeat.repeat import KernelLaunch
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.model import Run
from overlap.schedule.table import HEADER_WORDS, RUN_WORDS
from overlap.schedule.tiles import Tile

from .blocks import Blocks, parts_of
from .kernels import gemm_tail_tma
from .products import Product, descriptors, warmed, weight_by
from .views import GatherView

WORTH = 0.01
"""Share of a product's time that a second launch must be predicted to save."""


class Tail(NamedTuple):
    """The last ``left`` of a product's tiles, in ``blocks`` that divide them."""

    left: int
    blocks: Blocks


NO_TAIL = Tail(0, Blocks(1, 1, 1, 1, 1))


def tail_of(
    product: Product,
    view: GatherView,
    runtime: Runtime,
    blocks: Blocks,
    backend: str,
    *,
    tma: bool,
    split: Split | None = None,
) -> Tail:
    """What of a product's tiles, of ``blocks``, a second launch makes; `NO_TAIL`: nothing.

    It is nothing where TMA does not take every operand, where programs of the kernel move chunks, which it has no wave of its
    own for, and of a call that is traced, whose tiles are the kernel's.

    Args:
        backend: that moves chunks.
        tma: whether TMA reads A.
        split: chunks that a shard is cut into, of a tensor that is gathered along its rows; None of any other.
    """
    asked = settings.get("tail")
    w = product.weight
    if asked == "never" or backend != "copy_engine" or not tma or settings.get("trace"):
        return NO_TAIL
    if weight_by(w) == "pointers" or product.result_by() != "rows":
        return NO_TAIL
    tiles = blocks.tiles(view.batch, view.rows, product.columns)
    found = parts_of(blocks)
    machine = _machine(runtime.world, settings.get("machine"))
    rate = machine.flops.get(DTYPES.get(w.dtype, ""), 0.0) / machine.units
    if tiles < runtime.sm_count or not found or not rate:
        return NO_TAIL

    def seconds(each: Blocks, count: int) -> float:
        tile = Tile(each.m, each.n, each.k, each.warps, each.stages)
        return -(-count // runtime.sm_count) * tile.seconds(view.depth, w.element_size(), rate)

    def smaller(count: int) -> tuple[float, Blocks]:
        times = ((seconds(each, count * (blocks.m // each.m) * (blocks.n // each.n)), each) for each in found)
        took, best = min(times, key=lambda pair: pair[0])
        return took + machine.kernel, best

    whole = seconds(blocks, tiles)
    saved: list[tuple[float, Tail]] = []
    wave = tiles % runtime.sm_count
    if wave and asked != "part":
        took, best = smaller(wave)
        saved.append((seconds(blocks, wave) - took, Tail(wave, best)))
    if split is not None and runtime.world > 1 and asked != "always":
        rows, arrival = _last_part(view, runtime.world, split, w.element_size(), machine)
        part = blocks.tiles(view.batch, rows, product.columns)
        # More than a wave of smaller ones loses what is gained: 192 of 128 x 256 as 384 of 128 x 128 gained nothing on two H200s.
        if 0 < part < tiles and (asked == "part" or 2 * part <= runtime.sm_count):
            took, best = smaller(part)
            ready = max(arrival, seconds(blocks, tiles - part))
            saved.append((max(whole, arrival + seconds(blocks, part)) - ready - took, Tail(part, best)))
    if not saved:
        return NO_TAIL
    most, tail = max(saved, key=lambda pair: pair[0])
    return tail if most > WORTH * whole or asked != "auto" else NO_TAIL


@cache
def _machine(world: int, name: str | None) -> Machine:
    return machine_for(world, name=name)


def _last_part(view: GatherView, world: int, split: Split, itemsize: int, machine: Machine) -> tuple[int, float]:
    """Rows of the chunk that comes last, and seconds from the first tile until it is here: one copy behind the other."""
    shard, seconds, rows = -(-view.rows // world), 0.0, 0
    for place in range(world - 1):
        for low, high in cut(shard, weights_at(split, place, world - 1)):
            if high > low:
                rows = high - low
                seconds += machine.inside.seconds(view.batch * rows * view.depth * itemsize) + machine.flag
    return rows, seconds


def tail_launches(
    tail: Tail,
    product: Product,
    view: GatherView,
    blocks: Blocks,
    instance: Instance,
    kernel: Any,
    arguments: Mapping[str, Any],
) -> list[KernelLaunch]:
    """The launches that make what a fused launch of ``kernel`` with ``arguments`` leaves out: one a run of its tiles.

    Of a run that is left out whole no tile has waited for its chunks, so a kernel that does goes ahead.
    """
    found: list[KernelLaunch] = []
    if not tail.left:
        return found
    table = instance.table(Bound(kernel, dict(arguments), {}))
    gathered = instance.buffer.view(view.batch, view.rows, view.depth)
    for number, first, count in last_tiles(table.schedule.runs, tail.left):
        run = table.schedule.runs[number]
        if not first and run.waits:
            found.append(_wait(table.words, HEADER_WORDS + number * RUN_WORDS, instance.state))
        found.append(_launch(tail, product, gathered, view, blocks, run, first, count))
    return found


def last_tiles(runs: Sequence[Run], left: int) -> Iterator[tuple[int, int, int]]:
    """Where the last ``left`` tiles of a schedule lie: numbers of runs, and in each the first position and how many there are."""
    begin = sum(run.tiles for run in runs) - left
    for number, run in enumerate(runs):
        first = max(0, begin - run.first)
        if first < run.tiles:
            yield number, first, run.tiles - first


def warm_tail(tail: Tail, product: Product, view: GatherView, runtime: Runtime, blocks: Blocks) -> None:
    """Compiles what `tail_launches` gives: nothing may be compiled or loaded behind a kernel that spins."""
    w, b, c = product.weight, product.bias, product.result
    aligned = None if b is None else (b.dtype, b.data_ptr() % 16)
    key = ("tail", tail, blocks, view, w.shape, w.stride(), w.dtype, c.dtype, aligned)
    if tail.left and key not in warmed(runtime):
        stand_in = torch.empty(1, 1, 8, dtype=w.dtype, device=c.device)  # as aligned as the gathered tensor
        run = Run(0, (0, 0, 0), (1, 1, 1))
        launch = _launch(tail, product, stand_in, view, blocks, run, 0, 1)
        words, state = (torch.empty(2, dtype=kind, device=c.device) for kind in (torch.int32, torch.int64))
        for each in (launch, _wait(words, 0, state)):
            runtime.warm(each.kernel, each.grid, each.arguments)
        warmed(runtime).add(key)


def _wait(table: torch.Tensor, run: int, state: torch.Tensor) -> KernelLaunch:
    """A kernel that waits for the chunks of a run, which begins at ``run`` in the table."""
    arguments = {"table": table, "run": run, "state": state, "num_warps": 1}
    return KernelLaunch(run_kernel, (1, 1, 1), arguments, frozenset(("table", "state")))


def _launch(
    tail: Tail,
    product: Product,
    gathered: torch.Tensor,
    view: GatherView,
    blocks: Blocks,
    run: Run,
    first: int,
    count: int,
) -> KernelLaunch:
    """``count`` tiles of ``blocks`` of a run, from its position ``first`` on."""
    part = tail.blocks
    a_desc, b_desc, c_desc = descriptors(product, gathered, view, part)
    (origin_b, origin_m, origin_n), (_, count_m, count_n) = run.origin, run.counts
    arguments = {
        "a_desc": a_desc, "b_desc": b_desc, "c_desc": c_desc, "bias_ptr": product.bias,
        "M": view.rows, "N": product.columns, "K": view.depth,
        "first": first, "count_m": count_m, "count_n": count_n,
        "origin_b": origin_b, "origin_m": origin_m, "origin_n": origin_n,
        "TILE_M": blocks.m, "TILE_N": blocks.n, "BLOCK_M": part.m, "BLOCK_N": part.n, "BLOCK_K": part.k,
        "GROUP_M": blocks.group_m, "B_BY": weight_by(product.weight), "HAS_BIAS": product.bias is not None,
        "num_warps": part.warps, "num_stages": part.stages,
    }  # fmt: skip
    grid = (count * (blocks.m // part.m) * (blocks.n // part.n), 1, 1)
    return KernelLaunch(gemm_tail_tma, grid, arguments, frozenset(("a_desc",)))
