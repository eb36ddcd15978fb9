"""NVSHMEM's device functions, and the backend of that name, on real ranks: peers of other nodes are reached by no pointer.

On one host the halves of the ranks count as nodes. 2 ranks are 2 nodes of 1, 4 ranks 2 nodes of 2. A single rank has no peer: its
kernels run without NVSHMEM, and only the test of the functions themselves asks for it.
"""

import pytest
import torch
import triton
import triton.language as tl

import overlap
from overlap.chunkplan.region import shard_interval
from overlap.errors import RuntimeContractError, UnsupportedError
from overlap.language.nvshmem import fence, get_nbi, my_pe, put_nbi, put_signal, quiet
from overlap.runtime.cuda.runtime import runtime_for_group
from overlap.runtime.workspace import check
from tests.support.ranks import Product, delay, template
from tests.support.realizations import no_nvshmem
from tests.support.rehearsal import generate, products

from .conftest import WORLD

pytestmark = pytest.mark.skipif(bool(no_nvshmem()), reason=no_nvshmem())
SHAPES = [(512, 256, 128), (1000, 136, 96), (3, 64, 64)]
AGREEING = [
    ("grouped_gemm", "all_gather_1d", "a[M]", torch.float16),
    ("grouped_gemm", "all_gather_1d_pull", "a[M]", torch.float16),
    ("grouped_gemm", "all_gather_ring", "b[N]", torch.float32),
    ("persistent_gemm", "all_gather_1d", "a[M]", torch.bfloat16),
    ("grouped_gemm", "all_to_all_1d", "a[K:M]", torch.float16),
    ("grouped_gemm", "reduce_scatter_1d", "c[M]", torch.float16),
    ("persistent_gemm", "all_reduce_two_shot", "c[]", torch.bfloat16),
]
IN_GRAPHS = [("all_gather_1d", "a[M]"), ("all_gather_1d_pull", "a[M]"), ("reduce_scatter_1d", "c[M]")]
TWO_LEVELS = [("all_gather_2d", "a[M]"), ("all_to_all_2d", "a[K:M]"), ("reduce_scatter_2d", "c[M]")]
HALF = max(1, WORLD // 2)
EIGHT = {"comm_sms": "8"}
"""Settings of all modules."""
SET = tl.constexpr(9)


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    half, how = torch.float16, {"node": HALF, **EIGHT}
    for kernel, plan, on, dtype in AGREEING:
        calls = [(shape, dtype) for shape in SHAPES]
        name = f"test_agrees_with_fp32[{kernel}-{plan}]"
        yield products(name, template(kernel), (plan, on, "nvshmem"), *calls, **how)
    gemm, way = template("grouped_gemm"), ("all_gather_1d", "a[M]", "nvshmem")
    yield products("test_two_hundred_launches_with_new_data_and_delays", gemm, way, ((515, 136, 96), half), **how)
    for plan, on in TWO_LEVELS if WORLD == 4 else ():
        calls = [(shape, half) for shape in SHAPES]
        yield products(f"test_two_levels[{plan}]", gemm, (plan, on, "nvshmem"), *calls, mesh=f"2x{HALF}", **how)


@pytest.fixture(autouse=True)
def nodes(monkeypatch, one_folder):
    monkeypatch.setenv("OVERLAP_NODE_RANKS", str(HALF))


@pytest.fixture(scope="module")
def gathers(tmp_path_factory):
    """``gathers(kernel, plan, on, mesh)``: a template kernel compiled for the backend, imported."""
    folder = tmp_path_factory.mktemp("far")
    made: dict = {}

    def make(kernel, plan, on="a[M]", mesh=""):
        key = (kernel, plan, on, mesh)
        if key not in made:
            path = folder / f"module_{len(made)}.py"
            made[key] = generate(path, template(kernel), plan, on, "nvshmem", mesh=mesh, **EIGHT)
        return made[key]

    return make


@triton.jit(do_not_specialize=["right", "left", "size", "epoch"])
def ring_kernel(mine, there, got, words, right, left, size, epoch):
    """Puts ``mine`` to ``there`` on the rank to the right behind a signal, waits for the left's, gets the left's ``mine``."""
    tl.store(words + 8, my_pe().to(tl.int64))
    at, to, back = mine.to(tl.int64), there.to(tl.int64), got.to(tl.int64)
    half = (size // 2).to(tl.int64)
    put_nbi(to, at, half, right.to(tl.int32))
    fence()
    signal, value = words.to(tl.int64), epoch.to(tl.int64)
    put_signal(
        to + half, at + half, size.to(tl.int64) - half, signal, value, tl.full((), SET, tl.int32), right.to(tl.int32)
    )
    while tl.atomic_add(words, 0, sem="acquire", scope="sys") < epoch:
        pass
    get_nbi(back, at, size.to(tl.int64), left.to(tl.int32))
    quiet()


def test_the_device_functions(group, monkeypatch):
    if WORLD == 1:
        monkeypatch.setenv("OVERLAP_PROVIDER", "nvshmem")
    runtime = runtime_for_group(group)
    count = 100_003
    mine, there, got = (runtime.symmetric([count], torch.int32) for _ in range(3))
    words = runtime.symmetric([16], torch.int64, zero=True)
    right, left = (runtime.rank + 1) % WORLD, (runtime.rank - 1) % WORLD
    for tensor in (there, got):
        tensor.fill_(-1)
    mine.copy_(torch.arange(count, device="cuda", dtype=torch.int32) + runtime.rank * 1_000_000)
    runtime.synchronize()
    runtime.agree("filled", None)
    arguments = {
        "mine": mine, "there": there, "got": got, "words": words, "right": runtime.pes[right],
        "left": runtime.pes[left], "size": count * 4, "epoch": 1, "num_warps": 4, **runtime.linked,
    }  # fmt: skip
    enqueue = runtime.warm(ring_kernel, (1, 1, 1), arguments)
    runtime.agree("compiled", None)
    enqueue(runtime.main_stream())
    runtime.synchronize()
    wanted = torch.arange(count, device="cuda", dtype=torch.int32) + left * 1_000_000
    assert words[8].item() == runtime.pes[runtime.rank], (words.tolist(), runtime.pes)
    assert words[0].item() == 1, words.tolist()
    assert torch.equal(there, wanted), (there[:4], there[-4:], wanted[:4], int((there != wanted).sum()))
    assert torch.equal(got, wanted), (got[:4], got[-4:], wanted[:4], int((got != wanted).sum()))


@pytest.mark.ranks(2)
def test_no_pointer_reaches_another_node(group, generated):
    runtime = runtime_for_group(group)
    memory = runtime.symmetric([64], torch.float32)
    assert runtime.provider.name == "nvshmem" and runtime.nodes == tuple(r // HALF for r in range(WORLD))
    for rank in range(WORLD):
        if rank // HALF == runtime.rank // HALF:
            assert runtime.peer(memory, rank).data_ptr()
        else:
            with pytest.raises(RuntimeContractError, match="reaches no memory of rank"):
                runtime.peer(memory, rank)
    module = generated(template("grouped_gemm"), "all_gather_1d", "a[M]")
    with pytest.raises(UnsupportedError, match=r"copy_engine reaches peers by pointer"):
        Product(group, 512, 256, 128, torch.float16).check(module, 0)


@pytest.mark.parametrize(("kernel", "plan", "on", "dtype"), AGREEING)
def test_agrees_with_fp32(group, gathers, kernel, plan, on, dtype):
    module = gathers(kernel, plan, on)
    for shape in SHAPES:
        for seed in range(3):
            Product(group, *shape, dtype, on=on).check(module, seed)
    check(group)


def test_two_hundred_launches_with_new_data_and_delays(group, gathers):
    module = gathers("grouped_gemm", "all_gather_1d")
    product = Product(group, 515, 136, 96, torch.float16)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(200):
        delay(seed, product.rank)
        wrong += product.wrong(*product.call(module, seed))
    check(group)
    assert wrong.item() == 0, f"{wrong.item()} of 200 launches are wrong on rank {product.rank}"


@pytest.mark.parametrize(("plan", "on"), IN_GRAPHS)
def test_a_graph_replayed_with_new_data(group, gathers, plan, on):
    module = gathers("grouped_gemm", plan, on)
    product = Product(group, 1000, 136, 96, torch.float16, on=on)
    product.check(module, 0)
    inputs = [t.clone() for t in product.inputs(0)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module.matmul(*inputs, group=group, sizes=product.sizes)
    wrong = []
    for seed in range(50):
        delay(seed, product.rank)
        for held, new in zip(inputs, product.inputs(seed), strict=True):
            held.copy_(new)
        result.fill_(float("nan"))
        graph.replay()
        wrong.append(product.wrong(result, product.wanted(seed)))
    found = torch.stack(wrong).nonzero().flatten().tolist()
    assert not found, f"replays {found} are wrong on rank {product.rank}"
    check(group)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("plan", "on"), TWO_LEVELS)
def test_two_levels(group, gathers, plan, on):
    """Within a node by pointer, between nodes through NVSHMEM, in one launch."""
    module = gathers("grouped_gemm", plan, on, mesh=f"2x{HALF}")
    for shape in SHAPES:
        for seed in range(3):
            Product(group, *shape, torch.float16, on=on).check(module, seed)
    check(group)


@pytest.mark.ranks(4)
def test_copies_within_a_node_and_puts_between(group, gathers, repo, tmp_path):
    plan = tmp_path / "mixed.yaml"
    plan.write_text((repo / "templates/plans/all_gather_2d.yaml").read_text().rstrip() + "\n    backend: copy_engine\n")
    module = gathers("grouped_gemm", str(plan), mesh=f"2x{HALF}")
    for seed in range(5):
        Product(group, 1000, 136, 96, torch.float16).check(module, seed)
    check(group)


def test_plans_without_a_kernel(group):
    """`overlap.transfer` carries what goes between nodes by kernels of its own."""
    runtime = runtime_for_group(group)
    for size in (1000, 3):
        low, high = shard_interval(size, WORLD, runtime.rank)
        whole = torch.arange(size * 24, device="cuda", dtype=torch.float32).view(size, 24)
        for plan in ("all_gather_1d", "all_gather_1d_push"):
            got = overlap.transfer(plan, whole[low:high].clone(), group=group, shape=(size, 24))
            assert torch.equal(got, whole), (runtime.rank, plan, size, (got != whole).nonzero()[:4])
        got = overlap.transfer("all_reduce_two_shot", whole + runtime.rank, group=group, shape=(size, 24))
        wanted = whole * WORLD + WORLD * (WORLD - 1) // 2
        assert torch.equal(got, wanted), (runtime.rank, size, (got != wanted).nonzero()[:4])
    check(group)
