"""What ``--dtype`` and ``--memory`` ask of a plan: what a launch takes of every rank, and whether there is as much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from overlap.chunkplan.plan import Collective, CommPlan
from overlap.runtime.transfer.memory import transfer_resources
from overlap.schedule.product import itemsize_of
from overlap.schedule.resources import Limits, Resources, verify_resources

_SIZE = re.compile(r"\s*(\d+)\s*(B|KiB|MiB|GiB|TiB)?\s*\Z", re.IGNORECASE)
_FACTOR = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class _Bytes(click.ParamType):
    """``4096`` or ``512MiB`` as bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.match(value)
        if not match:
            self.fail(f"{value!r} is no number of bytes; write 4096, 512MiB or 2GiB")
        return int(match[1]) * _FACTOR[(match[2] or "b").lower()]


BYTES = _Bytes()


@dataclass(frozen=True)
class Takes:
    """``dtype`` None: nothing is asked, unless ``memory`` is given, in bytes a rank; then tensors are fp16."""

    dtype: str | None
    memory: int | None

    def check(self, plan: CommPlan) -> None:
        """Raises ScheduleError where a rank takes more than it may."""
        if self.memory is not None and not _by_library(plan):
            verify_resources(self._of(plan), plan, Limits(memory=self.memory))

    def lines(self, plan: CommPlan) -> Iterator[str]:
        """What is printed of a verified plan."""
        if self.dtype is None and self.memory is None:
            return
        if _by_library(plan):
            yield "  takes what the library takes that carries it out"
            return
        yield f"  takes, of {self.dtype or 'fp16'} tensors and without a kernel:"
        yield from (f"    {found}" for found in self._of(plan))

    def _of(self, plan: CommPlan) -> list[Resources]:
        size = itemsize_of(self.dtype or "fp16")
        return transfer_resources(plan, {spec.name: size for spec in plan.tensors})


def _by_library(plan: CommPlan) -> bool:
    return any(isinstance(op, Collective) for _, op in plan.items())
