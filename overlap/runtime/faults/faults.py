"""What a wait that gave up leaves behind, and how it reads to a user.

`overlap.language.poll` gives up after the spin limit that stands in the state words, and writes a record where the
state says: page-locked host memory, so that the host sees it at its next call without waiting for the device.

    state   fault slot, word 0: taken | word 1: address of the record | word 2: number of the instance launched last
    record  word 0: written | address of the flag | value wanted | value seen | number of the instance
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P
from overlap.errors import DeadlineError
from overlap.schedule.table import S_FAULT, S_READY, S_SPIN_LIMIT, SLOT_WORDS, done_base, flag_base

if TYPE_CHECKING:
    from ..bound_plan import BoundPlan
    from ..workspace import Memory

RECORD_WORDS = 5
LIMIT_WORD = S_SPIN_LIMIT * SLOT_WORDS
RECORD_WORD = S_FAULT * SLOT_WORDS + 1
INSTANCE_WORD = S_FAULT * SLOT_WORDS + 2


@dataclass(frozen=True)
class FaultRecord:
    """A wait that gave up: the flag's address, the value it wanted and the last it saw, the instance's number."""

    flag: int
    wanted: int
    seen: int
    instance: int


def deadline_error(
    name: str, memory: Memory, record: FaultRecord, instance: BoundPlan | None, seconds: float
) -> DeadlineError:
    """The error of a wait that gave up.

    Args:
        name: the operator's.
        memory: whose state words were waited for.
        instance: what was launched, where known.
        seconds: the deadline.
    """
    what, where = waited_for(memory, record.flag, instance)
    return DeadlineError(
        f"rank {memory.runtime.rank}: `{name}` waited {seconds:g} s for {what}: wanted launch {record.wanted}, "
        f"seen {record.seen}; its result is not valid, and neither is any launch after it",
        where=where,
        help="a peer has ended, has raised, or calls in another order; overlap.release(group) on all ranks starts anew",
    )


def waited_for(memory: Memory, address: int, instance: BoundPlan | None) -> tuple[str, Any]:
    """In words, the state word at ``address``, on this rank or a peer; and where the plan asks for it."""
    runtime = memory.runtime
    bytes_each = memory.state.numel() * memory.state.element_size()
    for rank, base in enumerate(memory.addresses):
        if base <= address < base + bytes_each:
            return _word(runtime.world, rank, (address - base) // (8 * SLOT_WORDS), instance)
    if memory.words is not None and instance is not None:
        sender = instance.sender(address)
        if sender is not None:
            return sender
    return f"the word at {address:#x}", None


def _word(world: int, holder: int, slot: int, instance: BoundPlan | None) -> tuple[str, Any]:
    if S_READY <= slot < done_base(world):
        return f"rank {slot - S_READY} to be ready", None
    if done_base(world) <= slot < flag_base(world):
        return f"rank {slot - done_base(world)} to finish the launch before", None
    flag = slot - flag_base(world)
    if instance is not None and flag >= 0:
        for op_id, number in instance.slots[holder].items():
            if number == flag:
                op = instance.plan.op(op_id)
                assert isinstance(op, P2P), "only copies have flags"
                said = f"{op.dst} from rank {op.src_rank} (flag {flag} of rank {holder}; "
                return f"{said}{name_op(instance.plan, op_id)})", instance.plan.where(op_id)
    return f"flag {flag} of rank {holder}", None
