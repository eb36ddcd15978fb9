"""Where NVSHMEM's device code is: bitcode that kernels which call it are linked with."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

from overlap.errors import RuntimeContractError
from overlap.schedule.far import LIBRARY

BITCODE = "libnvshmem_device.bc"


def find_library() -> Path | None:
    """The bitcode: under ``NVSHMEM_HOME``, or in the package nvidia-nvshmem-cu12 or -cu13; None where there is none."""
    folders = [Path(os.environ["NVSHMEM_HOME"])] if os.environ.get("NVSHMEM_HOME") else []
    try:
        found = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        found = None
    folders += [Path(place) for place in (found.submodule_search_locations or ())] if found is not None else []
    return next((path for folder in folders if (path := folder / "lib" / BITCODE).is_file()), None)


def link_options() -> dict[str, tuple[tuple[str, str], ...]]:
    """Launch options of kernels that call NVSHMEM.

    Raises:
        RuntimeContractError: the bitcode is not here.
    """
    return {"extern_libs": ((LIBRARY, _library(os.environ.get("NVSHMEM_HOME", ""))),)}


@cache
def _library(home: str) -> str:
    path = find_library()
    if path is None:
        raise RuntimeContractError(
            f"NVSHMEM's device code is not here: no {BITCODE}",
            help=f"install nvidia-nvshmem-cu12 or -cu13, or set NVSHMEM_HOME to the folder that has lib/{BITCODE}",
        )
    return str(path)
