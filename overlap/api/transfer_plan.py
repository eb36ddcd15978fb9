"""Which plan a transfer carries out: a template or a collective applied to what this rank holds, or a plan as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

from overlap.backends import backend
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.collectives.lower import lower_collective
from overlap.chunkplan.collectives.step import CollectiveStep, Kind
from overlap.chunkplan.counts import CountArray
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.document import nearest
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.links import Links
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import Mesh, mesh_of_ranks, parse_mesh
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.reader import read_template
from overlap.errors import PlanError, RuntimeContractError, UsageError
from overlap.runtime.transfer.transfer import boxes_of

COLLECTIVES = get_args(Kind)
GIVE_SHAPE = "pass shape= with the global shape of the tensor; shards follow torch.chunk along dim"
_KEPT = 256
"""Plans that are remembered by what they were made from."""
_PLANS: OrderedDict[Any, CommPlan] = OrderedDict()

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """What a caller asks for besides the plan's name and the tensor."""

    mesh: Mesh | None
    dim: int
    to_dim: int | None
    split: Split
    path: str
    direction: str | None
    links: Links | None
    counts: Mapping[str, Any] | None


def plan_of(
    plan: str, held: Mapping[str, Shape | None], shape: Shape | None, world: int, rank: int, wanted: Wanted
) -> CommPlan:
    """The plan called ``plan``, applied to the first of its tensors that is given.

    Args:
        plan: a template, the path of a YAML file, or a collective.
        held: by tensor, the shape of what this rank holds of it; None where that is nothing, or several tensors.
        shape: the global shape; None: as many shards along ``dim`` of what is held as there are ranks, or what is held
            where the plan wants all of it; with counts, as long along ``dim`` as they add up to.

    Raises:
        PlanError: no such plan, or it cannot be made for this tensor, world or mesh.
        UsageError: the global shape cannot be told from what this rank holds.
    """
    text, path = "", plan
    if plan not in COLLECTIVES:
        if wanted.path != "template":
            raise UsageError(
                f"path={wanted.path!r} makes a plan of a collective, and `{plan}` is none",
                help=f"{nearest(plan, COLLECTIVES)}; or leave path out",
            )
        try:
            path, text = _found(plan)
        except PlanError as error:
            known = (*list_templates(), *COLLECTIVES)
            raise PlanError(
                error.message, help=error.help if plan.endswith((".yaml", ".yml")) else nearest(plan, known)
            ) from None
    counts = None if wanted.counts is None else repr(sorted((k, _plain(v)) for k, v in wanted.counts.items()))
    links = None if wanted.links is None else repr(wanted.links)
    asked = replace(wanted, links=None, counts=None)
    key = (plan, text, tuple(held.items()), shape, world, rank, asked, links, counts)
    found = _PLANS.get(key)
    if found is not None:
        _PLANS.move_to_end(key)
        return found
    declared = [decl.name for decl in read_template(text, path).tensors] if text else []
    name = next((name for name in declared if name in held), next(iter(held), "x"))
    local = held.get(name)
    if shape is None and wanted.counts:
        shape = _counted(local, wanted.dim, wanted.counts)
    for candidate in [shape] if shape is not None else _candidates(local, wanted.dim, world):
        made = _made(plan, text, path, name, candidate, world, wanted)
        boxes = boxes_of(made.before[rank], name, len(candidate))
        if shape is not None or (len(boxes) == 1 and boxes[0].shape == local):
            _PLANS[key] = made
            while len(_PLANS) > _KEPT:
                _PLANS.popitem(last=False)
            return made
    said = "nothing" if local is None else f"a tensor of shape {local}"
    raise UsageError(
        f"rank {rank} gives {said} of `{name}`, which does not say how large it is in all", help=GIVE_SHAPE
    )


@cache
def _shipped(name: str) -> tuple[str, str]:
    """A template that ships with the package, read once."""
    return find_template(name)


def _found(plan: str) -> tuple[str, str]:
    """A template as it is; the user's own file as it is now."""
    return find_template(plan) if plan.endswith((".yaml", ".yml")) or "/" in plan or "\\" in plan else _shipped(plan)


def _candidates(held: Shape | None, dim: int, world: int) -> list[Shape]:
    """Global shapes that a rank's tensor may be a piece of, or all of."""
    if held is None or not 0 <= dim < len(held):
        return [] if held is None else [held]
    sharded = tuple(n * world if d == dim else n for d, n in enumerate(held))
    return list(dict.fromkeys((sharded, held)))


def _counted(held: Shape | None, dim: int, counts: Mapping[str, Any]) -> Shape | None:
    """The global shape of a tensor whose rows are counted; None where it cannot be told, or the counts are none."""
    if held is None or not 0 <= dim < len(held):
        return None
    try:
        total = max(CountArray.of(given).sum() for given in counts.values())
    except PlanError:
        return held  # Refused where they are bound, with their place in the plan.
    return (*held[:dim], total, *held[dim + 1 :])


def _made(plan: str, text: str, path: str, name: str, shape: Shape, world: int, wanted: Wanted) -> CommPlan:
    spec = TensorSpec(name, shape)
    if plan in COLLECTIVES:
        step = CollectiveStep(plan, spec, world, wanted.dim, wanted.to_dim, split=wanted.split, mesh=wanted.mesh)  # type: ignore[arg-type]
        direction: Any = wanted.direction or "push"
        return lower_collective(step, path=wanted.path, links=wanted.links, direction=direction)

    def build(direction: str) -> CommPlan:
        return build_plan(
            text,
            world=world,
            tensor=spec,
            dim=wanted.dim,
            to_dim=wanted.to_dim,
            split=wanted.split,
            direction=direction,
            path=path,
            mesh=wanted.mesh,
            counts=wanted.counts,
        )

    made = build(wanted.direction or backend("copy_engine").default_direction)
    # Who adds a sum up knows when it is whole, and sends it.
    return build("push") if wanted.direction is None and reduced_tensors(made) else made


def _plain(counts: Any) -> Any:
    return counts.tolist() if hasattr(counts, "tolist") else counts


def mesh_for_group(mesh: Any, world: int, ranks: Sequence[int]) -> Mesh | None:
    """The mesh in which a group's ranks stand.

    Args:
        mesh: None, a `Mesh`, its text (``2x4``), or a DeviceMesh whose ranks are the group's, in order.
        ranks: the global ranks of the group, in its order.

    Raises:
        UsageError: something else.
        PlanError: a text that is no mesh.
        RuntimeContractError: a mesh of another number of ranks, or of other ranks, than the group has.
    """
    if mesh is None:
        return None
    if isinstance(mesh, str):
        mesh = parse_mesh(mesh)
    elif hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "mesh"):
        at = {rank: number for number, rank in enumerate(ranks)}
        try:
            mesh = mesh_of_ranks(_numbered(mesh.mesh.tolist(), at), tuple(mesh.mesh_dim_names or ()))
        except (PlanError, KeyError):
            raise RuntimeContractError(
                f"the mesh has ranks {mesh.mesh.flatten().tolist()}, the group has {list(ranks)}",
                help="pass group= with the ranks of the mesh, row by row",
            ) from None
    if not isinstance(mesh, Mesh):
        raise UsageError(f"mesh is a {type(mesh).__name__}", help='"2x4", an overlap Mesh, or a DeviceMesh')
    if mesh.world != world:
        raise RuntimeContractError(
            f"mesh {mesh} has {mesh.world} ranks, the group has {world}", help="pass the group that the mesh is made of"
        )
    return mesh


def _numbered(rows: Any, at: Mapping[int, int]) -> Any:
    return [_numbered(row, at) for row in rows] if isinstance(rows, list) else at[rows]
