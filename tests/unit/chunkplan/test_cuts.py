"""Splits: what they mean, their one form, and the keys of plan files that hold them."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.cuts import by_turn, cut, parts_in, split_of, split_text, units_in, weights_at
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from tests.support.sweep import examples

TEXT = """plan: p
before: shard(rank)
after: whole
ops:
  - for: step in range(1, world)
    move: shard((rank + step) % world)
    from: (rank + step) % world
    to: rank
"""


def built(text: str, world: int = 3, rows: int = 20, **how) -> CommPlan:
    plan = build_plan(text, world=world, tensor=TensorSpec("a", (rows, 4)), dim=0, **how)
    verify_plan(plan)
    assert load_plan(dump_plan(plan)) == plan
    return plan


def rows_of(plan: CommPlan, rank: int = 0) -> list[list[int]]:
    """Rows of a rank's operations, one list a source."""
    found: dict[int, list[int]] = {}
    for op in plan.ops[rank]:
        found.setdefault(op.src_rank, []).append(op.dst.box.shape[0])
    return list(found.values())


@pytest.mark.parametrize(
    ("given", "split", "text"),
    [
        (1, 1, "1"),
        ("4", 4, "4"),
        ("1:2:1", (1, 2, 1), "1:2:1"),
        ([2, 2, 2], 3, "3"),
        ((6, 2), (3, 1), "3:1"),
        ("1/1/3:1", ((1,), (1,), (3, 1)), "1/1/3:1"),
        ([[1], 2, (2, 6)], ((1,), (1, 1), (1, 3)), "1/2/1:3"),
        ("2/1:1/2", 2, "2"),
        ("1:3/1:3/2:6", (1, 3), "1:3"),
    ],
)
def test_what_cuts_alike_has_one_form(given, split, text):
    assert split_of(given) == split and split_text(split) == text and split_of(text) == split == split_of(split)


@pytest.mark.parametrize(
    "wrong",
    [
        0,
        -1,
        True,
        2.5,
        None,
        "",
        "0",
        "1:0",
        "1:x",
        "1/2",
        "1/2/3/4",
        [],
        [0],
        [1, "2"],
        [[1], [2]],
        [[1], [], [1]],
        "²",
    ],
)
def test_what_is_no_split(wrong):
    with pytest.raises(PlanError) as caught:
        split_of(wrong)
    assert caught.value.help


def test_which_transfer_is_cut_how():
    split = split_of("1:3/2/3:1")
    assert [weights_at(split, place, 4) for place in range(4)] == [(1, 3), (1, 1), (1, 1), (3, 1)]
    assert by_turn(split) and (parts_in(split), units_in(split)) == (2, 4)
    # An only transfer is the first and the last.
    assert [weights_at(split_of(text), 0, 1) for text in ("1:3/1/1", "1/1/3:1", "1:3/1/3:1")] == [
        (1, 3),
        (3, 1),
        (3, 1),
    ]
    assert [weights_at(given, 1, 3) for given in (3, (1, 2))] == [(1, 1, 1), (1, 2)]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_parts_by_weight_are_those_of_torch_chunk_taken_together(length, weights):
    units = [len(part) for part in torch.arange(length).chunk(sum(weights))] if length else []
    sizes = [b - a for a, b in cut(length, tuple(weights))]
    taken, at = [], 0
    for weight in weights:
        taken.append(sum(units[at : at + weight]))
        at += weight
    assert sizes == taken and sum(sizes) == length
    assert cut(length, (1,) * 3) == cut(length, (1, 1, 1))


# Plans


@pytest.mark.parametrize(
    "name", ["all_gather_ring", "all_reduce_ring", "reduce_scatter_1d", "all_to_all_1d", "broadcast"]
)
def test_templates_cut_by_weight_are_proven(name):
    dice = random.Random(name)
    path, text = find_template(name)
    to_dim = 1 if name == "all_to_all_1d" else None
    for split in ("1:3", "3:1/2/1:2:1", "4:3:1/1/1"):
        world, rows = dice.randint(2, 5), dice.choice((0, 3, 40))
        tensor = TensorSpec("a", (rows, 7))
        plan = build_plan(text, world=world, tensor=tensor, dim=0, to_dim=to_dim, split=split, path=path)
        verify_plan(plan)
        assert load_plan(dump_plan(plan)) == plan


@pytest.mark.parametrize("part", ["shard((rank + step) % world, part)", "shard((rank + step) % world, part, split)"])
def test_parts_of_a_plan_that_cuts_itself_have_the_weights(part):
    text = TEXT.replace("range(1, world)", "range(1, world) for part in range(split)")
    text = text.replace("shard((rank + step) % world)", part)
    assert rows_of(built(text, split="1:3")) == [[2, 5], [2, 4]]
    assert rows_of(built(f"split: 3\n{text}")) == [[3, 3, 1], [2, 2, 2]]
    with pytest.raises(PlanError, match="all of them alike"):
        built(text, split="1/1/3:1")


def test_relays_wait_for_the_parts_that_hold_some_of_theirs():
    path, text = find_template("all_gather_ring")
    plan = build_plan(text, world=3, tensor=TensorSpec("a", (24, 4)), dim=0, split="1/1/3:1", path=path)
    # The second hop goes in parts of 6 and 2 rows, the first brought all 8 at once.
    assert rows_of(plan) == [[8, 6, 2]]
    assert [op.depends for op in plan.ops[0]] == [(), ((1, 0),), ((1, 0),)]
    turned = build_plan(text, world=3, tensor=TensorSpec("a", (24, 4)), dim=0, split="1:1:2/1/3:1", path=path)
    assert [op.depends for op in turned.ops[0]] == [(), (), (), ((1, 0), (1, 1), (1, 2)), ((1, 2),)]


# Keys of plan files


def test_a_plan_says_how_it_is_cut_unless_the_caller_does():
    assert rows_of(built(TEXT)) == [[7], [6]]
    assert rows_of(built(f"split: 2\n{TEXT}")) == [[4, 3], [3, 3]]
    assert rows_of(built(f"split: [1, world]\n{TEXT}")) == [[2, 5], [2, 4]]
    assert rows_of(built(f"split: [[1], [1], [3, 1]]\n{TEXT}")) == [[7], [6, 0]]
    assert rows_of(built(f"split: 2\n{TEXT}", split=(3, 1))) == [[6, 1], [6, 0]]
    own = TEXT + "    split: [step, 1]\n"
    assert rows_of(built(own)) == [[4, 3], [4, 2]]
    assert rows_of(built(f"split: 4\n{own}")) == [[4, 3], [4, 2]]
    assert rows_of(built(own, split=4)) == [[2, 2, 2, 1], [2, 2, 2, 0]]
    assert rows_of(built(TEXT + "    split: 1 + (step == 2)\n")) == [[7], [3, 3]]


@pytest.mark.parametrize(
    ("value", "column", "said"),
    [
        ("0", 8, "a split into 0 parts"),
        ("[1, 0]", 12, "a part of weight 0"),
        ("[]", 8, "no weights"),
        ("[[1], [1]]", 8, "weights for 2 turns"),
        ("[[1], [1], []]", 8, "weights for 2 turns"),
        ("[[1], [1], [world - 3]]", 20, "a part of weight 0"),
        ("rank", 8, "unknown symbol `rank`"),
        ("split", 8, "unknown symbol `split`"),
        ("{a: 1}", 8, "one value, not a mapping"),
        ("1000000000", 8, "a split into 1000000000 parts"),
    ],
)
def test_mistakes_have_their_place(value, column, said):
    with pytest.raises(PlanError, match=said) as caught:
        built(f"split: {value}\n{TEXT}")
    assert (caught.value.where.line, caught.value.where.col) == (1, column) and caught.value.help


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("split: [[1], [1], [2]]", "cut in one way only"),
        ("split: step - 1", "a split into 0 parts"),
        ("split: split", "unknown symbol `split`"),
    ],
)
def test_mistakes_of_an_operation_have_their_place(line, said):
    with pytest.raises(PlanError, match=said) as caught:
        built(f"{TEXT}    {line}\n")
    assert (caught.value.where.line, caught.value.where.col) == (9, 12)


def test_a_collective_is_not_cut():
    text = (
        "plan: p\nbefore: shard(rank)\nafter: whole\nops:\n  - {collective: all_gather, chunk: shard(rank), into: whole"
    )
    built(text + "}\n")
    with pytest.raises(PlanError, match="a collective is not cut") as caught:
        built(text + ", split: 2}\n")
    assert caught.value.where.line == 5
