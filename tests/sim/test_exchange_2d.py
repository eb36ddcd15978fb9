"""Exchanges on two levels as a kernel's plan: what is for another node goes by way of a rank that does not see it.

The input's relays have memory of their own, the result's lie in the slots that they landed in; both against the original
kernel, with every access of every rank watched.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.mesh import parse_mesh
from overlap.pipeline import Request, compile_source
from overlap.schedule import steps as st
from overlap.sim import check_module

SHAPES = {
    "even": {"M": 24, "N": 16, "K": 32},
    "uneven": {"M": 21, "N": 19, "K": 18},
    "empty": {"M": 3, "N": 3, "K": 3},
}


def made(repo: Path, tmp_path: Path, on: str, mesh: str, split: int = 1) -> str:
    unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / "grouped_gemm.py"))
    grid = parse_mesh(mesh)
    settings = {"split": str(split), "BLOCK_M": "16", "BLOCK_N": "16", "BLOCK_K": "16"}
    request = Request(unit, "all_to_all_2d", on, world=grid.world, mesh=grid, settings=settings)
    path = tmp_path / "exchange.py"
    path.write_text(compile_source(request).module.text)
    return str(path)


@pytest.mark.parametrize(
    ("on", "mesh", "shape", "split"),
    [
        ("a[K:M]", "2x2", "uneven", 2),
        ("a[K:M]", "3x2", "empty", 1),
        ("c[M:N]", "2x2", "uneven", 1),
    ]
    if os.environ.get("OVERLAP_SWEEP") != "1"
    else list(itertools.product(("a[K:M]", "c[M:N]"), ("2x2", "2x3", "3x2"), SHAPES, (1, 2))),
)
def test_every_rank_computes_the_original(on, mesh, shape, split, repo, tmp_path):
    path = made(repo, tmp_path, on, mesh, split)
    report = check_module(path, world=parse_mesh(mesh).world, shape=SHAPES[shape], seeds=[0])
    assert report.ok, str(report)


def test_a_relay_that_does_not_wait_is_found(repo, tmp_path):
    """Without its waits a lane passes on what has not come yet."""

    def hasty(rank, steps):
        kept = tuple(step for step in steps if not isinstance(step, st.Await))
        assert kept != steps
        return kept

    path = made(repo, tmp_path, "a[K:M]", "2x2")
    report = check_module(path, world=4, shape=SHAPES["uneven"], seeds=[0], mutate_steps=hasty)
    assert not report.ok and report.faults[0].kind == "race"
