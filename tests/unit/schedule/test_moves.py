"""Operations that programs of a kernel's launch carry out: their order, what they wait for, who makes them."""

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.pins import pin_mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import ScheduleError, UnsupportedError
from overlap.schedule.moves import Group, Move, groups, moves_of
from overlap.schedule.steps import Credit, Entry, Kernel, launch_steps
from overlap.schedule.verify_steps import verify_steps

PLANS = ("all_gather_1d", "all_gather_1d_pull", "all_gather_ring", "all_gather_ring_both_ways", "all_gather_2d")


def plan_of(name, world, *, rows=37, direction="push", split=1):
    path, text = find_template(name)
    if name.endswith("2d"):
        text = pin_mesh(text, path, parse_mesh(f"2x{world // 2}"))
    tensor = TensorSpec("a", (rows, 8))
    return build_plan(text, world=world, tensor=tensor, dim=0, split=split, direction=direction, path=path)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("direction", ["push", "pull"])
@pytest.mark.parametrize(("world", "rows", "split"), [(2, 37, 1), (4, 3, 2), (6, 37, 2), (4, 0, 1)])
def test_every_plan_is_carried_out_once_and_without_a_circle(name, direction, world, rows, split):
    plan = plan_of(name, world, rows=rows, direction=direction, split=split)
    steps = [launch_steps(plan, rank, moves=True) for rank in range(world)]
    verify_steps(steps, plan)
    for rank, own in enumerate(steps):
        entry, kernel, *credits = own
        pulls = any(op.direction == "pull" for ops in plan.ops for op in ops)
        assert entry == Entry(True, pulls, bool(plan.ops[rank]))
        assert sorted(move.op for move in kernel.moves) == [(rank, i) for i in range(len(plan.ops[rank]))]
        assert sorted(c.peer for c in credits) == [p for p in range(world) if p != rank]


def test_one_rank_moves_nothing():
    plan = plan_of("all_gather_1d", 1)
    assert launch_steps(plan, 0, moves=True) == (Entry(False, False, False), Kernel())


def test_relays_await_what_they_hand_on():
    plan = plan_of("all_gather_ring", 3)
    assert moves_of(plan, 1) == (Move((1, 0)), Move((1, 1), ((2, 0),)))


@pytest.mark.parametrize(
    ("programs", "made"),
    [(0, []), (1, [1]), (2, [1, 1]), (5, [3, 2])],
)
def test_a_group_for_every_channel_there_are_programs_for(programs, made):
    plan = plan_of("all_gather_ring_both_ways", 4)
    moves = moves_of(plan, 1)
    found = groups(plan, moves, programs)
    assert [group.programs for group in found] == made
    assert {move.op for group in found for move in group.moves} == ({move.op for move in moves} if made else set())
    if programs == 1:
        assert found == (Group(moves, 1),)
    for group in found if programs > 1 else ():
        assert len({plan.op(move.op).channel for move in group.moves}) == 1


def test_results_of_the_kernel_are_refused():
    path, text = find_template("reduce_scatter_1d")
    plan = build_plan(text, world=2, tensor=TensorSpec("c", (8, 8)), dim=0, direction="push", path=path)
    with pytest.raises(UnsupportedError, match="move only what it reads") as caught:
        launch_steps(plan, 0, produced=["c"], moves=True)
    assert "ldst_inline" in caught.value.help


def _kernel(steps, change):
    return tuple(Kernel(moves=tuple(change(s.moves))) if isinstance(s, Kernel) else s for s in steps)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own: _kernel(own, lambda moves: moves[:1]), "is never copied"),
        (lambda own: _kernel(own, lambda moves: (*moves, moves[-1])), "not its own, or twice"),
        (lambda own: _kernel(own, lambda moves: moves[::-1]), "behind rank 1 operation 1"),
        (lambda own: _kernel(own, lambda moves: (Move(m.op) for m in moves)), "without awaiting rank 2 operation 0"),
        (lambda own: (own[0], *own[2:], own[1]), "does not follow the last copy"),
        (lambda own: (Entry(True, False, False), *own[1:]), "its kernel counts moves"),
        (lambda own: tuple(s for s in own if not isinstance(s, Credit)), "credits to ranks"),
    ],
)
def test_steps_that_break_the_protocol_are_refused(change, said):
    plan = plan_of("all_gather_ring", 3)
    steps = [launch_steps(plan, rank, moves=True) for rank in range(3)]
    steps[1] = change(steps[1])
    with pytest.raises(ScheduleError, match=said):
        verify_steps(steps, plan)


CROSSED = """
plan: crossed
world: 2
before: shard(rank)
after: whole
ops:
  - {when: rank == 0, label: a, push: "span(2, 4)", to: 1, channel: 1}
  - {when: rank == 1, label: b, push: "span(6, 8)", to: 0, channel: 1}
  - {when: rank == 0, push: "span(0, 2)", to: 1, depends: [{on: b, rank: 1}]}
  - {when: rank == 1, push: "span(4, 6)", to: 0, depends: [{on: a, rank: 0}]}
"""


def test_moves_that_wait_in_a_circle_are_named():
    """Each rank holds back what the other waits for until it has what the other holds back."""
    plan = build_plan(CROSSED, world=2, tensor=TensorSpec("a", (8, 8)), dim=0, path="crossed.yaml")
    steps = [launch_steps(plan, rank, moves=True) for rank in range(2)]
    verify_steps(steps, plan)
    late = [_kernel(own, reversed) for own in steps]
    with pytest.raises(
        ScheduleError, match="deadlock among launch steps: a move of rank .'s kernel .* waits for a move of"
    ):
        verify_steps(late, plan)
