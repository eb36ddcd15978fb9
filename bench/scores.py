"""What the times of one shape say: limit, eta, speedup. Of result files alone; no GPU, no torch.

    best GEMM   the product alone, by cuBLAS or by the operator's own kernel, whichever is shorter
    limit       the longer of the best GEMM and of the bytes a rank must receive at 377 GB/s, what a copy engine moves between
                two H100s: a perfect overlap
    baseline    the shortest of all others who compute the same result
    ours        in a graph where it was measured so, else eager
    eta         limit / ours
    speedup     baseline / ours: below 1 it is a loss

Times are those with the host ahead (``queued``) where a file has them, else single calls (``ms``). A contender whose host never
gets ahead of the device is taken by its single calls then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

BYTES_PER_MS = 377e6
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}
PRODUCTS = ("gemm", "triton_gemm")
ALONE = (*PRODUCTS, "nccl")
"""Contenders that do a part of the work: no baselines."""
OURS = ("ours", "ours_graph")


def received_bytes(row: dict[str, Any]) -> float:
    """Bytes a rank must receive (and send), whatever the algorithm.

    Raises:
        KeyError: an operator without a count.
    """
    world, size = row["world"], SIZES[row["dtype"]]
    a, c = row["M"] * row["K"] * size, row["M"] * row["N"] * size
    others = (world - 1) / world
    return {
        "ag_gemm": a * others,
        "ag_gemm_k": a * others,
        "gemm_rs": c * others,
        "gemm_ar": 2 * c * others,
        "a2a_gemm": a / world * others,
        "gemm_a2a": c / world * others,
    }[row["op"]]


def flops(row: dict[str, Any]) -> float:
    """Floating point operations of a rank's share of the product."""
    return 2.0 * row["M"] * row["N"] * row["K"] / row["world"]


def shapes_of(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows by shape and dtype, in the order in which they came."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in ("op", "M", "N", "K", "world", "dtype")), []).append(row)
    return list(groups.values())


def timed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with a time: those of contenders that did not fail."""
    return [row for row in rows if row["ms"] is not None]


def kind_of(rows: Iterable[dict[str, Any]]) -> str:
    """Which times of a shape's rows count: ``queued``, or ``ms`` where nobody has those."""
    return "queued" if any(row.get("queued") for row in rows) else "ms"


def times_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """ms of one shape by contender, and by way where rows name one."""
    kind = kind_of(rows)
    return {row.get("how", row["contender"]): row["ms"] if row.get(kind) is None else row[kind] for row in timed(rows)}


def limit_of(rows: Sequence[dict[str, Any]]) -> float | None:
    """The lower bound in ms for the rows of one shape; None without a product alone."""
    times = times_of(rows)
    alone = min((times[name] for name in PRODUCTS if name in times), default=None)
    return None if alone is None else max(alone, received_bytes(rows[0]) / BYTES_PER_MS)


@dataclass(frozen=True)
class Score:
    """One shape. Times in ms; None where the contender has none.

    ``sizes``: op, M, N, K, world, dtype and device of the rows. ``kind``: ``queued`` or ``ms``. ``baseline`` has its name,
    ``graph`` and ``eager`` are ours. ``worse_p99``: our p99 over the baseline's.
    """

    sizes: dict[str, Any]
    kind: str
    limit: float | None
    baseline_name: str
    baseline: float | None
    graph: float | None
    eager: float | None
    worse_p99: float | None
    ran: str
    failed: dict[str, str]

    @property
    def ours(self) -> float | None:
        return self.eager if self.graph is None else self.graph

    @property
    def eta(self) -> float | None:
        return self.limit / self.ours if self.limit and self.ours else None

    @property
    def speedup(self) -> float | None:
        return self.baseline / self.ours if self.baseline and self.ours else None

    @property
    def intensity(self) -> float:
        """Operations of a rank by byte that it must receive; infinite on one rank."""
        received = received_bytes(self.sizes)
        return flops(self.sizes) / received if received else math.inf


def score(rows: Sequence[dict[str, Any]]) -> Score:
    """The score of one shape's rows (`shapes_of`)."""
    kind, times = kind_of(rows), times_of(rows)
    rivals = {name: ms for name, ms in times.items() if name not in (*ALONE, *OURS)}
    best = min(rivals, key=lambda name: rivals[name], default="")
    tails = {row["contender"]: row.get("p99" if kind == "ms" else "queued_p99") for row in timed(rows)}
    ours_tail, its_tail = tails.get("ours_graph", tails.get("ours")), tails.get(best)
    return Score(
        {key: rows[0][key] for key in ("op", "M", "N", "K", "world", "dtype", "device")},
        kind,
        limit_of(rows),
        best,
        rivals.get(best),
        times.get("ours_graph"),
        times.get("ours"),
        ours_tail / its_tail if ours_tail and its_tail else None,
        next((row["ran"] for row in rows if "ran" in row), ""),
        {row["contender"]: row["failed"] for row in rows if "failed" in row},
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
