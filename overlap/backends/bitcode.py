"""Where NVSHMEM's device code is: bitcode that kernels which call it are linked with."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from overlap.schedule.far import BITCODE


def find_library() -> Path | None:
    """The bitcode: under ``NVSHMEM_HOME``, or in the package nvidia-nvshmem-cu12 or -cu13; None where there is none."""
    folders = [Path(os.environ["NVSHMEM_HOME"])] if os.environ.get("NVSHMEM_HOME") else []
    try:
        found = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        found = None
    folders += [Path(place) for place in (found.submodule_search_locations or ())] if found is not None else []
    return next((path for folder in folders if (path := folder / "lib" / BITCODE).is_file()), None)
