"""Loop nests over a mesh, as plans: who ends with which numbers, what the buffers take, and what crosses the slow links."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from overlap.chunkplan.build import load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.importers.loop_ir import layout_of, lower_loop_ir, stored_boxes
from overlap.chunkplan.importers.loop_model import Buffer, Loop, LoopNest
from overlap.chunkplan.importers.placement import Replicate, Shard
from overlap.chunkplan.importers.traffic import axis_elements
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError

from .values import execute, local_part, parts_in

ITEM = 2
"""Bytes of an element in the closed forms."""


def word(placement) -> str:
    return f"S({placement.dim})" if isinstance(placement, Shard) else "R" if isinstance(placement, Replicate) else "P"


def check(nest: LoopNest, **options):
    """The plan is sound and reads back exactly; carried out, every rank has its reads and the sums of its writes."""
    plan = lower_loop_ir(nest, **options)
    verify_plan(plan)
    assert load_plan(dump_plan(plan)) == plan
    sizes = nest.mesh.sizes
    start, expected = {}, {}
    for seed, buffer in enumerate(nest.buffers):
        layout = layout_of(nest, buffer)
        ends = (layout.used, layout.stored) if buffer.write else (layout.stored, layout.used)
        # Axes in the order in which they cut the buffer.
        turn = layout.order
        turned = tuple(sizes[axis] for axis in turn)
        old, new = ([word(end[axis]) for axis in turn] for end in ends)
        parts = parts_in(turned, buffer.shape, old, seed)
        back = [turn.index(axis) for axis in range(len(sizes))] + [len(sizes) + d for d in range(len(buffer.shape))]
        start[buffer.name] = parts.transpose(back)
        expected[buffer.name] = [
            local_part(turned, parts, old, new, tuple(at[axis] for axis in turn))[0] for at in np.ndindex(*sizes)
        ]
    memory = execute(plan, start, seed=7)
    for rank in range(plan.world):
        for name, parts in expected.items():
            np.testing.assert_array_equal(memory[rank][name], parts[rank])
    return plan


def stored_bytes(nest: LoopNest, name: str) -> list[int]:
    return [box.size * ITEM for box in stored_boxes(nest, name)]


def attention(mesh: str, loops: dict[str, int], q: str, kv: str, seq: int = 24, head: int = 4) -> LoopNest:
    """Scaled accumulation over keys and values, as the paper simplifies attention. ``kv`` loops are summed over."""
    names = {name: Loop(name, length, reduce=name in kv.split()) for name, length in loops.items()}
    return LoopNest(
        parse_mesh(mesh),
        tuple(names.values()),
        (
            Buffer("q", (seq, head), (tuple(q.split()), ())),
            Buffer("kv", (seq, 2 * head), (tuple(kv.split()), ())),
            Buffer("o", (seq, head), (tuple(q.split()), ()), write=True),
        ),
    )


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize(("n", "seq"), [(1, 24), (2, 24), (4, 24), (4, 22), (5, 4)])
def test_ring_attention(n, seq, direction):
    nest = attention(str(n), {"I": n, "J": n}, "I", "J", seq).parallelize("I", 0).shift("J", "I")
    plan = check(nest, direction=direction)
    for op_id, op in plan.items():
        assert op.dst.tensor == "kv" and op.src_rank == (op.dst_rank + 1) % n, op_id
    if direction == "pull":
        rows = -(-seq // n)
        for rank, ops in enumerate(plan.ops):
            came = [op.dst.box.lo[0] // rows for op in ops]
            assert came == [piece for piece in ((rank + t) % n for t in range(1, n)) if piece * rows < seq]
    assert sum(stored_bytes(nest, "kv")) == sum(stored_bytes(nest, "q")) * 2 == seq * 8 * ITEM
    assert axis_elements(plan, nest.mesh) == ((n - 1) * seq * 8,)


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (2, 2), (3, 2)])
def test_double_ring_attention(nodes, gpus):
    n, seq = nodes * gpus, 24
    loops = {"I0": nodes, "I1": gpus, "J0": nodes, "J1": gpus}
    nest = attention(f"{nodes}x{gpus}", loops, "I0 I1", "J0 J1", seq)
    nest = nest.parallelize("I0", 0).parallelize("I1", 1).shift("J0", "I0").shift("J1", "I1")
    plan = check(nest)
    size = seq * 8
    assert stored_bytes(nest, "kv") == [size * ITEM // n] * n
    far, near = axis_elements(plan, nest.mesh)
    # Every rank: one piece for each other node over the network, and around its node once for each node.
    assert far * ITEM == n * (nodes - 1) * size // n * ITEM
    assert near * ITEM == n * nodes * (gpus - 1) * size // n * ITEM
    for _, op in plan.items():
        a, b = nest.mesh.coordinates(op.dst_rank), nest.mesh.coordinates(op.src_rank)
        assert sorted((y - x) % size for x, y, size in zip(a, b, nest.mesh.sizes, strict=True)) == [0, 1]


def test_ring_inside_a_node_and_whole_between_them():
    """KV lies whole in every node: nothing crosses between nodes, and it takes as many times the memory."""
    nest = attention("2x4", {"I0": 2, "I1": 4, "J1": 4}, "I0 I1", "J1")
    nest = nest.parallelize("I0", 0).parallelize("I1", 1).shift("J1", "I1")
    plan = check(nest)
    assert axis_elements(plan, nest.mesh) == (0, 2 * 3 * 24 * 8)
    assert stored_bytes(nest, "kv") == [24 * 8 * ITEM // 4] * 8


def test_context_parallel():
    """Queries are cut; KV lies whole and nothing moves, or lies cut and is gathered (the read shard)."""
    base = attention("4", {"I": 4, "J": 4}, "I", "J").parallelize("I", 0)
    assert not any(check(base).ops)
    assert stored_bytes(base, "kv") == [24 * 8 * ITEM] * 4
    cut = base.shard("kv", "I")
    plan = check(cut)
    assert stored_bytes(cut, "kv") == [24 * 8 * ITEM // 4] * 4
    assert axis_elements(plan, cut.mesh) == (3 * 24 * 8,)
    assert {(op.dst_rank - op.src_rank) % 4 for _, op in plan.items()} == {1, 2, 3}, "each piece from its owner"
    assert base.replicate("kv", "I").shift("J", "I") and not any(check(base.replicate("kv", "I").shift("J", "I")).ops)


def heads(seq: int = 12, count: int = 8, mesh: str = "4") -> LoopNest:
    index = ((), ("H",), ())
    size = (seq, count, 2)
    names = ("q", "k", "v")
    reads = tuple(Buffer(name, size, index) for name in names)
    return LoopNest(parse_mesh(mesh), (Loop("H", 4),), (*reads, Buffer("o", size, index, write=True)))


@pytest.mark.parametrize(("seq", "count"), [(12, 8), (10, 8), (12, 6), (3, 5)])
def test_ulysses(seq, count):
    """Sequence-cut buffers, head-cut work: an all-to-all for each buffer, of (n - 1) / n of it where n divides it."""
    nest = heads(seq, count).parallelize("H", 0)
    assert not any(check(nest).ops)
    for name in ("q", "k", "v", "o"):
        nest = nest.shard(name, "H", dim=0)
    plan = check(nest)
    for name in ("q", "k", "v"):
        verify_kind(plan, name, "all_to_all", dim=0, to_dim=1)
    verify_kind(plan, "o", "all_to_all", dim=1, to_dim=0)
    if (seq, count) == (12, 8):
        size = seq * count * 2
        assert axis_elements(plan, nest.mesh) == (4 * 3 * size // 4,)
        assert stored_bytes(nest, "q") == [size * ITEM // 4] * 4


def test_heads_inside_a_node_and_a_ring_between_nodes():
    """Ulysses over the fast links, ring attention over the slow ones (USP): both of one buffer."""
    index = (("J",), ("H",), ())
    kv = Buffer("kv", (16, 4, 3), index)
    out = Buffer("o", (16, 4, 3), (("I",), ("H",), ()), write=True)
    nest = LoopNest(parse_mesh("2x2"), (Loop("I", 2), Loop("H", 2), Loop("J", 2, reduce=True)), (kv, out))
    nest = nest.parallelize("I", 0).parallelize("H", 1).shift("J", "I").shard("kv", "H", dim=0).shard("o", "H", dim=0)
    plan = check(nest)
    size = 16 * 4 * 3
    assert stored_bytes(nest, "kv") == [size * ITEM // 4] * 4
    # Far: half of the heads of the other half of the sequence, for each rank.
    assert axis_elements(plan, nest.mesh)[0] == 4 * size // 4


def gemm(mesh: str, loops: dict[str, Loop], a: str, b: str, c: str, shape=(12, 9, 8)) -> LoopNest:
    m, n, k = shape
    sizes = {"M": m, "N": n, "K": k}

    def buffer(name: str, dims: str, text: str, write: bool = False) -> Buffer:
        index = tuple(tuple(part.split()) for part in text.split(","))
        return Buffer(name, tuple(sizes[dim] for dim in dims), index, write)

    return LoopNest(
        parse_mesh(mesh),
        tuple(loops.values()),
        (buffer("a", "MK", a), buffer("b", "KN", b), buffer("c", "MN", c, True)),
    )


def tensor_parallel(shape=(12, 9, 8), mesh: str = "4") -> LoopNest:
    """The contraction spread over the ranks, rows in a local loop."""
    return gemm(mesh, {"K": Loop("K", 4, reduce=True), "M": Loop("M", 4)}, "M,K", "K,", "M,", shape).parallelize("K", 0)


@pytest.mark.parametrize("shape", [(12, 9, 8), (10, 3, 5), (2, 1, 3)])
def test_tensor_parallel_gemm_and_its_reductions(shape):
    """A write in parts: all-reduce where it lies whole (reduced write), reduce-scatter where it lies cut."""
    m, n, k = shape
    nest = tensor_parallel(shape)
    plan = check(nest)
    verify_kind(plan, "c", "all_reduce", dim=0)
    assert axis_elements(plan, nest.mesh) == (2 * 3 * m * n,)
    assert stored_bytes(nest, "c") == [m * n * ITEM] * 4
    cut = nest.shard("c", "K", dim=0)
    scattered = check(cut)
    verify_kind(scattered, "c", "reduce_scatter", dim=0)
    assert axis_elements(scattered, nest.mesh) == (3 * m * n,)
    assert sum(stored_bytes(cut, "c")) == m * n * ITEM


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("shape", [(12, 9, 8), (10, 3, 5), (2, 1, 3)])
def test_async_tensor_parallel_gemm(shape, direction):
    """Sums of row blocks go around a ring, the own block last; or rows of the input do, the own block first."""
    m, n, k = shape
    nest = tensor_parallel(shape).shift("M", "K")
    plan = check(nest, direction=direction)
    assert {(op.src_rank - op.dst_rank) % 4 for _, op in plan.items()} == {1}
    assert axis_elements(plan, nest.mesh) == (3 * m * n,)
    gather = gemm("4", {"N": Loop("N", 4), "M": Loop("M", 4)}, "M,", ",N", "M,N", shape).parallelize("N", 0)
    ring = gather.shift("M", "N")
    plan = check(ring, direction=direction)
    assert {(op.src_rank - op.dst_rank) % 4 for _, op in plan.items()} == {1}
    assert axis_elements(plan, nest.mesh) == (3 * m * k,)
    assert sum(stored_bytes(ring, "a")) == m * k * ITEM
    assert stored_bytes(gather, "a") == [m * k * ITEM] * 4


def test_sums_around_rings_on_two_levels():
    """Each sum crosses between nodes once a node, when its node has added all it has."""
    loops = {
        "K0": Loop("K0", 2, reduce=True),
        "K1": Loop("K1", 3, reduce=True),
        "M0": Loop("M0", 2),
        "M1": Loop("M1", 3),
    }
    nest = gemm("2x3", loops, "M0 M1,K0 K1", "K0 K1,", "M0 M1,")
    nest = nest.parallelize("K0", 0).parallelize("K1", 1).shift("M0", "K0").shift("M1", "K1")
    plan = check(nest)
    assert axis_elements(plan, nest.mesh) == ((2 - 1) * 12 * 9, 2 * (3 - 1) * 12 * 9)
    for direction in ("pull", "push"):
        check(nest, direction=direction, split=2)


def test_a_ring_of_sums_inside_nodes_and_an_all_reduce_between_them():
    loops = {"K0": Loop("K0", 2, reduce=True), "K1": Loop("K1", 3, reduce=True), "M1": Loop("M1", 3)}
    nest = gemm("2x3", loops, "M1,K0 K1", "K0 K1,", "M1,")
    nest = nest.parallelize("K0", 0).parallelize("K1", 1).shift("M1", "K1")
    plan = check(nest)
    assert axis_elements(plan, nest.mesh) == (2 * 12 * 9, 2 * 2 * 12 * 9)
    check(nest.replicate("c", "K1"))
    check(nest.shard("c", "K0", dim=1))


def searched(mesh: str = "2x2", seq: int = 24, head: int = 4) -> LoopNest:
    """Mercury's Fig. 7, the schedule that its search found: axis 1 shares queries, axis 0 adds up over the context. Sums are
    passed along axis 0, the keys and values of a half of the context along axis 1.
    """
    a, b = parse_mesh(mesh).sizes
    loops = {"I0": b, "I1": a, "J0": a, "J1": b}
    nest = attention(mesh, loops, "I0 I1", "J0 J1", seq, head)
    nest = nest.parallelize("I0", 1).parallelize("J0", 0).shift("I1", "J0").shift("J1", "I0")
    return nest.replicate("q", "J0")


@pytest.mark.parametrize(("mesh", "seq"), [("2x2", 24), ("2x3", 24), ("3x2", 22)])
def test_the_schedule_that_a_search_found(mesh, seq):
    """Queries are cut by axis 1 first, keys and values by axis 0 first: each buffer by the order of its own index."""
    nest = searched(mesh, seq)
    a, b = nest.mesh.sizes
    assert layout_of(nest, nest.buffer("o")).order == (1, 0) and layout_of(nest, nest.buffer("kv")).order == (0, 1)
    for direction in ("pull", "push"):
        plan = check(nest, direction=direction)
    size = seq * 4
    # Sums of each block of queries around its a ranks; keys and values of each half of the context around b ranks.
    assert axis_elements(plan, nest.mesh) == ((a - 1) * size, (b - 1) * 2 * size)
    for _, op in plan.items():
        near, far = nest.mesh.coordinates(op.src_rank), nest.mesh.coordinates(op.dst_rank)
        moved = [axis for axis in (0, 1) if near[axis] != far[axis]]
        assert moved == ([0] if op.dst.tensor == "o" else [1]) and op.dst.tensor in ("o", "kv")
    if seq == 24:
        assert stored_bytes(nest, "kv") == [2 * size * ITEM // (a * b)] * (a * b)
        assert stored_bytes(nest, "o") == [size * ITEM // (a * b)] * (a * b)
        assert stored_bytes(nest, "q") == [size * ITEM // b] * (a * b)


def test_rows_and_columns_over_two_axes():
    """The read shard on both axes; a written block gathered where it is to lie whole."""
    nest = (
        gemm("2x3", {"M": Loop("M", 2), "N": Loop("N", 3)}, "M,", ",N", "M,N").parallelize("M", 0).parallelize("N", 1)
    )
    assert not any(check(nest).ops)
    cut = nest.shard("a", "N").shard("b", "M", dim=0).replicate("c", "N")
    plan = check(cut)
    m, n, k = 12, 9, 8
    assert axis_elements(plan, nest.mesh) == (3 * n // 3 * k, 2 * 2 * m // 2 * k + 2 * m // 2 * 2 * n)


@pytest.mark.parametrize("seed", [*range(24), 102, 320, 376])
def test_any_nest(seed):
    """Each axis has a parallel loop, most have a loop that is shifted by it; buffers are indexed by either or by none."""
    dice = random.Random(seed)
    sizes = [dice.choice((1, 2, 2, 3)) for _ in range(dice.choice((1, 2, 2, 3)))]
    loops, read, write = [], [[], []], [[], []]
    for axis, size in enumerate(sizes):
        summed = dice.random() < 0.6
        loops += [Loop(f"P{axis}", size, reduce=summed), Loop(f"J{axis}", size, reduce=not summed)]
        for index, names in ((read, f"P{axis} J{axis} -"), (write, f"J{axis} -" if summed else f"P{axis}")):
            name = dice.choice(names.split())
            if name != "-":
                index[dice.randrange(2)].append(name)
    shape = tuple(dice.choice((2, 5, 6, 7)) for _ in range(2))
    buffers = (
        Buffer("x", shape, (tuple(read[0]), tuple(read[1]))),
        Buffer("y", shape, (tuple(write[0]), tuple(write[1])), write=True),
    )
    nest = LoopNest(parse_mesh("x".join(map(str, sizes))), tuple(loops), buffers)
    for axis in range(len(sizes)):
        nest = nest.parallelize(f"P{axis}", axis)
    for axis in range(len(sizes)):
        nest = nest.shift(f"J{axis}", f"P{axis}") if dice.random() < 0.75 else nest
        for name in "xy":
            if dice.random() < 0.2:
                nest = nest.shard(name, f"P{axis}", dice.choice((None, 0, 1)))
            elif dice.random() < 0.1:
                nest = nest.replicate(name, f"P{axis}")
    try:
        plan = check(nest, direction=dice.choice(("pull", "push")))
    except PlanError as error:
        # Spread loops come before shifted ones, and those before local ones; in which order of axes does not matter.
        assert "has would not be one box" in error.message
    else:
        assert plan.world == nest.mesh.world


def base() -> LoopNest:
    return attention("4", {"I": 4, "J": 4, "L": 2}, "I", "J L")


def both() -> LoopNest:
    loops = (Loop("I", 4), Loop("J", 4), Loop("L", 4))
    return LoopNest(parse_mesh("4"), loops, (Buffer("x", (8, 8), (("J",), ("L",))),))


@pytest.mark.parametrize(
    ("make", "said", "help"),
    [
        (lambda: base().parallelize("II", 0), "no loop `II`", "I"),
        (lambda: base().parallelize("L", 0), "L has 2 steps, axis 0 of mesh 4 has 4", "tile it: an outer loop of 4"),
        (lambda: base().parallelize("I", 1), "no axis 1", "0 to 0"),
        (lambda: base().parallelize("I", "gpu"), "no axis `gpu`", "axis0"),
        (lambda: base().parallelize("I", 0).parallelize("J", 0), "I is spread or shifted already", "join two loops"),
        (lambda: base().shift("J", "I"), "which is not parallel", r"\.parallelize\(\"I\", AXIS\)"),
        (lambda: base().parallelize("I", 0).shift("L", "I"), "of 2 steps is shifted by I of 4", "tile L"),
        (lambda: base().parallelize("I", 0).shift("I", "I"), "parallel already", "by itself"),
        (lambda: base().parallelize("I", 0).shift("J", "I").shift("J", "I"), "shifted already", "by itself"),
        (lambda: base().shard("kv", "I"), "cut over I, which is not parallel", "parallelize"),
        (lambda: base().replicate("kv", "I"), "replicated over I, which is not parallel", "parallelize"),
        (lambda: base().parallelize("I", 0).shard("vk", "I"), "no buffer `vk`", "kv"),
        (lambda: base().parallelize("I", 0).shard("kv", "I", dim=2), "no dimension 2", "0 to 1"),
        (lambda: lower_loop_ir(heads().parallelize("H", 0), direction="up"), "unknown direction", "pull, push"),
        (lambda: lower_loop_ir(heads().parallelize("H", 0), accumulate="fp8"), "not carried out in", "fp32"),
        (
            lambda: lower_loop_ir(gemm("4", {"N": Loop("N", 4)}, ",", ",", ",").parallelize("N", 0)),
            "every rank along loop N would write all of buffer c",
            "index c by N, or make it",
        ),
        (
            lambda: lower_loop_ir(attention("4", {"I": 4, "L": 2}, "L I", "L").parallelize("I", 0)),
            "dimension 0 of buffer q is cut by L before I",
            "spread loops come first",
        ),
        (
            lambda: lower_loop_ir(both().parallelize("I", 0).shift("J", "I").shift("L", "I")),
            "two loops that are shifted by I",
            "shift one",
        ),
        (lambda: LoopNest(parse_mesh("4"), (Loop("I", 4), Loop("I", 2)), ()), "two loops are called I", "own name"),
        (lambda: LoopNest(parse_mesh("4"), (Loop("I", 0),), ()), "0 steps", "1 step"),
        (
            lambda: LoopNest(parse_mesh("4"), (), (Buffer("x", (4,), ()),)),
            "1 dimensions and 0 indices",
            "each dimension",
        ),
        (lambda: LoopNest(parse_mesh("4"), (Loop("I", 4),), (Buffer("x", (4,), (("J",),)),)), "no loop", "I"),
        (lambda: LoopNest(parse_mesh("4"), (Loop("I", 4),), (Buffer("x", (4, 4), (("I",), ("I",))),)), "twice", "diag"),
        (lambda: LoopNest(parse_mesh("4"), (), (Buffer("x", (-4,), ((),)),)), "buffer x has a negative size", "0 or"),
        (lambda: lower_loop_ir(LoopNest(parse_mesh("4"), (), ())), "without buffers", "Buffer"),
    ],
)
def test_what_cannot_be_lowered_says_why_and_what_to_write(make, said, help):
    with pytest.raises(PlanError, match=said) as caught:
        make()
    assert re.search(help, caught.value.help), caught.value.help
