"""The kernels of the prebuilt operators: templates/kernels/operators, annotated like a user's and compiled like a user's.

They run on one GPU as they stand. In an installed package the templates lie inside it, in a checkout beside it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent.parent


def _module(name: str) -> ModuleType:
    """The template file of that name as a module, under the name it has inside an installed package."""
    within = Path("templates", "kernels", "operators", f"{name}.py")
    path = next((place / within for place in (_PACKAGE, _PACKAGE.parent) if (place / within).is_file()), None)
    if path is None:
        raise ImportError(f"overlap is installed without its template {within.as_posix()}")
    full = f"overlap.templates.kernels.operators.{name}"
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[full] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_gemm = _module("gemm")

ag_gemm_tma = _gemm.ag_gemm_tma
ag_gemm_any = _gemm.ag_gemm_any
gemm_out_tma = _gemm.gemm_out_tma
gemm_tail_tma = _gemm.gemm_tail_tma
copy_flat = _gemm.copy_flat
gemm_out_stored = _module("gemm_stored").gemm_out_stored
