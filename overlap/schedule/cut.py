"""Along which dimension a split cuts the transfers that feed a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class _Read(Protocol):
    @property
    def tensor(self) -> str: ...

    @property
    def axes(self) -> tuple[str | None, ...]: ...


def cut_along(tensor: str, dim: int, other: int | None, reads: Iterable[_Read]) -> int:
    """The dimension in which parts of a chunk become useful one by one.

    That is the dimension of the shards, ``dim``. But tiles that read all of it need a part of every rank: of an
    all-to-all the parts are then cut along the dimension of the shards afterwards, of a gather along the one that its ``on``
    names (``a[K/M]``): ``other``, if tiles differ in that.
    """
    spanned = [read.axes for read in reads if read.tensor == tensor]
    if other is None or not spanned or any(axes[dim] for axes in spanned):
        return dim
    return other if all(axes[other] for axes in spanned) else dim
