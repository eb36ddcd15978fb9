"""Calls of host functions and direct launches whose kernel makes a communicated result, on simulated ranks."""

import pytest
import torch
import triton

import overlap
from overlap.annotate.source import SourceUnit
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import HostEntryError, RuntimeContractError, UsageError
from overlap.pipeline import Request, compile_source
from overlap.runtime.instances import instances
from overlap.runtime.workspace import reserve, workspaces
from overlap.sim import World

M, K, N = 37, 16, 24
PLANS = {
    "c[M]": "reduce_scatter_1d",
    "c[N]": "reduce_scatter_1d",
    "c[]": "all_reduce_two_shot",
    "c[M:N]": "all_to_all_1d",
    "a[M]": "all_gather_1d",
    "a[K:M]": "all_to_all_1d",
}


@pytest.fixture(scope="module")
def generated(repo, tmp_path_factory):
    """The module of the grouped GEMM with a result communicated; ``edits`` change its text."""
    folder, texts, made = tmp_path_factory.mktemp("produced"), {}, {}

    def make(*on, edits=()):
        if on not in texts:
            unit = SourceUnit.from_file(str(repo / "templates/kernels/grouped_gemm.py"))
            texts[on] = compile_source(Request(unit, plan=[PLANS[o] for o in on], on=list(on))).module.text
        text = texts[on]
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        if text not in made:
            path = folder / f"module_{len(made)}.py"
            path.write_text(text)
            made[text] = load_module(str(path))
        return made[text]

    return make


def data(rows, depth, columns, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, depth), (depth, columns)))


def operands(world, rows=M, dtype=torch.float32):
    """Every rank's A and B, and the sum of their products in fp64."""
    given = [data(rows, K, N, rank, dtype) for rank in range(world)]
    return given, sum(a.double() @ b.double() for a, b in given)


def shard(whole, dim, world, rank):
    low, high = shard_interval(whole.shape[dim], world, rank)
    return whole.narrow(dim, low, high - low)


def on_ranks(world, body, seed=0):
    """Runs ``body(group, rank)`` to the end of all streams; every rank's result."""

    def run(group):
        result = body(group, group.overlap_runtime.rank)
        group.overlap_runtime.synchronize()
        return result

    return World(world, seed=seed).run(run)


def close(got, wanted, tolerance=1e-4):
    assert got.shape == wanted.shape
    assert not got.isnan().any()
    assert torch.allclose(got.double(), wanted.double(), rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("on", "dim"), [("c[M]", 0), ("c[N]", 1), ("c[]", None)])
def test_ranks_get_their_piece_of_the_sum(generated, world, on, dim):
    module = generated(on)
    given, total = operands(world)
    results = on_ranks(world, lambda group, rank: [module.matmul(*given[rank], group=group) for _ in range(2)])
    for rank, twice in enumerate(results):
        for got in twice:
            close(got, total if dim is None else shard(total, dim, world, rank))
            assert got.is_contiguous()


def test_a_result_keeps_the_memory_order_of_what_the_host_function_makes(generated):
    made = "c = torch.empty((M, N), device=a.device, dtype=a.dtype)"
    module = generated("c[M]", edits=[(made, made.replace("(M, N)", "(N, M)") + ".t()")])
    given, total = operands(2)
    for rank, got in enumerate(on_ranks(2, lambda group, rank: module.matmul(*given[rank], group=group))):
        close(got, shard(total, 0, 2, rank))
        assert got.t().is_contiguous()


def test_out_takes_any_strides_and_dtype(generated):
    module = generated("c[M]")
    given, total = operands(3)
    outs = []
    for rank in range(3):
        low, high = shard_interval(M, 3, rank)
        outs.append(torch.full((N, 2 * (high - low)), float("nan"), dtype=torch.float64).t()[::2])
    results = on_ranks(3, lambda group, rank: module.matmul(*given[rank], group=group, out=outs[rank]))
    for rank, got in enumerate(results):
        assert got is outs[rank]
        close(got, shard(total, 0, 3, rank))


@pytest.mark.parametrize("shape", [(M, N), (19, N + 1)])
def test_out_of_another_shape_is_refused(generated, shape):
    module = generated("c[M]")
    given, _ = operands(2)

    def body(group, rank):
        with pytest.raises(RuntimeContractError, match=r"out is .* this rank's piece of `c` has shape \((19|18), 24\)"):
            module.matmul(*given[rank], group=group, out=torch.empty(shape))

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(
            ("    return c\n", "    return c.view(-1)\n"), r"returns a view of `c` of shape \(888,\)", id="view"
        ),
        pytest.param(("    return c\n", "    return c[:3]\n"), r"returns a view of `c` of shape \(3, 24\)", id="part"),
        pytest.param(("    return c\n", "    return a\n"), "does not return `c`", id="another tensor"),
        pytest.param(
            ("    return c\n", "    c.zero_()\n    return c\n"), "changes `c` behind its launch", id="changed"
        ),
        pytest.param(
            ("    c = torch.empty((M, N), device=a.device, dtype=a.dtype)\n", "    c = torch.empty(M, 2 * N)[:, :N]\n"),
            "`c` has strides",
            id="not dense",
        ),
        pytest.param(
            (
                "    c = torch.empty((M, N), device=a.device, dtype=a.dtype)\n",
                "    c = a.view(-1)[: M * 8].view(M, 8)\n",
            ),
            "passes the memory of `c` a second time, as `a_ptr`|launch passes",
            id="in an input",
        ),
    ],
)
def test_host_functions_that_use_what_is_only_a_part(generated, edit, message):
    module = generated("c[M]", edits=[edit])
    given, _ = operands(2)

    def body(group, rank):
        with pytest.raises(HostEntryError, match=message):
            module.matmul(*given[rank], group=group)

    on_ranks(2, body)


def test_a_tuple_keeps_its_other_members(generated):
    module = generated("c[M]", edits=[("    return c\n", "    return c, 7\n")])
    given, total = operands(2)
    for rank, (got, seven) in enumerate(on_ranks(2, lambda group, rank: module.matmul(*given[rank], group=group))):
        close(got, shard(total, 0, 2, rank))
        assert seven == 7


def test_a_rank_whose_host_function_raises_tells_the_others(generated):
    module = generated("c[M]")
    given, total = operands(2)

    def body(group, rank):
        a, b = given[rank]
        with pytest.raises(RuntimeContractError if rank == 0 else ValueError, match="rank 1 raised|unpack"):
            module.matmul(a, b[:, 0] if rank else b, group=group)
        return module.matmul(a, b, group=group)

    for rank, got in enumerate(on_ranks(2, body)):
        close(got, shard(total, 0, 2, rank))


@pytest.mark.parametrize("on", ["c[M]", "a[M]"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_a_rank_that_is_interrupted_in_a_first_call_tells_the_others(generated, on, raised):
    """Ahead of the instance, which what the launch passes makes known, and inside of it."""
    module, sizes = generated(on), {"M": M}
    given, total = operands(2)

    class Interrupting:
        @property
        def shape(self):
            raise raised

    def body(group, rank):
        a, b = given[rank]
        a = shard(given[0][0], 0, 2, rank) if on == "a[M]" else a
        with pytest.raises(raised if rank else RuntimeContractError) as caught:
            module.matmul(a, Interrupting() if rank else b, group=group, sizes=sizes)
        assert rank or "rank 1 raised instead of coming to" in str(caught.value)
        return module.matmul(a, b, group=group, sizes=sizes)

    for rank, got in enumerate(on_ranks(2, body)):
        close(got, shard(total, 0, 2, rank) if on == "c[M]" else given[0][0].double() @ given[rank][1].double())


def test_ranks_that_make_other_shapes_are_told(generated):
    module = generated("c[M]")

    def body(group, rank):
        with pytest.raises(RuntimeContractError, match="differently: shape"):
            module.matmul(*data(M + rank, K, N, rank), group=group)

    on_ranks(2, body)


def test_a_larger_shape_makes_memory_grow_and_the_smaller_stays_right(generated):
    """Counters stand behind the flags, whose number may grow: tables of the first shape are made anew."""
    module = generated("c[M]")
    small, large = operands(3, rows=M), operands(3, rows=190)

    def body(group, rank):
        results = [module.matmul(*which[0][rank], group=group) for which in (small, large, small, large)]
        found = instances(group.overlap_runtime)
        assert len({id(i.memory) for i in found.values()}) == 1
        return results

    for rank, results in enumerate(on_ranks(3, body)):
        for got, (_, total) in zip(results, (small, large, small, large), strict=True):
            close(got, shard(total, 0, 3, rank))


def test_reserved_memory_serves_every_call_up_to_its_sizes(generated):
    module = generated("c[M]")
    cases = [operands(2, rows=rows) for rows in (M, 8, 1)]

    def body(group, rank):
        workspace = reserve(module.OL_OPERATOR, group, {"M": M, "N": N}, torch.float32)
        memory = workspace.memory
        results = [module.matmul(*given[rank], group=group) for given, _ in cases]
        assert workspace.memory is memory and set(workspaces(group.overlap_runtime).values()) == {workspace}
        with pytest.raises(RuntimeContractError, match=r"of \(45, 24\) needs .* bytes, .*; reserved are .* counters"):
            module.matmul(*data(45, K, N, rank), group=group)
        return results

    for rank, results in enumerate(on_ranks(2, body)):
        for got, (_, total) in zip(results, cases, strict=True):
            close(got, shard(total, 0, 2, rank))


def test_reserve_asks_for_every_axis_and_dtype(generated):
    module = generated("c[M]")

    def body(group, rank):
        with pytest.raises(UsageError, match="reserve needs the largest size of N"):
            reserve(module.OL_OPERATOR, group, {"M": M}, torch.float32)
        with pytest.raises(UsageError, match="reserve needs the dtype of `c`"):
            reserve(module.OL_OPERATOR, group, {"M": M, "N": N}, {"a": torch.float32})

    on_ranks(1, body)


@pytest.mark.parametrize("world", [1, 3])
def test_a_kernel_that_gathers_and_scatters(generated, world):
    """The stand-in of the first call lies in ordinary memory, that of later ones in the operator's own."""
    module = generated("a[M]", "c[M]")
    wholes = [[data(M, K, N, 10 * launch)[0] for _ in range(world)] for launch in range(3)]
    weights = [data(M, K, N, rank)[1] for rank in range(world)]
    shards = [[shard(wholes[n][r], 0, world, r).contiguous() for r in range(world)] for n in range(3)]

    def body(group, rank):
        return [module.matmul(shards[n][rank], weights[rank], group=group, sizes={"M": M}) for n in range(3)]

    for rank, results in enumerate(on_ranks(world, body)):
        for n, got in enumerate(results):
            total = sum(wholes[n][0].double() @ w.double() for w in weights)
            close(got, shard(total, 0, world, rank))


@pytest.mark.parametrize("transposed", [False, True])
def test_an_exchanged_input(generated, transposed):
    module, world = generated("a[K:M]"), 3
    whole = data(M, K, N, 0)[0]
    weights = [data(M, K, N, rank)[1] for rank in range(world)]
    shards = [shard(whole, 1, world, r) for r in range(world)]
    shards = [s.t().contiguous().t() if transposed else s.contiguous() for s in shards]
    sizes = {"M": M, "K": K}
    results = on_ranks(
        world, lambda group, rank: [module.matmul(shards[rank], weights[rank], group=group, sizes=sizes) for _ in "ab"]
    )
    for rank, twice in enumerate(results):
        for got in twice:
            close(got, shard(whole, 0, world, rank).double() @ weights[rank].double())


def test_an_exchanged_output(generated):
    module, world = generated("c[M:N]"), 3
    whole, weight = data(M, K, N, 0)
    parts = [shard(whole, 0, world, r).contiguous() for r in range(world)]
    results = on_ranks(world, lambda group, rank: module.matmul(parts[rank], weight, group=group, sizes={"M": M}))
    for rank, got in enumerate(results):
        close(got, shard(whole.double() @ weight.double(), 1, world, rank))


GRID = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)  # noqa: E731
BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}


@pytest.fixture
def decorated(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))

    def load(path, on):
        return overlap.compile(plan=PLANS[on], on=on)(load_module(str(repo / path)).matmul_kernel)

    return load


def test_a_direct_launch_rounds_partials_to_the_transport(decorated):
    kernel = decorated("templates/kernels/grouped_gemm.py", "c[M]")
    given, _ = operands(3)
    outs = [torch.full(shard(torch.empty(M, N), 0, 3, r).shape, float("nan")) for r in range(3)]

    def body(group, rank):
        arguments = (*given[rank], outs[rank], M, N, K, K, 1, N, 1, N, 1)
        kernel.launch((GRID(BLOCKS)), arguments, {**BLOCKS, "GROUP_M": 2}, group=group, transport=torch.float16)

    on_ranks(3, body)
    rounded = sum((a.double() @ b.double()).half().double() for a, b in given)
    for rank, out in enumerate(outs):
        # One of the partials may round the other way, computed in fp32.
        close(out, shard(rounded, 0, 3, rank), tolerance=2e-3)
        assert not torch.equal(out.half().float(), out), "the sum itself is not rounded to the transport"
    assert "float16" in str(kernel.last_plan)


def test_a_sum_that_tiles_add_to_starts_from_the_callers_shard(decorated):
    """Every launch adds the sum once more."""
    kernel = decorated("tests/kernels/split_k.py", "c[M]")
    given, total = operands(3)
    outs = [torch.full(shard(torch.empty(M, N), 0, 3, r).shape, 5.0) for r in range(3)]

    def body(group, rank):
        for _ in range(2):
            kernel[(GRID(BLOCKS)[0] * 2,)](
                *given[rank],
                outs[rank],
                M,
                N,
                K,
                K,
                1,
                N,
                1,
                N,
                1,
                **{**BLOCKS, "BLOCK_K": 8},
                BLOCK_SPLIT=8,
                group=group,
            )

    on_ranks(3, body)
    for rank, out in enumerate(outs):
        close(out, 5 + 2 * shard(total, 0, 3, rank))


def test_a_result_in_the_memory_of_an_argument_is_refused(decorated):
    kernel = decorated("templates/kernels/grouped_gemm.py", "c[]")

    def body(group, rank):
        a, b = data(M, K, K, rank)
        with pytest.raises(RuntimeContractError, match="the result `c_ptr` lies in the memory of `a_ptr`"):
            kernel[GRID](a, b, a, M, K, K, K, 1, K, 1, K, 1, **BLOCKS, GROUP_M=2, group=group)

    on_ranks(2, body)
