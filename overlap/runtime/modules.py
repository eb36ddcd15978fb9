"""NVSHMEM's device code in compiled kernels: where its bitcode is, and making a loaded module known to the library.

A module that calls NVSHMEM holds a copy of the state that the library keeps for the device, empty until the library fills it.
That is done by hand where a kernel is compiled ahead of its launches; Triton's hooks, one for a process, are left to others.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

from overlap.errors import RuntimeContractError

BITCODE = "libnvshmem_device.bc"
_KNOWN = "overlap_known_to_nvshmem"


def find_library() -> Path | None:
    """NVSHMEM's bitcode: under ``NVSHMEM_HOME``, or in the package nvidia-nvshmem-cu12 or -cu13; None where there is none."""
    folders = [Path(os.environ["NVSHMEM_HOME"])] if os.environ.get("NVSHMEM_HOME") else []
    try:
        found = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        found = None
    folders += [Path(place) for place in (found.submodule_search_locations or ())] if found is not None else []
    return next((path for folder in folders if (path := folder / "lib" / BITCODE).is_file()), None)


@cache
def device_library() -> str:
    """The path of NVSHMEM's bitcode.

    Raises:
        RuntimeContractError: it is not there.
    """
    path = find_library()
    if path is None:
        raise RuntimeContractError(
            f"NVSHMEM's device code is not here: no {BITCODE}",
            help="install nvidia-nvshmem-cu12 or -cu13, or set NVSHMEM_HOME to the folder that has lib/" + BITCODE,
        )
    return str(path)


def introduce(made: Any) -> None:
    """Has NVSHMEM fill the state of a compiled kernel's loaded module, once; NVSHMEM is initialised by then.

    Raises:
        RuntimeContractError: it refuses.
    """
    if hasattr(made, _KNOWN):
        return
    from nvshmem import bindings

    try:
        status = bindings.cumodule_init(int(made.module))
    except Exception as error:
        status = f"{type(error).__name__}: {error}"
    if status:
        raise RuntimeContractError(
            f"NVSHMEM does not take the module of `{made.name}`: {status}",
            help="device and host library must be of one version: `overlap doctor` shows both",
        )
    setattr(made, _KNOWN, True)
