"""The kernels of broken/, compiled for GPUs that are not there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton

from overlap.build import Artifact, compile_kernel, parse_target
from overlap.codegen.module_io import load_module

HERE = Path(__file__).parent
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def state() -> torch.Tensor:
    return meta(256, dtype=torch.int64)


ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "waits": (
        dict(a_ptr=meta(512, 512), b_ptr=meta(512, 512), c_ptr=meta(512, 512), N=512, K=512, BLOCK=64),
        dict(num_warps=4),
    ),
    "raises": (
        dict(dst=meta(4096, dtype=torch.int32), peers=meta(8, dtype=torch.int64), rank=3, BLOCK=1024),
        dict(num_warps=4),
    ),
    "produces": (
        dict(c_ptr=meta(4096, dtype=torch.float32), N=4096, BLOCK=1024, ol_table=meta(256, dtype=torch.int32)),
        dict(num_warps=4),
    ),
    "signals": (
        dict(x_ptr=meta(4096, dtype=torch.float32), out_ptr=meta(4096, dtype=torch.float32))
        | dict(box_ptr=meta(4096, dtype=torch.float32), h=state(), launch=7, BLOCK=1024),
        dict(num_warps=4),
    ),
    "persistent": (
        dict(a_ptr=meta(4096, 4096), b_ptr=meta(4096, 4096), c_ptr=meta(4096, 4096), M=4096, N=4096, K=4096)
        | dict(BLOCK=128, SMS=132, FLAT=False),
        dict(num_warps=8, num_stages=3),
    ),
}
"""Arguments and launch options of the kernels in each file of broken/."""


@cache
def _module(name: str) -> Any:
    return load_module(str(HERE / "broken" / f"{name}.py"))


@cache
def compiled(file: str, kernel: str, target: str = "sm_90", options: tuple[tuple[str, Any], ...] = ()) -> Artifact:
    """A kernel of broken/FILE.py; ``options`` override its arguments and launch options."""
    function = getattr(_module(file), kernel)
    arguments, launch = ({**part} for part in ARGUMENTS[file])
    for key, value in options:
        (arguments if key in function.arg_names else launch)[key] = value
    if "ol_state" in function.arg_names:
        arguments["ol_state"] = state()
    return compile_kernel(function, arguments, parse_target(target), launch)


def own_arguments(operator, arguments, table):
    """What a kernel that can access the rank's own part in place is given for it; nothing of other kernels."""
    own = operator.parameter("own")
    return {own: arguments[operator.comms[0].param], operator.parameter("origin"): table} if own else {}
