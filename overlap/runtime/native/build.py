"""Builds the module. What Triton builds its own launchers with does it, at the first use on a machine, into Triton's cache.

Triton builds its launchers so, or finds them in its cache; where neither can be done for this module calls go by their steps.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from overlap.errors import RuntimeContractError

NAME = "overlap_native"
FILES = ("graph.c", "calls.c", "module.c")
CAPTURED, IN_KERNEL, IN_MAP, IN_COPY, IN_WAIT, IN_LAUNCH, IN_RECORD = range(1, 8)
"""Where a call stopped, as graph.c counts: ahead of everything, since its stream is captured, or in a function of the driver."""
WHAT = {
    IN_KERNEL: "a kernel's address in a call's graph",
    IN_MAP: "a tensor map over another address",
    IN_COPY: "a copy's address in a call's graph",
    IN_WAIT: "waiting for the last call",
    IN_LAUNCH: "launching a call's graph",
    IN_RECORD: "recording an event",
}


def native() -> Any:
    """The module.

    Raises:
        RuntimeContractError: it cannot be built or loaded here, as where the driver is older than CUDA 12.
    """
    made, error = _built()
    if made is None:
        raise RuntimeContractError(f"what enqueues calls cannot be built: {error}")
    return made


@cache
def _built() -> tuple[Any, Exception | None]:
    """The module, or why there is none, which a process finds out once."""
    try:
        from triton.runtime.build import compile_module_from_src

        source = "\n".join(Path(__file__).with_name(name).read_text() for name in FILES)
        return compile_module_from_src(source, NAME), None
    except Exception as error:  # of whatever builds modules here
        return None, error.with_traceback(None)
