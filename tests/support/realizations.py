"""Every way in which a generated module can be carried out, on a gather and on a reduce-scatter, from the capability table."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from overlap.backends.bitcode import find_library
from overlap.backends.capabilities import AUTO, COLLECTIVE, SERIAL, Need, names
from overlap.backends.registry import backends
from overlap.runtime.cuda.launchers import triton_here


class Realized(NamedTuple):
    """A plan on a tensor, carried out by a backend, and a template kernel that this backend takes."""

    plan: str
    on: str
    backend: str
    kernel: str

    @property
    def far(self) -> bool:
        """Whether it reaches peers that no pointer reaches."""
        return self.backend in backends and backends[self.backend].far

    @property
    def library(self) -> bool:
        """Whether a library moves the data, whose waits have no deadline of ours."""
        return self.backend == COLLECTIVE


def _realized(plan: str, on: str, moves: str, backend: str) -> Realized:
    stored = backends[backend] if moves == "result" and backend in backends and backends[backend].inline else None
    by_tma = stored is not None and stored.writer == "tma store"
    return Realized(plan, on, backend, "persistent_gemm" if by_tma else "grouped_gemm")


REALIZATIONS = {
    f"{what}, {name}": _realized(plan, on, moves, name)
    for what, plan, on, moves in (
        ("gather", "all_gather_1d", "a[M]", "input"),
        ("scatter", "reduce_scatter_1d", "c[M]", "result"),
    )
    for name in names(moves)
    if name not in (SERIAL, AUTO)
}
"""By what is moved and backend. ``serial`` has no module, and ``auto`` is one of the others."""


def no_nvshmem() -> str:
    """Why NVSHMEM cannot be used here; empty where it can."""
    if importlib.util.find_spec("nvshmem") is None:
        return "nvshmem4py is not installed"
    return "" if find_library() else "NVSHMEM's bitcode is not installed (nvidia-nvshmem-cu13)"


def lacking(what: str, on: str, backend: str | None) -> str:
    """Why the table has no such backend here for what is moved on a tensor; empty where it has."""
    need = Need(what, moves="result" if on[0] == "c" else "input", triton=triton_here())
    return need.lacking(backends[backend]) if backend in backends else ""


def missing(name: str) -> str:
    """Why a realization cannot be tried on this machine; empty where it can."""
    how = REALIZATIONS[name]
    return lacking(name, how.on, how.backend) or (no_nvshmem() if how.far else "")
