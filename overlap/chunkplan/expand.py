"""`PlanTemplate` applied to a world and a tensor: loops unrolled, chunks placed, labels resolved.

Operations are written from the view of one rank and stand in the list of the rank that carries them out: the
destination's for a pull, the source's for a push. Lists are ordered by loop iteration first and by the rank the
operation was written for second, so a rotation written for receivers is a rotation for senders too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.errors import PlanError, SourceSpan

from .chunkexpr import Tensors
from .cuts import Split
from .environment import rank_env
from .expr import IntExpr
from .mesh import Mesh
from .plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId, TensorSpec
from .template import ChunkItem, Dependency, Item, Loop, OpItem, PlanTemplate

MAX_INSTANCES = 1_000_000
"""Loop iterations and operations of one plan; beyond, a typing mistake is likelier than a plan."""

Env = dict[str, Any]
Label = tuple[str, int, tuple[int, ...]]


@dataclass(frozen=True)
class _Instance:
    """One operation of one rank, before dependencies have ids."""

    key: tuple[int, ...]
    rank: int
    env: Env
    item: OpItem


def loop_steps(
    loops: tuple[Loop, ...], env: Mapping[str, Any], key: tuple[int, ...], taken: list[int] | None = None
) -> Iterator[tuple[tuple[int, ...], Env]]:
    """Every step of loops inside each other: its number in each, behind ``key``, and the values of all names.

    ``taken`` counts the steps of all loops, those that a condition leaves out too.
    """
    taken = [0] if taken is None else taken
    if not loops:
        yield key, dict(env)
        return
    loop, rest = loops[0], loops[1:]
    values = [bound(env) for bound in loop.bounds]
    if loop.is_range:
        start, stop, step = values if len(values) == 3 else [0, *values, 1][-3:]
        if step == 0:
            raise loop.bounds[2].error("a range whose step is 0", "leave the step out")
        if (stop - start) // step > MAX_INSTANCES:
            raise loop.bounds[0].error(f"a loop of more than {MAX_INSTANCES} steps", "make it shorter")
    for iteration, value in enumerate(range(*values) if loop.is_range else values):
        taken[0] += 1
        if taken[0] > MAX_INSTANCES:
            raise loop.bounds[0].error(f"more than {MAX_INSTANCES} loop steps", "make the loops shorter")
        inner = {**env, loop.name: value}
        if all(condition(inner) for condition in loop.conditions):
            yield from loop_steps(rest, inner, (*key, iteration), taken)


class Expansion:
    """Unrolls a template once.

    Args:
        world: number of ranks.
        tensors: the tensors by the names the file gives them.
        symbols: values of the names known everywhere (`split`, `dim`, `extent`, sizes, counts); `rank` and `world` are added.
        direction: what a `move` becomes, ``pull`` or ``push``.
        mesh: the grid of the ranks, under the plan's names for its axes; None where it names none.
    """

    def __init__(
        self,
        template: PlanTemplate,
        world: int,
        tensors: Tensors,
        symbols: Mapping[str, Any],
        direction: str,
        mesh: Mesh | None = None,
    ) -> None:
        self.template = template
        self.document = template.document
        self.world = world
        self.tensors = tensors
        self.symbols = {**symbols, "world": world}
        self.direction = direction
        self.mesh = mesh
        self.steps = 0
        self.splits: dict[OpId, Split] = {}
        """How operations with a key `split` are cut."""

    def plan(self, specs: tuple[TensorSpec, ...]) -> CommPlan:
        """The plan over ``specs``, without any splitting; ``splits`` is filled.

        Raises:
            PlanError: a rank, index, interval or label that does not exist, or a division by zero.
        """
        for rank in self.template.ranks:
            if rank >= self.world:
                raise self.document.error(
                    self.document.root, f"rank {rank} has a section in a world of {self.world}", help="remove it"
                )
        lists: list[list[_Instance]] = [[] for _ in range(self.world)]
        ids: dict[Label, OpId] = {}
        for instance in self._instances():
            owner = self._owner(instance)
            if instance.item.label is not None:
                ids[self._label(instance)] = (owner, len(lists[owner]))
            lists[owner].append(instance)
        sizes = [len(instances) for instances in lists]
        ops = tuple(tuple(self._op(instance, ids, sizes) for instance in instances) for instances in lists)
        for rank, instances in enumerate(lists):
            for index, instance in enumerate(instances):
                if instance.item.split is not None:
                    self.splits[rank, index] = instance.item.split(instance.env)
        spans: tuple[tuple[SourceSpan, ...], ...] = tuple(
            tuple(self.document.span(instance.item.node) for instance in instances) for instances in lists
        )
        return CommPlan(
            name=self.template.name,
            world=self.world,
            tensors=specs,
            before=tuple(self._held(rank, "before") for rank in range(self.world)),
            after=tuple(self._held(rank, "after") for rank in range(self.world)),
            ops=ops,
            meta=dict(self.template.meta),
            span=self.document.span(self.document.root),
            spans=spans,
            mesh=self.mesh,
        )

    # Unrolling

    def _env(self, rank: int) -> Env:
        return rank_env(self.template, self.symbols, self.mesh, rank)

    def _count(self, item: Item) -> None:
        self.steps += 1
        if self.steps > MAX_INSTANCES:
            raise self.document.error(item.node, f"more than {MAX_INSTANCES} loop steps", help="make the loops shorter")

    def _instances(self) -> list[_Instance]:
        found: list[_Instance] = []
        for rank in range(self.world):
            for key, env, leaf in self._leaves(self.template.ops, self._env(rank), (0,)):
                found.append(_Instance(key, rank, env, leaf))  # type: ignore[arg-type]
        for rank, section in self.template.ranks.items():
            for key, env, leaf in self._leaves(section.ops, self._env(rank), (1,)):
                found.append(_Instance(key, rank, env, leaf))  # type: ignore[arg-type]
        found.sort(key=lambda instance: (instance.key, instance.rank))
        return found

    def _leaves(
        self, items: tuple[Item, ...], env: Env, key: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], Env, OpItem | ChunkItem]]:
        """Operations or chunks under ``items`` with their values; the keys put them in program order."""
        for position, item in enumerate(items):
            for step, inner in loop_steps(item.loops, env, (*key, position)):
                self._count(item)
                for name, value in item.lets:
                    inner[name] = value(inner)
                if item.when is not None and not item.when(inner):
                    continue
                for place, leaf in enumerate(item.body):
                    if isinstance(leaf, Item):
                        yield from self._leaves((leaf,), inner, (*step, place))
                    else:
                        yield (*step, place), inner, leaf

    def _held(self, rank: int, what: str) -> tuple[Chunk, ...]:
        section = self.template.ranks.get(rank)
        own = getattr(section, what) if section else None
        items = (*(getattr(self.template, what) or ()), *(own or ()))
        leaves = self._leaves(items, self._env(rank), ())
        return tuple(leaf.chunk(env, self.tensors) for _, env, leaf in leaves)

    # One operation

    def _rank(self, expr: IntExpr, env: Env) -> int:
        rank = expr(env)
        if not 0 <= rank < self.world:
            raise expr.error(
                f"there is no rank {rank} in a world of {self.world} (for rank {env['rank']})",
                f"ranks are 0 to {self.world - 1}; `({expr.text}) % world` wraps around, `when` leaves one out",
            )
        return rank

    def _ends(self, instance: _Instance) -> tuple[str, int, int]:
        """Direction, source and destination of a point-to-point operation."""
        item, env, rank = instance.item, instance.env, instance.rank
        source = self._rank(item.source, env) if item.source else rank
        target = self._rank(item.target, env) if item.target else rank
        direction = self.direction if item.verb == "move" else item.verb
        if direction != "local" and source == target:
            raise (item.source or item.target).error(  # type: ignore[union-attr]
                f"rank {source} would {item.verb} to itself",
                "start the loop at 1, leave the operation out with `when`, or write `local`",
            )
        return direction, source, target

    def _owner(self, instance: _Instance) -> int:
        if instance.item.verb == "collective":
            return instance.rank
        direction, source, target = self._ends(instance)
        return source if direction == "push" else target

    def _op(self, instance: _Instance, ids: Mapping[Label, OpId], sizes: list[int]) -> CommOp:
        item, env = instance.item, instance.env
        src = item.chunk(env, self.tensors)
        dst = item.into(env, self.tensors) if item.into else src
        if item.verb != "collective" and src.box.shape != dst.box.shape:
            raise self.document.error(
                item.node, f"{src} does not fit into {dst}", help="give `into` a chunk of the same shape"
            )
        channel = item.channel(env) if item.channel else 0
        if channel < 0:
            assert item.channel is not None
            raise item.channel.error(f"channel {channel}", "channels are counted from 0")
        depends = tuple(
            self._dependency(dependency, instance.rank, inner, ids, sizes)
            for dependency in item.depends
            for _, inner in loop_steps(dependency.loops, env, ())
            if dependency.when is None or dependency.when(inner)
        )
        if item.verb == "collective":
            ranks = tuple(self._rank(expr, env) for expr in item.ranks) or tuple(range(self.world))
            return Collective(item.kind, ranks, src, dst, depends, channel, item.reduce, item.backend)  # type: ignore[arg-type]
        direction, source, target = self._ends(instance)
        return P2P(direction, source, target, src, dst, depends, channel, item.reduce, item.backend)  # type: ignore[arg-type]

    def _label(self, instance: _Instance) -> Label:
        item = instance.item
        return (item.label or "", instance.rank, tuple(instance.env[name] for name in item.loops))

    def _dependency(
        self, dependency: Dependency, own: int, env: Env, ids: Mapping[Label, OpId], sizes: list[int]
    ) -> OpId:
        rank = self._rank(dependency.rank, env) if dependency.rank else own
        if dependency.index is not None:
            index = dependency.index(env)
            if not 0 <= index < sizes[rank]:
                raise dependency.index.error(
                    f"rank {rank} has no operation {index}",
                    f"it has {sizes[rank]}, counted from 0; `when` leaves a dependency out",
                )
            return rank, index
        values = {**env, **{name: value(env) for name, value in dependency.values}}
        label = dependency.label or ""
        loops = self.template.labels[label].loops
        try:
            return ids[label, rank, tuple(values[name] for name in loops)]
        except KeyError:
            raise self._no_instance(dependency, label, rank, {name: values[name] for name in loops}) from None

    def _no_instance(self, dependency: Dependency, label: str, rank: int, values: Mapping[str, int]) -> PlanError:
        place = ", ".join(f"{name} = {value}" for name, value in {"rank": rank, **values}.items())
        return self.document.error(
            dependency.node,
            f"there is no `{label}` with {place}",
            help="leave the dependency out where its operation does not exist, as in `when: step > 1`",
        )
