"""Prebuilt operators: a kernel, a plan and a default realization each."""

from .gather_gemm import ag_gemm
from .measure import measure
from .record import last_plan
from .reduce_gemm import gemm_ar
from .reserve import reserve
from .scatter_gemm import gemm_rs

__all__ = ["ag_gemm", "gemm_ar", "gemm_rs", "last_plan", "measure", "reserve"]
