"""Prebuilt operators: a kernel, a plan and a default realization each."""

from .exchange_gemm import a2a_gemm
from .gather_gemm import ag_gemm
from .gather_k_gemm import ag_gemm_k
from .gemm_exchange import gemm_a2a
from .measure import measure
from .record import last_plan
from .reduce_gemm import gemm_ar
from .reserve import reserve
from .scatter_gemm import gemm_rs
from .tuning import tune

__all__ = [
    "a2a_gemm",
    "ag_gemm",
    "ag_gemm_k",
    "gemm_a2a",
    "gemm_ar",
    "gemm_rs",
    "last_plan",
    "measure",
    "reserve",
    "tune",
]
