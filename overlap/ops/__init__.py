"""Prebuilt operators: a kernel, a plan and a default realization each."""

from .gather_gemm import ag_gemm
from .measure import measure
from .record import last_plan
from .reserve import reserve

__all__ = ["ag_gemm", "last_plan", "measure", "reserve"]
