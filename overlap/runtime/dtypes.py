"""Dtypes by the short names that commands and reports use."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from overlap.errors import UsageError

from .operator import Operator

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its short name.

    Raises:
        UsageError: unknown.
    """
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}", help="one of: " + ", ".join(DTYPES))
    return DTYPES[name]


def dtypes_of(operator: Operator, given: Mapping[str, str]) -> dict[str, torch.dtype]:
    """The dtypes of single inputs, by host name.

    Raises:
        UsageError: no such input, or an unknown dtype.
    """
    for name in given:
        if name not in operator.inputs:
            raise UsageError(f"no input {name!r} to give a dtype to", help="inputs: " + ", ".join(operator.inputs))
    return {name: dtype_of(text) for name, text in given.items()}
