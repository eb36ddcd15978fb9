"""A change of placements as collectives along one mesh axis after the other, for whoever has collectives: ``path=``.

    S(0) P -> R R on 2x4     all-reduce over axis 1, then all-gather over axis 0
    P P -> S(0) S(0)         reduce-scatter over axis 0, then over axis 1
    R -> S(0)                nothing moves

A step is one where the ranks along its axis hold, before and after, what a collective gives and takes. Cuts of one dimension
nest, the first axis outermost, so that gathers go from the innermost axis out and scatters from the outermost in, and some
changes lead over a layout that is whole along an axis: of all ways the one that moves least is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from overlap.errors import PlanError

from ..collectives.lower import check_path, lower_collective
from ..collectives.step import CollectiveStep, Kind
from ..links import Links
from ..mesh import Mesh
from ..plan import TensorSpec
from ..reduction import Reduction
from ..region import Box, bounding, shard_interval
from .moves import Moves
from .placement import Partial, Placement, Replicate, Shard, box_at


@dataclass(frozen=True)
class Way:
    """How the collectives of an import are carried out.

    Args:
        path: ``direct`` or ``synth``, as in `overlap.chunkplan.collectives.lower.lower_collective`.
        links: of all ranks, for ``synth``; a collective uses those inside its group.
        itemsize: bytes of an element, by which chunks are timed.

    Raises:
        PlanError: another path, or ``synth`` without links.
    """

    path: str
    links: Links | None = None
    itemsize: int = 2

    def __post_init__(self) -> None:
        check_path(self.path)
        if self.path == "synth" and self.links is None:
            raise PlanError(
                "nothing to make a plan for", help='`path="synth"` takes `links`, a link table of all ranks'
            )


def way_of(path: str, links: Links | None = None) -> Way | None:
    """The way that ``path=`` names; None for ``template``.

    Raises:
        PlanError: there is none, or ``synth`` without links.
    """
    check_path(path)
    return None if path == "template" else Way(path, links)


@dataclass(frozen=True)
class AxisStep:
    """One collective, or a cut that moves nothing (``kind`` None), along ``axis``; what ranks hold before and after it."""

    axis: int
    kind: Kind | None
    dim: int
    to_dim: int | None
    before: tuple[Box, ...]
    after: tuple[Box, ...]


def axis_steps(
    shape: Sequence[int],
    mesh: Mesh,
    before: Sequence[Placement],
    after: Sequence[Placement],
    order: Sequence[int] = (),
) -> tuple[AxisStep, ...]:
    """The steps that lead from one layout to the other and move least; of equals the fewest.

    Between its first and its last placement an axis may be whole on all of its ranks, so that there always are some.
    """
    words = [tuple(dict.fromkeys((old, new, Replicate()))) for old, new in zip(before, after, strict=True)]
    places = [mesh.coordinates(rank) for rank in range(mesh.world)]
    ends = tuple(word.index(new) for word, new in zip(words, after, strict=True))
    boxes: dict[tuple[int, ...], tuple[Box, ...]] = {}

    def held(state: tuple[int, ...]) -> tuple[Box, ...]:
        if state not in boxes:
            now = [word[number] for word, number in zip(words, state, strict=True)]
            boxes[state] = tuple(box_at(shape, mesh, now, at, order) for at in places)
        return boxes[state]

    # The shortest way through the layouts (Dijkstra); a state is the number of each axis' word.
    start = (0,) * len(words)
    # (elements moved, steps, a number that settles ties, state, steps to it)
    queue: list[tuple[int, int, int, tuple[int, ...], tuple[AxisStep, ...]]] = [(0, 0, 0, start, ())]
    numbers = count(1)
    done: set[tuple[int, ...]] = set()
    while queue:
        moved, taken, _, state, steps = heappop(queue)
        if state == ends:
            return steps
        if state in done:
            continue
        done.add(state)
        for axis, word in enumerate(words):
            for number, new in enumerate(word):
                old = word[state[axis]]
                following = (*state[:axis], number, *state[axis + 1 :])
                if number == state[axis] or isinstance(new, Partial) or following in done:
                    continue
                step = AxisStep(axis, *_kind(old, new), held(state), held(following))
                if all(_fits(step, group) for group in groups_along(mesh, axis)):
                    more = moved + _elements(step, mesh)
                    heappush(queue, (more, taken + 1, next(numbers), following, (*steps, step)))
    raise AssertionError("all axes whole, from the innermost out, are always on a way")


def _kind(old: Placement, new: Placement) -> tuple[Kind | None, int, int | None]:
    """The collective, the dimension of shards, and the one after an all-to-all."""
    if isinstance(old, Partial):
        return ("reduce_scatter", new.dim, None) if isinstance(new, Shard) else ("all_reduce", 0, None)
    if isinstance(old, Shard):
        return ("all_to_all", old.dim, new.dim) if isinstance(new, Shard) else ("all_gather", old.dim, None)
    return None, new.dim if isinstance(new, Shard) else 0, None


def groups_along(mesh: Mesh, axis: int) -> list[tuple[int, ...]]:
    """The ranks along an axis, once for each place on the others."""
    found = [mesh.group(mesh.names[axis], rank) for rank in range(mesh.world)]
    return list(dict.fromkeys(found))


def _fits(step: AxisStep, group: Sequence[int]) -> bool:
    """Whether the group holds what the collective takes and ends with what it gives."""
    whole = _whole(step, group)
    if whole is None:
        return False
    for member, rank in enumerate(group):
        cut = _cut(whole, step.dim, len(group), member) if whole.ndim else whole
        across = whole if step.to_dim is None else _cut(whole, step.to_dim, len(group), member)
        given, left = {
            "all_gather": (cut, whole),
            "reduce_scatter": (whole, cut),
            "all_reduce": (whole, whole),
            "all_to_all": (cut, across),
            None: (whole, cut),
        }[step.kind]
        if not (_same(step.before[rank], given) and _same(step.after[rank], left)):
            return False
    return True


def _whole(step: AxisStep, group: Sequence[int]) -> Box | None:
    """The box that a group shares: what its members hold together."""
    boxes = [*(step.before[rank] for rank in group), *(step.after[rank] for rank in group)]
    return bounding(boxes) or boxes[0]


def _cut(box: Box, dim: int, parts: int, number: int) -> Box:
    start, stop = shard_interval(box.hi[dim] - box.lo[dim], parts, number)
    return box.with_interval(dim, box.lo[dim] + start, box.lo[dim] + stop)


def _same(a: Box, b: Box) -> bool:
    return a == b or (a.empty and b.empty)


def _elements(step: AxisStep, mesh: Mesh) -> int:
    """Elements that the step moves, of all ranks together, by the best known algorithms."""
    if step.kind is None:
        return 0
    total = 0
    for group in groups_along(mesh, step.axis):
        whole = _whole(step, group)
        assert whole is not None
        size = whole.size * (len(group) - 1)
        total += {"all_reduce": 2 * size, "all_to_all": size // len(group)}.get(step.kind, size)
    return total


def carry_out(moves: Moves, mesh: Mesh, steps: Sequence[AxisStep], way: Way, reduction: Reduction) -> None:
    """Writes down the operations of all steps.

    Raises:
        PlanError: links of another world, or that do not join a group.
    """
    if way.links is not None and way.links.world != mesh.world:
        raise PlanError(
            f"mesh {mesh} with links of a world of {way.links.world}",
            help="give the link table of all ranks of the mesh",
        )
    for step in steps:
        if step.kind is None or mesh.sizes[step.axis] == 1:
            continue
        for group in groups_along(mesh, step.axis):
            whole = _whole(step, group)
            assert whole is not None
            if whole.empty:
                continue
            if way.path == "direct":
                moves.collective(
                    step.kind,
                    group,
                    [step.before[rank] for rank in group],
                    [step.after[rank] for rank in group],
                    reduction if step.kind in ("reduce_scatter", "all_reduce") else None,
                )
                continue
            assert way.links is not None
            inside = {pair: link for pair, link in way.links.classes.items() if set(pair) <= set(group)}
            switched = tuple(sorted({link.name for link in inside.values()} & set(way.links.switched)))
            plan = lower_collective(
                CollectiveStep(
                    step.kind,
                    TensorSpec(moves.tensor.name, whole.shape),
                    mesh.world,
                    # An all-reduce is worked on in pieces of the longest dimension.
                    whole.shape.index(max(whole.shape)) if step.kind == "all_reduce" and whole.ndim else step.dim,
                    step.to_dim,
                    ranks=group,
                    itemsize=way.itemsize,
                    reduction=reduction,
                ),
                path=way.path,
                links=Links(mesh.world, inside, switched),
                direction=moves.direction,
            )
            moves.place(plan, whole.lo)
        moves.close()
