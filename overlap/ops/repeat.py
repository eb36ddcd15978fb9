"""Calls of the prebuilt operators that are like an earlier one (`overlap.api.repeat`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overlap.api import repeat
from overlap.api.repeat import Asked
from overlap.api.report import LastPlan

from .record import remember


def repeated(
    operator: str,
    group: Any,
    tensors: Sequence[torch.Tensor | None],
    outs: Sequence[torch.Tensor] | None,
    options: tuple[Any, ...],
) -> list[torch.Tensor] | Asked | None:
    """`overlap.api.repeat.repeated`, remembered as the operator's last call."""
    return repeat.repeated(operator, group, tensors, outs, options, _remember)


def _remember(said: LastPlan, forced: bool) -> None:
    remember(said, warn=forced)
