"""Names of the words of an instance's state tensor, for faults: "flag 2 (chunk from rank 3)"."""

from __future__ import annotations

from typing import Any

from overlap.schedule.table import S_COUNTER, S_EPOCH, S_FAULT, S_READY, S_SPIN_LIMIT, SLOT_WORDS, done_base, flag_base

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
        if slot in _FIXED:
            return _FIXED[slot]
        if slot < done_base(world):
            return f"the ready word of rank {slot - S_READY}"
        if slot < flag_base(world):
            return f"the done credit of rank {slot - done_base(world)}"
        flag = slot - flag_base(world)
        return f"flag {flag}{self._chunk(flag)}"

    def _chunk(self, flag: int) -> str:
        """Which operation raises a flag, as the rank's instance knows it."""
        for instance in reversed(list(getattr(self._runtime, "overlap_instances", {}).values())):
            if instance.state.data_ptr() != self._address:
                continue
            for op_id, slot in instance.slots[self._runtime.rank].items():
                if slot == flag:
                    op = instance.plan.op(op_id)
                    return f" ({op.dst.tensor}{op.dst.box} from rank {op.src_rank})"
        return ""
