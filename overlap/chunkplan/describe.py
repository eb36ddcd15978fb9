"""A plan as text for people: `overlap check` and `overlap explain` print this."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .groups import groups_of
from .plan import P2P, CommPlan, OpId


def describe(plan: CommPlan, rank: int | None = None) -> str:
    """The plan, or one rank of it: tensors, what each rank has, its operations in order, and what they come after."""
    return "\n".join(_lines(plan, range(plan.world) if rank is None else (rank,)))


def _lines(plan: CommPlan, ranks: range | tuple[int, ...]) -> Iterator[str]:
    total = sum(len(ops) for ops in plan.ops)
    tensors = ", ".join(str(spec) for spec in plan.tensors)
    ranks_of = "1 rank" if plan.world == 1 else f"{plan.world} ranks"
    ops_of = "1 operation" if total == 1 else f"{total} operations"
    yield f"plan {plan.name}: {ranks_of}, {tensors}, {ops_of}"
    for spec in plan.tensors:
        if spec.groups:
            groups = "; ".join(", ".join(map(str, members)) for members in groups_of(spec, plan.world))
            yield f"  {spec.name} is another tensor in each group: ranks {groups}"
    pushed: dict[int, list[OpId]] = defaultdict(list)
    for op_id, op in plan.items():
        if isinstance(op, P2P) and op.direction == "push":
            pushed[op.dst_rank].append(op_id)
    for rank in ranks:
        yield f"  rank {rank}: has {_held(plan, rank, 'before')}; ends with {_held(plan, rank, 'after')}"
        channels = {op.channel for op in plan.ops[rank]}
        for index, op in enumerate(plan.ops[rank]):
            line = f"    {index:>2}  {op}"
            if len(channels) > 1:
                line += f", channel {op.channel}"
            if op.dst.box.empty:
                line += ", empty"
            if op.backend:
                line += f", by {op.backend}"
            if op.depends:
                line += ", after " + ", ".join(f"rank {r} operation {i}" for r, i in op.depends)
            yield line
        for owner, index in pushed[rank]:
            yield f"     <  receives {plan.op((owner, index)).dst} from rank {owner} (its operation {index})"


def _held(plan: CommPlan, rank: int, what: str) -> str:
    chunks = plan.before[rank] if what == "before" else plan.after[rank]
    return ", ".join(str(chunk) for chunk in chunks if not chunk.box.empty) or "nothing"
