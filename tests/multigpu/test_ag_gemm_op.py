"""`overlap.ops.ag_gemm` and a decorated kernel on real ranks, against fp32 products of the gathered tensor.

Every rank makes the whole x from one seed and weights from its own; results are poisoned before each call.
"""

import importlib.util

import pytest
import torch
import triton

import overlap
from overlap.api.fallback import choose
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, UnsupportedError
from overlap.ops import ag_gemm, last_plan
from overlap.runtime.of_group import runtime_of
from tests.support.operands import differ, nothing, poisoned, random, rehearsed
from tests.support.ranks import delay, template
from tests.support.rehearsal import of_tests

from .conftest import WORLD

SHAPES = [(8192, 14336, 4096), (8192, 29568, 8192), (1000, 130, 96), (4091, 257, 1000), (3, 64, 64), (1, 1, 8)]
"""Global M, N, K. A weight has N / ranks columns where that divides, as in tensor parallelism, else N."""

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
FUSED = "copy_engine"


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    yield from of_tests(
        test_every_shape,
        test_both_providers,
        test_several_weights_on_one_gather,
        test_programs_of_the_kernel_move_the_shards,
        test_a_rank_without_columns_moves_its_shard_all_the_same,
        test_more_programs_than_can_be_resident_are_refused,
        test_inputs_of_any_strides,
        test_weights_of_another_size_on_every_rank,
        test_a_graph_replayed_with_new_data_after_reserve,
        test_tiles_of_a_last_wave_are_made_apart_to_the_same_bits,
        test_a_decorated_kernel,
    )


pytestmark = pytest.mark.usefixtures("one_folder")


def wrong(y, x, w, bias=None):
    """Whether y misses x @ w by more than rounding, as a tensor on the device. NaN is wrong."""
    if rehearsed():
        return nothing()
    wanted = torch.matmul(x.float(), w.float())
    if bias is not None:
        wanted += bias.float()
    # The rounding of the result, and of fp32 sums of K products in two orders.
    depth = x.shape[-1] ** 0.5
    allowed = torch.finfo(y.dtype).eps * wanted.abs() + 2**-21 * depth * (depth + 8)
    return ~((y.float() - wanted).abs() <= allowed).all()


class Gather:
    """One gathered tensor, and this rank's shard of it."""

    def __init__(self, group, shape, dim, dtype, seed):
        self.group, self.dim = group, dim
        self.rank, self.world = group.rank(), group.size()
        self.whole = random(shape, seed, dtype)
        low, high = shard_interval(shape[dim], self.world, self.rank)
        self.shard = self.whole.narrow(dim, low, high - low).clone()

    def weight(self, columns, seed):
        return random((self.whole.shape[-1], columns), 7919 * (seed + 1) + self.rank, self.whole.dtype)

    def call(self, w, **options):
        options = {"backend": FUSED, "gather_size": self.whole.shape[self.dim], **options}
        return ag_gemm(self.shard, w, gather_dim=self.dim, group=self.group, **options)


@pytest.mark.parametrize("plan", ["all_gather_1d_pull", "all_gather_1d_push"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_every_shape(group, dtype, dim, plan):
    for m, n, k in SHAPES:
        columns = n // WORLD if n % WORLD == 0 else n
        for seed in range(2):
            shape = (m, k) if dim == 0 else (2, m // 2, k) if m % 2 == 0 else (1, m, k)
            gather = Gather(group, shape, dim, dtype, seed)
            w = gather.weight(columns, seed)
            out = poisoned((*shape[:-1], columns), dtype)
            delay(seed, gather.rank)
            y = gather.call(w, out=out, plan=plan)
            assert y is out
            assert not wrong(out, gather.whole, w), f"{(m, n, k)} {dtype}, call {seed}, rank {gather.rank}"
            assert last_plan().backend == FUSED
    overlap.check(group)


@pytest.mark.parametrize("provider", ["torch", *(["nvshmem"] if importlib.util.find_spec("nvshmem") else [])])
@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push"])
def test_both_providers(group, plan, provider, monkeypatch):
    monkeypatch.setenv("OVERLAP_PROVIDER", provider)
    for seed, shape in enumerate([(1000, 96), (515, 264), (3, 64)] * 3):
        gather = Gather(group, shape, 0, torch.bfloat16, seed)
        w = gather.weight(136, seed)
        assert not wrong(gather.call(w, plan=plan), gather.whole, w), (shape, seed)
    overlap.check(group)


@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push", "all_gather_ring"])
@pytest.mark.parametrize("dim", [0, 1])
def test_several_weights_on_one_gather(group, dim, plan):
    """Biases, transposed and strided weights, the gathered x itself; the next call must not overwrite what is read."""
    wrongs = []
    for seed in range(50):
        shape = (515, 96) if dim == 0 else (3, 130, 96)
        gather = Gather(group, shape, dim, torch.bfloat16, seed)
        weights = [
            gather.weight(256, seed),
            random((72, 96), seed + gather.rank, torch.bfloat16).t(),
            gather.weight(66, seed + 100)[:, ::2],
        ]
        biases = [None, random((72,), seed, torch.bfloat16), random((33,), seed, torch.bfloat16)]
        delay(seed, gather.rank)
        ys, gathered = gather.call(weights, bias=biases, return_gathered=True, plan=plan)
        wrongs.append(differ(gathered, gather.whole))
        wrongs += [wrong(y, gather.whole, w, b) for y, w, b in zip(ys, weights, biases, strict=True)]
    assert not torch.stack(wrongs).any()
    overlap.check(group)


@pytest.mark.parametrize("plan", ["all_gather_1d_pull", "all_gather_1d_push", "all_gather_ring"])
@pytest.mark.parametrize("programs", [0, 1, 5, 32])
@pytest.mark.parametrize("backend", ["ldst_reserved", "tma_reserved"])
def test_programs_of_the_kernel_move_the_shards(group, backend, programs, plan):
    wrongs = []
    for seed, (m, n, k) in enumerate([(8192, 2048, 4096), *SHAPES[2:]] * 2):
        for dim, shape in ((0, (m, k)), (1, (2, m, k))):
            gather = Gather(group, shape, dim, torch.bfloat16, seed)
            w = gather.weight(n, seed)
            delay(seed, gather.rank)
            y, gathered = gather.call(w, backend=backend, comm_sms=programs, plan=plan, return_gathered=True)
            wrongs += [wrong(y, gather.whole, w), differ(gathered, gather.whole)]
            assert last_plan().backend == backend
    assert not torch.stack(wrongs).any()
    overlap.check(group)


@pytest.mark.parametrize("backend", ["ldst_reserved", "tma_reserved"])
def test_a_rank_without_columns_moves_its_shard_all_the_same(group, backend):
    for seed in range(3):
        gather = Gather(group, (515, 96), 0, torch.bfloat16, seed)
        w = gather.weight(64 if gather.rank else 0, seed)
        y, gathered = gather.call(w, backend=backend, return_gathered=True)
        assert not differ(gathered, gather.whole) and not wrong(y, gather.whole, w)
    overlap.check(group)


def test_more_programs_than_can_be_resident_are_refused(group):
    gather = Gather(group, (1000, 96), 0, torch.bfloat16, 1)
    w = gather.weight(128, 1)
    with pytest.raises(UnsupportedError, match="resident at a time, so none is left to compute"):
        gather.call(w, backend="ldst_reserved", comm_sms=10**5)
    assert not wrong(gather.call(w, backend="ldst_reserved"), gather.whole, w)
    overlap.check(group)


def test_inputs_of_any_strides(group):
    whole = random((260, 96), 1, torch.bfloat16)
    rank = group.rank()
    low, high = shard_interval(260, WORLD, rank)
    w = random((96, 40), 2 + rank, torch.bfloat16)
    memory = poisoned(((high - low) * 96 + 1,), torch.bfloat16)
    memory[1:] = whole[low:high].flatten()
    shards = {
        "columns first": whole[low:high].t().contiguous().t(),
        "odd address": memory[1:].view(high - low, 96),
        "part of a wider tensor": torch.cat([whole[low:high], whole[low:high]], dim=1)[:, :96],
    }
    for name, shard in shards.items():
        y = ag_gemm(shard, w, gather_size=260, group=group, backend=FUSED)
        assert not wrong(y, whole, w), name
    row = random((1, 96), 3, torch.bfloat16)
    y = ag_gemm(row.expand(65, 96), w, group=group, backend=FUSED)
    assert not wrong(y, row.expand(65 * WORLD, 96), w)


def test_weights_of_another_size_on_every_rank(group):
    gather = Gather(group, (515, 96), 0, torch.float16, 0)
    for columns in (136 + 8 * gather.rank, 7 + gather.rank, 0 if gather.rank else 16):
        w = gather.weight(columns, columns)
        y = gather.call(w)
        assert y.shape == (515, columns)
        assert not columns or not wrong(y, gather.whole, w)
    overlap.check(group)


def test_a_graph_replayed_with_new_data_after_reserve(group, monkeypatch):
    overlap.reserve(group, max_tokens=2048, hidden=256, dtype=torch.bfloat16)
    monkeypatch.setattr(runtime_of(group), "symmetric", lambda *_, **__: pytest.fail("allocated after reserve"))
    gather = Gather(group, (1030, 256), 0, torch.bfloat16, 0)
    weights = [gather.weight(n, 0) for n in (512, 72)]
    gather.call(weights)
    if rehearsed():
        return
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = gather.call(weights)
    wrongs = []
    for seed in range(1, 101):
        new = Gather(group, (1030, 256), 0, torch.bfloat16, seed)
        gather.shard.copy_(new.shard)
        for y in results:
            y.fill_(float("nan"))
        delay(seed, gather.rank)
        graph.replay()
        wrongs += [wrong(y, new.whole, w) for y, w in zip(results, weights, strict=True)]
    assert not torch.stack(wrongs).any()
    with pytest.raises(RuntimeContractError, match="reserved are"):
        Gather(group, (4096, 256), 0, torch.bfloat16, 0).call(weights[0])
    overlap.check(group)


@pytest.mark.parametrize("plan", ["all_gather_1d_pull", "all_gather_1d_push"])
@pytest.mark.parametrize("dim", [0, 1])
def test_tiles_of_a_last_wave_are_made_apart_to_the_same_bits(group, dim, plan, monkeypatch):
    """A wave and a part of one on a GPU of 114 to 152 multiprocessors, called, repeated, as a graph of
    the library's own and in one of the caller."""
    shape, columns = ((2050, 512), 2312) if dim == 0 else ((3, 700, 512), 2312)
    gather = Gather(group, shape, dim, torch.bfloat16, 0)
    weights = [random((columns, 512), 31 + gather.rank, torch.bfloat16).t(), gather.weight(136, 0)]
    bias = [random((columns,), 37 + gather.rank, torch.bfloat16), None]
    outs = [poisoned((*shape[:-1], w.shape[1]), torch.bfloat16) for w in weights]

    def call(tail, **options):
        monkeypatch.setenv("OVERLAP_TAIL", tail)
        return gather.call(weights, bias=bias, plan=plan, return_gathered=True, **options)

    def refill(seed):
        new = Gather(group, shape, dim, torch.bfloat16, seed)
        gather.shard.copy_(new.shard)
        for y in outs:
            y.fill_(float("nan"))
        delay(seed, gather.rank)
        return new.whole

    wrongs = []
    for seed in range(1, 11):
        monkeypatch.setenv("OVERLAP_CALL_GRAPHS", str(int(seed > 5)))
        whole = refill(seed)
        ys, gathered = call("always", out=outs)
        assert last_plan().tail > 0
        wrongs += [wrong(y, whole, w, b) for y, w, b in zip(ys, weights, bias, strict=True)]
        plain, _ = call("never")
        assert last_plan().tail == 0
        wrongs += [differ(gathered, whole), *map(differ, ys, plain)]
    if rehearsed():
        return
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call("always", out=outs)
    for seed in range(11, 40):
        whole = refill(seed)
        graph.replay()
        plain, _ = call("never")
        wrongs += [*map(differ, outs, plain), wrong(outs[0], whole, weights[0], bias[0])]
    assert not torch.stack(wrongs).any()
    overlap.check(group)


def test_under_torch_compile(group):
    gather = Gather(group, (512, 128), 0, torch.bfloat16, 0)
    weights = [gather.weight(256, 0), gather.weight(128, 1)]

    def gated(x, up, gate):
        a, b = ag_gemm(x, [up, gate[:, :128]], group=group, backend=FUSED)
        return a[:, :128] * torch.nn.functional.silu(b)

    eager = gated(gather.shard, *weights)
    compiled = torch.compile(gated, fullgraph=True)(gather.shard, *weights)
    torch.testing.assert_close(compiled, eager, rtol=2e-2, atol=2e-1)
    overlap.check(group)


def test_serial_where_it_is_chosen(group):
    small = Gather(group, (3, 64), 0, torch.bfloat16, 0)
    w = small.weight(64, 0)
    assert not wrong(small.call(w, backend=None), small.whole, w)
    assert "serial_below_bytes" in last_plan().why_serial
    large = Gather(group, (8192, 1024), 0, torch.bfloat16, 0)
    w = large.weight(64, 0)
    assert not wrong(large.call(w, backend=None), large.whole, w)
    assert last_plan().backend == FUSED and last_plan().predicted_ms > 0
    assert not wrong(large.call(w, backend="serial"), large.whole, w)
    assert choose(group, torch.empty(1), 1, None).forced


@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push"])
def test_a_decorated_kernel(group, repo, plan):
    kernel = overlap.compile(plan=plan, on="a[M]", backend=FUSED)(
        load_module(str(repo / template("persistent_gemm"))).matmul_kernel
    )
    for seed, rows in enumerate((1000, 515, 3, 1000)):
        gather = Gather(group, (rows, 96), 0, torch.float16, seed)
        w = gather.weight(136, seed)
        c = poisoned((rows, 136), torch.float16)
        programs = min(132, triton.cdiv(rows, 64) * triton.cdiv(136, 64))
        kernel[(programs,)](
            gather.shard, w, c, rows, 136, 96, 96, 136, 136,
            BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, NUM_SMS=programs, num_warps=4, group=group,
        )  # fmt: skip
        assert not wrong(c, gather.whole, w), (rows, seed)
    assert kernel.last_plan.backend == FUSED
    if rehearsed():
        return
    kernel.launch((programs,), (gather.shard, w, c, rows, 136, 96, 96, 136, 136), dict(
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, NUM_SMS=programs, num_warps=4), group=group, backend="serial",
    )  # fmt: skip
    assert not wrong(c, gather.whole, w) and kernel.last_plan.why_serial == "asked for"
    overlap.check(group)


def test_exposed_time_on_request(group, repo):
    gather = Gather(group, (4096, 1024), 0, torch.bfloat16, 0)
    w = gather.weight(1024, 0)
    said = overlap.ops.measure(gather.shard, w, group=group, backend=FUSED, iterations=5)
    assert said == last_plan() and 0 <= said.exposed_ms < 100
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]", backend=FUSED)(
        load_module(str(repo / template("grouped_gemm"))).matmul_kernel
    )
    c = torch.empty(4096, 1024, device="cuda", dtype=torch.bfloat16)
    tiles = triton.cdiv(4096, 64) * triton.cdiv(1024, 64)
    said = kernel.measure(
        (tiles,), gather.shard, w, c, 4096, 1024, 1024, 1024, 1, 1024, 1, 1024, 1,
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, group=group, iterations=5,
    )  # fmt: skip
    assert said is kernel.last_plan and 0 <= said.exposed_ms < 100
    assert not wrong(c, gather.whole, w)
    overlap.check(group)
