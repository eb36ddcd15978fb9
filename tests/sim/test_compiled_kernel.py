"""`overlap.compile` on simulated ranks: called like the kernel, sizes, strides and grid global, one tensor a shard."""

from __future__ import annotations

import linecache
import os

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import overlap
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, SourceError, UnsupportedError, UsageError
from overlap.sim import World

K, N = 24, 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "modules"


@pytest.fixture
def kernels(repo):
    """Modules of test and template kernels, freshly run."""

    def load(name: str):
        folder = "tests/kernels" if (repo / "tests" / "kernels" / f"{name}.py").exists() else "templates/kernels"
        return load_module(str(repo / folder / f"{name}.py"))

    return load


def data(rows, columns=K, dtype=torch.float16, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, a, b):
    wanted = a.float() @ b.float()
    assert not got.isnan().any()
    assert torch.allclose(got.float(), wanted, rtol=2e-3, atol=2e-2), (got.float() - wanted).abs().max()


def on_ranks(world, whole, launch, *, dim=0, launches=2, seed=0):
    """Runs ``launch(group, shard, c)`` on every rank, twice in a row; returns each rank's results."""

    def body(group):
        runtime = group.overlap_runtime
        low, high = shard_interval(whole.shape[dim], world, runtime.rank)
        shard = whole.narrow(dim, low, high - low).contiguous()
        results = [launch(group, shard) for _ in range(launches)]
        runtime.synchronize()
        return results

    return World(world, seed=seed).run(body)


def grouped(kernel, shard, b, m, group, **changes):
    """Launches the grouped template kernel on a row shard."""
    c = torch.empty(m, b.shape[1], dtype=shard.dtype)
    given = dict(
        M=m, N=b.shape[1], K=b.shape[0], stride_am=b.shape[0], stride_ak=1, stride_bk=b.stride(0),
        stride_bn=b.stride(1), stride_cm=b.shape[1], stride_cn=1, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, GROUP_M=2,
    )  # fmt: skip
    given.update(changes)
    tiles = triton.cdiv(m, 32) * triton.cdiv(b.shape[1], 32)
    kernel[(tiles,)](shard, b, c, **given, group=group)
    return c


@pytest.mark.parametrize("world,rows", [(1, 70), (2, 70), (3, 70), (4, 3), (3, 0)])
def test_ragged_rows(kernels, world, rows):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    a, b = data(rows), data(K, N, seed=1)
    for results in on_ranks(world, a, lambda group, shard: grouped(kernel, shard, b, rows, group), seed=world):
        for c in results:
            close(c, a, b)
    assert kernel.last_plan.shape == (rows, K)
    said = kernel.last_plan
    assert (said.backend, said.world, said.chunks, said.why_serial) == ("copy_engine", world, world - 1, "")


def test_every_decorator_below_stays_and_the_file_does_not_run_again(kernels):
    module = kernels("decorated")
    rows = 45
    a, b = data(rows), data(K, N, seed=1)

    def launch(group, shard):
        c = torch.empty(rows, N, dtype=a.dtype)
        module.kernel[module.grid](shard, b, c, rows, N, K, K, 1, N, 1, N, group=group)
        return c

    for results in on_ranks(3, a, launch):
        for c in results:
            close(c, a, b)
    assert module.IMPORTS == ["once"]
    made = module.kernel.operator.kernel
    assert [type(layer).__name__ for layer in (made, made.fn, made.fn.fn)] == ["Autotuner", "Heuristics", "Named"]
    assert made.fn.fn.label == "mine"


def test_columns_of_b_and_a_pushed_plan(kernels):
    kernel = overlap.compile(plan="all_gather_1d_push", on="b[N]")(kernels("gemm_2d").matmul_kernel)
    m, n = 40, 50
    a, b = data(m), data(K, n, seed=1)

    def launch(group, shard):
        c = torch.empty(m, n, dtype=a.dtype)
        grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
        kernel.run(a, shard, c, m, n, K, K, 1, n, 1, n, 1, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, grid=grid, group=group)
        return c

    for results in on_ranks(3, b, launch, dim=1):
        for c in results:
            close(c, a, b)


def test_a_descriptor_over_the_shard_with_the_global_shape(kernels):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]", BM=32)(kernels("host_descriptors").gemm_tma)
    rows = 70
    a, b = data(rows, 32), data(32, N, seed=1)

    def launch(group, shard, shape=None):
        c = torch.empty(rows, N, dtype=a.dtype)
        descriptors = [
            TensorDescriptor(shard, list(shape or a.shape), [32, 1], [1, 1]),
            TensorDescriptor(b, list(b.shape), [N, 1], [1, 1]),
            TensorDescriptor(c, list(c.shape), [N, 1], [1, 1]),
        ]
        kernel[(4,)](*descriptors, rows, N, 32, NUM_SMS=4, DTYPE=triton.language.float16, group=group)
        return c

    for results in on_ranks(3, a, launch):
        for c in results:
            close(c, a, b)
    with pytest.raises(RuntimeContractError, match=r"descriptor `a_desc` has shape \(35, 32\), the global tensor has"):
        on_ranks(2, a, lambda group, shard: launch(group, shard, tuple(shard.shape)))


def test_a_transposed_global_tensor_and_strides_that_no_gathered_tensor_has(kernels):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    rows = 34
    a, b = data(rows), data(K, N, seed=1)

    def columns_first(group, shard):
        return grouped(kernel, shard.t().contiguous().t(), b, rows, group, stride_am=1, stride_ak=rows)

    for results in on_ranks(2, a, columns_first):
        for c in results:
            close(c, a, b)
    # The strides of a transposed shard, not of the transposed whole.
    with pytest.raises(
        RuntimeContractError, match=r"strides \(1, 17\) for `a_ptr`.*\(34, 24\).*strides \(24, 1\)"
    ) as e:
        on_ranks(2, a, lambda group, shard: grouped(kernel, shard, b, rows, group, stride_am=1, stride_ak=17))
    assert e.value.where.path == __file__
    assert "kernel[(tiles,)]" in e.value.where.text


def test_strides_in_tuples(kernels):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("wild/tuple_strides").gemm)
    rows = 34
    a, b = data(rows), data(K, N, seed=1)

    def launch(group, shard, strides):
        c = torch.empty(rows, N, dtype=shard.dtype)
        blocks = dict(BM=16, BN=16, BK=16)
        kernel[(3, 3)](shard, b, c, rows, N, K, strides, b.stride(), c.stride(), **blocks, group=group)
        return c

    for results in on_ranks(2, a, lambda group, shard: launch(group, shard, (K, 1))):
        for c in results:
            close(c, a, b)
    for results in on_ranks(2, a, lambda group, shard: launch(group, shard.t().contiguous().t(), (1, rows))):
        for c in results:
            close(c, a, b)
    with pytest.raises(RuntimeContractError, match=r"strides \(25, 1\) for `a`"):
        on_ranks(2, a, lambda group, shard: launch(group, shard, (K + 1, 1)))
    for strides in (K, (K,)):
        with pytest.raises(UsageError, match="no integers for the strides of `a`"):
            on_ranks(2, a, lambda group, shard, strides=strides: launch(group, shard, strides))


def test_sizes_of_the_shard_are_refused(kernels):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    a, b = data(34), data(K, N, seed=1)
    with pytest.raises(RuntimeContractError, match=r"passes M=17, of which this rank holds \d") as caught:
        on_ranks(2, a, lambda group, shard: grouped(kernel, shard, b, 17, group))
    assert "whole tensor" in caught.value.help
    with pytest.raises(RuntimeContractError, match="passes K=25, its shard of `a_ptr` has 24"):
        on_ranks(2, a, lambda group, shard: grouped(kernel, shard, b, 34, group, K=25))
    with pytest.raises(UsageError, match="the extent of M, no integer"):
        on_ranks(2, a, lambda group, shard: grouped(kernel, shard, b, 34, group, M=None))


def test_a_pinned_world(kernels):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]", world=3)(kernels("grouped_gemm").matmul_kernel)
    a, b = data(34), data(K, N, seed=1)
    with pytest.raises(RuntimeContractError, match="compiled for 3 ranks, the group has 2"):
        on_ranks(2, a, lambda group, shard: grouped(kernel, shard, b, 34, group))


def test_source_without_a_file_and_realization_keys(repo, cache):
    """As a notebook cell: text that only linecache knows, helpers defined somewhere else."""
    text = (repo / "templates" / "kernels" / "persistent_gemm.py").read_text()
    helper, rest = text.split("@triton.jit\ndef matmul_kernel")
    cell = "@triton.jit\ndef matmul_kernel" + rest.split("# @overlap.host_entry")[0]
    scope = {}
    for name, source in (("<cell 1>", helper), ("<cell 2>", cell)):
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), scope)
    kernel = overlap.compile(plan="all_gather_ring", on="a[M]", split=2, BLOCK_N=16)(scope["matmul_kernel"])
    rows = 70
    a, b = data(rows, 32), data(32, N, seed=1)

    def launch(group, shard):
        c = torch.empty(rows, N, dtype=a.dtype)
        kernel[(4,)](
            shard, b, c, rows, N, 32, 32, N, N, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, GROUP_M=2, NUM_SMS=4, group=group
        )
        return c

    for results in on_ranks(3, a, launch):
        for c in results:
            close(c, a, b)
    assert kernel.realization.split == 2 and kernel.realization.meta == (("BLOCK_N", 16),)
    assert kernel.last_plan.chunks == 4
    assert len(list(cache.glob("*.py"))) == 1


def test_the_source_is_the_one_that_was_decorated(repo, tmp_path):
    path = tmp_path / "user.py"
    text = (repo / "templates" / "kernels" / "grouped_gemm.py").read_text()
    path.write_text(text)
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(load_module(str(path)).matmul_kernel)
    path.write_text(text.replace("acc = tl.dot(a, b, acc)", "acc = tl.dot(a, b, acc) * 2"))
    a, b = data(34), data(K, N, seed=1)
    (first, *_), _ = on_ranks(2, a, lambda group, shard: grouped(kernel, shard, b, 34, group))
    close(first, a, b)
    path.write_text("# another line\n" + text)
    stale = load_module(str(path)).matmul_kernel
    path.write_text(text)
    with pytest.raises(SourceError, match="does not begin on line"):
        overlap.compile(plan="all_gather_1d", on="a[M]")(stale)
    assert os.path.exists(path)


def test_without_process_groups_the_kernel_runs_alone(kernels):
    """A script that uses a decorated kernel still runs on one device, and the simulator checks it like any other."""
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    a, b = data(34), data(K, N, seed=1)
    ((c, _),) = on_ranks(1, a, lambda group, shard: grouped(kernel, shard, b, 34, None))
    close(c, a, b)
    assert kernel.last_plan.why_serial == "no process group, so one rank"
    with pytest.raises(RuntimeContractError, match="rank 0 of 1: the launch passes M=35"):
        on_ranks(1, a, lambda group, shard: grouped(kernel, shard, b, 35, None))


def test_heuristics_and_one_configuration_above_and_no_tuning(kernels):
    """Decorators above ours hand launches on; one that would time launches on each rank alone is refused."""
    fuse = overlap.compile(plan="all_gather_1d", on="a[M]")
    rows = 34
    a, b = data(rows), data(K, N, seed=1)
    configs = [triton.Config({"BLOCK_N": n}, num_warps=4) for n in (32, 16)]

    def launch(kernel):
        def call(group, shard):
            c = torch.empty(rows, N, dtype=a.dtype)
            grid = (triton.cdiv(rows, 32) * triton.cdiv(N, 32),)
            kernel[grid](
                shard, b, c, rows, N, K, K, 1, N, 1, N, 1, BLOCK_M=32, BLOCK_K=16, group=group
            )  # fmt: skip
            return c

        return call

    above = triton.heuristics({"GROUP_M": lambda args: 2 if args["M"] > 16 else 1})
    for tuned, ok in ((configs[:1], True), (configs, False)):
        kernel = triton.autotune(configs=tuned, key=["M"])(above(fuse(kernels("grouped_gemm").matmul_kernel)))
        if ok:
            for results in on_ranks(2, a, launch(kernel)):
                for c in results:
                    close(c, a, b)
        else:
            with pytest.raises(UnsupportedError, match="autotune above overlap.compile"):
                on_ranks(2, a, launch(kernel))
