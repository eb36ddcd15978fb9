"""Number formats: Triton, torch and numpy names of one another, and conversions that round as GPUs do.

bfloat16 and fp8 live in `ml_dtypes` arrays, which compute in float32 and round to nearest even; Triton's own
interpreter keeps raw bits and truncates.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
import triton.language as tl

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_E5M2 = np.dtype(ml_dtypes.float8_e5m2)

_FROM_TRITON = {
    tl.int1: np.dtype(bool),
    tl.float16: np.dtype(np.float16),
    tl.float32: np.dtype(np.float32),
    tl.float64: np.dtype(np.float64),
    tl.int8: np.dtype(np.int8),
    tl.uint8: np.dtype(np.uint8),
    tl.int16: np.dtype(np.int16),
    tl.uint16: np.dtype(np.uint16),
    tl.int32: np.dtype(np.int32),
    tl.uint32: np.dtype(np.uint32),
    tl.int64: np.dtype(np.int64),
    tl.uint64: np.dtype(np.uint64),
    tl.bfloat16: BF16,
    tl.float8e5: FP8_E5M2,
    tl.float8e5b16: np.dtype(ml_dtypes.float8_e5m2fnuz),
    tl.float8e4nv: FP8_E4M3,
    tl.float8e4b8: np.dtype(ml_dtypes.float8_e4m3fnuz),
    tl.float8e4b15: np.dtype(np.uint8),
}
_BY_NAME = {dtype.name: numpy for dtype, numpy in _FROM_TRITON.items()}

_TORCH = {
    torch.bool: np.dtype(bool),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: FP8_E4M3,
    torch.float8_e5m2: FP8_E5M2,
}

_CUSTOM = {BF16, FP8_E4M3, FP8_E5M2, np.dtype(ml_dtypes.float8_e5m2fnuz), np.dtype(ml_dtypes.float8_e4m3fnuz)}


def numpy_of(dtype: tl.dtype) -> np.dtype:
    """The numpy dtype of a Triton type; pointers are 64-bit addresses."""
    if isinstance(dtype, tl.pointer_type):
        return np.dtype(np.uint64)
    if isinstance(dtype, tl.block_type):
        return numpy_of(dtype.element_ty)
    return _BY_NAME[dtype.name]


def numpy_of_torch(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of a torch dtype; raw bytes for formats that are only moved."""
    known = _TORCH.get(dtype)
    return known if known is not None else np.dtype(f"V{dtype.itemsize}")


def is_narrow_float(dtype: np.dtype) -> bool:
    """Floats that products must widen to float32 first: fp16, bf16, fp8."""
    return dtype in _CUSTOM or dtype == np.float16


def convert(data: np.ndarray, to: np.dtype) -> np.ndarray:
    """``data`` as ``to``: round to nearest even, fp8 saturates to its largest finite value as GPU conversions do."""
    if data.dtype == to:
        return data
    if data.dtype in _CUSTOM:
        data = data.astype(np.float32)
    elif to in _CUSTOM and data.dtype != np.float64:
        data = data.astype(np.float32)
    if to in (FP8_E4M3, FP8_E5M2):
        limit = float(ml_dtypes.finfo(to).max)
        data = np.clip(data, -limit, limit)
    return data.astype(to)
