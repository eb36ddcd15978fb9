"""Launch steps of plans without a kernel: verified for every template, and every step that is dropped is missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError, ScheduleError, UnsupportedError
from overlap.schedule.pieces import Values
from overlap.schedule.steps import Await, Copy, Credit, Entry, Fork, Join, Kernel, Raise, Sum
from overlap.schedule.transfer import LANES, needs_ready, transfer_steps
from overlap.schedule.turned import pulled_sums, push_instead
from overlap.schedule.verify_transfer import verify_transfer

ROWS = {"": ("3", "1"), "mesh": ("2x2", "1x3")}
TWO_AXES = ("all_gather_2d", "all_gather_double_ring", "all_reduce_2d", "all_to_all_2d", "reduce_scatter_2d")
TEMPLATES = [name for name in list_templates() if name != "all_to_all_v"]


def made(name: str, mesh: str, shape=(7, 5), split=1, direction=None) -> CommPlan:
    path, text = find_template(name)
    grid = parse_mesh(mesh)

    def build(direction: str) -> CommPlan:
        return build_plan(
            text,
            world=grid.world,
            tensor=TensorSpec("k" if name == "kv_ring" else "x", shape),
            dim=0,
            to_dim=1 if "all_to_all" in name else None,
            split=split,
            direction=direction,
            path=path,
            mesh=grid,
        )

    plan = build(direction or "pull")
    return build("push") if direction is None and reduced_tensors(plan) else plan


def all_steps(plan: CommPlan, values: Values | None = None):
    values = values or Values(plan)
    return [transfer_steps(plan, rank, values) for rank in range(plan.world)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_dropped_step_is_found(name):
    for mesh in ROWS["mesh" if name in TWO_AXES else ""]:
        plan = made(name, mesh, split=2)
        steps = all_steps(plan)
        for blocking in (False, True):
            verify_transfer(steps, plan, blocking=blocking)
        for rank in {0, plan.world - 1}:
            for i in range(len(steps[rank])):
                left = [*steps[:rank], steps[rank][:i] + steps[rank][i + 1 :], *steps[rank + 1 :]]
                with pytest.raises(ScheduleError, match=f"rank {rank}:"):
                    verify_transfer(left, plan)


def test_the_steps_of_a_ring_and_of_a_two_shot():
    assert transfer_steps(made("all_gather_ring", "3"), 0) == (
        Entry(wait_done=True, ready=True),
        Fork(0),
        Copy(0, (0, 0)),
        Raise(0, (0, 0)),
        Await(0, (1, 0), 1),
        Copy(0, (0, 1)),
        Raise(0, (0, 1)),
        # The lane has a wait kernel, which results of many programs might keep from running.
        Join(0),
        transfer_steps(made("all_gather_ring", "3"), 0)[8],
        Credit(1, None),
        Credit(2, None),
    )
    steps = transfer_steps(made("all_reduce_two_shot", "3"), 0)
    kinds = [type(step).__name__ for step in steps]
    # The rank's own partial leaves as it is; its sum leaves behind a fork behind it; no chunk is held for any tile.
    assert kinds == [
        "Entry", "Fork", "Copy", "Raise", "Copy", "Raise", "Sum", "Fork", "Copy", "Raise", "Copy", "Raise",
        "Sum", "Join", "Join", "Credit", "Credit",
    ]  # fmt: skip
    assert steps[0] == Entry(wait_done=True, ready=True), "what peers hold is replaced, so they must have staged"
    kept, results = (step for step in steps if isinstance(step, Sum))
    assert [len(piece.summands) for piece in kept.pieces] == [3] and kept.pieces[0].out and kept.pieces[0].keep
    assert all(len(piece.summands) == 1 and not piece.keep for piece in results.pieces)


def test_what_is_only_moved_is_sent_on_from_its_place():
    for name, mesh in (("all_gather_2d", "2x3"), ("broadcast", "4"), ("all_to_all_2d", "2x2"), ("kv_ring", "3")):
        plan = made(name, mesh)
        for own in all_steps(plan):
            assert not any(piece.keep for step in own if isinstance(step, Sum) for piece in step.pieces)


def test_ready_is_exchanged_where_a_peer_is_read_or_replaced():
    assert needs_ready(made("all_gather_1d_pull", "3")) and not needs_ready(made("all_gather_1d_push", "3"))
    assert not needs_ready(made("reduce_scatter_ring", "3")) and needs_ready(made("all_reduce_ring", "3"))


def test_pulls_of_sums_become_pushes_and_keep_their_order():
    for name in ("all_reduce_ring", "all_reduce_two_shot", "reduce_scatter_ring"):
        pulled = made(name, "3", direction="pull")
        values = Values(pulled)
        pulls = pulled_sums(pulled, values)
        assert pulls
        with pytest.raises(UnsupportedError, match="takes a sum, and only its source knows"):
            all_steps(pulled, values)
        pushed = push_instead(pulled, pulls)
        verify_plan(pushed)
        assert not pulled_sums(pushed, Values(pushed))
        verify_transfer(all_steps(pushed), pushed, blocking=True)
        # The same transfers, and what came before another one comes before it still.
        at: dict[object, tuple[int, int]] = {}
        for op_id, op in pushed.items():
            at[op.src_rank, op.dst_rank, op.src, op.reduce] = op_id
        here, there = Values(pulled).order, Values(pushed).order
        moved = {op_id: at[op.src_rank, op.dst_rank, op.src, op.reduce] for op_id, op in pulled.items()}
        assert len(set(moved.values())) == len(moved) == sum(1 for _ in pushed.items())
        for a in moved:
            for b in moved:
                assert here.before(a, b) <= there.before(moved[a], moved[b]), (name, a, b)
    whole = made("all_gather_ring", "3")
    assert push_instead(whole, ()) is whole


def test_many_channels_share_few_lanes():
    """Pulls of sums from seven peers are pushes in seven channels."""
    pulled = made("all_reduce_two_shot", "8", shape=(16,), direction="pull")
    plan = push_instead(pulled, pulled_sums(pulled, Values(pulled)))
    assert max(len({op.channel for op in ops}) for ops in plan.ops) > LANES
    values = Values(plan)
    steps = all_steps(plan, values)
    assert all(len({step.lane for step in own if isinstance(step, Fork)}) == LANES for own in steps)
    for blocking in (False, True):
        verify_transfer(steps, plan, blocking=blocking, values=values)
    at = max(i for i, step in enumerate(steps[0]) if isinstance(step, Copy))
    elsewhere = replace(steps[0][at], lane=(steps[0][at].lane + 1) % LANES)
    with pytest.raises(ScheduleError, match="which rank 0 copies once, in channel"):
        verify_transfer([(*steps[0][:at], elsewhere, *steps[0][at + 1 :]), *steps[1:]], plan)


def two(ops, before=((0, 4), (4, 4)), after=((0, 4), (0, 4)), tensors=("x",)) -> CommPlan:
    """Rows of four on two ranks: bounds of what each holds before and after."""

    def chunks(bounds):
        return tuple((Chunk(tensors[0], Box((lo,), (hi,))),) if lo < hi else () for lo, hi in bounds)

    specs = tuple(TensorSpec(name, (4,)) for name in tensors)
    return CommPlan("two", 2, specs, chunks(before), chunks(after), ops)


ROW = Chunk("x", Box((0,), (4,)))


def test_copies_inside_a_rank_are_joined_before_results():
    y = Chunk("y", Box((0,), (4,)))
    plan = two(((P2P("local", 0, 0, ROW, y),), ()), after=((0, 0), (0, 0)), tensors=("x", "y"))
    plan = replace(plan, after=((y,), ()))
    verify_plan(plan)
    steps = all_steps(plan)
    verify_transfer(steps, plan)
    (join,), (result,) = ([i for i, s in enumerate(steps[0]) if isinstance(s, kind)] for kind in (Join, Sum))
    assert join < result
    turned = list(steps[0])
    turned[join], turned[result] = turned[result], turned[join]
    with pytest.raises(ScheduleError, match="while lane 0 still needs a multiprocessor"):
        verify_transfer([turned, steps[1]], plan)


def test_what_the_verifier_says_of_steps_that_do_not_belong():
    plan = two(((P2P("push", 0, 1, ROW, ROW),), ()))
    one, other = all_steps(plan)
    verify_transfer([one, other], plan)
    with pytest.raises(ScheduleError, match="which has no kernel"):
        verify_transfer([(*one[:1], Kernel(), *one[1:]), other], plan)
    with pytest.raises(ScheduleError, match="peers may overwrite what is still read"):
        verify_transfer([(one[0], Credit(1, None), *(s for s in one[1:] if not isinstance(s, Credit))), other], plan)
    with pytest.raises(ScheduleError, match="of 1 ranks for plan two of world 2"):
        verify_transfer([one], plan)
    with pytest.raises(ScheduleError, match="begins with"):
        verify_transfer([(Entry(True, True), *one[1:]), other], plan)


def test_what_cannot_be_carried_out_is_refused():
    whole = Collective("all_gather", (0, 1), Chunk("x", Box((0,), (2,))), ROW)
    plan = two(((whole,), (replace(whole, src=Chunk("x", Box((2,), (4,)))),)), before=((0, 2), (2, 4)))
    with pytest.raises(UnsupportedError, match="cannot do a collective"):
        transfer_steps(plan, 0)
    cyclic = two(
        (
            (P2P("push", 0, 1, ROW, ROW, depends=((1, 0),)),),
            (P2P("push", 1, 0, ROW, ROW, depends=((0, 0),), reduce=Reduction()),),
        )
    )
    with pytest.raises(PlanError, match="never finishes"):
        transfer_steps(cyclic, 0)


def test_lenient_values_carry_out_what_is_never_there():
    plan = two(((P2P("push", 0, 1, ROW, ROW),), ()), before=((0, 0), (0, 0)))
    with pytest.raises(PlanError, match="which it never has"):
        transfer_steps(plan, 0)
    assert transfer_steps(plan, 0, Values(plan, lenient=True))
