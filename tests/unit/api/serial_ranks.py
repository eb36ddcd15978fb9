"""Run by test_serial.py as each of three real ranks over gloo, on the CPU: rank, world, a file for the store."""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from direct_ranks import check_direct

import overlap
from overlap.api.fallback import ASKED, Choice
from overlap.api.serial import gather
from overlap.api.serial_kernel import SerialKernelCall
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.ops import ag_gemm, last_plan

SERIAL = Choice("serial", ASKED)
REPO = Path(__file__).parents[3]
TEMPLATE = load_module(str(REPO / "templates/kernels/grouped_gemm.py")).matmul_kernel
SPLIT_K = load_module(str(REPO / "tests/kernels/split_k.py")).matmul_kernel


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


class Product:
    """Stands for a Triton kernel: C = A @ B, or C += A @ B, with torch."""

    def __init__(self, adds: bool) -> None:
        self.adds = adds

    def __getitem__(self, grid):
        def launch(a_ptr, b_ptr, c_ptr, **_):
            product = a_ptr @ b_ptr
            c_ptr.add_(product) if self.adds else c_ptr.copy_(product)

        return launch


def check_direct_launches(rank: int, world: int) -> None:
    """Every kind of communication around a kernel that its caller launches; sizes and strides are what the kernel sees."""
    m, n, k = 7, 5, 4
    pairs = [
        tuple(torch.randn(s, generator=torch.Generator().manual_seed(10 + r)) for s in ((m, k), (k, n)))
        for r in range(world)
    ]
    a, b = pairs[rank]
    total = sum(x @ y for x, y in pairs)
    whole = pairs[0][0]
    rows, columns, depth = (slice(*shard_interval(extent, world, rank)) for extent in (m, n, k))
    mine = rows.stop - rows.start
    for on, plan, held, c, wanted, extents in (
        ("c[M]", "reduce_scatter_1d", a, torch.zeros(mine, n), total[rows], (m, n)),
        ("c[N]", "reduce_scatter_1d", a, torch.zeros(m, columns.stop - columns.start), total[:, columns], (m, n)),
        ("c[]", "all_reduce_one_shot", a, torch.zeros(m, n), total, (m, n)),
        ("a[K:M]", "all_to_all_1d", whole[:, depth], torch.zeros(mine, n), whole[rows] @ b, (mine, n)),
        ("c[M:N]", "all_to_all_1d", whole[rows], torch.zeros(m, columns.stop - columns.start), None, (mine, n)),
    ):
        kernel = overlap.compile(plan=plan, on=on)(TEMPLATE)
        if wanted is None:
            b, wanted = pairs[0][1], (whole @ pairs[0][1])[:, columns]
        arguments = (held, b, c, *extents, k, k, 1, n, 1, n, 1)
        SerialKernelCall(kernel.operator, dist.group.WORLD, SERIAL, Product(False), (1,), arguments, {}).run()
        torch.testing.assert_close(c, wanted)
    # Split-K: what the caller's shard holds is added to, once.
    a, b = pairs[rank]
    c = torch.full((mine, n), 3.0)
    kernel = overlap.compile(plan="reduce_scatter_1d", on="c[M]")(SPLIT_K)
    arguments = (a, b, c, m, n, k, k, 1, n, 1, n, 1)
    SerialKernelCall(kernel.operator, dist.group.WORLD, SERIAL, Product(True), (1,), arguments, {}).run()
    torch.testing.assert_close(c, 3 + total[rows])
    # Partials are rounded to the transport, the sum is not.
    c = torch.empty(mine, n)
    kernel = overlap.compile(plan="reduce_scatter_1d", on="c[M]")(TEMPLATE)
    arguments = (a.half(), b.half(), c, m, n, k, k, 1, n, 1, n, 1)
    SerialKernelCall(
        kernel.operator, dist.group.WORLD, SERIAL, Product(False), (1,), arguments, {}, torch.float16
    ).run()
    torch.testing.assert_close(c, sum((x.half() @ y.half()).float() for x, y in pairs)[rows])


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    check_gather(rank, world)
    check_operator(rank, world)
    check_direct_launches(rank, world)
    check_direct(rank, world)
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
