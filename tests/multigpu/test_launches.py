"""Generated modules on real ranks: many launches, streams, shapes, memory reuse, groups, profiler."""

import itertools

import pytest
import torch
import torch.distributed as dist

from overlap.runtime.cuda.runtime import runtime_for_group
from overlap.runtime.workspace import check, release, reserve, workspaces
from tests.support.ranks import TEMPLATES, WAYS, Product, delay, takes, template
from tests.support.rehearsal import products

from .conftest import WORLD

SHAPES = [(512, 256, 128), (1000, 136, 96), (4091, 264, 1000), (130, 136, 96), (3, 64, 64), (1, 8, 8)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
FORMS = [(name, way) for name in TEMPLATES for way in WAYS if takes(name, way)]
COLUMNS = ["copy_engine", "ldst_reserved", "ldst_inline", "tma_reserved"]
ONE = (515, 136, 96)
REUSED = ["gather, pull", "gather, reserved", "gather, between tiles", "scatter", "exchange before", "gather, push"]
GROWING = [*REUSED, "reduce, two shots", "exchange after"]
IN_SUB_GROUPS = [*REUSED[:4], "reduce, one shot"]
ROWS = (1, 64, 700, 3, 2000)
OTHER_ROWS = (1024, 1, 515, 64, 3, 8, 1000, 2, 700, 515, 1, 1024)


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    gemm, half = template("grouped_gemm"), torch.float16
    for (name, way), dtype in itertools.product(FORMS, DTYPES):
        calls = [(shape, dtype) for shape in SHAPES]
        yield products(f"test_every_template_way_shape_and_dtype[{name}-{way}]", template(name), WAYS[way], *calls)
    for name, backend in itertools.product(TEMPLATES, COLUMNS):
        how, calls = ("all_gather_1d", "b[N]", backend), [(shape, torch.bfloat16) for shape in SHAPES]
        yield products(f"test_columns_are_strided_chunks[{name}-{backend}]", template(name), how, *calls)
    for test, ways, shapes, world in (
        ("test_a_thousand_launches_with_new_data_and_delays", WAYS, [ONE], 0),
        ("test_inputs_freed_and_reused_right_after_the_call", REUSED, [(2048, 136, 512)], 0),
        ("test_growing_shapes_and_a_release_in_between", GROWING, [(m, 136, 96) for m in ROWS], 0),
        ("test_two_sub_groups_of_a_2x2_mesh_at_once", IN_SUB_GROUPS, [ONE], 2),
    ):
        for way in ways:
            yield products(f"{test}[{way}]", gemm, WAYS[way], *((shape, half) for shape in shapes), world=world)
    for plan in ("all_gather_1d", "all_gather_1d_push"):
        calls = [((m, 136, 96), half) for m in OTHER_ROWS]
        yield products(f"test_shapes_that_differ_every_call_share_memory[{plan}]", gemm, (plan, "a[M]"), *calls)
    if WORLD > 2:
        way = ("all_gather_1d_push", "a[M]")
        yield products("test_a_sub_group_that_leaves_rank_0_out", gemm, way, (ONE, half), world=WORLD - 1)


@pytest.mark.parametrize(("name", "way"), FORMS)
def test_every_template_way_shape_and_dtype(generated, group, name, way):
    on, module = WAYS[way][1], generated(template(name), *WAYS[way])
    for dtype in DTYPES:
        for shape in SHAPES:
            for seed in range(2):
                Product(group, *shape, dtype, on=on).check(module, seed)
    check(group)


@pytest.mark.parametrize("backend", COLUMNS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_columns_are_strided_chunks(generated, group, name, backend):
    module = generated(template(name), "all_gather_1d", "b[N]", backend)
    for shape in SHAPES:
        Product(group, *shape, torch.bfloat16, on="b[N]").check(module, 0)
    check(group)


@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_launches_with_new_data_and_delays(generated, group, way):
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    product = Product(group, 515, 136, 96, torch.float16, on=on)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(1000):
        delay(seed, product.rank)
        wrong += product.wrong(*product.call(module, seed))
    assert wrong.item() == 0
    check(group)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("gather, ring", "scatter columns")])
def test_launches_alternating_over_two_streams(generated, group, way):
    """Nothing but the runtime orders one call behind the other."""
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    product = Product(group, 515, 136, 96, torch.float16, on=on)
    product.check(module, 0)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    for seed in range(1, 101):
        with torch.cuda.stream(streams[seed % 2]):
            delay(seed, product.rank)
            results.append(product.wrong(*product.call(module, seed)))
    torch.cuda.synchronize()
    assert not torch.stack(results).any()


@pytest.mark.parametrize("way", REUSED)
def test_inputs_freed_and_reused_right_after_the_call(generated, group, way):
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    product = Product(group, 2048, 136, 512, torch.float16, on=on)
    reused = 0
    for seed in range(20):
        wanted = product.wanted(seed)
        shard, own = product.inputs(seed)
        address, shape = shard.data_ptr(), shard.shape
        got = module.matmul(shard, own.clone(), group=group, sizes=product.sizes)
        del shard
        poison = [torch.full(shape, float("nan"), device="cuda", dtype=torch.float16) for _ in range(8)]
        reused += any(tensor.data_ptr() == address for tensor in poison)
        del poison
        assert not product.wrong(got, wanted)
    assert reused > 10, "the allocator gave other memory: nothing was tested"


def test_two_instances_interleaved(generated, group):
    one = generated(template("grouped_gemm"), "all_gather_1d", "a[M]")
    other = generated(template("gemm_2d"), "all_gather_1d_push", "a[M]")
    small, large = Product(group, 130, 136, 96, torch.float16), Product(group, 1000, 136, 96, torch.bfloat16)
    wrong = []
    third, scattered = generated(template("gemm_2d"), "reduce_scatter_1d", "c[M]"), "c[M]"
    sums = Product(group, 515, 136, 96, torch.float16, on=scattered)
    calls = ((one, small), (other, large), (third, sums), (one, large), (other, small))
    for seed in range(50):
        delay(seed, small.rank)
        wrong += [p.wrong(*p.call(m, seed)) for m, p in calls]
    assert not torch.stack(wrong).any()


@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push"])
def test_shapes_that_differ_every_call_share_memory(generated, group, plan):
    module = generated(template("grouped_gemm"), plan, "a[M]")
    reserve(module.OL_OPERATOR, group, {"M": 1024, "K": 96}, torch.float16)
    (workspace,) = workspaces(runtime_for_group(group)).values()
    memory, held = workspace.memory, torch.cuda.memory_allocated()
    for call, m in enumerate(OTHER_ROWS):
        Product(group, m, 136, 96, torch.float16).check(module, call)
    assert workspace.memory is memory and not workspace.kept
    assert torch.cuda.memory_allocated() == held
    with pytest.raises(Exception, match="needs 201600 bytes.*reserved are 196608 bytes"):
        Product(group, 1050, 136, 96, torch.float16).check(module, 0)
    Product(group, 512, 136, 96, torch.float16).check(module, 0)


@pytest.mark.parametrize("way", GROWING)
def test_growing_shapes_and_a_release_in_between(generated, group, way):
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    for round_ in range(2):
        for m in ROWS:
            Product(group, m, 136, 96, torch.float16, on=on).check(module, m + round_)
        release(group)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("way", IN_SUB_GROUPS)
def test_two_sub_groups_of_a_2x2_mesh_at_once(generated, process_group, way):
    """Rows and columns of the mesh: a global rank used for a rank of the group would read another group's memory."""
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    groups = {}
    for name, sets in (("rows", [[0, 1], [2, 3]]), ("columns", [[0, 2], [1, 3]])):
        for ranks in sets:
            made = dist.new_group(ranks, backend="cpu:gloo,cuda:nccl")
            if dist.get_rank() in ranks:
                groups[name] = (made, sets.index(ranks))
    for seed in range(20):
        for group, number in groups.values():
            Product(group, 515, 136, 96, torch.float16, on=on).check(module, 100 * number + seed)
    for group, _ in groups.values():
        release(group)


@pytest.mark.ranks(3)
def test_a_sub_group_that_leaves_rank_0_out(generated, group):
    """Its rank 0 is another; and it makes symmetric memory that rank 0 does not, before all ranks make some."""
    module = generated(template("grouped_gemm"), "all_gather_1d_push", "a[M]")
    ranks = list(range(1, WORLD))
    some = dist.new_group(ranks, backend="cpu:gloo,cuda:nccl")
    if dist.get_rank() in ranks:
        for seed in range(5):
            Product(some, 515, 136, 96, torch.float16).check(module, seed)
        release(some)
    Product(group, 515, 136, 96, torch.float16).check(module, 9)


def test_under_the_profiler(generated, group):
    module = generated(template("grouped_gemm"), "all_gather_1d", "a[M]")
    product = Product(group, 515, 136, 96, torch.float16)
    product.check(module, 0)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for seed in range(1, 6):
            product.check(module, seed)
    assert any("matmul_kernel" in event.key for event in profile.key_averages())
