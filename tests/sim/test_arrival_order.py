"""The order that `overlap explain` shows is the one that ranks run in, on the machine that the module names."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.mesh import Mesh
from overlap.pipeline import Request, compile_source, planned
from overlap.sim import check_module

SPREAD = """plan: spread
mesh: [node, gpu]
before: shard(rank)
after: whole
ops:
  - for: step in range(1, world)
    let: {peer: (rank + world - step) % world}
    move: shard(peer)
    from: peer
    to: rank
    channel: peer
"""


@pytest.mark.parametrize("machine", [None, "h100-nvlink"])
def test_ranks_run_in_the_order_that_is_explained(machine, repo, tmp_path: Path, monkeypatch):
    """Four ranks as two nodes of two: the order of lists is not that of arrival where there is a network between nodes."""
    from overlap.runtime import instance

    plan = tmp_path / "spread.yaml"
    plan.write_text(SPREAD)
    unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / "grouped_gemm.py"))
    settings = {"BLOCK_M": "16", "BLOCK_N": "16", "BLOCK_K": "16"} | ({} if machine is None else {"machine": machine})
    sizes = {"M": 64, "N": 20, "K": 24}
    request = Request(unit, str(plan), "a[M]", world=4, mesh=Mesh((2, 2)), settings=settings)
    compilation = compile_source(request)
    shown = planned(compilation, world=4, sizes=sizes).schedules
    run: dict[int, object] = {}
    made = instance.schedule_rank

    def schedule_rank(plan, reads, axes, rank, **options):
        run[rank] = made(plan, reads, axes, rank, **options)
        return run[rank]

    monkeypatch.setattr(instance, "schedule_rank", schedule_rank)
    out = tmp_path / "out.py"
    out.write_text(compilation.module.text)
    assert check_module(str(out), world=4, shape=sizes, seeds=[0]).ok
    assert run == dict(enumerate(shown))
    peers = [[run.peer for run in schedule.runs if run.peer >= 0] for schedule in shown]
    assert all(sorted(found) == sorted({0, 1, 2, 3} - {rank}) for rank, found in enumerate(peers))
    if machine is None:
        assert [found[0] for found in peers] == [1, 0, 3, 2], "the neighbour in the node comes first"
    else:
        assert peers[0][0] == 3, "in one node the list decides"
    assert ("machine=" in compilation.module.text) == (machine is not None)
