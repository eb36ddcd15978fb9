"""The plan language: what can be written, and what every mistake is told."""

from __future__ import annotations

import random

import pytest

from overlap.chunkplan import expand
from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import Chunk, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError

from .damage import damaged


def build(text: str, world: int = 4, shape=(8, 6), dim: int = 0, to_dim: int | None = 1, **more) -> CommPlan:
    return build_plan(text, world=world, tensor=TensorSpec("a", shape), dim=dim, to_dim=to_dim, path="p.yaml", **more)


def ops(text: str, **more) -> CommPlan:
    """A plan of the given operations (indented by two), whatever it brings."""
    return build("plan: p\nbefore: shard(rank)\nafter: shard(rank)\nops:\n" + text, **more)


def values(expression: str, **more) -> list[int]:
    """An expression's value on each rank, seen through a box bound."""
    text = f"plan: p\nbefore:\n  - chunk: tensor[0:x]\n    let: {{x: {expression}}}\nafter: []\n"
    return [chunks[0].box.hi[0] for chunks in build(text, shape=(1000, 2), **more).before]


# What can be written


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("rank + 1", [1, 2, 3, 4]),
        ("(rank - 1) % world", [3, 0, 1, 2]),
        ("2 * rank + 7 // 2", [3, 5, 7, 9]),
        ("max(rank, 2) + min(5, rank, 1)", [2, 3, 3, 4]),
        ("cdiv(extent, world) - abs(-rank)", [250, 249, 248, 247]),
        ("10 if rank == 0 else 20 if rank < 3 else 30", [10, 20, 20, 30]),
        ("1 <= rank < 3", [0, 1, 1, 0]),
        ("rank != 0 and not rank == 2 or rank > 5", [0, 1, 0, 1]),
        ("+dim + split", [1, 1, 1, 1]),
        ("True + (rank >= 3)", [1, 1, 1, 2]),
    ],
)
def test_arithmetic(expression, wanted):
    assert values(f'"{expression}"') == wanted


def test_operations_of_every_kind():
    plan = ops(
        """
  - {pull: shard(0), from: 0, when: rank == 1, channel: 1, reduce: sum, backend: tma}
  - {push: shard(rank), to: 3, when: rank == 2}
  - {local: "tensor[0:1]", into: "tensor[1:2]", when: rank == 3}
  - {move: whole, from: 1, to: rank, when: rank == 0}
  - {collective: all_gather, chunk: shard(rank), into: whole, ranks: [0, 1, 2, 3]}
"""
    )
    assert [str(op) for op in plan.ops[1][:1]] == ["pull a[0:2, 0:6] (sum) from rank 0"]
    assert (plan.ops[1][0].channel, plan.ops[1][0].reduce, plan.ops[1][0].backend) == (
        1,
        Reduction("sum", "fp32"),
        "tma",
    )
    assert str(plan.ops[2][0]) == "push a[4:6, 0:6] to rank 3"
    assert str(plan.ops[3][0]) == "copy a[0:1, 0:6] as a[1:2, 0:6]"
    assert str(plan.ops[0][0]) == "pull a[0:8, 0:6] from rank 1"
    assert [op[-1].kind for op in plan.ops] == ["all_gather"] * 4
    assert plan.ops[2][-1].src == Chunk("a", Box((4, 0), (6, 6)))


def test_chunks():
    text = """
plan: p
tensors: {x: [M, K]}
before:
  - shard(rank)
  - x.shard((rank + 1) % world, 1, 2)
  - span(rank, M)
  - x[:, K - 2:K]
  - x[rank:2 * rank]
  - {chunk: shard(r), for: r in range(world) if r != rank}
after: [whole, x.whole]
"""
    plan = build(text)
    assert [str(chunk) for chunk in plan.before[1]] == [
        "a[2:4, 0:6]",
        "a[5:6, 0:6]",
        "a[1:8, 0:6]",
        "a[0:8, 4:6]",
        "a[1:2, 0:6]",
        "a[0:2, 0:6]",
        "a[4:6, 0:6]",
        "a[6:8, 0:6]",
    ]
    assert [str(chunk) for chunk in plan.after[0]] == ["a[0:8, 0:6]"] * 2


def test_loops_are_python_comprehensions():
    plan = ops(
        """
  - for: step in range(world - 1, 0, -1) for part in range(2) if part == 1 or step > 1
    let: {peer: (rank + step) % world, next: (peer + 1) % world}
    when: rank != 2
    pull: shard(next, part, 2)
    from: peer
"""
    )
    assert plan.ops[2] == ()
    assert [(op.src_rank, op.src.box.lo[0]) for op in plan.ops[0]] == [(3, 0), (3, 1), (2, 6), (2, 7), (1, 5)]
    listed = ops("  - {for: 'd in (3, 1)', push: shard(rank), to: (rank + d) % world}\n")
    assert [op.dst_rank for op in listed.ops[1]] == [0, 2]


def test_loop_bodies_run_in_order_and_loops_may_depend_on_the_rank():
    plan = ops(
        """
  - for: peer in range(rank)
    do:
      - {push: shard(rank), to: peer}
      - for: again in range(2)
        do: [{pull: shard(peer), from: peer}]
"""
    )
    assert [str(op)[:4] for op in plan.ops[2]] == ["push", "pull", "pull"] * 2
    assert plan.ops[0] == ()


def test_lists_follow_the_loops_first_and_the_ranks_second():
    """Operations that several ranks put into one list come step by step, not rank by rank."""
    text = "  - {for: 's in (2, 1)', move: shard(rank), from: rank, to: (rank + s) % world}\n"
    assert [op.src_rank for op in ops(text, direction="pull").ops[0]] == [2, 3]
    assert [op.src_rank for op in ops(text, direction="pull").ops[1]] == [3, 0]


def test_dependencies_by_label_index_and_condition():
    plan = ops(
        """
  - for: step in range(1, world)
    do:
      - {push: shard(rank), to: (rank + step) % world, label: out, channel: 1}
      - pull: shard((rank + step) % world)
        from: (rank + step) % world
        depends:
          - out
          - {on: out, rank: 0, step: step - 1, when: step > 1}
          - {rank: rank, index: 2 * step - 2}
          - [(rank + 1) % world, 0]
"""
    )
    assert plan.ops[1][1].depends == ((1, 0), (1, 0), (2, 0))
    assert plan.ops[1][3].depends == ((1, 2), (0, 0), (1, 2), (2, 0))


def test_a_dependency_on_several_operations():
    """A loop in a dependency, over ranks, over a label's own variable, and with a condition."""
    plan = ops(
        """
  - {for: 's in range(1, world)', push: shard(rank), to: (rank + s) % world, label: out, channel: 1}
  - push: shard(rank)
    to: (rank + 1) % world
    depends:
      - {on: out, for: 'back in range(1, world) if back != 2', rank: (rank - back) % world, s: back}
      - {on: out, for: 's in (2, 3)', when: s > rank}
      - {for: 'r in range(2)', rank: r, index: r + 1}
"""
    )
    assert plan.ops[1][3].depends == ((0, 0), (2, 2), (1, 1), (1, 2), (0, 1), (1, 2))
    assert plan.ops[2][3].depends == ((1, 0), (3, 2), (2, 2), (0, 1), (1, 2))


def test_reductions():
    plan = ops("  - {push: whole, to: (rank + 1) % world, reduce: {op: sum, accumulate: fp64}}\n")
    assert plan.ops[0][0].reduce == Reduction("sum", "fp64")
    assert str(plan.ops[0][0]) == "push a[0:8, 0:6] (sum) to rank 1"
    for text in ("sum", "{op: sum}", "{op: sum, accumulate: fp32}"):
        plan = ops(f"  - {{collective: all_reduce, chunk: whole, ranks: [0, 1, 2, 3], reduce: {text}}}\n")
        assert plan.ops[3][0].reduce == Reduction() == Reduction("sum", "fp32")
        assert "reduce: sum" in dump_plan(plan)


def test_chunks_of_an_exchange():
    text = (
        "plan: p\nbefore: [across(rank), 'piece(1, rank)', x.across(0)]\nafter: []\ntensors: {a: [M, K], x: [3, 10]}\n"
    )
    plan = build(text, shape=(8, 7))
    assert [str(chunk) for chunk in plan.before[1]] == ["a[0:8, 2:4]", "a[2:4, 2:4]", "x[0:3, 0:3]"]
    assert [str(chunk) for chunk in plan.before[3]][:2] == ["a[0:8, 6:7]", "a[2:4, 6:7]"]
    other = build("plan: p\nbefore: 'piece(1, rank)'\nafter: []\n", shape=(5, 8, 7), dim=2, to_dim=0)
    assert [str(chunks[0]) for chunks in other.before][:3] == [
        f"a[{lo}:{min(lo + 2, 5)}, 0:8, 2:4]" for lo in (0, 2, 4)
    ]


def test_an_exchange_needs_its_second_dimension():
    for text in ("across(rank)", "'piece(0, rank)'"):
        plan = f"plan: p\nbefore: whole\nafter:\n  - {{chunk: {text}, when: rank > 5}}\n"
        with pytest.raises(PlanError, match="cuts along a second dimension, and there is none here") as caught:
            build(plan, to_dim=None)
        assert caught.value.where.line == 4 and "a[K:M]" in caught.value.help
        build(plan, to_dim=1)
        with pytest.raises(PlanError, match="cuts along a second dimension"):
            load_plan(plan.replace("when: rank > 5", "when: rank < 5") + "world: 2\ntensors: {a: [4, 4]}\n")
    for dims in ((0, 0), (0, 2), (1, -1)):
        with pytest.raises(PlanError, match=f"cannot go from dimension {dims[0]} to dimension {dims[1]}"):
            build("plan: p\nbefore: whole\nafter: whole\n", dim=dims[0], to_dim=dims[1])


def test_a_label_is_found_in_whichever_list_its_operation_stands():
    text = """
  - {for: 's in range(1, world)', move: shard((rank + s) % world), from: (rank + 1) % world, to: rank, label: hop}
  - {local: whole, depends: {on: hop, s: 2}}
"""
    for direction, wanted in (("pull", (1, 1)), ("push", (2, 1))):
        plan = ops(text, direction=direction)
        assert plan.ops[1][-1].depends == (wanted,)
        assert (
            str(plan.op(wanted))
            == {
                "pull": "pull a[6:8, 0:6] from rank 2",
                "push": "push a[6:8, 0:6] to rank 1",
            }[direction]
        )


def test_ranks_that_do_different_things():
    text = """
plan: mixed
world: 2
tensors: {a: [8, 6], scale: [world, 3]}
before: shard(rank)
ranks:
  0: {after: whole, ops: [{pull: shard(1), from: 1}, {pull: scale.whole, from: 1, channel: 1}]}
  1: {before: scale.whole, after: [shard(1)]}
"""
    for plan in (build(text, world=2), load_plan(text)):
        assert [len(row) for row in plan.ops] == [2, 0]
        assert [str(spec) for spec in plan.tensors] == ["a[8, 6]", "scale[2, 3]"]
        assert [str(chunk) for chunk in plan.before[1]] == ["a[4:8, 0:6]", "scale[0:2, 0:3]"]
        verify_plan(plan)
        assert load_plan(dump_plan(plan)) == plan


def test_uneven_pieces():
    """Rank r owns r+1 of 10 rows: nothing in the language wants equal shards."""
    text = """
plan: uneven
before: span(rank * (rank + 1) // 2, (rank + 1) * (rank + 2) // 2)
after: whole
ops:
  - for: step in range(1, world)
    let: {peer: (rank + step) % world}
    pull: span(peer * (peer + 1) // 2, (peer + 1) * (peer + 2) // 2)
    from: peer
"""
    plan = build(text, shape=(10, 3), split=2)
    verify_plan(plan)
    assert [op.src.box.shape[0] for op in plan.ops[3]] == [1, 0, 1, 1, 2, 1]


def test_a_plan_that_cuts_parts_itself_is_not_cut_again():
    text = """
plan: parts
before: shard(rank)
after: whole
ops:
  - for: part in range(split) for step in range(1, world)
    let: {peer: (rank + step) % world}
    pull: shard(peer, part)
    from: peer
"""
    plan = build(text, split=2)
    verify_plan(plan)
    assert [op.src_rank for op in plan.ops[0]] == [1, 2, 3, 1, 2, 3]
    assert {op.src.box.shape for op in plan.ops[0]} == {(1, 6)}
    assert len(build(text, split=1).ops[0]) == 3
    halves = ops(
        "  - {pull: 'shard(0, 0)', from: 0, when: rank > 0}\n  - {pull: 'shard(0, 1)', from: 0, when: rank > 0}\n",
        split=2,
    )
    assert [op.src.box.lo[0] for op in halves.ops[1]] == [0, 1]


def test_a_plan_takes_the_name_of_its_tensor():
    text = "plan: p\ntensors: {x: [M, 6]}\nbefore: x.shard(rank)\nafter: 'x[0:M]'\nops: []\n"
    assert build(text).after[0] == (Chunk("a", Box.whole((8, 6))),)


def test_text_stays_text():
    """YAML's own readings of values have no part: 1:30 is no time, on no boolean, 08 no float."""
    plan = load_plan("plan: 08\nworld: 2\ntensors: {on: [40]}\nbefore: on[1:30]\nafter: []\nmeta: {yes: 'null'}\n")
    assert plan.name == "08" and plan.meta == {"yes": "null"}
    assert plan.before[0] == (Chunk("on", Box((1,), (30,))),)


# Mistakes

HEAD = "plan: p\nbefore: shard(rank)\nafter: whole\n"
OP = HEAD + "ops:\n  - "

MISTAKES = [
    # (text, line, column, what is said, what helps)
    ("", 1, 1, "the file is empty", "plan: NAME"),
    ("- a\n- b\n", 1, 1, "a plan is a mapping", "`plan: ...`"),
    ("plan: [\n", 2, 1, "not valid YAML", "quote text"),
    ("plan: p\n\tbefore: x\n", 2, 1, "not valid YAML", "indent with spaces"),
    ("plan: p\nbefor: shard(rank)\nafter: whole\n", 2, 1, "no key `befor`", "did you mean `before`?"),
    ("plan: p\nafter: whole\n", 1, 1, "a plan needs `before`", "add `before: shard(rank)`"),
    ("plan: p\nbefore: shard(rank)\n", 1, 1, "a plan needs `after`", "add `after: whole`"),
    ("before: shard(rank)\nafter: whole\n", 1, 1, "a plan needs `plan`", "NAME"),
    (HEAD + "plan: q\n", 4, 1, "`plan` is given twice", "keep one"),
    (HEAD + "ops: none\n", 4, 6, "`ops` is a list", "- item"),
    (HEAD + "ops:\n", 4, 5, "`ops` is a list", "- item"),
    (HEAD + "world: many\n", 4, 8, "`world` is many", "an integer from 1"),
    (HEAD + "world: 0\n", 4, 8, "`world` is 0", "an integer from 1"),
    (HEAD + "world: 3\n", 4, 8, "plan p is for a world of 3, not 4", "3 ranks"),
    (HEAD + "dim: 1\n", 4, 6, "cuts along dimension 1, not 0", "dim"),
    (HEAD + "tensors: {a: [M]}\n", 4, 11, "a tensor of 1 dimensions, a[8, 6] has 2", "leave `tensors` out"),
    (HEAD + "tensors: {a: [M, 7]}\n", 4, 18, "is for size 7 here, a[8, 6] has 6", "a name"),
    (HEAD + "tensors: {a: [M, M]}\n", 4, 18, "is for size 8 here", "a name"),
    (HEAD + "tensors: {a: [rank, 6]}\n", 4, 15, "unknown symbol `rank`", ""),
    (HEAD + "tensors: {}\n", 4, 10, "names no tensor", "leave it out"),
    (HEAD + "tensors: {a-b: [M, K]}\n", 4, 11, "`a-b` cannot name a tensor", "identifier"),
    (HEAD + "tensors: {b: [M, K], c: [M]}\n", 4, 11, "has no tensor `a`", "it has b, c"),
    (HEAD + "meta: {x: [1]}\n", 4, 11, "`x` is one value, not a list", "single"),
    (HEAD + "ranks: {4: {ops: []}}\n", 1, 1, "rank 4 has a section in a world of 4", "remove"),
    (HEAD + "ranks: {x: {ops: []}}\n", 4, 9, "`rank` is x", "integer"),
    (HEAD + "ranks: {1: {opps: []}}\n", 4, 13, "rank 1 has no key `opps`", "did you mean `ops`?"),
    ("plan: p\nbefore: shard(rank\nafter: whole\n", 2, 9, "cannot be read", "shard(rank)"),
    ("plan: p\nbefore: shart(rank)\nafter: whole\n", 2, 9, "unknown word `shart`", "did you mean `shard`?"),
    ("plan: p\nbefore: hole\nafter: whole\n", 2, 9, "unknown chunk `hole`", "did you mean `whole`?"),
    ("plan: p\nbefore: shard()\nafter: whole\n", 2, 9, "shard() with 0 arguments", "shard(rank, part)"),
    ("plan: p\nbefore: shard(rnk)\nafter: whole\n", 2, 15, "unknown symbol `rnk`", "did you mean `rank`? there is dim"),
    ("plan: p\nbefore: shard(rank + 1)\nafter: whole\n", 2, 15, "no shard 4 in a world of 4", "% world"),
    ("plan: p\nbefore: shard(0, 2, 2)\nafter: whole\n", 2, 18, "no part 2 of 2", "counted from 0"),
    ("plan: p\nbefore: b[0:1]\nafter: whole\n", 2, 9, "unknown tensor `b`", "tensors: {b: [M, K]}"),
    ("plan: p\nbefore: tensor\nafter: whole\n", 2, 9, "`tensor` is a tensor, not a chunk", "tensor.whole"),
    ("plan: p\nbefore: tensor[3]\nafter: whole\n", 2, 16, "`3` is no interval", "lo:hi"),
    ("plan: p\nbefore: tensor[0:4:2]\nafter: whole\n", 2, 20, "no step", "lo:hi"),
    ("plan: p\nbefore: tensor[0:9]\nafter: whole\n", 2, 16, "0:9 is no interval of dimension 0", "0:8"),
    ("plan: p\nbefore: tensor[3:2]\nafter: whole\n", 2, 16, "3:2 is no interval of dimension 0", "bounds grow"),
    ("plan: p\nbefore: tensor[:, :, 0:1]\nafter: whole\n", 2, 9, "3 intervals for tensor a[8, 6]", "remove"),
    ("plan: p\nbefore: span(0, 9)\nafter: whole\n", 2, 9, "0:9 is no interval", "min(..., 8)"),
    ("plan: p\nbefore: shard(rank)(1)\nafter: whole\n", 2, 9, "is not a chunk", "whole"),
    ("plan: p\nbefore: {chunks: whole}\nafter: whole\n", 2, 10, "no key `chunks`", "did you mean `chunk`?"),
    ("plan: p\nbefore:\nafter: whole\n", 2, 8, "`before` has no value", "remove the key"),
    (OP + "{pul: whole, from: 1}\n", 5, 6, "no key `pul`", "did you mean `pull`?"),
    (OP + "{from: 1}\n", 5, 5, "an operation with no verb", "move, pull, push, local"),
    (OP + "{pull: whole, push: whole, to: 1, from: 1}\n", 5, 5, "both `pull` and `push`", "one of"),
    (OP + "{pull: whole}\n", 5, 5, "a `pull` needs `from`", "(rank + step) % world"),
    (OP + "{pull: whole, from: 1, to: 2}\n", 5, 32, "a `pull` has no `to`", "`from` only"),
    (OP + "{push: whole, to: 1, from: 2}\n", 5, 32, "a `push` has no `from`", "`to` only"),
    (OP + "{move: whole, from: 1}\n", 5, 5, "a `move` needs `to`", ""),
    (OP + "{local: whole, from: 1}\n", 5, 26, "a `local` has no `from`", "into"),
    (OP + "{pull: whole, from: rank + 1}\n", 5, 25, "no rank 4 in a world of 4 (for rank 3)", "`(rank + 1) % world`"),
    (OP + "{pull: whole, from: rank}\n", 5, 25, "rank 0 would pull to itself", "start the loop at 1"),
    (OP + "{pull: whole, from: rank / 2}\n", 5, 25, "`/` does not give an integer", "//"),
    (OP + "{pull: whole, from: 2 ** 8}\n", 5, 25, "`2 ** 8` is not integer arithmetic", "allowed: "),
    (OP + "{pull: whole, from: 1 +}\n", 5, 25, "cannot be read", "allowed: "),
    (OP + "{pull: whole, from: 1.5}\n", 5, 25, "`1.5` is not integer arithmetic", "allowed: "),
    (OP + "{pull: whole, from: rank.real}\n", 5, 25, "not integer arithmetic", "allowed: "),
    (OP + "{pull: whole, from: open(1)}\n", 5, 25, "unknown function `open`", "abs, cdiv, max, min"),
    (OP + "{pull: whole, from: max(1)}\n", 5, 25, "max() with 1 arguments", "max(a, b)"),
    (
        OP + "{pull: whole, from: 1 // (rank - rank)}\n",
        5,
        31,
        "`rank - rank` is 0 with rank = 0",
        "max(1, rank - rank)",
    ),
    (OP + "{pull: whole, from: 'cdiv(1, rank)'}\n", 5, 34, "division by zero: `rank` is 0", "`when`"),
    (OP + "{pull: whole, from: 5 % (world - 4)}\n", 5, 30, "division by zero: `world - 4` is 0 with world = 4", ""),
    (OP + "{pull: whole, from: 9223372036854775807 * 2}\n", 5, 25, "does not fit 64 bits", ""),
    (OP + "{pull: whole, from: (rank+1) % world, channel: -1}\n", 5, 52, "channel -1", "counted from 0"),
    (
        OP + "{pull: 'tensor[0:2]', into: 'tensor[0:3]', from: (rank+1)%world}\n",
        5,
        5,
        "does not fit into",
        "same shape",
    ),
    (OP + "{for: step range(3), pull: whole, from: 1}\n", 5, 11, "cannot be read", "step in range(1, world)"),
    (OP + "{for: step in world, pull: whole, from: 1}\n", 5, 19, "cannot loop over `world`", "range(1, world)"),
    (OP + "{for: step in range(3) or step, pull: whole, from: 1}\n", 5, 19, "cannot loop over", "range(1, world)"),
    (OP + "{for: 'a, b in range(3)', pull: whole, from: 1}\n", 5, 12, "a loop has one variable", ""),
    (OP + "{for: rank in range(3), pull: whole, from: 1}\n", 5, 11, "`rank` already means something", "another name"),
    (OP + "{for: 's in range(0, 3, 0)', pull: whole, from: 1}\n", 5, 29, "step is 0", ""),
    (OP + "{for: s in range(10 ** 9), pull: whole, from: 1}\n", 5, 22, "not integer arithmetic", ""),
    (OP + "{for: s in range(99999999), when: s < 0, pull: whole, from: 1}\n", 5, 22, "a loop of more than", "shorter"),
    (OP + "{let: {min: 3}, pull: whole, from: 1}\n", 5, 12, "`min` already means something", ""),
    (OP + "{let: {2x: 3}, pull: whole, from: 1}\n", 5, 12, "`2x` cannot be a name", ""),
    (OP + "{let: 3, pull: whole, from: 1}\n", 5, 11, "`let` is a mapping", ""),
    (OP + "{do: [], pull: whole}\n", 5, 20, "`pull` beside `do`", "item of `do`"),
    (OP + "{do: [{pull: whole, frm: 1}]}\n", 5, 25, "no key `frm`", "did you mean `from`?"),
    (
        OP + "{pull: whole, from: (rank+1)%world, depends: hop}\n",
        5,
        50,
        "no operation is labelled `hop`",
        "label: NAME",
    ),
    (OP + "{pull: whole, from: (rank+1)%world, depends: [0, 1]}\n", 5, 51, "labelled `0`", "[[rank, index]]"),
    (OP + "{pull: whole, from: (rank+1)%world, depends: [[0]]}\n", 5, 51, "`[rank, index]`", "[[0, 2], [1, 0]]"),
    (OP + "{pull: whole, from: (rank+1)%world, depends: [[0, 1]]}\n", 5, 55, "rank 0 has no operation 1", "it has 1"),
    (OP + "{pull: whole, from: (rank+1)%world, depends: [[4, 0]]}\n", 5, 52, "no rank 4", "0 to 3"),
    (OP + "{pull: whole, from: (rank+1)%world, depends: [{index: 0}]}\n", 5, 51, "needs `rank`", "rank"),
    (OP + "{pull: whole, from: (rank+1)%world, depends: [{rank: 0}]}\n", 5, 51, "needs `on`", "LABEL"),
    (
        OP + "{for: 's in range(2)', push: whole, to: (rank+1)%world, label: x, depends: {on: x, s: s - 1}}\n",
        5,
        80,
        "there is no `x` with rank = 0, s = -1",
        "when: step > 1",
    ),
    (
        OP + "{for: 's in range(2)', push: whole, to: (rank+1)%world, label: x, depends: {on: x, t: 1}}\n",
        5,
        80,
        "`x` has no loop variable `t`",
        "for, on, rank, s, when",
    ),
    (
        OP + "{for: 's in range(2)', push: whole, to: (rank+1)%world, label: x}\n"
        "  - {push: whole, to: (rank+1)%world, depends: x}\n",
        6,
        48,
        "which `s` of `x`?",
        "{on: x, s: ...}",
    ),
    (
        OP + "{push: whole, to: (rank+1)%world, label: x}\n  - {push: whole, to: (rank+1)%world, label: x}\n",
        6,
        46,
        "label `x` is given twice",
        "another name",
    ),
    (
        OP + "{collective: all_gatter, chunk: whole, ranks: [0]}\n",
        5,
        18,
        "unknown collective `all_gatter`",
        "all_gather",
    ),
    (OP + "{collective: all_gather, ranks: [0]}\n", 5, 5, "needs `chunk`", "shard(rank)"),
    (OP + "{push: whole, to: 1, ranks: [0]}\n", 5, 33, "a `push` has no `ranks`", "write `to` only"),
    (OP + "{push: whole, to: 1, reduce: summ}\n", 5, 34, "unknown reduction `summ`", "did you mean `sum`?"),
    (OP + "{push: whole, to: 1, reduce: {op: max}}\n", 5, 39, "unknown reduction `max`", "there is sum"),
    (OP + "{push: whole, to: 1, reduce: {opp: sum}}\n", 5, 35, "a reduction has no key `opp`", "did you mean `op`?"),
    (OP + "{push: whole, to: 1, reduce: {accumulate: fp64}}\n", 5, 34, "a reduction needs `op`", "add `op: sum`"),
    (
        OP + "{push: whole, to: 1, reduce: {op: sum, accumulate: fp16}}\n",
        5,
        56,
        "unknown accumulator of a sum `fp16`",
        "there is fp32, fp64",
    ),
    (OP + "{push: whole, to: 1, reduce: [sum]}\n", 5, 34, "reduction is one value", ""),
    (
        OP + "{push: whole, to: (rank+1)%world, label: x, depends: {on: x, for: s in range(1, world), rank: s}}\n",
        5,
        76,
        "cannot be read",
        "inside { } a comma ends a value",
    ),
    ("plan: p\nbefore: across()\nafter: whole\n", 2, 9, "across() with 0 arguments", "across(rank)"),
    ("plan: p\nbefore: piece(1)\nafter: whole\n", 2, 9, "piece() with 1 arguments", "piece(rank, peer)"),
    ("plan: p\nbefore: acros(0)\nafter: whole\n", 2, 9, "unknown word `acros`", "did you mean `across`?"),
    ("plan: p\nbefore: across(rank + 1)\nafter: whole\n", 2, 16, "no shard 4 in a world of 4", "% world"),
    ("plan: p\nbefore: 'piece(0, 4)'\nafter: whole\n", 2, 19, "no shard 4 in a world of 4", "(4) % world"),
    (
        "plan: p\ntensors: {a: [M, K], b: [4]}\nbefore: b.across(0)\nafter: whole\n",
        3,
        9,
        "tensor b[4] has no dimension 1 to cut along",
        "b[...]",
    ),
    (
        OP + "{push: whole, to: (rank+1)%world, label: x, depends: {on: x, for: s in range, rank: s}}\n",
        5,
        76,
        "cannot loop over `range`",
        "range(1, world)",
    ),
    (
        OP + "{push: whole, to: (rank+1)%world, label: x, depends: {on: x, for: s in range(2), rank: t}}\n",
        5,
        92,
        "unknown symbol `t`",
        "there is",
    ),
    ("plan: &x p\nbefore: *x\nafter: whole\n", 1, 7, "no anchors and aliases", "`let`"),
    ("plan: !!python/object:os.system p\nbefore: whole\nafter: whole\n", 1, 7, "no tags", "remove"),
    ("plan: p\n---\nplan: q\n", 2, 1, "not valid YAML", ""),
    ("plan: p\nbefore: \0\nafter: whole\n", 1, 1, "not valid YAML", "UTF-8"),
    (OP + "{pull: whole, from: min(rank, 1)}\n", 5, 35, "has no key `1)`", "inside { } a comma ends a value"),
]


@pytest.mark.parametrize(("text", "line", "column", "said", "helped"), MISTAKES)
def test_every_mistake_is_told_where_and_what_instead(text, line, column, said, helped):
    with pytest.raises(PlanError) as caught:
        build(text)
    error = caught.value
    assert error.where is not None
    assert said in error.message
    assert helped in error.help and error.help
    place = (error.where.path, error.where.line, error.where.col)
    if "cannot be read" in said:  # Python's versions put syntax errors at different places of the expression
        assert place[:2] == ("p.yaml", line) and column <= place[2] <= len(error.where.text), str(error)
    else:
        assert place == ("p.yaml", line, column), str(error)
    lines = text.splitlines()
    assert error.where.text == (lines[line - 1] if line <= len(lines) else "")
    assert error.render().splitlines()[0] == f"p.yaml:{line}:{place[2]}: {error.message}"


@pytest.mark.parametrize(
    "text",
    [
        "plan: p\nbefore: " + "(" * 5000 + "\nafter: whole\n",
        "plan: p\nbefore: shard(" + "-" * 5000 + "1)\nafter: whole\n",
        "plan: p\nbefore: shard(" + "1 + " * 5000 + "1)\nafter: whole\n",
        "plan: p\nbefore: shard(" + "9" * 5000 + ")\nafter: whole\n",
        "plan: p\nops: " + "[" * 3000 + "\n",
        "plan: p\nbefore: whole\nafter: whole\nops:\n  - " + "{do: [" * 300 + "{do: []}" + "]}" * 300 + "\n",
        "plan: p\nbefore: shard([" + "1, " * 900 + "1])\nafter: whole\n",
        "plan: p\n" * 5000,
    ],
)
def test_sizes_beyond_reason(text):
    with pytest.raises(PlanError) as caught:
        build(text)
    assert caught.value.where is not None and caught.value.help
    assert len(caught.value.message) < 300


def test_loops_that_never_end(monkeypatch):
    monkeypatch.setattr(expand, "MAX_INSTANCES", 1000)
    with pytest.raises(PlanError, match="more than 1000 loop steps"):
        build(OP + "{for: 'a in range(300) for b in range(300)', when: a < 0, pull: whole, from: 1}\n")
    with pytest.raises(PlanError, match="more than 1000 loop steps"):
        build(HEAD.replace("whole", "{chunk: whole, for: 'a in range(300) for b in range(300)', when: a < 0}"))


def test_the_caret_underlines_the_part_that_is_wrong():
    with pytest.raises(PlanError) as caught:
        build("plan: p\nbefore: shard(rank + 2 * shift)\nafter: whole\n")
    shown = caught.value.render().splitlines()
    assert shown[1][shown[2].index("^") : shown[2].rindex("^") + 1] == "shift"


def test_names_are_checked_even_where_nothing_runs():
    """A world of one has no loop steps; its plan is still read in full."""
    text = OP + "{for: 's in range(1, world)', pull: shard(typo), from: s}\n"
    with pytest.raises(PlanError, match="unknown symbol `typo`"):
        build(text, world=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world": 0}, "a world of 0 ranks"),
        ({"split": 0}, "a split into 0 parts"),
        ({"direction": "pul"}, "unknown direction `pul`"),
        ({"dim": 2}, "tensor a[8, 6] has no dimension 2"),
        ({"dim": -1}, "tensor a[8, 6] has no dimension -1"),
    ],
)
def test_arguments_that_cannot_be_meant(changes, said):
    with pytest.raises(PlanError) as caught:
        build(HEAD, **changes)
    assert said in caught.value.message and caught.value.help


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "plan p is for any world"),
        (HEAD + "world: 2\n", "declares no tensor"),
        (HEAD + "world: 2\ntensors: {a: [M, 4]}\n", "the size `M` of `a` is open"),
        (HEAD + "world: 2\ntensors: {a: [-4]}\n", "negative size"),
        (HEAD + "world: 2\ndim: 3\ntensors: {a: [4]}\n", "no dimension 3 to cut along"),
    ],
)
def test_a_concrete_plan_leaves_nothing_open(text, said):
    with pytest.raises(PlanError, match=said) as caught:
        load_plan(text, "p.yaml")
    assert caught.value.where is not None


def test_damaged_plans_never_surprise():
    """Shipped plans with random damage: a plan comes out, or a PlanError with a place inside the text; and soon."""
    dice = random.Random(3)
    sources = {name: find_template(name)[1] for name in list_templates()}
    sources["dumped"] = dump_plan(build(sources["all_gather_ring"], world=4, mesh=Mesh((2, 2))))
    tensors = {"kv_ring": "k", "all_to_all_v": "x"}
    refused = 0
    for _ in range(900):
        name = dice.choice(list(sources))
        text = damaged(sources[name], dice)
        counts = {"sent": [[dice.randrange(2) for _ in range(4)] for _ in range(4)]} if name == "all_to_all_v" else None
        try:
            plan = build_plan(
                text,
                world=4,
                tensor=TensorSpec(tensors.get(name, "a"), (8, 6)),
                dim=0,
                to_dim=1,
                split=dice.choice([1, 2]),
                path="p.yaml",
                mesh=Mesh((2, 2)),
                counts=counts,
            )
        except PlanError as error:
            assert error.where is not None and error.where.path == "p.yaml"
            lines = text.splitlines() or [""]
            assert 1 <= error.where.line <= len(lines) + 1, text
            line = lines[error.where.line - 1] if error.where.line <= len(lines) else ""
            assert error.where.text == line and 1 <= error.where.col <= len(line) + 1, text
            assert error.render()
            refused += 1
        else:
            assert plan.world == 4 and load_plan(dump_plan(plan)) == plan
    assert 300 < refused < 890
