"""Sizes that are known at a call only: counts, expressions over them, and the all-to-all whose pieces have any sizes."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.countfile import read_counts_text
from overlap.chunkplan.counts import CountArray
from overlap.chunkplan.describe import describe
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.chunkplan.trials import Room, rooms_of, trials_of
from overlap.chunkplan.verify import verify_plan
from overlap.cli.check import command
from overlap.errors import PlanError, UsageError

from .damage import damaged
from .values import execute

PATH, ALL_TO_ALL_V = find_template("all_to_all_v")
HEAD = "plan: p\ncounts: {sent: [world, world]}\n"


def build(text: str, counts, world: int = 3, rows: int = 40, **more) -> CommPlan:
    given = {"sent": counts} if counts is not None else None
    return build_plan(text, world=world, tensor=TensorSpec("x", (rows, 2)), dim=0, path="p.yaml", counts=given, **more)


def values(expression: str, counts, **more) -> list[int]:
    """An expression's value on each rank, seen through a box bound."""
    text = f'{HEAD}before:\n  - chunk: tensor[0:v]\n    let: {{v: "{expression}"}}\nafter: []\n'
    return [chunks[0].box.hi[0] for chunks in build(text, counts, **more).before]


# Counts by themselves


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
def test_parts_of_counts_add_up(shape, data):
    wanted = np.array(data.draw(st.lists(st.integers(0, 99), min_size=prod(shape), max_size=prod(shape))))
    wanted = wanted.astype(int).reshape(shape)
    array = CountArray(tuple(shape), tuple(map(int, wanted.flat)))
    assert all(array[place] == wanted[place] for place in np.ndindex(*shape))
    if wanted.size:
        assert CountArray.of(wanted) == array and CountArray.of(array.tolist()) == array
    cuts = []
    for size in shape[: data.draw(st.integers(0, len(shape)))]:
        low, high = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
        at = st.integers(0, size - 1) if size else st.nothing()
        cuts.append(data.draw(st.sampled_from([slice(low, high), slice(None)]) | at))
    assert array.sum(*cuts) == wanted[tuple(cuts)].sum()


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[1, 2], [3]], "rows differ: 1 entries at [1], where 2 stand elsewhere"),
        ([[1, 2], 3], "rows differ: `3` at [1]"),
        ([[1, -2]], "the count at [0, 1] is -2"),
        ([1.5], "the count at [0] is 1.5"),
        ([True], "the count at [0] is True"),
        ([2**63], "the count at [0] is 9223372036854775808"),
        (7, "counts with 0 indices"),
        ([[[[1]]]], "counts with 4 indices"),
        ("12", "counts with 0 indices"),
    ],
)
def test_what_is_no_counts(counts, said):
    with pytest.raises(PlanError) as caught:
        CountArray.of(counts)
    assert said in caught.value.message and caught.value.help


def test_bounds_never_count_from_the_end():
    array = CountArray.of([[1, 2], [3, 4]])
    for wrong in (lambda: array[-1, 0], lambda: array[0, 2], lambda: array.sum(slice(-1, 2)), lambda: array.sum(2)):
        with pytest.raises(IndexError):
            wrong()


# Counts in expressions

SENT = [[1, 2, 3], [0, 4, 5], [6, 0, 7]]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("sent[rank, 2]", [3, 5, 7]),
        ("sent[(rank + 1) % world, rank] + 1", [1, 1, 4]),
        ("sum(sent)", [28, 28, 28]),
        ("sum(sent[rank])", [6, 9, 13]),
        ("sum(sent[rank, :])", [6, 9, 13]),
        ("sum(sent[:, rank])", [7, 6, 15]),
        ("sum(sent[:rank])", [0, 6, 15]),
        ("sum(sent[rank, :rank])", [0, 0, 6]),
        ("sum(sent[rank:, 1:])", [21, 16, 7]),
        ("sum(sent[rank:rank, 0])", [0, 0, 0]),
        ("max(sent[rank, 0], sent[rank, 1]) // 2", [1, 2, 3]),
    ],
)
def test_expressions(expression, wanted):
    assert values(expression, SENT) == wanted
    assert values(expression, np.array(SENT)) == wanted


def test_loops_and_conditions_over_counts():
    text = HEAD + (
        "before: whole\nafter: whole\nops:\n"
        '  - {for: "i in range(sent[rank, 0]) if sent[rank, 1]", local: "tensor[i:i+1]", channel: "sum(sent[rank])"}\n'
    )
    plan = build(text, SENT)
    assert [len(ops) for ops in plan.ops] == [1, 0, 0] and plan.ops[0][0].channel == 6


def test_counts_bind_sizes():
    text = (
        "plan: p\ncounts: {rows: {by: [world, experts], total: M}, here: [world * 2]}\ntensors: {x: [M, K]}\n"
        "before: x.span(0, experts + here[rank])\nafter: []\n"
    )
    counts = {"rows": [[1] * 5] * 2, "here": (0, 3, 0, 0)}
    plan = build_plan(text, world=2, tensor=TensorSpec("a", (10, 2)), dim=0, counts=counts)
    assert [chunks[0].box.hi[0] for chunks in plan.before] == [5, 8]
    with pytest.raises(PlanError, match="add up to 10, and together they are 9 at most"):
        build_plan(text, world=2, tensor=TensorSpec("a", (9, 2)), dim=0, counts=counts)


def test_tensors_sized_by_counts():
    """A plan that says its world needs nothing but the counts."""
    text = (
        'plan: p\nworld: 2\ncounts: {sent: [world, world]}\ntensors: {x: ["sum(sent)", 4]}\n'
        'before: "x.span(sum(sent[:rank]), sum(sent[:rank + 1]))"\nafter: []\n'
    )
    plan = load_plan(text, counts={"sent": [[1, 2], [0, 5]]})
    assert plan.tensors == (TensorSpec("x", (8, 4)),)
    assert load_plan(dump_plan(plan)) == plan
    with pytest.raises(PlanError, match="is for size 8 here"):
        build_plan(text, world=2, tensor=TensorSpec("x", (9, 4)), dim=0, counts={"sent": [[1, 2], [0, 5]]})


def test_local_and_global_ranks_index_counts_of_their_own_kind():
    text = (
        "plan: p\nmesh: [node, gpu]\ncounts: {sent: [axis_size(node), world]}\n"
        'before:\n  - chunk: tensor[0:v]\n    let: {v: "%s"}\nafter: []\n'
    )
    counts = [[1, 2, 3, 4], [5, 6, 7, 8]]
    plan = build(text % "sent[node, rank]", counts, world=4, mesh=Mesh((2, 2)))
    assert [chunks[0].box.hi[0] for chunks in plan.before] == [1, 2, 7, 8]
    for wrong in ("sent[rank, rank]", "sent[node, gpu]", "sum(sent[:rank])", "sum(sent[0, gpu:])", "sent[gpu, 0]"):
        with pytest.raises(PlanError, match="and here goes a (global|local) rank"):
            build(text % wrong, counts, world=4, mesh=Mesh((2, 2)))


@pytest.mark.parametrize(
    ("expression", "said", "helped"),
    [
        ("sent", "`sent` is many counts, not one", "sum(sent[rank, :])"),
        ("sent[rank]", "`sent` has 2 indices, not 1", "sent[rank, peer]"),
        ("sent[rank, :]", "`sent[rank, :]` is many counts", "sum(sent[rank, :])"),
        ("sent[rank, 0, 0]", "`sent` has 2 indices, not 3", "sent[rank, peer]"),
        ("sum(sent[0, 0, 0])", "`sent` has 2 indices, not 3", "sum(sent"),
        ("sum(sent[::2])", "a sum has no step", "lo:hi"),
        ("sum(1, 2)", "sum() with 2 arguments", "sum(NAME"),
        ("sum(rank)", "there are no counts `rank`", "sent"),
        ("send[rank, 0]", "there are no counts `send`", "did you mean `sent`?"),
        ("sent[rank, other]", "unknown symbol `other`", "rank"),
        ("sent[rank + 1, 0]", "there is no index 3 here: `sent` has 3", "% 3"),
        ("sent[rank - 1, 0]", "there is no index -1 here", "when"),
        ("sum(sent[rank:0])", "1:0 is no interval of an index of `sent`", "0:3"),
        ("sum(sent[:rank + 2])", "0:4 is no interval of an index of `sent` with 3 values", "0:3"),
        ("1 // sent[1, 0]", "division by zero: `sent[1, 0]` is 0", "max(1"),
    ],
)
def test_mistakes_in_expressions(expression, said, helped):
    with pytest.raises(PlanError) as caught:
        values(expression, SENT)
    assert said in caught.value.message and helped in caught.value.help
    where = caught.value.where
    assert where is not None and where.line == 5 and 14 < where.col <= 14 + len(expression) + 2


@pytest.mark.parametrize(
    ("declared", "line", "said"),
    [
        ("{}", 2, "`counts` names none"),
        ("[sent]", 2, "`counts` is a mapping"),
        ("{sent: []}", 2, "counts `sent` with 0 indices"),
        ("{sent: [1, 1, 1, 1]}", 2, "counts `sent` with 4 indices"),
        ("{sent: world}", 2, "the indices of `sent` is a list"),
        ("{sent: {each: 3}}", 2, "counts `sent` needs `by`"),
        ("{sent: {by: [2], most: 3}}", 2, "counts `sent` has no key `most`"),
        ("{sent: {by: [2], total: rank}}", 2, "unknown symbol `rank`"),
        ("{sent: [2], sent: [2]}", 2, "`sent` is given twice"),
        ("{rank: [2]}", 2, "`rank` already means something here"),
        ("{x: [2]}", 3, "`x` names counts already"),
        ("{sent: [E], more: [sent]}", 2, "`sent` already means something here"),
    ],
)
def test_mistakes_in_declarations(declared, line, said):
    with pytest.raises(PlanError) as caught:
        build(f"plan: p\ncounts: {declared}\ntensors: {{x: tensor}}\nbefore: whole\nafter: whole\n", [1, 2])
    assert said in caught.value.message
    assert caught.value.where is not None and caught.value.where.line == line


@pytest.mark.parametrize(
    ("counts", "said", "helped"),
    [
        (None, "needs the counts `sent`", "--counts sent=FILE"),
        ({"sent": SENT, "more": SENT}, "has no counts `more`", "sent"),
        ({"sent": [1, 2, 3]}, "counts `sent` have 2 indices, those given 1", "in another"),
        ({"sent": [[1, 2, 3]] * 2}, "index 0 of counts `sent` has 3 values here, and 2 are given", "[3, 3]"),
        ({"sent": [[1, 2]] * 3}, "index 1 of counts `sent` has 3 values here, and 2 are given", "[3, 3]"),
        ({"sent": [[1, 2, 3], [1, 2]]}, "counts `sent`: counts whose rows differ", "every row"),
        ({"sent": [[1, 2, 3], [1, 2, -3], [0] * 3]}, "counts `sent`: the count at [1, 2] is -3", "from 0 on"),
        ({"sent": [[9] * 3] * 3}, "the counts `sent` add up to 81, and together they are 40 at most", "more rows"),
    ],
)
def test_counts_that_do_not_fit(counts, said, helped):
    with pytest.raises(PlanError) as caught:
        build_plan(ALL_TO_ALL_V, world=3, tensor=TensorSpec("x", (40, 2)), dim=0, path=PATH, counts=counts)
    assert said in caught.value.message and helped in caught.value.help
    assert caught.value.where is not None and caught.value.where.line == 4


def test_each_count_has_a_limit():
    text = "plan: p\ncounts: {sent: {by: [world, world], each: extent // 10}}\nbefore: whole\nafter: whole\n"
    build(text, [[4] * 3] * 3)
    with pytest.raises(PlanError, match=r"sent\[2, 1\] is 5, and each is 4 at most"):
        build(text, [[4] * 3, [4] * 3, [4, 5, 4]])


def test_a_plan_without_counts_takes_none():
    with pytest.raises(PlanError, match="has no counts `sent`"):
        build("plan: p\nbefore: whole\nafter: whole\n", SENT)


# The all-to-all of pieces of any sizes


def exchanged(counts: np.ndarray, rows: list[np.ndarray]) -> list[np.ndarray]:
    """What each rank receives, by the rule of all_to_all_single with splits: ``rows[i]`` is what rank i sends."""
    sent = [np.split(data, np.cumsum(counts[i])[:-1]) for i, data in enumerate(rows)]
    return [np.concatenate([pieces[j] for pieces in sent]) for j in range(len(rows))]


def check_exchange(counts: np.ndarray, capacity: int, seed: int = 0, **more) -> CommPlan:
    """Builds all_to_all_v, verifies it, and carries it out with data."""
    world = len(counts)
    plan = build_plan(
        ALL_TO_ALL_V,
        world=world,
        tensor=TensorSpec("x", (capacity, 2)),
        dim=0,
        path=PATH,
        counts={"sent": counts},
        **more,
    )
    verify_plan(plan)
    assert load_plan(dump_plan(plan)) == plan
    start = {name: np.full((world, capacity, 2), np.nan) for name in ("x", "y")}
    rows = [
        np.random.default_rng(seed + r).integers(1, 10**6, (counts[r].sum(), 2)).astype(float) for r in range(world)
    ]
    for rank, (before,) in enumerate(plan.before):
        start["x"][rank, before.box.lo[0] : before.box.hi[0]] = rows[rank]
    for got, wanted in zip(execute(plan, start, seed), exchanged(counts, rows), strict=True):
        assert np.array_equal(got["y"], wanted)
    return plan


def some_counts(dice: random.Random, world: int) -> np.ndarray:
    return np.array([[dice.choice((0, 0, 1, 2, 7)) for _ in range(world)] for _ in range(world)]).reshape(world, world)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_all_to_all_v_is_the_exchange(world):
    dice = random.Random(world)
    for seed in range(6):
        counts = some_counts(dice, world)
        check_exchange(counts, counts.sum() + seed % 3, seed, direction=("pull", "push")[seed % 2], split=1 + seed % 3)
    check_exchange(np.zeros((world, world), int), 0)
    check_exchange(np.zeros((world, world), int), 5)


def test_all_to_all_v_sends_what_is_counted_and_nothing_else():
    counts = np.array(SENT)
    plan = check_exchange(counts, 28)
    moved = np.zeros((3, 3), int)
    for _, op in plan.items():
        moved[op.src_rank, op.dst_rank] += op.src.box.shape[0]
    assert np.array_equal(moved, counts)
    assert "rank 2: has x[15:28, 0:2]; ends with y[13:28, 0:2]" in describe(plan)


def test_the_same_made_in_python():
    """Nouns and counts are all it takes: no file, and nothing of torch."""
    world, counts = 3, CountArray.of(SENT)
    whole = (28, 2)

    def rows(tensor: str, start: int, number: int) -> Chunk:
        return Chunk(tensor, Box.whole(whole).with_interval(0, start, start + number))

    ops = []
    for rank in range(world):
        row = []
        for peer in ((rank + step) % world for step in range(world)):
            sent = rows("x", counts.sum(slice(0, rank)) + counts.sum(rank, slice(0, peer)), counts[rank, peer])
            start = counts.sum(slice(None), slice(0, peer)) + counts.sum(slice(0, rank), peer)
            kind = "local" if peer == rank else "push"
            row.append(P2P(kind, rank, peer, sent, rows("y", start, counts[rank, peer])))
        ops.append(tuple(row))
    plan = CommPlan(
        "all_to_all_v",
        world,
        (TensorSpec("x", whole), TensorSpec("y", whole)),
        tuple((rows("x", counts.sum(slice(0, r)), counts.sum(r)),) for r in range(world)),
        tuple((rows("y", counts.sum(slice(None), slice(0, r)), counts.sum(slice(None), r)),) for r in range(world)),
        tuple(ops),
    )
    verify_plan(plan)
    assert plan == build(ALL_TO_ALL_V, counts, rows=28, direction="push")


# Plans for any counts are tried


def rooms(text: str, rows: int = 30, world: int = 3) -> tuple[Room, ...]:
    return rooms_of(text, world=world, tensor=TensorSpec("x", (rows, 2)), dim=0, path="p.yaml")


def test_trials_keep_to_the_limits_and_reach_them():
    (room,) = rooms(ALL_TO_ALL_V)
    assert room == Room("sent", (3, 3), None, 30)
    trials = trials_of([room])
    sums = [trial.counts["sent"].sum() for trial in trials]
    assert min(sums) == 0 and max(sums) == 30 and len(trials) > 25
    assert sum(0 in trial.counts["sent"].values for trial in trials) > 15
    assert trials_of([room]) == trials and trials_of([room], seed=1) != trials
    tight = Room("sent", (2, 3), 4, 10)
    for trial in trials_of([tight]):
        assert max(trial.counts["sent"].values) <= 4 and trial.counts["sent"].sum() <= 10
    assert max(trial.counts["n"].sum() for trial in trials_of([Room("n", (5,), 4, None)])) == 20
    assert len(trials_of([Room("n", (3,), None, 0)])) == 1 and trials_of([]) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("start: sum(sent[:rank]) + ", "start: "),
        ("place: sum(sent[:, :peer]) + ", "place: "),
        ("sum(sent[:rank, peer])", "sum(sent[:rank, rank])"),
        ("sum(sent[rank, :peer])", "sum(sent[peer, :rank])"),
        ("sum(sent[:, :rank + 1]))", "sum(sent[:rank + 1]))"),
        ("into: y.span(place, place + sent[rank, peer])", "into: y.span(start, start + sent[rank, peer])"),
        ("when: step > 0", "when: step > 1"),
        ("total: extent", "total: extent + 1"),
    ],
)
def test_a_broken_plan_is_refused_without_counts(good, bad, tmp_path):
    assert good in ALL_TO_ALL_V
    file = tmp_path / "plan.yaml"
    file.write_text(ALL_TO_ALL_V.replace(good, bad))
    with pytest.raises(PlanError, match="sent="):
        check(str(file))


def check(*arguments: str, code: int = 0) -> str:
    arguments = (*arguments, *(() if "--world" in arguments else ("--world", "3")), "--shape", "M=30,K=2")
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_check_says_what_it_has_tried():
    said = check("all_to_all_v").splitlines()
    assert said[0] == "plan all_to_all_v: 3 ranks, x[30, 2], y[30, 2]"
    assert said[1] == "  counts sent[3, 3], 30 at most in all"
    assert (
        said[2] == "  verified for 29 counts (seed 0):"
        and "    nothing at all" in said
        and "    20 random ones" in said
    )
    assert said[-2:] == ["  proven for these and for no others: --counts proves a plan for the counts of a call", "ok"]
    assert "  verified for 9 counts" in check("all_to_all_v", "--tries", "0")
    assert "  verified for 1 counts" not in check("all_to_all_v", "--world", "2")


def test_check_with_counts(tmp_path):
    file = tmp_path / "counts.json"
    file.write_text(str(SENT))
    plan = build(ALL_TO_ALL_V, SENT, rows=30)
    assert check("all_to_all_v", "--counts", f"sent={file}") == f"{describe(plan)}\nok\n"
    assert check("all_to_all_v", "--counts", f" sent = {SENT}") == f"{describe(plan)}\nok\n"


@pytest.mark.parametrize(
    ("option", "error", "said"),
    [
        ("sent", UsageError, "not NAME=FILE"),
        ("=[[1]]", UsageError, "not NAME=FILE"),
        ("sent=nowhere.yaml", PlanError, "no counts file nowhere.yaml"),
        ("sent=[[1, 2], [3", PlanError, "not valid YAML"),
    ],
)
def test_options_that_give_no_counts(option, error, said):
    with pytest.raises(error, match=said) as caught:
        check("all_to_all_v", "--counts", option)
    assert caught.value.help


def test_counts_are_given_once():
    with pytest.raises(UsageError, match="given twice"):
        check("all_to_all_v", "--counts", "sent=[[1]]", "--counts", "sent=[[1]]")


def test_nothing_says_what_to_try():
    with pytest.raises(PlanError, match="nothing says how large the counts `sent` may be") as caught:
        rooms(HEAD + "before: whole\nafter: whole\n")
    assert "{by: [world, world], total: extent}" in caught.value.help and caught.value.where.line == 2
    with pytest.raises(PlanError, match="say how many `experts` there are"):
        rooms("plan: p\ncounts: {n: {by: [experts], total: 1}}\nbefore: whole\nafter: whole\n")
    with pytest.raises(PlanError, match="counts of -1 at most"):
        rooms("plan: p\ncounts: {n: {by: [3], total: 0 - 1}}\nbefore: whole\nafter: whole\n")
    assert rooms("plan: p\nbefore: whole\nafter: whole\n") == ()


# Counts as text


def test_counts_from_text():
    assert read_counts_text("[[0, 3], [2, 1]]", "c").tolist() == [[0, 3], [2, 1]]
    assert read_counts_text("- [0, 3]\n- [2, 1]\n", "c").tolist() == [[0, 3], [2, 1]]
    assert read_counts_text("- 4\n", "c").tolist() == [4]
    assert read_counts_text("[[], []]", "c").shape == (2, 0)


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("[[0, 3],\n [2, -1]]", 2, 6, "`-1` is no count"),
        ("[[0, 3],\n [2, 1.5]]", 2, 6, "`1.5` is no count"),
        ("[[0, 3],\n [2]]", 2, 2, "rows differ: 1 entries, where 2 stand elsewhere"),
        ("[[0, 3],\n 2]", 2, 2, "rows differ: no list"),
        ("[0, [2]]", 1, 5, "a count is one value, not a list"),
        ("[0, x]", 1, 5, "`x` is no count"),
        ("[0, 9999999999999999999]", 1, 5, "is no count"),
        ("7", 1, 1, "counts with 0 indices"),
        ("[[[[1]]]]", 1, 1, "counts with 4 indices"),
        ("{a: 1}", 1, 1, "a count is one value, not a mapping"),
        ("", 1, 1, "empty"),
    ],
)
def test_text_that_holds_no_counts(text, line, column, said):
    with pytest.raises(PlanError) as caught:
        read_counts_text(text, "c.yaml")
    assert said in caught.value.message
    assert (caught.value.where.line, caught.value.where.col) == (line, column)


def test_damaged_counts_never_surprise():
    """Counts come out, or a PlanError with a place inside the text."""
    dice, read = random.Random(1), 0
    for _ in range(300):
        text = damaged("[[0, 3, 12],\n [2, 1, 40]]\n", dice)
        try:
            array = read_counts_text(text, "c.yaml")
        except PlanError as error:
            lines = text.splitlines()
            assert error.where is not None and 1 <= error.where.line <= len(lines) + 1 and error.where.col >= 1
            assert error.where.line > len(lines) or error.where.col <= len(lines[error.where.line - 1]) + 1
        else:
            read += 1
            assert CountArray.of(array.tolist()) == array or 0 in array.shape
    assert 20 < read < 280
