"""Link tables are timed in two places, for synthesis and by the event model: to the tick they say the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from overlap.chunkplan.collectives.lower import lower_collective
from overlap.chunkplan.collectives.network import Network
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.collectives.timing import link_times
from overlap.chunkplan.links import Link, full_mesh, ring, two_level
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import PlanError
from overlap.schedule.events import landing_times
from overlap.schedule.machine import load_machine

BARE = replace(load_machine("h100-nvlink"), node=64, entry=0.0, flag=0.0, kernel=0.0, memory=float("inf"))
"""Nothing takes time but links: no entry, flags, launches or reading of memory."""
SHARP = Link("sharp", 0.0, 1e11, True)
TABLES = {
    "mesh": full_mesh(6),
    "without latency": full_mesh(5, SHARP),
    "ring": ring(6),
    "2x3": two_level(2, 3),
    "gap": full_mesh(5).without(0, 3),
    "alone": full_mesh(1),
}
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", TABLES)
def test_both_clocks_agree_to_the_tick(table, kind):
    links = TABLES[table]
    classes = tuple(sorted({link.name for link in links.classes.values()}))
    compared = 0
    for shape, split, path in product(((37, 21), (4, 9)), (1, 3), ("synth", "template")):
        direction = "push" if split == 1 else "pull"
        step = CollectiveStep(
            kind,
            TensorSpec("x", shape),
            links.world,
            to_dim=1 if kind == "all_to_all" else None,
            split=split,
            itemsize=4,
        )
        for switched in dict.fromkeys(((), classes)):
            try:
                plan = lower_collective(step, path=path, links=links, switched=switched, direction=direction)
            except PlanError as error:
                assert path == "template" and "between which there is no link" in error.message
                continue
            wanted = link_times(plan, Network(links, switched), itemsize=4)
            table = replace(links, switched=switched)
            assert link_times(plan, Network(table), itemsize=4) == wanted
            assert landing_times(plan, BARE, itemsize=4, links=table) == wanted
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_takes_longer_than_its_links_by_what_it_adds(kind):
    """Entry once, and on the longest chain of operations a flag and a launch each. Who asks first for a port may turn out
    otherwise then, which was seen to save a twentieth."""
    links = TABLES["mesh"]
    h100 = replace(load_machine("h100-nvlink"), memory=float("inf"), contention=0.0)
    for shape in ((4096, 4096), (64, 8)):
        step = CollectiveStep(kind, TensorSpec("x", shape), 6, to_dim=1 if kind == "all_to_all" else None)
        plan = lower_collective(step, path="template")
        bare = max(link_times(plan, Network(links, ("nvlink",))).values())
        real = max(landing_times(plan, h100, links=replace(links, switched=("nvlink",))).values())
        chain = max(map(len, plan.ops)) + 1
        assert 0.95 * bare + h100.entry <= real <= bare + h100.entry + chain * (h100.flag + h100.kernel)
