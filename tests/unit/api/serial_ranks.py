"""Run by test_serial.py as each of three real ranks over gloo, on the CPU: rank, world, a file for the store."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import overlap
from overlap.api.serial import gather
from overlap.chunkplan.region import shard_interval
from overlap.ops import ag_gemm, last_plan


def check_gather(rank: int, world: int) -> None:
    """Any dimension, even and uneven, fewer rows than ranks, any order in memory."""
    for shape, dim in (((6, 4), 0), ((7, 4), 0), ((2, 4), 0), ((3, 7, 2), 1), ((3, 6, 2), 2), ((0, 3), 0)):
        whole = torch.arange(2.0 * torch.Size(shape).numel())[::2].reshape(shape)
        low, high = shard_interval(shape[dim], world, rank)
        shard = whole.narrow(dim, low, high - low)
        assert torch.equal(gather(dist.group.WORLD, shard, shape, dim), whole)
        order = tuple(reversed(range(len(shape))))
        turned = gather(dist.group.WORLD, shard, shape, dim, order)
        assert torch.equal(turned, whole) and turned.permute(order).is_contiguous()


def check_operator(rank: int, world: int) -> None:
    generator = torch.Generator().manual_seed(3)
    for dtype in (torch.float32, torch.float64):
        whole = torch.randn(2, 7, 3, 8, generator=generator, dtype=dtype)
        weights = [torch.randn(8, n, generator=generator, dtype=dtype) for n in (5, 4)]
        bias = torch.randn(5, generator=generator, dtype=dtype)
        low, high = shard_interval(7, world, rank)
        (y, z), gathered = ag_gemm(
            whole[:, low:high], weights, bias=[bias, None], gather_dim=1, gather_size=7, return_gathered=True
        )
        assert torch.equal(gathered, whole)
        torch.testing.assert_close(y, whole @ weights[0] + bias)
        torch.testing.assert_close(z, whole @ weights[1])
        said = last_plan()
        assert said is not None and (said.backend, said.shape) == ("serial", (2, 7, 3, 8))
    assert ag_gemm(torch.ones(2, 8), torch.ones(8, rank)).shape == (2 * world, rank)
    ag_gemm(torch.ones(2, 8), weights[0].float(), backend="serial")
    assert last_plan().why_serial == "asked for"


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    check_gather(rank, world)
    check_operator(rank, world)
    pair = dist.new_group([0, 2])
    if rank != 1:
        y = ag_gemm(torch.full((1, 2), float(rank)), torch.ones(2, 1), group=pair)
        assert y.flatten().tolist() == [0.0, 4.0], y
    assert overlap.ops.last_plan() is not None
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: ok")


if __name__ == "__main__":
    main()
