"""The part of a communicated tensor that a rank's kernel works on."""

from __future__ import annotations

from .plan import CommPlan
from .region import Box, bounding

KINDS = ("gather", "reduce_scatter", "all_reduce", "all_to_all")


def kernel_window(plan: CommPlan, tensor: str, kind: str, produced: bool, rank: int) -> Box:
    """The box of the global tensor that the kernel of ``rank`` sees (an input) or makes (``produced``).

    A gather, a reduce-scatter and an all-reduce work on all of it. An all-to-all works on the rank's own side of the
    exchange: what it holds after the operations (an input), or before them (an output). A rank that holds nothing
    there gets an empty box, with the sizes of the empty chunk that the plan gives it.

    Raises:
        KeyError: the plan has no such tensor.
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind `{kind}`, there is {', '.join(KINDS)}")
    whole = Box.whole(plan.tensor(tensor).shape)
    if kind != "all_to_all":
        return whole
    boxes = [chunk.box for chunk in (plan.before if produced else plan.after)[rank] if chunk.tensor == tensor]
    return bounding(boxes) or (boxes[0] if boxes else Box(whole.lo, whole.lo))
