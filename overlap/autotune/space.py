"""What the tuner tries of a prebuilt operator: plans that do the same x backends x pieces of a shard x programs that move them,
then tiles around the best.

    communication   plan, backend, split, comm_sms, sums      what the model orders (`ordered`)
    tiles           blocks, warps, stages, grouping           around the best of those (`around`)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from overlap import settings
from overlap.backends import backends
from overlap.backends.base import Realization
from overlap.backends.capabilities import Need
from overlap.backends.ways import LIBRARY_WAYS, able_ways, naming, way_named
from overlap.chunkplan.cuts import Split
from overlap.errors import OverlapError
from overlap.schedule.carried import Form, frees_tried, own_programs, programs_tried
from overlap.schedule.machine import Machine
from overlap.schedule.op_ways import operator_candidates, operator_task
from overlap.schedule.operators import TENSOR, Operator, operator_of, tensor_of
from overlap.schedule.predict import operator_plan
from overlap.schedule.product import itemsize_of
from overlap.schedule.tile_sums import parts_added
from overlap.schedule.tiles import Tile

from .config import Config
from .prune import Refuse, by_words, in_words

GATHERS = ("all_gather_1d", "all_gather_1d_pull", "all_gather_1d_push", "all_gather_ring")
PLANS: Mapping[str, tuple[str, ...]] = {
    "all_gather": GATHERS,
    "reduce_scatter": ("reduce_scatter_1d", "reduce_scatter_ring"),
    "all_reduce": ("all_reduce_two_shot", "all_reduce_one_shot", "all_reduce_ring"),
    "all_to_all": ("all_to_all_1d", "all_to_all_1d_push"),
}
"""Templates that do the same, by what they do."""
MIXED: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("mixed/all_gather_1d",),
    "reduce_scatter": ("mixed/reduce_scatter_1d",),
}
"""Templates some of whose operations name `MIXED_WITH`; the copy engine carries out the others. For three ranks or more."""
MIXED_WITH = "ldst_inline"
ONE_STEP = ("reduce_scatter_1d", "all_reduce_one_shot", "all_to_all_1d")
"""Templates that send nothing but what tiles make: what words carry, whole tiles each, whatever chunks are cut."""
WORDS_BELOW = 1 << 20
"""Bytes of a result that a rank gets, below which its words are tried inside of a product's launch."""
SPLITS: tuple[Split, ...] = (1, 2, 4, 8)
SHAPES: Mapping[str, tuple[Split, ...]] = {
    # What arrives last is small, so that few tiles are left behind it.
    "all_gather": (((1,), (1,), (3, 1)), ((1,), (1, 1), (2, 1, 1)), (3, 1)),
    # What is made first is small, so that links do not stand idle for long; what arrives last is summed behind the kernel.
    "reduce_scatter": ((1, 3), (1, 2, 1), (3, 4, 1)),
    # A small last part, whose sum leaves behind the product, of many: the others' are stored at peers beside it.
    "all_reduce": ((1, 3), (1, 2, 1), (2, 2, 2, 1, 1)),
    # Tiles need a part of every rank's: a small one first, so that they begin; later ones come while there is much to do.
    "all_to_all": ((1, 3), (1, 3, 4), (1, 2, 5), (1, 2, 4, 1)),
}
"""Splits of unequal parts, by what is communicated. Their weights add up to powers of two, so that parts of shards whose
rows are such a power end where tiles do."""
MODELLED = 24
"""Configs that go on from prediction to measurement."""
EACH = 2
"""Of each backend, so many go on in any case: the model knows them unequally well."""

Tiles = Sequence[Mapping[str, int]]
"""Launch arguments of tiles: block sizes, ``GROUP_M``, ``num_warps``, ``num_stages``."""


@dataclass(frozen=True)
class Product:
    """A product to tune.

    Args:
        op: as `overlap.schedule.operators` has it.
        sizes: M, N and K, global.
        dtype: as machines have it.
    """

    op: str
    sizes: Mapping[str, int]
    dtype: str
    world: int


def communication(
    product: Product, machine: Machine, need: Need, *, serial: bool = True, lacking: Callable[[str], str]
) -> tuple[tuple[Config, ...], Counter[str]]:
    """All configs of what is communicated, and those refused by the capability table, counted by reason.

    Args:
        machine: whose measured numbers of programs are tried.
        need: what the operator needs of a backend on the device that is here.
        lacking: why a backend, by its name, cannot serve the operator.
    """
    operator = operator_of(product.op, product.sizes)
    plans = PLANS[operator.kind]
    ways, refused = able_ways(need, serial=False, lacking=lacking)
    counted: Counter[str] = Counter()
    # Tiles that read all of what shards are cut in need a part of every rank's, as those behind an exchange.
    splits = splits_of("all_to_all" if operator.inside else operator.kind)
    for candidate in refused:
        counted[candidate.refused] += len(plans) * len(splits)
    found = [Config(Realization(name)) for name in LIBRARY_WAYS] if serial else []
    for way in ways:
        backend = backends[way.name]
        if backend.words:
            found += [Config(Realization(way.name), plan) for plan in plans if plan in ONE_STEP]
            continue
        # What tiles make is pushed whatever a template says.
        own = "push" if operator.produced else backend.default_direction
        for plan in _of_backend(plans, own, backend.directions):
            direction = "push" if plan.endswith("_push") else own
            programs: Iterable[int] = (0,)
            if way.form == "moves":
                programs = programs_tried(machine, direction, by=way.by) or (0,)
            found += [
                Config(Realization(way.name, split=split, comm_sms=count, sum_sms=free, tile_sums=tiles), plan)
                for split in splits
                for count in programs
                for free, tiles in _sums_tried(product, machine, plan, way.form, split)
            ]
    if product.world > 2 and {"copy_engine", MIXED_WITH} <= {way.name for way in ways}:
        found += mixed(operator.kind)
    return tuple(found), counted


def _sums_tried(
    product: Product, machine: Machine, plan: str, form: Form, split: Split
) -> tuple[tuple[int, int | None], ...]:
    """Units left to sums, and whether tiles add what comes of the part that their rank keeps: these are left none."""
    operator = operator_of(product.op, product.sizes)
    frees = frees_tried(machine, operator.produced, form, split)
    if form != "lanes" or plan != operator.plan or not can_add_in_tiles(operator, product, machine, split):
        return tuple((free, None) for free in frees)
    return ((0, 1), *((free, 0) for free in frees))


def can_add_in_tiles(operator: Operator, product: Product, machine: Machine, split: Split) -> bool:
    """Whether the pieces that a rank gets of a result are whole tiles, as the model cuts them."""
    task = operator_task(operator, product.world, product.sizes, machine, product.dtype)
    if not task.block:
        return False
    plan = operator_plan(operator, product.world, tensor_of(operator, product.sizes).shape, split)
    return parts_added(plan, TENSOR, task.block) is not None


def words_of(product: Product) -> Refuse:
    """What refuses low-latency words, by what a rank gets of the product's result."""
    operator, world = operator_of(product.op, product.sizes), product.world
    size = itemsize_of(product.dtype) * math.prod(product.sizes[axis] for axis in operator.moved)
    # Of an all-reduce in one step every peer's whole result, of a reduce-scatter its part of each, and of an exchange its part
    # of what each has, which is a part of the whole.
    shares = {"all_reduce": 1, "reduce_scatter": world, "all_to_all": world * world}
    received = size * (world - 1) // shares.get(operator.kind, 1)
    return by_words(received, min(WORDS_BELOW, settings.get("low_latency_below_bytes")))


def mixed(kind: str) -> list[Config]:
    """Configs whose operations several backends carry out."""
    return [Config(Realization(split=split), plan) for plan in MIXED.get(kind, ()) for split in SPLITS[:2]]


def splits_of(kind: str) -> tuple[Split, ...]:
    """What is tried of a collective's transfers."""
    return (*SPLITS, *SHAPES.get(kind, ()))


def _of_backend(plans: Sequence[str], own: str, directions: Collection[str]) -> tuple[str, ...]:
    """Without the plan that the ``own`` direction makes of a neutral one, and without directions that there are not."""
    neutral = {plan.rpartition("_")[0] for plan in plans if plan.endswith(("_pull", "_push"))}
    found = []
    for plan in plans:
        stem, _, direction = plan.rpartition("_")
        if stem in neutral and direction in ("pull", "push"):
            if direction == own or direction not in directions:
                continue
        found.append(plan)
    return tuple(found)


def predict(product: Product, machine: Machine, config: Config) -> float | None:
    """Seconds of a config on the slowest rank, or None where the model has no say; of one that names no number of moving
    programs with as many as it would have."""
    realization = config.realization
    produced = operator_of(product.op, product.sizes).produced
    tiles = None if realization.tile_sums is None else bool(realization.tile_sums)
    programs = realization.comm_sms or own_programs(machine)
    way = way_named(realization.backend, produced, programs, realization.sum_sms or 0, tiles)
    try:
        found = operator_candidates(
            product.op,
            [way],
            world=product.world,
            sizes=product.sizes,
            machine=machine,
            dtype=product.dtype,
            split=realization.split,
            plan=config.plan or None,
            tile=_tile_of(realization),
            named=naming(produced),
        )
    except OverlapError:
        return None
    return min((c.seconds for c in found if c.seconds is not None), default=None)


def _tile_of(realization: Realization) -> Tile | None:
    """The tile that a realization names, where it names all of it."""
    meta = dict(realization.meta)
    if not {"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= set(meta) or not realization.num_warps or not realization.num_stages:
        return None
    return Tile(meta["BLOCK_M"], meta["BLOCK_N"], meta["BLOCK_K"], realization.num_warps, realization.num_stages)


def ordered(
    configs: Iterable[Config], seconds: Callable[[Config], float | None], *, most: int = MODELLED, each: int = EACH
) -> tuple[tuple[Config, ...], dict[Config, float], int]:
    """The configs that go on to measurement, those predicted to take least first; predictions; how many stay behind.

    Args:
        most: of all; ``each``: of every backend at least.
    """
    configs = tuple(configs)
    predicted = {config: time for config in configs if (time := seconds(config)) is not None}
    # To a tenth of a microsecond: what the model holds for the same stays in its order.
    order = sorted(configs, key=lambda config: round(predicted.get(config, float("inf")), 7))
    taken: Counter[str] = Counter()
    first: list[Config] = []
    rest: list[Config] = []
    for config in order:
        name = config.realization.backend
        (first if taken[name] < each else rest).append(config)
        taken[name] += 1
    chosen = set((*first, *rest[: max(0, most - len(first))]))
    return tuple(config for config in order if config in chosen), predicted, len(order) - len(chosen)


def around(config: Config, tiles: Tiles) -> tuple[Config, ...]:
    """The config with other tiles, and with half and twice as many pieces (of equal ones) and programs."""
    if config.serial:
        return ()
    realization = config.realization
    found = [with_tile(config, tile) for tile in tiles]
    # Words go tile by tile, whatever a transfer is cut into.
    pieces = () if in_words(config) else realization.split
    for split in (pieces // 2, pieces * 2) if isinstance(pieces, int) else ():
        if split >= 1:
            found.append(replace(config, realization=replace(realization, split=split)))
    for programs in (realization.comm_sms // 2, realization.comm_sms * 2):
        if programs >= 1:
            found.append(replace(config, realization=replace(realization, comm_sms=programs)))
    return tuple(dict.fromkeys(found))


def with_tile(config: Config, tile: Mapping[str, int]) -> Config:
    """The config with the launch arguments of a tile."""
    meta = tuple(sorted((key, value) for key, value in tile.items() if key not in ("num_warps", "num_stages")))
    realization = replace(
        config.realization, num_warps=tile.get("num_warps"), num_stages=tile.get("num_stages"), meta=meta
    )
    return replace(config, realization=realization)
