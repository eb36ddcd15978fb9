"""Launches of compiled kernels that repeat an earlier one, on simulated ranks: known by grid, values and layouts."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import overlap
from overlap.api.repeat import Known
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError
from overlap.sim import World

pytestmark = pytest.mark.one_triton

K, N = 16, 24


@pytest.fixture(autouse=True)
def repeated(monkeypatch):
    """What each repeated launch of a rank did."""
    said = []
    again = Known.again

    def watched(self, *call):
        found = again(self, *call)
        if found is not None:
            said.append(self._said)
        return found

    monkeypatch.setattr(Known, "again", watched)
    return said


@pytest.fixture(scope="module")
def kernels(repo):
    def load(name):
        folder = "tests/kernels" if (repo / "tests" / "kernels" / f"{name}.py").exists() else "templates/kernels"
        return load_module(str(repo / folder / f"{name}.py"))

    return load


def data(rows, columns, seed):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def share(whole, group, dim=0):
    low, high = shard_interval(whole.shape[dim], group.overlap_runtime.world, group.overlap_runtime.rank)
    return whole.narrow(dim, low, high - low).contiguous()


def launch(kernel, a, b, c, m, group, **changes):
    """The grouped template on global sizes, its grid a new function each time."""
    given = dict(
        M=m, N=N, K=K, stride_am=K, stride_ak=1, stride_bk=N, stride_bn=1, stride_cm=N, stride_cn=1,
        BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, GROUP_M=2,
    )  # fmt: skip
    given.update(changes)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)

    kernel[grid](a, b, c, **given, group=group)


def run(world, body):
    """Runs ``body(group)``, a list of results, on every rank; all of them are in flight before any is read."""

    def work(group):
        found = body(group)
        group.overlap_runtime.synchronize()
        return [c.clone() for c in found]

    return World(world, seed=world).run(work)


def test_launches_find_their_own_tensors_and_other_values_are_other_launches(kernels, repeated):
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    rows, calls = 37, [{}, {}, {"GROUP_M": 1}, {}, {"GROUP_M": True}]
    a, b = ([data(*size, seed=n) for n in range(len(calls))] for size in ((rows, K), (K, N)))

    def body(group):
        results = [torch.empty(rows, N) for _ in calls]
        for n, changes in enumerate(calls):
            launch(kernel, share(a[n], group), b[n].requires_grad_(), results[n], rows, group, **changes)
        return results

    for results in run(3, body):
        for n, c in enumerate(results):
            torch.testing.assert_close(c, a[n] @ b[n].detach(), rtol=1e-4, atol=1e-4)
    assert len(repeated) == 2 * 3
    assert kernel.last_plan.backend == "copy_engine" and kernel.last_plan.shape == (rows, K)


def test_a_shard_passed_a_second_time_is_refused_each_time(kernels, repeated):
    """Where only its rows are, tiles would take them for the first of all ranks'."""
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    rows, b = 2 * K, data(K, N, seed=7)
    a = data(rows, K, seed=8)

    def body(group):
        for _ in range(2):
            mine, result = share(a, group), torch.empty(rows, N)
            launch(kernel, mine, b, result, rows, group)
            torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-4)
            with pytest.raises(
                RuntimeContractError, match="the shard `a_ptr` is passed a second time, as `b_ptr`"
            ) as error:
                launch(kernel, mine, mine, result, rows, group)
            assert error.value.where is not None and error.value.where.path == __file__
        return [result]

    run(2, body)
    assert len(repeated) == 2


def test_a_result_in_an_operands_memory_is_refused_each_time(kernels, repeated):
    kernel = overlap.compile(plan="reduce_scatter_1d", on="c[M]")(kernels("grouped_gemm").matmul_kernel)
    rows = 33
    a, b = ([[data(*size, seed=10 * n + r) for r in range(2)] for n in range(3)] for size in ((rows, K), (K, N)))

    def body(group):
        results = []
        for n in range(3):
            r = group.overlap_runtime.rank
            results.append(share(torch.empty(rows, N), group))
            launch(kernel, a[n][r], b[n][r], results[n], rows, group)
            inside = torch.empty(max(b[n][r].numel(), results[n].numel()))
            with pytest.raises(RuntimeContractError, match="the result `c_ptr` lies in the memory of `b_ptr`") as error:
                launch(
                    kernel, a[n][r], inside[: K * N].view(K, N), inside[: results[n].numel()].view(-1, N), rows, group
                )
            assert error.value.where is not None and error.value.where.path == __file__
        return results

    for rank, results in enumerate(run(2, body)):
        for n, c in enumerate(results):
            total = sum(x @ y for x, y in zip(a[n], b[n], strict=True))
            low, high = shard_interval(rows, 2, rank)
            torch.testing.assert_close(c, total[low:high], rtol=1e-4, atol=1e-4)
    assert len(repeated) == 4


@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push"])
def test_a_shard_in_the_memory_of_what_the_kernel_writes_goes_the_long_way(plan, kernels, repeated):
    """Its rows of the result: there the shard is staged ahead of the kernel, which a launch like it but for that need not do."""
    kernel = overlap.compile(plan=plan, on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    rows, b = 64, data(N, N, 9)
    a = [data(rows, N, seed) for seed in range(4)]

    def body(group):
        results = []
        for n, x in enumerate(a):
            results.append(torch.full((rows, N), float("nan")))
            here = share(x, group)
            low, _ = shard_interval(rows, 2, group.overlap_runtime.rank)
            inside = results[n][low : low + len(here)].copy_(here)
            launch(kernel, inside if n % 2 else here, b, results[n], rows, group, K=N, stride_am=N)
        return results

    for results in run(2, body):
        for c, x in zip(results, a, strict=True):
            torch.testing.assert_close(c, x @ b, rtol=1e-4, atol=1e-4)
    assert len(repeated) == 2


@pytest.mark.parametrize("hook", [False, True], ids=["no hook", "a hook at each launch"])
def test_descriptors_count_by_what_they_say_of_their_tensors(hook, repo, repeated, tmp_path):
    """A hook runs at every launch, so none is repeated where there is one."""
    path = tmp_path / "kernel.py"
    text = (repo / "tests" / "kernels" / "host_descriptors.py").read_text()
    path.write_text(text if hook else text.replace(", pre_hook=set_boxes", ""))
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]", BM=32)(load_module(str(path)).gemm_tma)
    rows, strides = 40, [N, N, N + 8]
    a, b = ([data(*size, seed=n) for n in range(3)] for size in ((rows, 32), (32, N)))

    def body(group):
        results = [torch.zeros(rows * (N + 8)) for _ in strides]
        for n, stride in enumerate(strides):
            descriptors = (
                TensorDescriptor(share(a[n], group), [rows, 32], [32, 1], [32, 32]),
                TensorDescriptor(b[n], [32, N], [N, 1], [32, 32]),
                TensorDescriptor(results[n], [rows, N], [stride, 1], [32, 32]),
            )
            kernel[(4,)](*descriptors, rows, N, 32, NUM_SMS=4, DTYPE=triton.language.float32, group=group)
        return results

    for results in run(2, body):
        for n, (c, stride) in enumerate(zip(results, strides, strict=True)):
            torch.testing.assert_close(c.as_strided((rows, N), (stride, 1)), a[n] @ b[n], rtol=1e-4, atol=1e-4)
    assert len(repeated) == (0 if hook else 2)
