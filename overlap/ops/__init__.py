"""Prebuilt operators: a kernel, a plan and a default realization each."""

from .gather_gemm import ag_gemm, last_plan, measure
from .reserve import reserve

__all__ = ["ag_gemm", "last_plan", "measure", "reserve"]
