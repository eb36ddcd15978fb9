"""Ranks that no pointer reaches: moves through NVSHMEM against the original kernel, and with one thing taken away.

CI runs a subset in which every pair of values meets, and plans that test_realizations.py has are not in it; ``make sweep``
runs one of all values with 20 seeds, and all of it.
"""

import itertools
import os
from pathlib import Path

import pytest
import torch
from test_mutations import changed, faults, without
from test_proof_matrix import pairwise

import overlap.language.far as words_that_move
from overlap.annotate.source import SourceUnit
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import UnsupportedError, UsageError
from overlap.ops import a2a_gemm, ag_gemm_k, gemm_a2a, gemm_ar, last_plan
from overlap.pipeline import Request, compile_source
from overlap.runtime.launch import prepared
from overlap.runtime.nvshmem import far_moves
from overlap.runtime.tables import moves as tables
from overlap.schedule import steps as st
from overlap.sim import World, check_module, check_plan
from overlap.sim.runtime import SimRuntime

pytestmark = pytest.mark.one_triton

SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
KERNELS = ("grouped_gemm", "persistent_gemm")
WAYS = (("all_gather_1d_pull", "b[N]"), ("all_gather_ring", "a[M]"))
WAYS += (("all_gather_1d", "a[M]"), ("reduce_scatter_1d", "c[M]"), ("all_to_all_1d", "a[K:M]")) if SWEEP else ()
WAYS += (("all_reduce_two_shot", "c[]"), ("all_to_all_1d", "c[M:N]")) if SWEEP else ()
NODES = ((2, 1), (3, 2), *(((3, 3), (4, 2), (5, 1)) if SWEEP else ()))
"""Ranks, and ranks of a node; the last node may have fewer, and where there is one node all goes through NVSHMEM."""
ROWS, DTYPES = (70 if SWEEP else 26, 3), ("bf16", "fp32")
FACTORS = (KERNELS, WAYS, NODES, ROWS, DTYPES)
PAIRS = pairwise(FACTORS)
REST = [case for case in itertools.product(*FACTORS) if case not in PAIRS] if SWEEP else []
ALONE = ("grouped_gemm", ("all_gather_1d", "a[M]"), (3, 3), ROWS[0], "fp16")
CASES = [(*case, range(20) if SWEEP else (seed,)) for seed, case in enumerate([*PAIRS, ALONE, *REST])]
TWO_LEVELS = (
    ("all_gather_2d", "a[M]"),
    ("all_to_all_2d", "a[K:M]"),
    ("reduce_scatter_2d", "c[M]"),
    ("all_reduce_2d", "c[]"),
)
MESHES = ("2x2", "2x4", "3x2")
LEVELS = [(mesh, *way) for mesh in MESHES for way in TWO_LEVELS]
FEW = [("2x2", "reduce_scatter_2d", "c[M]"), ("2x2", "all_to_all_2d", "a[K:M]"), ("3x2", "all_gather_2d", "a[M]")]
SEEDS = range(10) if SWEEP else range(1)
SMALL_PART = 256
"""Bytes of a part, where several programs are to share a small chunk."""
SMALL = {"M": 40, "N": 24, "K": 24}


def changed_words(edits, behind=""):
    """The text of the words that move with each edit made once, behind ``behind``; several programs share a chunk."""
    source = Path(words_that_move.__file__).read_text(encoding="utf-8").replace("from .", "from overlap.language.")
    source = source.replace("import annotations\n", 'import annotations\n\n__name__ = "overlap.language.changed"\n')
    source = source.replace("tl.constexpr(_far.PART_BYTES)", f"tl.constexpr({SMALL_PART})")
    start = source.index(behind)
    for old, new in edits:
        assert old in source[start:], old
        source = source[:start] + source[start:].replace(old, new, 1)
    return source


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """``generated(kernel, plan, on, backend, mesh, words)``: a template kernel compiled; ``words`` edits the words that move."""
    folder = tmp_path_factory.mktemp("far")
    made: dict = {}

    def make(kernel="grouped_gemm", plan="all_gather_1d", on="a[M]", backend="nvshmem", mesh=None, words=()) -> str:
        key = (kernel, plan, on, backend, mesh, tuple(words))
        if key not in made:
            unit = SourceUnit.from_file(repo / "templates" / "kernels" / f"{kernel}.py")
            settings = {"comm_sms": "2"} if backend == "nvshmem" else {}
            request = Request(
                unit, plan=plan, on=on, backend=backend, settings=settings, mesh=mesh and parse_mesh(mesh)
            )
            text = compile_source(request).module.text
            if words:
                other = folder / f"words_far_{len(made)}.py"
                # Moves stand ahead of what lanes carry, which is written alike.
                other.write_text(changed_words(words))
                text = text.replace("ol.move_chunks_far(", f"{other.stem}.move_chunks_far(")
                text = text.replace(
                    "import overlap.language as ol\n", f"import overlap.language as ol\nimport {other.stem}\n"
                )
            path = folder / f"module_{len(made)}.py"
            path.write_text(text)
            made[key] = str(path)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield make


@pytest.fixture
def nodes(monkeypatch):
    """``nodes(2)``: two ranks a node from here on."""
    return lambda ranks: monkeypatch.setenv("OVERLAP_NODE_RANKS", str(ranks))


@pytest.mark.parametrize("kernel,way,size,rows,dtype,seeds", CASES)
def test_agrees_with_the_original(generated, nodes, kernel, way, size, rows, dtype, seeds):
    world, ranks = size
    nodes(ranks)
    shape = {"M": rows, "N": 40, "K": 24}
    report = check_module(generated(kernel, *way), world=world, shape=shape, dtype=dtype, seeds=list(seeds), launches=2)
    assert report.ok, str(report)


@pytest.mark.parametrize(("mesh", "plan", "on"), LEVELS if SWEEP else FEW)
def test_two_levels_in_one_launch(generated, nodes, mesh, plan, on):
    """Within a node by pointer, between nodes through NVSHMEM."""
    node, ranks = map(int, mesh.split("x"))
    nodes(ranks)
    shape = {"M": 70, "N": 40, "K": 24} if SWEEP else {"M": 26, "N": 24, "K": 24}
    path = generated(plan=plan, on=on, mesh=mesh)
    report = check_module(path, world=node * ranks, shape=shape, dtype="bf16", seeds=list(SEEDS))
    assert report.ok, str(report)


def test_copies_within_a_node_and_puts_between(generated, nodes, repo, tmp_path):
    """One launch: the inner level by copy engine, the outer through NVSHMEM."""
    nodes(2)
    plan = tmp_path / "mixed.yaml"
    plan.write_text((repo / "templates/plans/all_gather_2d.yaml").read_text().rstrip() + "\n    backend: copy_engine\n")
    path, shape = generated(plan=str(plan), mesh="2x2"), {"M": 26, "N": 24, "K": 24}
    report = check_module(path, world=4, shape=shape, dtype="fp16", seeds=list(SEEDS))
    assert report.ok, str(report)


def test_sums_leave_room_for_the_kernels_that_they_wait_for(generated, nodes):
    nodes(1)
    path, shape = generated(plan="all_reduce_two_shot", on="c[]"), {"M": 256, "N": 128, "K": 8}
    report = check_module(path, world=2, shape=shape, dtype="fp16", seeds=[0, 1], launches=1, sms=2)
    assert report.ok, str(report)


ALONE_2D = list(itertools.product(MESHES, ("all_gather_2d", "reduce_scatter_2d", "all_reduce_2d")))


@pytest.mark.parametrize(("mesh", "name"), ALONE_2D if SWEEP else [("2x2", "all_reduce_2d")])
def test_plans_without_a_kernel(nodes, mesh, name):
    axes = parse_mesh(mesh)
    nodes(axes.sizes[1])
    _, text = find_template(name)
    plan = build_plan(text, world=axes.world, mesh=axes, tensor=TensorSpec("x", (50, 6)), dim=0, direction="push")
    report = check_plan(plan, seeds=list(SEEDS))
    assert report.ok, str(report)


# words


WORDS = {
    "no quiet ahead of the count": (("    quiet()\n    tl.debug_barrier()\n", "    tl.debug_barrier()\n"), {"race"}),
    "no barrier behind the quiet": (("    quiet()\n    tl.debug_barrier()\n", "    quiet()\n"), {"race"}),
    "the flag ahead of the last count": (("if counted == programs - 1:", "if counted == 0:"), {"race"}),
    "a count that acquires nothing": (('sem="acq_rel", scope="sys"', 'sem="release", scope="sys"'), {"race"}),
    "a count that releases nothing": (('sem="acq_rel", scope="sys"', 'sem="acquire", scope="sys"'), {"race"}),
    "no await": (("    while i < end:", "    while i < i:"), {"race"}),
    "a chunk put to another rank": (
        ("pe = (other // 2).to(tl.int32)", "pe = (other // 2).to(tl.int32) ^ 1"),
        {"race", "unwritten"},
    ),
    "a flag at another rank": (("_FAR_PE).to(tl.int32))", "_FAR_PE).to(tl.int32) ^ 1)"), {"race", "deadlock"}),
    "the last part of a row left out": (("+ (_PART - 1)) // _PART", "- 1) // _PART"), {"unwritten", "race"}),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_changed(generated, nodes, name):
    nodes(1)
    edit, wanted = WORDS[name]
    # Two ranks hand nothing on.
    world = 3 if name == "no await" else 2
    found = set(faults(generated(plan="all_gather_ring", words=(edit,)), world=world, seeds=SEEDS, shape=SMALL))
    assert found <= wanted | {"ok"} and found & wanted, found


def test_the_words_as_they_are(generated, nodes):
    nodes(1)
    assert set(faults(generated(plan="all_gather_ring"), world=2, seeds=SEEDS, shape=SMALL)) == {"ok"}


LANE_COUNT = """\
    quiet()
    tl.debug_barrier()
    counted = tl.atomic_add(words + _LANE_COUNTER"""
LANES = {
    "no quiet ahead of the count": ((LANE_COUNT, LANE_COUNT.replace("    quiet()\n", "")), {"race"}),
    "no barrier behind the quiet": ((LANE_COUNT, LANE_COUNT.replace("    tl.debug_barrier()\n", "")), {"race"}),
    "the flag ahead of the last puts": (("if counted == programs - 1:", "if counted == 0:"), {"race", "deadlock"}),
    "a count that acquires nothing": (('sem="acq_rel", scope="sys"', 'sem="release", scope="sys"'), {"race"}),
    "a count that releases nothing": (('sem="acq_rel", scope="sys"', 'sem="acquire", scope="sys"'), {"race"}),
    "a count that stays": (
        ('tl.atomic_xchg(words + _LANE_COUNTER, 0, sem="relaxed", scope="gpu")', "pass"),
        {"deadlock"},
    ),
    "a chunk put to another rank": WORDS["a chunk put to another rank"],
    "a flag at another rank": (("_LANE_PE).to(tl.int32)", "_LANE_PE).to(tl.int32) ^ 1"), {"race", "deadlock"}),
    "the last part of a row left out": WORDS["the last part of a row left out"],
}
"""Edits of `carry_chunk`, by which a lane carries an operation."""


@pytest.fixture
def carried(nodes, monkeypatch, tmp_path):
    """``carried(edits)``: the kinds of faults of a push to another node that lanes carry, by edited words."""

    def run(edits):
        nodes(1)
        path = tmp_path / "lanes.py"
        kernel = "@triton.jit\ndef kernel(words, state):\n    carry_chunk(words, state, tl.load(state))\n"
        path.write_text(changed_words(edits, "def carry_chunk(") + "\n\n" + kernel)
        monkeypatch.setattr(prepared, "carry_kernel", load_module(str(path)).kernel)
        monkeypatch.setattr(far_moves, "PART_BYTES", SMALL_PART)
        _, text = find_template("all_gather_1d_push")
        plan = build_plan(text, world=2, tensor=TensorSpec("x", (4, 192)), dim=0)
        found = set()
        for seed in SEEDS:
            report = check_plan(plan, seeds=[seed])
            found.add("ok" if report.ok else report.faults[0].kind)
        return found

    return run


@pytest.mark.parametrize("name", LANES)
def test_words_of_lanes_changed(carried, name):
    edit, wanted = LANES[name]
    found = carried((edit,))
    assert found <= wanted | {"ok"} and found & wanted, found


def test_the_words_of_lanes_as_they_are(carried):
    assert carried(()) == {"ok"}


@pytest.mark.parametrize(
    ("plan", "change", "wanted"),
    [
        ("all_gather_1d", changed(st.Entry, wait_done=False), {"race"}),
        ("all_gather_1d_pull", changed(st.Entry, ready=False), {"race"}),
        ("all_gather_1d", without(st.Credit), {"deadlock"}),
    ],
)
def test_steps_changed(generated, nodes, plan, change, wanted):
    nodes(1)
    found = set(faults(generated(plan=plan), mutate_steps=change, seeds=SEEDS, launches=2, shape=SMALL))
    assert found <= wanted | {"ok"} and found & wanted, found


def test_a_rank_taken_for_its_number(generated, nodes, monkeypatch):
    nodes(1)
    whole = far_moves.signal_of

    def swapped(instance, op_id):
        found = whole(instance, op_id)
        return found and (found[0], instance.plan.op(op_id).dst_rank)

    monkeypatch.setattr(tables, "signal_of", swapped)
    assert set(faults(generated(), world=2, seeds=SEEDS, shape=SMALL)) <= {"race", "deadlock"}


# what is refused


@pytest.mark.parametrize("backend", ["copy_engine", "tma_reserved"] if SWEEP else ["copy_engine"])
def test_backends_that_go_by_pointer_are_refused(generated, nodes, backend):
    nodes(1)
    with pytest.raises(
        UnsupportedError, match=f"{backend} reaches peers by pointer, and no pointer reaches this one"
    ) as error:
        check_module(generated(backend=backend), world=2, shape=SMALL, dtype="fp16", seeds=[0])
    assert "nvshmem can" in str(error.value)


def test_a_pull_of_what_lands_on_another_node_is_refused(generated, nodes, repo, tmp_path):
    nodes(1)
    plan = tmp_path / "ring.yaml"
    plan.write_text(
        (repo / "templates" / "plans" / "all_gather_ring.yaml")
        .read_text()
        .replace("move:", "pull:")
        .replace("    to: rank\n", "")
    )
    with pytest.raises(
        UnsupportedError, match="waits for what lands on rank 1, whose flags rank 0 of another node cannot"
    ):
        check_module(generated(plan=str(plan)), world=4, shape=SMALL, dtype="fp16", seeds=[0])


def test_memory_that_is_not_its_own_is_refused_where_there_are_peers(generated, monkeypatch):
    """All ranks on one node, torch's symmetric memory: pointers reach everybody, NVSHMEM nobody. One rank needs neither."""
    monkeypatch.setattr(SimRuntime, "pes", ())
    with pytest.raises(
        UnsupportedError, match="nvshmem moves NVSHMEM's symmetric memory, and that of this group"
    ) as error:
        check_module(generated(), world=2, shape=SMALL, dtype="fp16", seeds=[0])
    assert "OVERLAP_PROVIDER=nvshmem" in error.value.help
    for plan, on in (("all_gather_1d", "a[M]"), ("reduce_scatter_1d", "c[M]")):
        report = check_module(generated(plan=plan, on=on), world=1, shape=SMALL, dtype="fp16", seeds=[0])
        assert report.ok, str(report)


def test_nodes_of_no_ranks_are_refused(generated, nodes):
    nodes(0)
    with pytest.raises(UsageError, match="OVERLAP_NODE_RANKS='0' is not allowed"):
        check_module(generated(), world=2, shape=SMALL, dtype="fp16", seeds=[0])


ROWS, COLUMNS, WHOLE = 0, 1, None
OPERATORS = {
    ag_gemm_k: (COLUMNS, WHOLE, WHOLE),
    a2a_gemm: (COLUMNS, WHOLE, ROWS),
    gemm_a2a: (ROWS, WHOLE, COLUMNS),
    gemm_ar: (COLUMNS, ROWS, WHOLE),
}
"""Of x, w and y = x @ w, the dimension of which a rank has its piece; `ag_gemm` and `gemm_rs` are in test_autograd.py."""


def test_operators(monkeypatch, tmp_path):
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    world, rows = 2, 5
    x, w = torch.randn(rows, 16), torch.randn(16, 8)

    def mine(tensor, dim, rank):
        if dim is None:
            return tensor.clone()
        low, high = shard_interval(tensor.shape[dim], world, rank)
        return tensor.narrow(dim, low, high - low).clone()

    given = [[(mine(x, of_x, r), mine(w, of_w, r)) for of_x, of_w, _ in OPERATORS.values()] for r in range(world)]

    def body(group):
        made = []
        for operator, operands in zip(OPERATORS, given[group.rank()], strict=True):
            sizes = {"gather_size": rows} if operator is gemm_a2a else {}
            made.append(operator(*operands, group=group, backend="nvshmem", **sizes))
        group.overlap_runtime.synchronize()
        return made

    for rank, made in enumerate(World(world, node_ranks=1).run(body)):
        for y, (operator, (_, _, dim)) in zip(made, OPERATORS.items(), strict=True):
            wanted = mine(x.double() @ w.double(), dim, rank)
            assert y.shape == wanted.shape and (y.double() - wanted).abs().max() < 1e-4, (operator.__name__, rank)
    assert {last_plan(operator.__name__).backend for operator in OPERATORS} == {"nvshmem"}
