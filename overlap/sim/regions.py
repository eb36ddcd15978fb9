"""Names of elements in the symmetric memory of communicated tensors: "c[260, 3] in the slot of rank 2's part of ...".

An address is looked up in the layouts (`overlap.runtime.memory.layout`) of the operators that ran last on that rank, so that a
fault says which copy of an element it means: what the kernel made, what a peer sent, or a sum to be sent on.
"""

from __future__ import annotations

from typing import Any


class RegionNames:
    """Names the elements of one symmetric buffer of a rank; called with an element's index, "" where it has no name.

    Args:
        runtime: the rank's.
        address: where the buffer starts.
    """

    def __init__(self, runtime: Any, address: int) -> None:
        self._runtime = runtime
        self._address = address

    def __call__(self, element: int) -> str:
        found = self._find(element)
        if found is None:
            return self.signal(element)
        return _told(*found, _index(found[1], element))

    def signal(self, word: int) -> str:
        """The signal that an int64 word is, of the tensors that kernels of users share."""
        for made in getattr(self._runtime, "overlap_symmetric", ()):
            if made.words_at(self._address):
                return made.signal_at(self._address + 8 * word)
        return ""

    def of_tensor(self) -> bool:
        """Whether the buffer is the memory of a communicated tensor, so that what is copied of it is data, not flags."""
        plans = getattr(self._runtime, "overlap_instances", {}).values()
        parts = [part for plan in plans for part in plan.parts.values()]
        return any(part.data is not None and part.data.data_ptr() == self._address for part in parts)

    def span(self, low: int, high: int) -> str:
        """Two elements of one region and what lies between, "" where they are in several."""
        first, last = self._find(low), self._find(high)
        if first is None or last is None or first[1] is not last[1]:
            return ""
        return _told(*first, f"{_index(first[1], low)} to {_index(first[1], high)}")

    def _find(self, element: int) -> tuple[str, Any, bool] | None:
        """(tensor, region, whether the kernel makes the tensor) that an element lies in."""
        for instance in reversed(list(getattr(self._runtime, "overlap_instances", {}).values())):
            for part in instance.parts.values():
                if part.data is None or part.data.data_ptr() != self._address:
                    continue
                layout = part.layout
                if not part.made and layout.source is None and not layout.places:
                    return None  # gathered: the kernel's own name for it says enough
                for region in layout.regions():
                    if region.offset <= element < region.end:
                        return part.name, region, part.made
        return None


def _told(tensor: str, region: Any, produced: bool, place: str) -> str:
    name = region.name
    if name in (tensor, f"partial {tensor}"):
        return f"{name}{place}"
    if name == f"{tensor} before":
        return f"{tensor}{place} as it was passed"
    return f"{tensor}{place} in the {name}"


def _index(region: Any, element: int) -> str:
    """Global coordinates of an element of a region."""
    left, places = element - region.offset, [0] * region.box.ndim
    for d in region.order:
        stride = region.strides[d]
        places[d] = region.box.lo[d] + left // stride
        left %= stride
    return f"[{', '.join(map(str, places))}]"
