"""What is moved x every backend that the table of capabilities says can x ranks and nodes x sizes, against the original kernel.

A new backend joins by itself. CI runs a subset in which every two values meet once, with one seed; ``make sweep`` runs all of
it with 20 seeds each. ``2x2`` is a plan of two levels; ranks are nodes or parts of one for a backend that reaches far peers.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

import pytest
import torch
from test_proof_matrix import covering

from overlap.annotate.source import SourceUnit
from overlap.backends.capabilities import AUTO, COLLECTIVE, SERIAL, names
from overlap.backends.registry import backends
from overlap.chunkplan.mesh import parse_mesh
from overlap.errors import UnsupportedError
from overlap.ops import ag_gemm, last_plan
from overlap.pipeline import Request, compile_source
from overlap.sim import World, check_module

pytestmark = pytest.mark.one_triton
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
KERNELS = ("grouped_gemm", "persistent_gemm", "gemm_2d")
LEVELS = "2x2"


@dataclass(frozen=True)
class Kind:
    """An operator's communication: the tensor that it is on, a plan of one level, and one of two where there is one."""

    on: str
    plan: str
    two_levels: str = ""

    @property
    def moves(self) -> str:
        return "result" if self.on.startswith("c") else "input"

    @property
    def realizations(self) -> tuple[str, ...]:
        """Whatever carries it out in a generated module; the others there are choose among these, or need none."""
        return tuple(name for name in names(self.moves) if name not in (SERIAL, AUTO))

    def takes(self, realization: str, levels: bool) -> bool:
        """Whether a realization carries out its plan: words carry what tiles make, and none of these is sent on."""
        words = realization in backends and backends[realization].words
        return not words or not levels and "two_shot" not in self.plan


KINDS = {
    "gather": Kind("a[M]", "all_gather_1d", "all_gather_2d"),
    "gather in the loop": Kind("a[K]", "all_gather_1d", "all_gather_2d"),
    "exchange in": Kind("a[K:M]", "all_to_all_1d", "all_to_all_2d"),
    "reduce-scatter": Kind("c[M]", "reduce_scatter_1d", "reduce_scatter_2d"),
    "all-reduce, one shot": Kind("c[]", "all_reduce_one_shot"),
    "all-reduce, two shots": Kind("c[]", "all_reduce_two_shot", "all_reduce_2d"),
    "exchange out": Kind("c[M:N]", "all_to_all_1d", "all_to_all_2d"),
}
RANKS = {"2": (2, 1), "3": (3, 2), "4": (4, 2), LEVELS: (4, 2)}
"""Ranks, and ranks of a node for a backend that reaches far peers: all far, a node that is not full, near and far."""
SIZES = {
    "ragged": ({"M": 70, "N": 40, "K": 24}, "fp16"),
    "few": ({"M": 3, "N": 8, "K": 8}, "bf16"),
    "several tiles": ({"M": 131, "N": 40, "K": 40}, "fp32"),
}
"""Extents and dtype. Few rows leave ranks without any; no number of ranks divides what is ragged."""

EVERY = [
    (kind, realization, ranks, size)
    for kind, found in KINDS.items()
    for realization, ranks, size in itertools.product(found.realizations, RANKS, SIZES)
    if (ranks != LEVELS or found.two_levels) and found.takes(realization, ranks == LEVELS)
]
CASES = EVERY if SWEEP else covering(EVERY)
SEEDS = range(20) if SWEEP else range(1)


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """``generated(kind, realization, levels, first)``: a template kernel compiled, the first from ``first`` on that can be."""
    folder = tmp_path_factory.mktemp("generated")
    made: dict = {}
    refused: set[tuple[str, str, str]] = set()

    def make(kind: Kind, realization: str, levels: str, first: int) -> str:
        for kernel in KERNELS[first:] + KERNELS[:first]:
            key = (kernel, kind, realization, levels)
            if key in made:
                return made[key]
            if (kernel, kind.moves, realization) in refused:
                continue
            path = folder / f"module_{len(made)}.py"
            request = Request(
                SourceUnit.from_file(repo / "templates" / "kernels" / f"{kernel}.py"),
                plan=kind.two_levels if levels else kind.plan,
                on=kind.on,
                backend=realization,
                mesh=parse_mesh(levels) if levels else None,
                settings={"comm_sms": "2"} if realization in backends and backends[realization].comm_sms else {},
                output=str(path),
            )
            try:
                path.write_text(compile_source(request).module.text)
            except UnsupportedError as error:
                # Backends that store tiles take kernels that store by pointers, or those that store through descriptors.
                assert kind.moves == "result" and "stores" in str(error), error
                refused.add((kernel, kind.moves, realization))
                continue
            made[key] = str(path)
            return made[key]
        raise AssertionError(f"{realization} takes none of {', '.join(KERNELS)} for {kind}")

    return make


def test_every_pair_of_values_meets():
    pairs = lambda rows: {p for row in rows for p in itertools.combinations(enumerate(row), 2)}  # noqa: E731
    assert pairs(CASES) == pairs(EVERY)


@pytest.mark.parametrize(("kind", "realization", "ranks", "size"), CASES)
def test_agrees_with_the_original(generated, monkeypatch, kind, realization, ranks, size):
    (world, node), (shape, dtype) = RANKS[ranks], SIZES[size]
    if realization in backends and backends[realization].far:
        monkeypatch.setenv("OVERLAP_NODE_RANKS", str(node))
    path = generated(KINDS[kind], realization, LEVELS if ranks == LEVELS else "", list(SIZES).index(size))
    report = check_module(path, world=world, shape=shape, dtype=dtype, seeds=list(SEEDS), launches=2)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", [name for name in names("input") if name not in (COLLECTIVE, SERIAL)])
def test_every_backend_runs_the_plan_all_gather_1d(monkeypatch, tmp_path, name):
    """By name in a call, ``auto`` too. ``serial`` is a library's collective, which no simulated rank has."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    x, w = torch.randn(20, 16), torch.randn(16, 24)
    shards = x[:10].clone(), x[10:].clone()

    def body(group):
        return ag_gemm(shards[group.rank()], w, group=group, plan="all_gather_1d", backend=name).tolist()

    wanted = x.double() @ w.double()
    for got in World(2, seed=0).run(body):
        assert (torch.tensor(got).double() - wanted).abs().max() < 1e-4
    assert name == AUTO or last_plan().backend == name
