"""Structure of a plan: everything it names exists and fits together. The first of the verifier's steps."""

from __future__ import annotations

from overlap.errors import PlanError

from .groups import check_groups, check_spec
from .order import also_at, collective_groups, name_op
from .plan import Chunk, Collective, CommOp, CommPlan, OpId
from .reduction import check_reduction
from .region import uncovered


def check_structure(plan: CommPlan) -> None:
    """Every rank, index, tensor and box that the plan names exists.

    Raises:
        PlanError: the first one that does not.
    """
    if plan.world < 1:
        raise PlanError(
            f"plan {plan.name}: a world of {plan.world} ranks", where=plan.where(), help="a world has 1 rank or more"
        )
    for what, lists in (("ops", plan.ops), ("before", plan.before), ("after", plan.after)):
        if len(lists) != plan.world:
            raise PlanError(
                f"plan {plan.name}: `{what}` has {len(lists)} lists for a world of {plan.world}",
                where=plan.where(),
                help="give one a rank",
            )
    names = [spec.name for spec in plan.tensors]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(
            f"plan {plan.name}: tensor `{twice}` is declared twice", where=plan.where(), help="declare each tensor once"
        )
    for spec in plan.tensors:
        check_spec(plan, spec)
    for what, lists in (("before", plan.before), ("after", plan.after)):
        for rank, chunks in enumerate(lists):
            for chunk in chunks:
                _check_chunk(plan, chunk, f"`{what}` of rank {rank}", None)
    for op_id, op in plan.items():
        _check_op(plan, op_id, op)
    check_groups(plan)
    for members in collective_groups(plan):
        _check_collective(plan, members)
    _check_reductions(plan)


def _check_chunk(plan: CommPlan, chunk: Chunk, what: str, op_id: OpId | None) -> None:
    def named() -> str:
        return what if op_id is None else f"the {what} of {name_op(plan, op_id)}"

    where = plan.where(op_id)
    try:
        spec = plan.tensor(chunk.tensor)
    except KeyError:
        known = ", ".join(spec.name for spec in plan.tensors)
        raise PlanError(
            f"plan {plan.name}: {named()} names the tensor `{chunk.tensor}`",
            where=where,
            help=f"there is {known or 'none'}",
        ) from None
    if chunk.box.ndim != len(spec.shape) or not all(
        0 <= low and high <= size for low, high, size in zip(chunk.box.lo, chunk.box.hi, spec.shape, strict=True)
    ):
        raise PlanError(
            f"plan {plan.name}: {named()}, {chunk}, is not inside tensor {spec}",
            where=where,
            help="keep boxes inside the tensor",
        )


def _check_op(plan: CommPlan, op_id: OpId, op: CommOp) -> None:
    rank = op_id[0]

    def fail(message: str, help: str) -> PlanError:
        return PlanError(f"plan {plan.name}: {message}", where=plan.where(op_id), help=help)

    ranks = op.ranks if isinstance(op, Collective) else (op.src_rank, op.dst_rank)
    for named in ranks:
        if not 0 <= named < plan.world:
            raise fail(
                f"rank {rank} operation {op_id[1]} names rank {named} in a world of {plan.world}",
                f"ranks are 0 to {plan.world - 1}",
            )
    _check_chunk(plan, op.src, "source", op_id)
    if op.dst is not op.src:
        _check_chunk(plan, op.dst, "destination", op_id)
    for dep in op.depends:
        if not (0 <= dep[0] < plan.world and 0 <= dep[1] < len(plan.ops[dep[0]])):
            raise fail(
                f"{name_op(plan, op_id)} depends on rank {dep[0]} operation {dep[1]}, which does not exist",
                "a dependency is (rank, index into that rank's list), counted from 0",
            )
    if op.channel < 0:
        raise fail(f"{name_op(plan, op_id)} runs in channel {op.channel}", "channels are counted from 0")
    if isinstance(op, Collective):
        if rank not in op.ranks or len(set(op.ranks)) != len(op.ranks):
            raise fail(
                f"{name_op(plan, op_id)} stands in the list of rank {rank}",
                "a collective stands once in the list of each of its ranks",
            )
        return
    if (op.direction == "local") != (op.src_rank == op.dst_rank):
        raise fail(
            f"{name_op(plan, op_id)} goes from rank {op.src_rank} to rank {op.dst_rank} as `{op.direction}`",
            "`local` inside a rank, `pull` or `push` between two",
        )
    if op.owner != rank:
        raise fail(
            f"{name_op(plan, op_id)} stands in the list of rank {rank}, not of rank {op.owner}",
            "a push stands in the list of its source, a pull in that of its destination",
        )
    if op.src is op.dst:
        return
    if op.src.box.shape != op.dst.box.shape:
        raise fail(f"{name_op(plan, op_id)} moves {op.src} into {op.dst}", "source and destination have one shape")
    if op.src.tensor == op.dst.tensor and op.src.box != op.dst.box and not op.src.box.empty:
        raise fail(
            f"{name_op(plan, op_id)} puts {op.src} where {op.dst} belongs",
            "inside one tensor a chunk keeps its place; another place is another tensor",
        )


def _check_collective(plan: CommPlan, members: tuple[OpId, ...]) -> None:
    first = plan.op(members[0])
    assert isinstance(first, Collective)
    absent = sorted(set(first.ranks) - {rank for rank, _ in members})
    if absent:
        raise PlanError(
            f"plan {plan.name}: rank {absent[0]} never joins {name_op(plan, members[0])}",
            where=plan.where(members[0]),
            help="a collective stands in the list of each of its ranks, equally often",
        )
    if first.kind in ("all_gather", "all_to_all") and first.src.tensor == first.dst.tensor:
        given = [plan.op(member).src.box for member in members]
        for member in members:
            missing = uncovered(given, plan.op(member).dst.box)
            if missing:
                raise PlanError(
                    f"plan {plan.name}: no rank gives {Chunk(first.src.tensor, missing[0])} to {name_op(plan, member)}",
                    where=plan.where(member),
                    help=f"the sources of an {first.kind} make up its destination",
                )


def _check_reductions(plan: CommPlan) -> None:
    """Reductions are known, and a tensor has one."""
    first: dict[str, OpId] = {}
    for op_id, op in plan.items():
        if op.reduce is None:
            continue
        try:
            check_reduction(op.reduce)
        except PlanError as error:
            message = f"plan {plan.name}: {name_op(plan, op_id)}: {error.message}"
            raise PlanError(message, where=plan.where(op_id), help=error.help) from None
        other = first.setdefault(op.dst.tensor, op_id)
        if plan.op(other).reduce != op.reduce:
            raise PlanError(
                f"plan {plan.name}: {name_op(plan, op_id)} and {name_op(plan, other)} reduce {op.dst.tensor} "
                "in two ways",
                where=plan.where(op_id),
                help="one tensor has one reduction, with one accumulator" + also_at(plan, other, op_id),
            )
