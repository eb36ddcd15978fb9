"""Names of the words of an instance's state tensor, for faults: "flag 2 (chunk from rank 3)", "counter 1 (chunk)"."""

from __future__ import annotations

from typing import Any

from overlap.schedule.table import (
    S_COUNTER,
    S_EPOCH,
    S_FAULT,
    S_READY,
    S_SPIN_LIMIT,
    SLOT_WORDS,
    SUMS_WORD,
    counter_base,
    done_base,
    flag_base,
)

_FIXED = {
    S_EPOCH: "the epoch",
    S_COUNTER: "the entry counter",
    S_SPIN_LIMIT: "the spin limit",
    S_FAULT: "the fault record",
}


class StateWords:
    """Names the words of the state tensor at ``address`` of a rank, by `overlap.schedule.table`'s layout."""

    def __init__(self, runtime: Any, address: int) -> None:
        self._runtime = runtime
        self._address = address

    def __call__(self, word: int) -> str:
        slot, world = word // SLOT_WORDS, self._runtime.world
        if word == SUMS_WORD:
            return "the counter of a sum's programs"
        if slot in _FIXED:
            return _FIXED[slot]
        if slot < done_base(world):
            return f"the ready word of rank {slot - S_READY}"
        if slot < flag_base(world):
            return f"the done credit of rank {slot - done_base(world)}"
        instance = self._instance()
        if instance is not None and slot >= counter_base(world, instance.memory.room.flags):
            counter = slot - counter_base(world, instance.memory.room.flags)
            return f"counter {counter}{_made(instance, counter)}"
        flag = slot - flag_base(world)
        return f"flag {flag}{_arriving(instance, self._runtime.rank, flag)}"

    def _instance(self) -> Any:
        """The rank's last operator whose state this is."""
        for instance in reversed(list(getattr(self._runtime, "overlap_instances", {}).values())):
            if instance.state.data_ptr() == self._address:
                return instance
        return None


def _arriving(instance: Any, rank: int, flag: int) -> str:
    """Which operation raises a flag."""
    for op_id, slot in instance.slots[rank].items() if instance is not None else ():
        if slot == flag:
            op = instance.plan.op(op_id)
            return f" ({op.dst} from rank {op.src_rank})"
    return ""


def _made(instance: Any, slot: int) -> str:
    """Which chunk a counter stands for."""
    for schedule in reversed(list(instance._schedules.values())):
        for counter in schedule.counters:
            if counter.slot == slot:
                return f" ({counter.chunk})"
    return ""
