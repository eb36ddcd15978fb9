"""Making a loaded module known to NVSHMEM.

A module that calls NVSHMEM holds a copy of the state that the library keeps for the device, empty until the library fills it.
That is done by hand where a kernel is compiled ahead of its launches; Triton's hooks, one for a process, are left to others.
"""

from __future__ import annotations

from typing import Any

from overlap.errors import RuntimeContractError

from ..providers.nvshmem import initialised

_KNOWN = "overlap_known_to_nvshmem"


def introduce(made: Any) -> None:
    """Has NVSHMEM fill the state of a compiled kernel's loaded module, once.

    Raises:
        RuntimeContractError: it refuses, is not initialised (it would crash the process), or is not installed.
    """
    if hasattr(made, _KNOWN):
        return
    try:
        from nvshmem import bindings, core
    except ImportError as error:
        raise RuntimeContractError(
            f"`{made.name}` calls NVSHMEM, whose host library is not here: {error}",
            help="install nvshmem4py-cu12 or -cu13",
        ) from None
    if not initialised(core):
        raise RuntimeContractError(
            f"`{made.name}` calls NVSHMEM, which is not initialised in this process",
            help="OVERLAP_PROVIDER=nvshmem before the group's first call: its symmetric memory is then NVSHMEM's",
        )

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
