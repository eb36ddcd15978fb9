"""The child's side: tries one package and prints what it found as one line of JSON.

Only the standard library is imported at the top: a broken package must break its own probe alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MARK = "overlap-doctor:"


def compiler() -> dict[str, Any]:
    """Compiles a shipped kernel with a shipped plan."""
    from overlap.annotate.source import SourceUnit
    from overlap.chunkplan.library import template_folders
    from overlap.pipeline import Request, compile_source

    folders = template_folders()
    if not folders:
        raise FileNotFoundError("the plan templates are missing from this installation")
    kernel = folders[0].parent / "kernels" / "grouped_gemm.py"
    made = compile_source(Request(SourceUnit.from_file(str(kernel)), plan="all_gather_1d", on="a[M]"))
    return {"lines": made.module.text.count("\n")}


def torch() -> dict[str, Any]:
    """torch, the devices it sees, which of them reach each other, and whether symmetric memory can be allocated."""
    import torch

    found: dict[str, Any] = {"cuda": torch.version.cuda or "", "hip": torch.version.hip or "", "nccl": ""}
    found |= {"devices": [], "peers": [], "symmetric": ""}
    if not torch.cuda.is_available():
        found["no_devices"] = _why_no_devices(torch)
        found["symmetric"] = "no GPU"
        return found
    count = torch.cuda.device_count()
    for index in range(count):
        p = torch.cuda.get_device_properties(index)
        found["devices"].append([index, p.name, p.multi_processor_count, p.total_memory, [p.major, p.minor]])
    found["peers"] = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)]
    with contextlib.suppress(Exception):
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    try:
        import torch.distributed._symmetric_memory as symmetric

        symmetric.empty(1024, dtype=torch.uint8, device=torch.device("cuda", 0))
        torch.cuda.synchronize(0)
    except Exception as error:
        found["symmetric"] = describe(error)
    return found


def _why_no_devices(torch: Any) -> str:
    if not torch.version.cuda and not torch.version.hip:
        return "this torch is built without CUDA"
    try:
        torch.cuda.init()
    except Exception as error:
        return describe(error)
    return "torch sees no GPU"


def triton() -> dict[str, Any]:
    """Triton and what `overlap build` needs of it."""
    import triton

    import overlap.build

    return {"version": triton.__version__, "room": overlap.build.__name__}


def simulator() -> dict[str, Any]:
    """The simulator, as `overlap simulate` starts it."""
    os.environ["TRITON_INTERPRET"] = "1"
    import overlap.sim

    return {"room": overlap.sim.__name__}


def driver_calls() -> dict[str, Any]:
    """The CUDA driver through cuda-bindings, which enqueues peer copies."""
    from cuda.bindings import driver

    (error,) = driver.cuInit(0)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuInit: {error.name}")
    error, version = driver.cuDriverGetVersion()
    return {"cuda": f"{version // 1000}.{version % 1000 // 10}" if error == driver.CUresult.CUDA_SUCCESS else ""}


def nvshmem() -> dict[str, Any]:
    """nvshmem4py, the NVSHMEM library under it, and its device code."""
    import nvshmem.core

    from overlap.backends.bitcode import find_library

    version = nvshmem.core.get_version()
    return {"version": str(getattr(version, "libnvshmem_version", version)), "bitcode": str(find_library() or "")}


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    f.__name__: f for f in (compiler, torch, triton, simulator, driver_calls, nvshmem)
}


def describe(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def child(name: str) -> None:
    """Answers and ends the process, also where a package would hang or crash at exit."""
    # Whatever a package prints while it is imported must not be taken for the answer.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer = {"ok": True, **PROBES[name]()}
        except BaseException as error:
            answer = {"ok": False, "error": describe(error)}
    print(MARK + json.dumps(answer), flush=True)
    sys.stderr.flush()
    os._exit(0)
