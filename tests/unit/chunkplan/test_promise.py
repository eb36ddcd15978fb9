"""A plan serves the kind of communication that it is used for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import Chunk, CommPlan, TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.region import Box
from overlap.chunkplan.window import KINDS
from overlap.errors import PlanError


def make(name: str, world: int = 3, shape=(7, 5)) -> CommPlan:
    path, text = find_template(name)
    to_dim = 1 if name.startswith("all_to_all") else None
    tensor, mesh = TensorSpec("c", shape), Mesh((1, world))
    return build_plan(text, world=world, tensor=tensor, dim=0, to_dim=to_dim, path=path, mesh=mesh)


def kind_of(name: str) -> str:
    return "gather" if name.startswith("all_gather") else next(kind for kind in KINDS if name.startswith(kind))


OTHERS = ("all_to_all_v", "broadcast", "halo", "kv_ring")


@pytest.mark.parametrize("name", [name for name in list_templates() if name not in OTHERS])
def test_a_template_is_of_its_own_kind_and_of_no_other(name):
    for world in (1, 2, 5):
        for shape in ((7, 5), (1, 5), (0, 5), (7, 0)):
            verify_kind(make(name, world, shape), "c", kind_of(name), dim=0, to_dim=1)
    plan = make(name)
    for kind in KINDS:
        # An all-reduce ends with everything everywhere, as a gather does: a gather that sums is found by what it adds.
        if kind == kind_of(name) or (kind, kind_of(name)) == ("gather", "all_reduce"):
            continue
        with pytest.raises(PlanError, match=f"plan {name} is no ") as caught:
            verify_kind(plan, "c", kind, dim=0, to_dim=1)
        assert caught.value.where is not None and "is a plan such as" in caught.value.help


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("reduce_scatter_1d", "all_reduce", "is no all-reduce: rank 0 ends without c[3:7, 0:5]"),
        ("all_reduce_one_shot", "reduce_scatter", "is no reduce-scatter: ranks 0 and 1 both end with c[0:7, 0:5]"),
        ("all_gather_1d", "reduce_scatter", "is no reduce-scatter: rank 0 starts without c[3:7, 0:5]"),
        ("reduce_scatter_1d", "all_to_all", "is no all-to-all: ranks 0 and 1 both start with c[0:7, 0:5]"),
        ("all_to_all_1d", "gather", "is no gather: rank 0 ends without c[0:7, 2:5]"),
    ],
)
def test_what_is_said(name, kind, said):
    with pytest.raises(PlanError) as caught:
        verify_kind(make(name), "c", kind, dim=0, to_dim=1)
    assert caught.value.message == f"plan {name} {said}"


def test_divisions():
    plan = make("reduce_scatter_1d", 2)

    def divided(*boxes: tuple[Box, ...]) -> CommPlan:
        return replace(plan, after=tuple(tuple(Chunk("c", box) for box in row) for row in boxes))

    rows = [Box((lo, 0), (hi, 5)) for lo, hi in ((0, 1), (1, 4), (4, 7))]
    verify_kind(divided((rows[0], rows[2]), (rows[1],)), "c", "reduce_scatter", dim=0)
    verify_kind(divided((Box.whole((7, 5)),), ()), "c", "reduce_scatter", dim=0)
    for after, said in (
        (((rows[0],), (rows[1],)), "no rank ends with c[4:7, 0:5]"),
        (((rows[0], rows[1]), (rows[1], rows[2])), "ranks 0 and 1 both end with c[1:4, 0:5]"),
        (((rows[0], rows[1]), (Box((4, 0), (7, 4)),)), "rank 1 ends with c[4:7, 0:4], cut along another dimension"),
    ):
        with pytest.raises(PlanError) as caught:
            verify_kind(divided(*after), "c", "reduce_scatter", dim=0)
        assert said in caught.value.message
    with pytest.raises(PlanError, match="cut along another dimension"):
        verify_kind(plan, "c", "reduce_scatter", dim=1)


def test_names_that_do_not_exist():
    with pytest.raises(KeyError):
        verify_kind(make("all_gather_1d"), "x", "gather", dim=0)
    with pytest.raises(ValueError, match="unknown kind `broadcast`"):
        verify_kind(make("all_gather_1d"), "c", "broadcast", dim=0)
