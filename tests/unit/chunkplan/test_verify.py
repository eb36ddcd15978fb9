"""The plan verifier: each way to break a plan is caught, with the story that tells where."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from tests.support.changed_plans import also, with_op, without_op

from .oracle import judge

SUM = Reduction("sum")


def make(name: str, world: int = 4, shape=(8, 2), split: int = 1, direction: str = "pull") -> CommPlan:
    path, text = find_template(name)
    tensor = TensorSpec("a", shape)
    return build_plan(text, world=world, tensor=tensor, dim=0, split=split, direction=direction, path=path)


def rows(lo: int, hi: int, tensor: str = "a", width: int = 2) -> Chunk:
    return Chunk(tensor, Box((lo, 0), (hi, width)))


def refusal(plan: CommPlan) -> PlanError:
    with pytest.raises(PlanError) as caught:
        verify_plan(plan)
    return caught.value


# One mutation each


def test_missing_chunk():
    error = refusal(without_op(make("all_gather_1d"), (2, 1)))
    assert "rank 2 ends without a[0:2, 0:2] of its `after` a[0:8, 0:2]" in error.message
    assert "rank 2" in error.help


def test_chunk_moved_before_it_is_owned():
    """Rank 0 asks rank 1 for rank 2's shard at once; rank 1 has it only later."""
    plan = make("all_gather_1d")
    error = refusal(with_op(plan, (0, 1), src_rank=1))
    assert "rank 0 operation 1 (pull a[4:6, 0:2] from rank 1) reads a[4:6, 0:2] on rank 1" in error.message
    assert "depends: [[1, 0]]" in error.help
    verify_plan(with_op(with_op(plan, (0, 1), src_rank=1), (0, 1), depends=((1, 0),)))


def test_dependency_dropped_from_the_ring():
    for direction in ("pull", "push"):
        plan = make("all_gather_ring", direction=direction)
        late = next(op_id for op_id, op in plan.items() if op.depends)
        error = refusal(with_op(plan, late, depends=()))
        assert f"rank {late[0]} operation {late[1]}" in error.message and "does not hold it then" in error.message
        dep = plan.op(late).depends[0]
        assert f"depends: [[{dep[0]}, {dep[1]}]]" in error.help
        assert error.where is not None and error.where.path.endswith("all_gather_ring.yaml")
        assert error.where.text.lstrip().startswith("- for: step")


def test_wrong_part_of_a_dependency_in_a_split_ring():
    """The second part of a hop behind the first part's arrival only: its own rows may not be there."""
    plan = make("all_gather_ring", split=2)
    first = next(op_id for op_id, op in plan.items() if op.depends)
    second = (first[0], first[1] + 1)
    early, late = plan.op(first).depends[0], plan.op(second).depends[0]
    assert late == (early[0], early[1] + 1)
    verify_plan(with_op(plan, first, depends=(late,)))
    assert f"depends: [[{late[0]}, {late[1]}]]" in refusal(with_op(plan, second, depends=(early,))).help


def test_wrong_region():
    plan = make("all_gather_1d")
    shifted = with_op(plan, (0, 0), src=rows(3, 5), dst=rows(3, 5))
    assert "reads a[4:5, 0:2] on rank 1" in refusal(shifted).message
    swapped = with_op(with_op(plan, (0, 0), dst=rows(4, 6)), (0, 1), dst=rows(2, 4))
    assert "puts a[2:4, 0:2] where a[4:6, 0:2] belongs" in refusal(swapped).message
    short = with_op(plan, (0, 0), src=rows(2, 3), dst=rows(2, 3))
    assert "rank 0 ends without a[3:4, 0:2]" in refusal(short).message
    outside = with_op(plan, (0, 2), src=rows(6, 9), dst=rows(6, 9))
    assert "is not inside tensor a[8, 2]" in refusal(outside).message
    lopsided = with_op(plan, (0, 0), dst=rows(2, 3))
    assert "one shape" in refusal(lopsided).help


def test_double_write():
    plan = make("all_gather_1d")
    twice = also(plan, 0, replace(plan.op((0, 1)), channel=1))
    error = refusal(twice)
    assert "a[4:6, 0:2] on rank 0 is written twice" in error.message
    assert "rank 0 operation 1" in error.message and "rank 0 operation 3" in error.message
    overlapping = also(plan, 3, P2P("push", 3, 0, rows(6, 7), rows(6, 7)))
    assert "a[6:7, 0:2] on rank 0 is written twice" in refusal(overlapping).message
    verify_plan(also(plan, 0, plan.op((0, 1))))  # the same lane: one after the other


def test_write_over_owned_data():
    plan = make("all_gather_1d")
    error = refusal(also(plan, 0, P2P("pull", 1, 0, rows(0, 2), rows(0, 2), depends=((1, 2),))))
    assert "overwrites a[0:2, 0:2], which rank 0 owns" in error.message


def test_unordered_read_and_overwrite():
    """Rank 1 gets its missing rows twice, in order, while rank 2 reads them between or during the second write."""
    chunk = rows(0, 2)
    ops = (
        (),
        (P2P("pull", 0, 1, chunk, chunk), P2P("pull", 0, 1, chunk, chunk)),
        (P2P("pull", 1, 2, chunk, chunk, depends=((1, 0),)),),
    )
    held = ((chunk,), (), ())
    plan = CommPlan("x", 3, (TensorSpec("a", (8, 2)),), held, ((chunk,),) * 3, ops)
    error = refusal(plan)
    assert "rank 2 operation 0 (pull a[0:2, 0:2] from rank 1) reads a[0:2, 0:2] on rank 1 while rank 1 operation 1" in (
        error.message
    )
    verify_plan(with_op(plan, (2, 0), depends=((1, 1),)))


def test_cycle_is_named_operation_by_operation():
    plan = make("all_gather_1d", world=3)
    cyclic = with_op(with_op(plan, (0, 0), depends=((1, 1),)), (1, 0), depends=((0, 0),))
    message = refusal(cyclic).message
    assert "never finishes, 3 operations wait in a cycle: " in message
    for part in (
        "rank 0 operation 0 (pull a[3:6, 0:2] from rank 1) waits for rank 1 operation 1 (depends on it)",
        "rank 1 operation 1 (pull a[0:3, 0:2] from rank 0) waits for rank 1 operation 0 (behind it on channel 0)",
        "rank 1 operation 0 (pull a[6:8, 0:2] from rank 2) waits for rank 0 operation 0 (depends on it)",
    ):
        assert part in message
    assert "\n" not in refusal(cyclic).render().splitlines()[0]


def test_an_operation_that_waits_for_itself_or_for_one_behind_it():
    plan = make("all_gather_1d", world=3)
    assert "1 operation waits in a cycle" in refusal(with_op(plan, (0, 0), depends=((0, 0),))).message
    assert "2 operations wait in a cycle" in refusal(with_op(plan, (0, 0), depends=((0, 1),))).message
    verify_plan(with_op(with_op(plan, (0, 0), depends=((0, 1),)), (0, 0), channel=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"src_rank": 9}, "names rank 9 in a world of 4"),
        ({"src_rank": -1}, "names rank -1 in a world of 4"),
        ({"depends": ((1, 7),)}, "depends on rank 1 operation 7, which does not exist"),
        ({"depends": ((4, 0),)}, "depends on rank 4 operation 0, which does not exist"),
        ({"depends": ((0, -1),)}, "depends on rank 0 operation -1, which does not exist"),
        ({"channel": -1}, "channel -1"),
        ({"direction": "push"}, "stands in the list of rank 0, not of rank 1"),
        ({"direction": "local"}, "as `local`"),
        ({"src_rank": 0}, "from rank 0 to rank 0 as `pull`"),
        ({"dst_rank": 2}, "stands in the list of rank 0, not of rank 2"),
        ({"src": rows(2, 4, "b"), "dst": rows(2, 4, "b")}, "names the tensor `b`"),
        ({"src": Chunk("a", Box((2,), (4,))), "dst": Chunk("a", Box((2,), (4,)))}, "is not inside tensor a[8, 2]"),
    ],
)
def test_what_does_not_exist(change, said):
    plan = make("all_gather_1d")
    error = refusal(with_op(plan, (0, 0), **change))
    assert said in error.message and error.help
    assert error.where is not None and error.where.line == plan.where((0, 0)).line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world": 0}, "a world of 0 ranks"),
        ({"world": 5}, "`ops` has 4 lists for a world of 5"),
        ({"before": ()}, "`before` has 0 lists"),
        ({"after": ((rows(0, 9),),) * 4}, "`after` of rank 0, a[0:9, 0:2], is not inside"),
        ({"tensors": (TensorSpec("a", (8, 2)),) * 2}, "`a` is declared twice"),
        ({"before": ((),) * 4}, "no rank owns it at the start"),
    ],
)
def test_plans_that_do_not_fit_together(changes, said):
    error = refusal(replace(make("all_gather_1d"), **changes))
    assert said in error.message + error.help


def test_empty_chunks_are_ordinary():
    for split in (1, 3):
        verify_plan(make("all_gather_1d", world=4, shape=(3, 2), split=split))
        verify_plan(make("all_gather_ring", world=8, shape=(0, 2), split=split))
    plan = make("all_gather_1d", world=4, shape=(3, 2))
    verify_plan(without_op(plan, (0, 2)))  # the empty shard of rank 3: nothing is missing without it


# Reductions and collectives


def summed(world: int, **changes) -> CommPlan:
    """Every rank adds its partial result into rank 0's."""
    whole = rows(0, 8, "c")
    ops = tuple((replace(P2P("push", r, 0, whole, whole, reduce=SUM), **changes),) if r else () for r in range(world))
    after = ((whole,), *((),) * (world - 1))
    return CommPlan("sum", world, (TensorSpec("c", (8, 2)),), ((whole,),) * world, after, ops)


def test_reductions_into_one_box_commute():
    verify_plan(summed(4))
    plan = summed(4)
    beside = with_op(plan, (2, 0), reduce=None)
    assert "c[0:8, 0:2] on rank 0 is written twice, by rank 1 operation 0" in refusal(beside).message
    assert "make the later of the two depend on the other" in refusal(beside).help
    partly = with_op(beside, (1, 0), src=rows(0, 4, "c"), dst=rows(0, 4, "c"))
    assert (
        "c[0:4, 0:2] on rank 0 is written twice, by rank 1 operation 0" in refusal(without_op(partly, (3, 0))).message
    )


def test_a_tensor_has_one_known_reduction():
    plan = summed(4)
    mixed = refusal(with_op(plan, (2, 0), reduce=Reduction("sum", "fp64")))
    assert "rank 2 operation 0 (push c[0:8, 0:2] (sum) to rank 0) and rank 1 operation 0" in mixed.message
    assert "reduce c in two ways" in mixed.message and "one accumulator" in mixed.help
    assert "unknown reduction `summ`" in refusal(with_op(plan, (2, 0), reduce=Reduction("summ"))).message
    odd = refusal(with_op(plan, (2, 0), reduce=Reduction("sum", "fp16")))
    assert (
        "a sum is not carried out in `fp16`" in odd.message and odd.help == "did you mean `fp64`? there is fp32, fp64"
    )


def test_a_sum_needs_something_to_add_to():
    plan = summed(3)
    nothing = replace(plan, before=((), *plan.before[1:]), after=((),) * 3)
    assert (
        "rank 1 operation 0 (push c[0:8, 0:2] (sum) to rank 0) reads c[0:8, 0:2] on rank 0" in refusal(nothing).message
    )


def test_a_reader_sees_the_part_of_its_rank_while_others_arrive():
    """Rank 0's own part is sent on beside the parts that come in: unordered reductions are not seen."""
    whole = rows(0, 8, "c")
    plan = also(summed(2), 1, P2P("pull", 0, 1, whole, whole, reduce=SUM, channel=1))
    verify_plan(replace(plan, after=((whole,),) * 2))


def collective(world: int, kind: str = "all_gather") -> CommPlan:
    whole = rows(0, 8)
    held = tuple((Chunk("a", box),) for box in whole.box.split(0, world))
    ops = tuple((Collective(kind, tuple(range(world)), held[r][0], whole),) for r in range(world))
    return CommPlan("gather", world, (TensorSpec("a", (8, 2)),), held, ((whole,),) * world, ops)


def test_collectives():
    verify_plan(collective(4))
    plan = collective(4)
    absent = replace(plan, ops=(*plan.ops[:3], ()))
    assert "rank 3 never joins rank 0 operation 0" in refusal(absent).message
    less = with_op(plan, (3, 0), src=rows(6, 7))
    assert "no rank gives a[7:8, 0:2] to" in refusal(less).message
    assert "once in the list of each of its ranks" in refusal(with_op(plan, (0, 0), ranks=(1, 2, 3))).help
    unheld = with_op(plan, (0, 0), src=rows(2, 4))
    assert "no rank gives a[0:2, 0:2]" in refusal(unheld).message


def test_a_collective_waits_for_all_its_ranks():
    """Rank 0 enters only behind what comes after the collective on rank 1."""
    plan = collective(2)
    chunk = rows(0, 4)
    behind = also(plan, 1, P2P("push", 1, 0, rows(4, 8), rows(4, 8)))
    cyclic = with_op(behind, (0, 0), depends=((1, 1),))
    assert "in a cycle" in refusal(cyclic).message
    pull = P2P("pull", 0, 2, chunk, chunk)
    verify_plan(also(collective(3), 2, replace(pull, depends=((0, 0),))))
    # That rank 2 is through does not say that rank 0 is.
    assert "on rank 0, which does not hold it then" in refusal(also(collective(3), 2, pull)).message


# Against the oracle


def mutate(plan: CommPlan, dice: random.Random) -> CommPlan:
    """One random change that leaves every name and index valid."""
    ids = [op_id for op_id, _ in plan.items()]
    at = dice.choice(ids)
    op = plan.op(at)
    kind = dice.randrange(9)
    if kind == 0:
        return without_op(plan, at)
    if kind == 1:
        return with_op(plan, at, depends=op.depends[1:])
    if kind == 2:
        return with_op(plan, at, depends=(*op.depends, dice.choice(ids)))
    if kind == 3:
        return with_op(plan, at, channel=dice.randrange(3))
    if kind == 4:
        others = [r for r in range(plan.world) if r not in (op.src_rank, op.dst_rank)]
        if others:
            return with_op(plan, at, **{"src_rank" if op.direction == "pull" else "dst_rank": dice.choice(others)})
    if kind == 5:
        return also(plan, at[0], replace(op, channel=dice.randrange(3)))
    if kind == 6:
        other = plan.op(dice.choice(ids))
        return with_op(plan, at, src=other.src, dst=other.dst)
    if kind == 7:
        rank = dice.randrange(plan.world)
        return replace(plan, before=tuple((*c, op.dst) if r == rank else c for r, c in enumerate(plan.before)))
    row = list(plan.ops[at[0]])
    swap = dice.randrange(len(row))
    row[at[1]], row[swap] = row[swap], row[at[1]]
    return replace(plan, ops=tuple(tuple(row) if r == at[0] else old for r, old in enumerate(plan.ops)))


def test_verdicts_agree_with_the_element_oracle():
    """Plans with up to three random mutations: the verifier and the oracle never disagree."""
    dice = random.Random(20)
    seen: Counter[str] = Counter()
    for trial in range(700):
        name = dice.choice(["all_gather_1d", "all_gather_ring"])
        world, extent, split = dice.choice([(2, 5, 2), (3, 4, 1), (3, 7, 2), (4, 6, 1)])
        plan = make(name, world, (extent, 1), split, dice.choice(["pull", "push"]))
        for _ in range(dice.randrange(4)):
            plan = mutate(plan, dice)
        wrong = judge(plan)
        seen[wrong or "right"] += 1
        try:
            verify_plan(plan)
            said = None
        except PlanError as error:
            said = error.message
        assert (wrong is None) == (said is None), f"trial {trial}: oracle {wrong}, verifier {said}\n{plan.ops}"
    assert all(count >= 20 for count in seen.values()) and len(seen) == 7, seen


def test_a_relay_written_by_hand():
    """A to B to C, where C waits for B's copy."""
    text = """
plan: relay
world: 3
tensors: {a: [8, 2]}
before:
  - {chunk: whole, when: rank == 0}
after: whole
ranks:
  1:
    ops: [{pull: whole, from: 0, label: first}]
  2:
    ops: [{pull: whole, from: 1, depends: {on: first, rank: 1}}]
"""
    plan = load_plan(text)
    assert plan.op((2, 0)).depends == ((1, 0),)
    verify_plan(plan)
    assert "reads a[0:8, 0:2] on rank 1" in refusal(with_op(plan, (2, 0), depends=())).message
