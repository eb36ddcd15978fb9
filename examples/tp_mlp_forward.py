"""A tensor-parallel MLP forward whose first gather hides behind its product.

    python -m torch.distributed.run --nproc-per-node 4 examples/tp_mlp_forward.py
    python -m torch.distributed.run --nproc-per-node 2 examples/tp_mlp_forward.py --device cpu    # no GPU: serial

The input is sharded along the sequence, the weights along the hidden dimension:

    x [S/n, D]  -- gather, @ up [D, H/n] -->  hidden [S, H/n]  -- gelu, @ down [H/n, D], sum and scatter -->  y [S/n, D]

The first arrow is one call of `overlap.ops.ag_gemm`. The result is compared with the unsharded forward in fp32.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


def forward(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, tokens: int) -> torch.Tensor:
    """This rank's rows of ``gelu(x @ up) @ down``.

    Args:
        x: this rank's rows of the input, as `torch.chunk` cuts ``tokens`` of them.
        up: this rank's columns of the first weight, [D, H/n].
        down: this rank's rows of the second weight, [H/n, D].
    """
    from overlap.ops import ag_gemm

    hidden = ag_gemm(x, up, gather_dim=0, gather_size=tokens)
    return reduce_scatter(F.gelu(hidden) @ down)[: x.shape[0]]


def reduce_scatter(partial: torch.Tensor) -> torch.Tensor:
    """The sum over ranks of ``partial`` [S, D]; this rank's rows of it, padded to the same number on all ranks."""
    world = dist.get_world_size()
    rows = -(-partial.shape[0] // world)
    padded = F.pad(partial, (0, 0, 0, rows * world - partial.shape[0]))
    result = padded.new_empty(rows, padded.shape[1])
    # One collective under its new name and its old one.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(result, padded)
    return result


def rows_of_rank(tokens: int, rank: int, world: int) -> slice:
    """The rows that `torch.chunk` gives to a rank; ranks at the end may have fewer, or none."""
    rows = -(-tokens // world)
    return slice(min(rank * rows, tokens), min((rank + 1) * rows, tokens))


def start(device: str) -> torch.device:
    """Joins the process group; ends with a message where that is impossible."""
    if "RANK" not in os.environ:
        sys.exit("start me with: python -m torch.distributed.run --nproc-per-node 4 examples/tp_mlp_forward.py")
    local, world = int(os.environ["LOCAL_RANK"]), os.environ["WORLD_SIZE"]
    if device == "cuda" and torch.cuda.device_count() <= local:
        sys.exit(
            f"{world} ranks need as many GPUs, torch sees {torch.cuda.device_count()}; with --device cpu the same "
            "forward runs through plain collectives"
        )
    if device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    return torch.device("cuda", local)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000, help="rows of the input over all ranks; any number")
    parser.add_argument("--width", type=int, default=1024, help="D")
    parser.add_argument("--hidden", type=int, default=4096, help="H, a multiple of the ranks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    device = start(options.device)
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.hidden % world or min(options.tokens, options.width, options.hidden) < 1:
        sys.exit(f"sizes start at 1, and --hidden must be a multiple of {world}")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    # Every rank draws all the data, so that it can check its rows, and keeps its own pieces.
    generator = torch.Generator(device).manual_seed(0)
    tokens, width, hidden = options.tokens, options.width, options.hidden
    x, up, down = (
        (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)
        for shape, scale in (((tokens, width), 1.0), ((width, hidden), width**-0.5), ((hidden, width), hidden**-0.5))
    )
    mine = rows_of_rank(tokens, rank, world)
    y = forward(x[mine], up.chunk(world, 1)[rank], down.chunk(world, 0)[rank], tokens)

    expected = (F.gelu(x.float() @ up.float()) @ down.float())[mine]
    difference = (y.float() - expected).norm() / expected.norm().clamp_min(1e-30)
    # A comparison that NaN fails.
    wrong = torch.tensor(0.0 if difference <= TOLERANCE[dtype] else 1.0, device=device)
    dist.all_reduce(wrong)

    from overlap.ops import last_plan

    if rank == 0 and not wrong:
        sizes = f"{tokens} x {width} x {hidden}"
        print(f"ok: MLP of {sizes} on {world} ranks, relative error {difference:.1e}; {last_plan()}")
    dist.destroy_process_group()
    if wrong:
        sys.exit(f"rank {rank}: relative error {difference:.1e}, allowed {TOLERANCE[dtype]:.0e}")


if __name__ == "__main__":
    main()
