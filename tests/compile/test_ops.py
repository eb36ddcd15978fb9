"""The kernels of the prebuilt operators, fused, for sm_90: every rule holds, and the pipeline is the plain kernel's."""

from types import SimpleNamespace

import pytest
import torch

from overlap.build.artifact import compile_kernel, facts
from overlap.build.findings import check
from overlap.build.target import parse_target
from overlap.ops.blocks import Blocks, parts_of
from overlap.ops.gather_call import compiled_kernel
from overlap.ops.products import Product, product_arguments, product_blocks
from overlap.ops.tail import tail_of, warm_tail
from overlap.ops.views import GatherView
from overlap.runtime.calls.resolve import resolve
from overlap.schedule.moves import STAGES

from .support import own_arguments

HOPPER = parse_target("sm_90")


@pytest.fixture(autouse=True)
def hopper(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "modules"))


def build(
    rows, columns, depth, dtype, *, transposed=False, bias=False, batch=1, along="M", backend="copy_engine", left=0
):
    """Artifacts of the fused kernel and of the plain one, and the operator."""

    def meta(*shape):
        return torch.empty(shape, dtype=dtype, device="meta")

    weight = meta(columns, depth).t() if transposed else meta(depth, columns)
    product = Product(weight, meta(batch, rows, columns), meta(columns) if bias else None)
    view = GatherView((batch, rows, depth), batch, rows, depth, along)
    runtime = SimpleNamespace(sm_count=132)
    kernel, _, given = product_arguments(product, meta(batch, rows, depth), view, runtime, left_out=left)
    plan = "all_to_all_1d_push" if ":" in along else "all_gather_1d"
    operator = compiled_kernel(kernel, along, plan, 1, backend).operator
    made = []
    for one, ours in ((operator.kernel, operator.ours), (kernel, ())):
        bound = resolve(one, (), given, ours=ours, realization=operator.realization)
        table, state = (torch.empty(64, dtype=kind, device="meta") for kind in (torch.int32, torch.int64))
        words = (table, state, state if operator.moves else table)
        arguments = {**bound.arguments, **dict(zip(ours, words, strict=False))}
        if ours:
            arguments |= own_arguments(operator, arguments, table)
        made.append(compile_kernel(bound.kernel, arguments, HOPPER, bound.options))
    return *made, operator


def sized(**case):
    """A case that says in another size what one that both Tritons run says."""
    return pytest.param(case, marks=pytest.mark.one_triton)


@pytest.mark.parametrize(
    "case",
    [
        dict(rows=8192, columns=14336, depth=4096, dtype=torch.bfloat16),
        dict(rows=8192, columns=14336, depth=4096, dtype=torch.float16, transposed=True, bias=True),
        dict(rows=8192, columns=7392, depth=8192, dtype=torch.bfloat16, left=8),
        dict(rows=1000, columns=130, depth=96, dtype=torch.bfloat16, bias=True),
        sized(rows=48, columns=512, depth=4096, dtype=torch.bfloat16),
        dict(rows=4091, columns=257, depth=1001, dtype=torch.float16),
        dict(rows=1000, columns=130, depth=96, dtype=torch.float32),
        sized(rows=1, columns=1, depth=8, dtype=torch.float16),
        sized(rows=1, columns=1, depth=8, dtype=torch.float32),
        dict(rows=4096, columns=4096, depth=4096, dtype=torch.bfloat16, batch=2),
        dict(rows=512, columns=256, depth=64, dtype=torch.bfloat16, batch=4, along="B"),
        sized(rows=5, columns=256, depth=64, dtype=torch.bfloat16, batch=40, along="B"),
        dict(rows=8192, columns=14336, depth=4096, dtype=torch.bfloat16, along="K"),
        dict(rows=8192, columns=14336, depth=4096, dtype=torch.bfloat16, along="K/M"),
        dict(rows=8192, columns=8192, depth=8192, dtype=torch.bfloat16, along="K:M"),
        sized(rows=48, columns=512, depth=4096, dtype=torch.float16, transposed=True, bias=True, along="K:M"),
        sized(rows=4096, columns=4096, depth=4096, dtype=torch.float16, transposed=True, bias=True, along="K"),
        sized(rows=48, columns=512, depth=4096, dtype=torch.bfloat16, along="K"),
        dict(rows=1000, columns=130, depth=1001, dtype=torch.float16, along="K"),
        sized(rows=1000, columns=130, depth=96, dtype=torch.float32, along="K"),
    ],
    ids=lambda case: "-".join(str(v).removeprefix("torch.") for v in case.values()),
)
def test_the_rules_hold_and_the_pipeline_stays(case):
    fused, plain, operator = build(**case)
    nested = len(operator.ranges)
    found = check(fused, guarded={operator.tensor}, original=plain, flags=operator.ours[1], nested=nested)
    assert [f for f in found if f.severity == "error"] == []
    ours, theirs = facts(fused), facts(plain)
    pipelines = [{b for b in found.buffers if b.depth > 1} for found in (ours, theirs)]
    assert pipelines[0] == pipelines[1]
    assert (ours.wgmma, ours.tma_loads) == (theirs.wgmma, theirs.tma_loads)
    # A tile loop that is fused with the loop over K stores in two places; around the loop over its parts, in one.
    assert ours.tma_stores == (min(theirs.tma_stores, 1) if nested else theirs.tma_stores)
    assert ours.spill_bytes <= (16 if nested else 0)  # an address or two of the nest
    if operator.parameter("own"):
        # One descriptor more, which a tile chooses, or of what it takes block by block each block.
        assert ours.shared_bytes <= theirs.shared_bytes + 1024 and ours.stages == theirs.stages
    small = case.get("batch", 1) > 1 and case["rows"] < 48
    by_descriptors = case["dtype"] != torch.float32 and case["depth"] % 8 == 0 and not small
    assert bool(ours.tma_loads) == by_descriptors


@pytest.mark.parametrize(
    ("backend", "writer"),
    [pytest.param("ldst_reserved", "load/store", marks=pytest.mark.one_triton), ("tma_reserved", "tma store")],
)
def test_programs_that_move_chunks_leave_the_others_as_they_are(backend, writer):
    case = dict(rows=8192, columns=14336, depth=4096, dtype=torch.bfloat16)
    fused, plain, operator = build(**case, backend=backend)
    flags, moves = operator.ours[1], operator.ours[-1]
    found = check(fused, guarded={operator.tensor}, original=plain, flags=flags, moves=moves, writer=writer)
    assert [f for f in found if f.severity == "error"] == []
    ours, theirs = facts(fused), facts(plain)
    # What a tile is stored from is no part of a pipeline; Triton 3.9 names it in one of the two only.
    assert {b for b in theirs.buffers if b.depth > 1} <= set(ours.buffers)
    assert ours.shared_bytes <= theirs.shared_bytes + 1024
    by_tma = (STAGES, 1) if backend == "tma_reserved" else (0, 0)
    assert ours.wgmma == theirs.wgmma
    assert (ours.tma_loads - theirs.tma_loads, ours.tma_stores - theirs.tma_stores) == by_tma
    assert ours.spill_bytes == 0 and ours.registers <= theirs.registers + 16


@pytest.mark.parametrize("along", ["K:M", "M"])
def test_a_result_wider_than_its_operands_fits_the_shared_memory(along):
    """`a2a_gemm` with out_dtype; tiles of 128 x 256 in fp32 would not. Blocks that were tuned give way to others then."""
    result = torch.empty((1, 8192, 8192), dtype=torch.float32, device="meta")
    x, w = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((1, 8192, 2048), (8192, 8192)))
    view, runtime = GatherView((8192, 8192), 1, 8192, 8192, "M"), SimpleNamespace(sm_count=132)
    product, tuned = Product(w, result, None), Blocks(128, 256, 64, 8, 3)
    narrow = Product(w, result.bfloat16(), None)
    assert product_blocks(narrow, view, runtime, True) == product_blocks(narrow, view, runtime, True, tuned) == tuned
    blocks = product_blocks(product, view, runtime, True)
    assert blocks == product_blocks(product, view, runtime, True, tuned) != tuned
    kernel, _, given = product_arguments(product, x, view, runtime, blocks=blocks)
    operator = compiled_kernel(kernel, along, "all_to_all_1d" if along == "K:M" else "all_gather_1d", 1).operator
    bound = resolve(operator.kernel, (), given, ours=operator.ours, realization=operator.realization)
    table, state = (torch.empty(64, dtype=kind, device="meta") for kind in (torch.int32, torch.int64))
    ours = dict(zip(operator.ours, (table, state), strict=False)) | own_arguments(operator, bound.arguments, table)
    made = facts(compile_kernel(bound.kernel, {**bound.arguments, **ours}, HOPPER, bound.options))
    assert made.wgmma and made.shared_bytes <= 227 * 1024


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("transposed", [False, pytest.param(True, marks=pytest.mark.one_triton)])
def test_what_is_left_of_a_last_wave_keeps_its_pipeline(monkeypatch, part, transposed):
    """Blocks of the second launch, under the condition that they begin inside of the result, and the kernel that waits."""
    rows, columns, depth = 8192, 7392, 8192
    built = []

    def compiled(kernel, grid, arguments):
        options = {key: value for key, value in arguments.items() if key.startswith("num_")}
        given = {key: value for key, value in arguments.items() if key not in options}
        built.append(facts(compile_kernel(kernel, given, HOPPER, options)))

    def meta(*shape):
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    monkeypatch.setenv("OVERLAP_TAIL", "always")
    runtime = Runtime(compiled)
    weight = meta(columns, depth).t() if transposed else meta(depth, columns)
    product = Product(weight, meta(1, rows, columns), meta(columns))
    view = GatherView((rows, depth), 1, rows, depth, "M")
    blocks = product_blocks(product, view, runtime, True)
    tail = tail_of(product, view, runtime, blocks, "copy_engine", tma=True)._replace(blocks=parts_of(blocks)[part])
    warm_tail(tail, product, view, runtime, blocks)
    made, waiting = built
    assert max(b.depth for b in made.buffers) == tail.blocks.stages
    assert made.wgmma and made.tma_loads and made.tma_stores == 1 and made.spill_bytes == 0
    assert made.shared_bytes <= 227 * 1024 and not waiting.tma_loads


class Runtime:
    """A runtime that compiles for another device."""

    sm_count, world = 132, 4

    def __init__(self, warm):
        self.warm = warm
