"""CommPlan to YAML and back is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.errors import PlanError
from tests.support.sweep import examples

words = st.one_of(
    st.sampled_from(["null", "~", "yes", "on", "1:30", "0x10", "a: b", "# x", "", " x ", "'", '"', "-", "a\nb", "\t"]),
    st.text(st.characters(codec="utf-8"), max_size=12),
)
names = st.sampled_from(["a", "tensor", "whole", "shard", "rank", "world", "on", "x_1", "M", "null"])

AXES = ("node", "gpu", "die")


@st.composite
def chunks(draw, specs: tuple[TensorSpec, ...]) -> Chunk:
    spec = draw(st.sampled_from(specs))
    cuts = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in spec.shape]
    return Chunk(spec.name, Box(tuple(a for a, _ in cuts), tuple(b for _, b in cuts)))


@st.composite
def plans(draw) -> CommPlan:
    """Any plan that is structurally sound; whether it makes sense does not matter here."""
    world = draw(st.integers(1, 4))
    shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
    unique = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    numbers = st.just(()) | st.lists(st.integers(0, 3), min_size=world, max_size=world).map(tuple)
    specs = tuple(TensorSpec(name, draw(shapes), draw(numbers), draw(numbers)) for name in unique)
    sizes_of = {1: [(1,), (1, 1)], 2: [(2,), (1, 2)], 3: [(3, 1)], 4: [(4,), (2, 2), (2, 1, 2)]}[world]
    meshes = st.sampled_from([Mesh(sizes) for sizes in sizes_of] + [Mesh(sizes_of[-1], AXES[: len(sizes_of[-1])])])
    sizes = [draw(st.integers(0, 3)) for _ in range(world)]
    ids = [(r, i) for r, n in enumerate(sizes) for i in range(n)]
    held = st.lists(chunks(specs), max_size=3).map(tuple)
    optional = st.none() | words
    reductions = st.none() | st.sampled_from(["fp32", "fp64"]).map(lambda accumulate: Reduction("sum", accumulate))

    def op(rank: int):
        depends = tuple(draw(st.lists(st.sampled_from(ids), max_size=3)))
        rest = (depends, draw(st.integers(0, 3)), draw(reductions), draw(optional))
        src, dst = draw(chunks(specs)), draw(chunks(specs))
        if dst.box.shape != src.box.shape or draw(st.booleans()):
            dst = src
        if world == 1 or draw(st.integers(0, 4)) == 0:
            if draw(st.booleans()):
                kind = draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]))
                return Collective(kind, tuple(range(world)), src, dst, *rest)
            return P2P("local", rank, rank, src, dst, *rest)
        peer = (rank + draw(st.integers(1, world - 1))) % world
        if draw(st.booleans()):
            return P2P("pull", peer, rank, src, dst, *rest)
        return P2P("push", rank, peer, src, dst, *rest)

    return CommPlan(
        name=draw(words.filter(lambda text: text != "")),
        world=world,
        tensors=specs,
        before=tuple(draw(held) for _ in range(world)),
        after=tuple(draw(held) for _ in range(world)),
        ops=tuple(tuple(op(rank) for _ in range(n)) for rank, n in enumerate(sizes)),
        meta=draw(st.dictionaries(words, words, max_size=2)),
        mesh=draw(st.none() | meshes),
    )


@settings(max_examples=examples(100), deadline=None)
@given(plans())
def test_there_and_back(plan):
    text = dump_plan(plan)
    again = load_plan(text)
    assert again == plan and again.tensors == plan.tensors and again.mesh == plan.mesh
    assert again.meta == plan.meta
    assert dump_plan(again) == text
    assert yaml.safe_load(text)["world"] == plan.world


def test_the_text_is_the_language_people_write():
    chunk, rest = Chunk("a", Box((0, 0), (2, 3))), Chunk("a", Box((2, 0), (4, 3)))
    pull = P2P("pull", 1, 0, rest, rest, depends=((1, 0), (0, 1)), channel=2, backend="tma")
    push = P2P("push", 1, 0, rest, chunk, reduce=Reduction())
    plan = CommPlan(
        "two ranks", 2, (TensorSpec("a", (4, 3)),), ((chunk,), (rest,)), ((chunk, rest), ()), ((pull,), (push,))
    )
    assert (
        dump_plan(plan)
        == """\
plan: "two ranks"
world: 2
tensors:
  a: [4, 3]
ranks:
  0:
    before:
      - a[0:2, 0:3]
    after:
      - a[0:2, 0:3]
      - a[2:4, 0:3]
    ops:
      - pull: a[2:4, 0:3]
        from: 1
        depends: [[1, 0], [0, 1]]
        channel: 2
        backend: tma
  1:
    before:
      - a[2:4, 0:3]
    after: []
    ops:
      - push: a[2:4, 0:3]
        to: 0
        into: a[0:2, 0:3]
        reduce: sum
"""
    )
    with pytest.raises(PlanError, match="rank 0 has no operation 1"):
        load_plan(dump_plan(plan))
    assert load_plan(dump_plan(replace(plan, ops=((replace(pull, depends=((1, 0),)),), (push,))))).ops[1] == (push,)


def test_a_concrete_plan_is_applied_to_its_own_world_and_shape_only():
    chunk = Chunk("a", Box.whole((4, 3)))
    plan = CommPlan(
        "p", 2, (TensorSpec("a", (4, 3)),), ((chunk,), ()), ((chunk,),) * 2, ((), (P2P("pull", 0, 1, chunk, chunk),))
    )
    text = dump_plan(plan)
    assert build_plan(text, world=2, tensor=TensorSpec("a", (4, 3)), dim=0) == plan
    assert build_plan(text, world=2, tensor=TensorSpec("b", (4, 3)), dim=0).after[1][0].tensor == "b"
    for world, shape, said in (
        (3, (4, 3), "for a world of 2, not 3"),
        (2, (4, 5), "is for size 3 here"),
        (2, (4,), "2 dimensions"),
    ):
        with pytest.raises(PlanError, match=said):
            build_plan(text, world=world, tensor=TensorSpec("a", shape), dim=0)


def test_a_tensor_that_cannot_be_spelt_is_refused():
    chunk = Chunk("a b", Box.whole((4,)))
    plan = CommPlan("p", 1, (TensorSpec("a b", (4,)),), ((chunk,),), ((chunk,),), ((),))
    with pytest.raises(PlanError, match="tensor `a b` cannot be written down"):
        dump_plan(plan)
