"""`Transfer`: a plan without a kernel on a group: staged, moved, added up, given back, by the same launch protocol.

    given    what the rank holds before, one tensor a box of `Ends.before`
    results  what it holds after, one tensor for the bounding box of `plan.after`

All plans of a group share one workspace for tensors of the same dtypes: one epoch, one set of flags.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from overlap.backends.carriers import check_copied
from overlap.backends.copy_engine import COPY_ENGINE
from overlap.backends.nvshmem import NVSHMEM
from overlap.chunkplan.order import HappensBefore
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.chunkplan.region import bounding
from overlap.chunkplan.structure import check_structure
from overlap.chunkplan.verify import verify_plan
from overlap.errors import RuntimeContractError
from overlap.schedule.pieces import Values
from overlap.schedule.transfer import transfer_steps, transfer_sums
from overlap.schedule.turned import pulled_sums, push_instead

from ..bound_plan import BoundPlan
from ..group.meeting import first_difference
from ..group.reach import check_reach
from ..instances import instances
from ..launch.launch import launch_transfer
from ..memory.layout import RankLayout
from ..memory.need import Need, need_of
from ..memory.plan_tensor import PlanTensor, Staged
from ..protocol import Runtime
from ..workspace import Workspace, workspace_of
from .memory import boxes_of, tensor_layout


@dataclass(frozen=True)
class Service:
    """What owns the workspace of all transfers, in place of an operator."""

    name: str = "transfer"


SERVICE = Service()
KEPT = 128
"""Plans of a group that are kept ready. Where sizes change from call to call, each is a new plan."""

FIRST = "the first transfer by a plan"
"""The name of the meeting where it is made."""


def key_of(tensor: str, number: int) -> str:
    """The name under which box ``number`` of a tensor is given."""
    return f"{tensor}#{number}"


class TransferTensor(PlanTensor):
    """One tensor of a transfer. ``before``: the boxes of what this rank is given."""

    def __init__(
        self, name: str, plan: CommPlan, runtime: Runtime, dtype: torch.dtype, layouts: Sequence[RankLayout]
    ) -> None:
        ndim, rank = len(plan.tensor(name).shape), runtime.rank
        self.before = boxes_of(plan.before[rank], name, ndim)
        self.after = boxes_of(plan.after[rank], name, ndim)
        super().__init__(name, plan, runtime, dtype, layouts, bounding(self.after) or self.after[0])

    def staged(self, given: Mapping[str, torch.Tensor], from_caller: Collection[OpId] = ()) -> Iterator[Staged]:
        for number, box in enumerate(self.before):
            if not box.empty:
                everything = (slice(None),) * box.ndim
                yield Staged(key_of(self.name, number), everything, self.view(self.layout.own(box), box=box))


class Transfer(BoundPlan):
    """Steps and memory of one plan on this rank. Made by `transfer_for`, on all ranks at once.

    Args:
        dtypes: of the plan's tensors, in its order.
        lenient: carries out a plan that breaks its promise, or never ends, as far as it goes; for the simulator.

    Raises:
        PlanError: the plan does not keep its promise.
        UnsupportedError: it has a collective, or sums that are not carried out.
    """

    parts: dict[str, TransferTensor]

    def __init__(
        self, plan: CommPlan, runtime: Runtime, dtypes: Sequence[torch.dtype], *, lenient: bool = False
    ) -> None:
        if lenient:
            check_structure(plan)
        else:
            verify_plan(plan)
            check_copied(plan, "copy_engine")
        self.given = plan
        plan, values = carried(plan, lenient=lenient)
        between = len(set(runtime.nodes)) > 1
        check_reach(plan, runtime, lambda op: NVSHMEM if between else COPY_ENGINE)
        sums = [transfer_sums(plan, rank, values) for rank in range(runtime.world)]
        names = [spec.name for spec in plan.tensors]
        parts: dict[str, TransferTensor] = {}
        for name, dtype in zip(names, dtypes, strict=True):
            layouts = [tensor_layout(plan, name, rank, values, sums[rank]) for rank in range(runtime.world)]
            parts[name] = TransferTensor(name, plan, runtime, dtype, layouts)
        self.names = names
        self.turn = 0
        """The number of the last call, counted over all transfers of the group, which is the same on every rank."""
        workspace = workspace_of(SERVICE, runtime, tuple(dtypes))
        super().__init__(
            plan,
            runtime,
            parts,
            transfer_steps(plan, runtime.rank, values),
            _with_spare(need_of(plan, (), [part.size for part in parts.values()]), workspace),
            workspace,
            ", ".join(map(str, plan.tensors)),
        )

    @property
    def title(self) -> str:
        return f"plan {self.plan.name} of {', '.join(map(str, self.plan.tensors))}"


def transfer_for(
    plan: CommPlan,
    runtime: Runtime,
    dtypes: Sequence[torch.dtype],
    *,
    given: Sequence[torch.dtype] | None = None,
    lenient: bool = False,
) -> Transfer:
    """The transfer of a plan on a group; the first call makes it, collectively.

    Args:
        dtypes: of the plan's tensors as they travel; ``given``: as ranks hold them, by default the same. Bits that travel as
            integers would arrive as another dtype's, where ranks differ in it.

    Raises:
        RuntimeContractError: ranks that call with another plan or dtype; the first difference is named.
        DeadlineError: a rank does not come; or an earlier launch waited in vain.
        PlanError, UnsupportedError: as `Transfer`.
    """
    workspace_of(SERVICE, runtime, tuple(dtypes)).check()
    cache = instances(runtime)
    # Hashing a plan takes as long as it is; whoever passes the same object again is spared it.
    given = tuple(dtypes if given is None else given)
    quick, key = ("transfer", id(plan), given), ("transfer", plan, given)
    found: Transfer | None = cache.pop(quick, None)
    if found is None:
        found = cache.get(key)
        if found is None:
            _agree(plan, runtime, given)
            _make_room(cache)
            found = cache[key] = Transfer(plan, runtime, dtypes, lenient=lenient)
    if found.given is plan:
        cache[quick] = found
    found.turn = runtime.overlap_turns = getattr(runtime, "overlap_turns", 0) + 1  # type: ignore[attr-defined]
    found.refresh()
    return found


def _with_spare(need: Need, workspace: Workspace) -> Need:
    """Where memory must grow, it grows by half at least: sizes that change from call to call make it grow a few times only.

    Memory and sizes are the same on every rank, so the ranks grow alike.
    """
    room = workspace.memory.room if workspace.memory is not None else None
    if room is None:
        return need
    grown = (n if n <= has else max(n, has + has // 2) for n, has in zip(need.elements, room.elements, strict=True))
    return need._replace(elements=tuple(grown))


def _make_room(cache: dict[Any, Any]) -> None:
    """Forgets the transfer whose last call is longest ago, where there are many. Every rank forgets the same one."""
    keys: dict[int, list[Any]] = defaultdict(list)
    for key in cache:
        if isinstance(key, tuple) and key[0] == "transfer":
            keys[cache[key].turn].append(key)
    if len(keys) >= KEPT:
        oldest = keys[min(keys)]
        cache[oldest[0]].workspace.forget(cache[oldest[0]])
        for key in oldest:
            del cache[key]


def known_transfer(plan: CommPlan, runtime: Runtime) -> bool:
    """Whether a plan was carried out before on a group, so that its next call meets nobody."""
    return any(
        isinstance(key, tuple) and key[0] == "transfer" and key[1] in (plan, id(plan)) for key in instances(runtime)
    )


def carry_out(
    transfer: Transfer, given: Mapping[str, Sequence[torch.Tensor]], results: Mapping[str, torch.Tensor]
) -> None:
    """Enqueues one launch on this rank.

    Args:
        given: by tensor, what the rank holds: one tensor for each of the part's ``before`` boxes, of any strides. What is
            given of an empty box is not looked at.
        results: by tensor, where the bounding box of what the rank ends with goes; what lies between its chunks is left.
    """
    staged = {
        key_of(name, number): tensor
        for name, part in transfer.parts.items()
        for number, (box, tensor) in enumerate(zip(part.before, given.get(name, ()), strict=False))
        if not box.empty
    }
    with transfer.opening():
        launch_transfer(transfer, staged, results)


def _agree(plan: CommPlan, runtime: Runtime, dtypes: Sequence[torch.dtype]) -> None:
    facts = {
        "plan": plan.name,
        "tensors": ", ".join(map(str, plan.tensors)),
        "dtype": ", ".join(map(str, dtypes)),
        "what moves": hashlib.sha256(repr((plan.before, plan.after, plan.ops)).encode()).hexdigest()[:16],
    }
    for rank, theirs in enumerate(runtime.agree(FIRST, facts)):
        difference = first_difference(facts, theirs)
        if difference:
            raise RuntimeContractError(f"rank {runtime.rank} and rank {rank} transfer differently: {difference}")


def carried(plan: CommPlan, *, lenient: bool = False) -> tuple[CommPlan, Values]:
    """The plan as it is carried out, in which who adds a sum up sends it, with the value of every chunk."""
    values = _values(plan, lenient)
    pulls = pulled_sums(plan, values)
    if not pulls:
        return plan, values
    plan = push_instead(plan, pulls)
    return plan, _values(plan, lenient)


def _values(plan: CommPlan, lenient: bool) -> Values:
    order = HappensBefore(_without_cycles(plan)) if lenient else None
    return Values(plan, order, lenient=lenient)


def _without_cycles(plan: CommPlan) -> CommPlan:
    """The plan without dependencies that close a cycle, for an order of what never ends. Channels are ordered as before."""
    lanes: dict[OpId, OpId] = {}
    last: dict[tuple[int, int], OpId] = {}
    for op_id, op in plan.items():
        lane = (op_id[0], op.channel)
        if lane in last:
            lanes[op_id] = last[lane]
        last[lane] = op_id
    done: set[OpId] = set()
    waiting = [op_id for op_id, _ in plan.items()]
    depends = {op_id: op.depends for op_id, op in plan.items()}
    while waiting:
        ready = [op for op in waiting if lanes.get(op, op) in {*done, op} and done.issuperset(depends[op])]
        if not ready:
            first = next(op for op in waiting if lanes.get(op, op) in {*done, op})
            depends[first] = tuple(dep for dep in depends[first] if dep in done)
            ready = [first]
        done.update(ready)
        waiting = [op for op in waiting if op not in done]
    if all(depends[op_id] == op.depends for op_id, op in plan.items()):
        return plan
    return replace(
        plan,
        ops=tuple(
            tuple(replace(op, depends=depends[rank, index]) for index, op in enumerate(ops))
            for rank, ops in enumerate(plan.ops)
        ),
    )
