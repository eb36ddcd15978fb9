"""Configs as a tuner tries them, rehearsed on simulated ranks: every backend, other plans, pieces and tiles; right results."""

from __future__ import annotations

import pytest
import torch
import triton
from test_compiled_kernel import close, data, kernels, on_ranks

import overlap
from overlap.api.tuned import TRIAL, forced
from overlap.api.tuned_kernel import options_of
from overlap.autotune.config import Config
from overlap.backends.base import Realization
from overlap.chunkplan.region import shard_interval
from overlap.ops import ag_gemm, gemm_ar, gemm_rs, last_plan
from overlap.ops.blocks import Blocks, blocks_of
from overlap.sim import World

__all__ = ["kernels"]
pytestmark = pytest.mark.one_triton

TILE = {"num_warps": 4, "num_stages": 2, "meta": (("BLOCK_K", 16), ("BLOCK_M", 16), ("BLOCK_N", 32), ("GROUP_M", 2))}


def config(backend: str, plan: str, split: int, comm_sms: int = 0, **options) -> Config:
    return Config(Realization(backend, split=split, comm_sms=comm_sms, **options), plan)


@pytest.mark.parametrize(
    "how",
    [
        config("copy_engine", "all_gather_ring", 2, **TILE),
        config("ldst_reserved", "all_gather_1d_pull", 3, comm_sms=2, **TILE),
        config("ldst_inline", "all_gather_1d", 1),
        config("copy_engine", "mixed/all_gather_1d", 2),
        config("collective", "", 1),
    ],
    ids=str,
)
def test_a_gather_by_a_config(how):
    world, m, n, k = 3, 41, 24, 32
    x, w = data(m, k), data(k, n, seed=1)

    def body(group):
        low, high = shard_interval(m, world, group.overlap_runtime.rank)
        with forced(how):
            ys = [ag_gemm(x[low:high].contiguous(), w, gather_size=m, group=group) for _ in range(2)]
        group.overlap_runtime.synchronize()
        return ys

    for ys in World(world, seed=1).run(body):
        for y in ys:
            close(y, x, w)
    said = last_plan("ag_gemm")
    assert (said.source, said.backend) == (TRIAL, how.realization.backend)
    pieces = 0 if how.realization.backend == "collective" else how.realization.split * (world - 1)
    names = {"": "all_gather_direct", "mixed/all_gather_1d": "all_gather_1d_mixed"}
    assert said.plan == names.get(how.plan, how.plan) and (said.chunks == pieces or how.plan == "all_gather_1d"), said


@pytest.mark.parametrize(
    ("operator", "how"),
    [
        (gemm_rs, config("copy_engine", "reduce_scatter_ring", 1, **TILE)),
        (gemm_rs, config("ldst_inline", "reduce_scatter_1d", 1, **TILE)),
        (gemm_ar, config("copy_engine", "all_reduce_two_shot", 2, **TILE)),
        (gemm_rs, config("copy_engine", "mixed/reduce_scatter_1d", 1)),
        (gemm_rs, config("words_inline", "reduce_scatter_1d", 1)),
        (gemm_ar, config("words_inline", "all_reduce_one_shot", 1, **TILE)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_sum_by_a_config(operator, how):
    world, m, n, k = 3 if how.plan.startswith("mixed") else 2, 38, 24, 16
    pairs = [(data(m, k, seed=r), data(k, n, seed=9 + r)) for r in range(world)]

    def body(group):
        x, w = pairs[group.overlap_runtime.rank]
        with forced(how):
            y = operator(x, w, group=group)
        group.overlap_runtime.synchronize()
        return y

    total = sum(x.float() @ w.float() for x, w in pairs)
    for rank, y in enumerate(World(world, seed=2).run(body)):
        rows = slice(*shard_interval(m, world, rank)) if operator is gemm_rs else slice(None)
        assert torch.allclose(y.float(), total[rows], rtol=4e-3, atol=4e-2)
    said = last_plan(operator.__name__)
    assert said.plan == {"mixed/reduce_scatter_1d": "reduce_scatter_1d_mixed"}.get(how.plan, how.plan)
    assert said.source == TRIAL and said.backend.startswith(how.realization.backend)


def test_a_kernel_by_a_config(kernels):
    """The variant is compiled with the config's keys, under a grid that follows its blocks; the kernel itself is untouched."""
    m, n, k = 70, 40, 24
    whole, w = data(m, k), data(k, n, seed=1)
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(kernels("grouped_gemm").matmul_kernel)
    how = config("ldst_reserved", "all_gather_ring", 2, 1, meta=(("BLOCK_M", 16), ("GROUP_M", 1)))

    def launch(group, shard):
        c = torch.full((m, n), float("nan"), dtype=torch.float16)

        def grid(meta):
            return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

        with forced(how):
            kernel.launch(
                grid,
                (shard, w, c, m, n, k, k, 1, n, 1, n, 1),
                {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 4},
                group=group,
            )
        return c

    for results in on_ranks(3, whole, launch):
        for c in results:
            close(c, whole, w)
    said = kernel.last_plan
    assert (said.source, said.backend, said.plan) == (TRIAL, "ldst_reserved", "all_gather_ring")
    (variant,) = kernel.variants.known().values()
    assert dict(variant.realization.meta) == {"BLOCK_M": 16, "GROUP_M": 1} and variant.realization.comm_sms == 1
    assert kernel.realization == Realization()


def test_a_config_as_options_and_as_blocks():
    how = config("copy_engine", "", 2, 8, **TILE)
    assert options_of(how) == {
        "split": "2", "num_warps": "4", "num_stages": "2", "BLOCK_K": "16", "BLOCK_M": "16", "BLOCK_N": "32", "GROUP_M": "2",
    }, "copy_engine takes no programs"  # fmt: skip
    assert blocks_of(how) == Blocks(16, 32, 16, 4, 2, 2)
    assert blocks_of(config("copy_engine", "", 2)) is None and blocks_of(None) is None
