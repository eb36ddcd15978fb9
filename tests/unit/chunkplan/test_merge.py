"""Several plans as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import Collective, CommPlan, TensorSpec
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError

NAMES = ("all_gather_1d", "all_gather_ring", "reduce_scatter_1d", "all_reduce_one_shot", "all_reduce_two_shot")


def make(name: str, tensor: str, world: int = 3, shape=(7, 2), split: int = 1, direction: str = "push") -> CommPlan:
    path, text = find_template(name)
    spec = TensorSpec(tensor, shape)
    return build_plan(text, world=world, tensor=spec, dim=0, split=split, direction=direction, path=path)


def test_one_plan_is_itself():
    plan = make("all_gather_1d", "a")
    assert merge_plans([plan]) is plan
    assert merge_plans((plan,), name="other") is plan


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4), st.integers(1, 4), st.integers(0, 6), st.data())
def test_merged_plans_do_what_each_does(names, world, extent, data):
    plans = [
        make(
            name,
            f"t{i}",
            world,
            (extent, 2),
            data.draw(st.integers(1, 2)),
            data.draw(st.sampled_from(["pull", "push"])),
        )
        for i, name in enumerate(names)
    ]
    merged = merge_plans(plans)
    verify_plan(merged)
    assert load_plan(dump_plan(merged)) == merged
    assert merged.name == "+".join(names)
    assert [spec.name for spec in merged.tensors] == [f"t{i}" for i in range(len(names))]
    order = happens_before(merged)
    for rank in range(world):
        shift = 0
        channels: list[set[int]] = []
        for plan in plans:
            own = merged.ops[rank][shift : shift + len(plan.ops[rank])]
            assert [replace(op, depends=(), channel=0) for op in own] == [
                replace(op, depends=(), channel=0) for op in plan.ops[rank]
            ]
            channels.append({op.channel for op in own})
            shift += len(plan.ops[rank])
        assert len(set().union(*channels)) == sum(map(len, channels))
    # Operations are ordered exactly as in their own plan, and not at all with those of another.
    ids = [(k, op_id) for k, plan in enumerate(plans) for op_id, _ in plan.items()]
    places = {(k, (r, i)): (r, i + sum(len(p.ops[r]) for p in plans[:k])) for k, (r, i) in ids}
    orders = [happens_before(plan) for plan in plans]
    for k, a in ids[:20]:
        for m, b in ids[-20:]:
            wanted = k == m and orders[k].before(a, b)
            assert order.before(places[k, a], places[m, b]) == wanted
        assert merged.where(places[k, a]) == plans[k].where(a)


def test_a_plan_made_in_python_has_no_places():
    read, made = make("all_gather_1d", "a"), replace(make("reduce_scatter_1d", "c"), spans=(), span=None)
    merged = merge_plans([made, read], name="both")
    assert merged.name == "both"
    assert merged.where((0, 0)) == merged.where() == read.where()
    assert merged.where((0, 2)) == read.where((0, 0)) != read.where()
    assert merge_plans([made, replace(made, tensors=(TensorSpec("d", (7, 2)),))]).where((0, 0)) is None


def test_collectives_move_too():
    plan = make("all_gather_1d", "a", 2, (4, 2))
    whole = plan.after[0][0]
    gather = tuple((Collective("all_gather", (0, 1), plan.before[r][0], whole),) for r in range(2))
    merged = merge_plans([make("reduce_scatter_1d", "c", 2), replace(plan, ops=gather)])
    verify_plan(merged)
    assert merged.ops[0][1] == replace(gather[0][0], channel=1)


@pytest.mark.parametrize(
    ("plans", "said", "helped"),
    [
        ([], "no plan to merge", "give one plan"),
        (
            [make("all_gather_1d", "a"), make("all_gather_ring", "a")],
            "moves tensor `a`, which another plan",
            "one plan",
        ),
        (
            [make("all_gather_1d", "a", 2), make("all_gather_ring", "b", 3)],
            "world of 2, plan all_gather_ring",
            "one world",
        ),
    ],
)
def test_plans_that_do_not_go_together(plans, said, helped):
    with pytest.raises(PlanError) as caught:
        merge_plans(plans)
    assert said in caught.value.message and helped in caught.value.help
    assert not plans or caught.value.where == plans[1].where()
