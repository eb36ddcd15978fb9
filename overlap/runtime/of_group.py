"""The runtime behind a group: a simulated group brings its own, and processes have one of GPUs."""

from __future__ import annotations

from typing import Any

from .protocol import Runtime


def runtime_of(group: Any) -> Runtime:
    """The runtime behind a group.

    A simulated group carries its runtime; anything else is a torch process group (or None: the default one).

    Raises:
        RuntimeContractError: no process group is initialised.
    """
    carried = getattr(group, "overlap_runtime", None)
    if carried is not None:
        return carried
    from .cuda.runtime import runtime_for_group

    return runtime_for_group(group)
