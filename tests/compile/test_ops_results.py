"""The fused kernels of operators whose result is communicated, and those around exchanges, for sm_90: every rule holds, the
pipeline is the plain kernel's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from overlap.build.artifact import compile_kernel, facts
from overlap.build.findings import check
from overlap.build.target import parse_target
from overlap.ops.gather_call import compiled_kernel
from overlap.ops.partials import compiled_partial, partial_arguments
from overlap.ops.products import Product, product_arguments
from overlap.ops.views import GatherView
from overlap.runtime.calls.resolve import resolve
from overlap.runtime.launch.prepared import BESIDE_WARPS
from overlap.runtime.tables.slots import Slots, store_arguments
from overlap.runtime.tables.tile_sums import parts_of

from .support import own_arguments
from .test_sum import built

HOPPER = parse_target("sm_90")
RUNTIME = SimpleNamespace(sm_count=132)


@pytest.fixture(autouse=True)
def hopper(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "modules"))


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def build(kernel, operator, given, ways=1):
    """Artifacts of the fused kernel and of the plain one; ``ways``: places of a tile, if it is stored where it goes."""
    made = []
    for one, ours in ((operator.kernel, operator.ours), (kernel, ())):
        bound = resolve(one, (), given, ours=ours, realization=operator.realization)
        words = [torch.empty(64, dtype=dtype, device="meta") for dtype in (torch.int32, torch.int64, torch.int32)]
        arguments = {**bound.arguments, **dict(zip(ours, words, strict=False))}
        arguments |= own_arguments(operator, bound.arguments, words[0]) if ours else {}
        if ours and operator.stores:
            arguments |= store_arguments(operator, Slots(words[1], ways), bound.arguments)
        made.append(compile_kernel(bound.kernel, arguments, HOPPER, bound.options))
    return made


def check_build(fused, plain, operator, guarded=frozenset()):
    found = check(fused, guarded=guarded, original=plain, flags=operator.ours[1])
    assert [f for f in found if f.severity == "error"] == []
    ours, theirs = facts(fused), facts(plain)
    pipelines = [{b for b in found.buffers if b.depth > 1} for found in (ours, theirs)]
    assert pipelines[0] == pipelines[1]
    assert (ours.wgmma, ours.tma_loads, bool(ours.tma_stores)) == (
        theirs.wgmma,
        theirs.tma_loads,
        bool(theirs.tma_stores),
    )
    assert ours.spill_bytes <= 16  # a loop over parts, by pointers, has a register too many in Triton 3.9
    return ours


@pytest.mark.parametrize(
    ("along", "plan"),
    [("M", "reduce_scatter_1d"), ("", "all_reduce_two_shot"), ("M:N", "all_to_all_1d")],
)
@pytest.mark.parametrize(
    "case",
    [
        dict(rows=8192, columns=4096, depth=3584),
        dict(rows=4096, columns=8192, depth=7168, batch=2, transposed=True, bias=True),
        pytest.param(dict(rows=48, columns=512, depth=4096), marks=pytest.mark.one_triton),
        pytest.param(dict(rows=1000, columns=136, depth=95, bias=True), marks=pytest.mark.one_triton),
        dict(rows=4091, columns=257, depth=1001),
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_results(case, along, plan):
    rows, columns, depth, batch = case["rows"], case["columns"], case["depth"], case.get("batch", 1)
    x = meta(batch, rows, depth)
    w = meta(columns, depth).t() if case.get("transposed") else meta(depth, columns)
    tma = columns % 8 == 0
    kernel, _, given = partial_arguments(
        x, w, meta(columns) if case.get("bias") else None, meta(batch, rows, columns), columns, tma, RUNTIME
    )
    operator = compiled_partial(kernel, along, plan, 1).operator
    assert [write.axes for write in operator.writes] == [("M", "B", "N")]
    ours = check_build(*build(kernel, operator, given), operator)
    assert bool(ours.tma_stores) == bool(ours.tma_loads) == tma


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "batch", "world"),
    [
        (8192, 8192, 2048, 1, 4),
        (8192, 4096, 7168, 1, 2),
        (4096, 8192, 7168, 2, 8),
        pytest.param(1000, 136, 96, 1, 3, marks=pytest.mark.one_triton),
        pytest.param(48, 512, 4096, 1, 4, marks=pytest.mark.one_triton),
    ],
)
def test_tiles_that_add_what_has_come(rows, columns, depth, batch, world):
    """Two loops with the stages of one, no more shared memory, and registers for a part of a tile and what is added to it."""
    x, w, c = meta(batch, rows, depth), meta(depth, columns), meta(batch, rows, columns)
    kernel, _, given = partial_arguments(x, w, meta(columns) if batch > 1 else None, c, columns, True, RUNTIME)
    operator = compiled_partial(kernel, "M", "reduce_scatter_1d", 2, tile_sums=True).operator
    bound = resolve(operator.kernel, (), given, ours=operator.ours, realization=operator.realization)
    described = given["c_desc"]
    parts = parts_of(described.block_shape, 2, bound.options["num_warps"], world - 1)
    block = [*described.block_shape[:-1], described.block_shape[-1] // parts]
    ours = dict(zip(operator.ours, (words(torch.int32), words(torch.int64)), strict=False))
    ours |= {
        "ol_result": replace(described, block_shape=block),
        "ol_sums": words(torch.int64),
        "ol_summands": world - 1,
    }
    fused = compile_kernel(bound.kernel, {**bound.arguments, **ours}, HOPPER, bound.options)
    bound = resolve(kernel, (), given, ours=(), realization=operator.realization)
    plain = compile_kernel(bound.kernel, bound.arguments, HOPPER, bound.options)
    found = check(fused, guarded=frozenset(), original=plain, flags=operator.ours[1])
    assert [f for f in found if f.severity == "error"] == []
    ours, theirs = facts(fused), facts(plain)
    pipelines = [{b for b in made.buffers if b.depth > 1} for made in (ours, theirs)]
    assert pipelines[0] == pipelines[1]
    assert (ours.wgmma, ours.tma_loads) == (2 * theirs.wgmma, 2 * theirs.tma_loads)
    assert ours.shared_bytes <= theirs.shared_bytes and ours.spill_bytes <= (64 if world > 4 else 0)


def words(dtype):
    return torch.empty(64, dtype=dtype, device="meta")


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(
    ("along", "plan", "stores"),
    [("M", "reduce_scatter_1d", False), ("", "all_reduce_two_shot", False), ("", "all_reduce_two_shot", True)],
)
def test_a_sum_finds_room_beside_the_largest_tiles(along, plan, stores, dims):
    """Registers and shared memory of a multiprocessor hold a program of each (limits of compute capability 9.0)."""
    x, w, c = meta(1, 8192, 3584), meta(3584, 4096), meta(1, 8192, 4096)
    kernel, _, given = partial_arguments(x, w, None, c, 4096, True, RUNTIME)
    product, _ = build(kernel, compiled_partial(kernel, along, plan, 2).operator, given)
    beside = built(dims=dims, summands=4, warps=BESIDE_WARPS, stores=stores)
    found = [facts(product), facts(beside)]
    # Registers of a warp come in units of 256, shared memory of a program is 1 KiB more than it asks for.
    assert sum(one.num_warps * 32 * (-(-one.registers // 8) * 8) for one in found) <= 65536
    assert sum(one.shared_bytes + 1024 for one in found) <= 228 * 1024


@pytest.mark.parametrize(("along", "plan"), [("K:M", "all_to_all_1d"), ("K", "all_gather_1d")])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(8192, 8192, 8192), (1000, 130, 96), (4091, 257, 1001)])
def test_inputs_in_pieces_of_k(rows, columns, depth, along, plan):
    view = GatherView((1, rows, depth), 1, rows, depth, along)
    product = Product(meta(depth, columns), meta(1, rows, columns), None)
    kernel, _, given = product_arguments(product, meta(1, rows, depth), view, RUNTIME)
    operator = compiled_kernel(kernel, along, plan, 1).operator
    check_build(*build(kernel, operator, given), operator, guarded={operator.tensor})


@pytest.mark.one_triton
def test_results_stored_where_they_go():
    """By TMA, on the edge of two chunks: the flattened loop keeps its stages and its memory."""
    ways, batch, rows, columns, depth = 2, 2, 8192, 4096, 3584
    given = (meta(batch, rows, depth), meta(depth, columns), None, meta(batch, rows, columns), columns, True, RUNTIME)
    kernel, _, arguments = partial_arguments(*given)
    operator = compiled_partial(kernel, "M", "reduce_scatter_1d", 1, "tma_inline").operator
    fused, plain = build(kernel, operator, arguments, ways)
    ours = check_build(fused, plain, operator)
    theirs = facts(plain)
    assert ours.tma_stores == ways * theirs.tma_stores and ours.spill_bytes == 0
    assert ours.shared_bytes <= theirs.shared_bytes + 256 and ours.registers <= theirs.registers + 32


def test_what_stays_is_stored_through_another_descriptor_by_the_same_store():
    """It is chosen ahead of the loop: there are no more stores, and stages and memory are the plain kernel's."""
    batch, rows, columns, depth = 2, 8192, 4096, 3584
    given = (meta(batch, rows, depth), meta(depth, columns), None, meta(batch, rows, columns), columns, True, RUNTIME)
    kernel, _, arguments = partial_arguments(*given)
    operator = compiled_partial(kernel, "M:N", "all_to_all_1d", 2).operator
    assert operator.parameter("own") and operator.parameter("origin")
    fused, plain = build(kernel, operator, arguments)
    ours, theirs = check_build(fused, plain, operator), facts(plain)
    assert ours.tma_stores == theirs.tma_stores and ours.buffers == theirs.buffers and ours.spill_bytes == 0
    assert ours.shared_bytes <= theirs.shared_bytes + 256 and ours.registers <= theirs.registers + 32
