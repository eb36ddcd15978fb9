"""A tensor-parallel MLP trained beside the same MLP on one device: the losses agree, step by step.

    python -m torch.distributed.run --nproc-per-node 4 examples/tp_mlp_train.py
    python -m torch.distributed.run --nproc-per-node 2 examples/tp_mlp_train.py --device cpu    # no GPU: serial

Tokens are sharded along the sequence, the weights along the hidden dimension:

    forward    x [S/n, D]   -- ag_gemm -->   hidden [S, H/n]   -- gelu, gemm_rs -->   y [S/n, D]
    backward   dx [S/n, D]  <-- gemm_rs --   dhidden [S, H/n]  <-- ag_gemm --        dy [S/n, D]

Each operator's gradient is the other one, so that communication hides behind products in both directions. Gradients of
the weights are summed in fp32, in place, in ``main_grad``, from which the optimizer updates fp32 copies.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Relative, of a loss."""


class ShardedMLP(torch.nn.Module):
    """This rank's part of ``gelu(x @ up.t() + up_bias) @ down.t() + down_bias``.

    Args:
        up: this rank's rows, [H/n, D]; up_bias: [H/n].
        down: this rank's columns, [D, H/n]; down_bias: [D], a copy on every rank, whose gradient comes out whole.
        tokens: S; ``checkpointed``: compute the forward again in the backward.
    """

    def __init__(self, up, up_bias, down, down_bias, tokens: int, checkpointed: bool) -> None:
        super().__init__()
        self.up, self.up_bias = torch.nn.Parameter(up.contiguous()), torch.nn.Parameter(up_bias.clone())
        self.down, self.down_bias = torch.nn.Parameter(down.contiguous()), torch.nn.Parameter(down_bias.clone())
        self.tokens, self.checkpointed = tokens, checkpointed
        for weight in (self.up, self.down):
            weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=False) if self.checkpointed else self.run(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        from overlap.ops import ag_gemm, gemm_rs

        hidden = ag_gemm(x, self.up.t(), bias=self.up_bias, gather_size=self.tokens, accumulate_main_grad=True)
        return gemm_rs(F.gelu(hidden), self.down.t(), bias=self.down_bias, accumulate_main_grad=True)


class Descent:
    """Gradient descent on fp32 copies of parameters, from ``main_grad`` where a parameter has one."""

    def __init__(self, parameters, rate: float) -> None:
        self.pairs = [(p, p.detach().float().clone()) for p in parameters]
        self.rate = rate

    def step(self) -> None:
        for parameter, master in self.pairs:
            gradient = getattr(parameter, "main_grad", None)
            if gradient is None:
                gradient = parameter.grad
            master.sub_(gradient.float(), alpha=self.rate)
            parameter.data.copy_(master)
            parameter.grad = None
            if hasattr(parameter, "main_grad"):
                parameter.main_grad.zero_()


def rows_of_rank(tokens: int, rank: int, world: int) -> slice:
    """The rows that `torch.chunk` gives to a rank; ranks at the end may have fewer, or none."""
    rows = -(-tokens // world)
    return slice(min(rank * rows, tokens), min((rank + 1) * rows, tokens))


def start(device: str) -> torch.device:
    """Joins the process group; ends with a message where that is impossible."""
    if "RANK" not in os.environ:
        sys.exit("start me with: python -m torch.distributed.run --nproc-per-node 4 examples/tp_mlp_train.py")
    local, world = int(os.environ["LOCAL_RANK"]), os.environ["WORLD_SIZE"]
    if device == "cuda" and torch.cuda.device_count() <= local:
        sys.exit(
            f"{world} ranks need as many GPUs, torch sees {torch.cuda.device_count()}; with --device cpu the same "
            "training runs through plain collectives"
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
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.5, help="of gradient descent on the mean squared error")
    parser.add_argument("--checkpoint", action="store_true", help="compute the forward again in the backward")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    tokens, width, hidden = options.tokens, options.width, options.hidden
    device = start(options.device)
    rank, world = dist.get_rank(), dist.get_world_size()
    if hidden % world or min(tokens, width, hidden, options.steps) < 1:
        sys.exit(f"sizes start at 1, and --hidden must be a multiple of {world}")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    # Every rank draws all the data, so that it can train the whole model as well, and keeps its own pieces.
    generator = torch.Generator(device).manual_seed(0)
    x, target, up, up_bias, down, down_bias = (
        (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)
        for shape, scale in (
            ((tokens, width), 1.0), ((tokens, width), 1.0), ((hidden, width), width**-0.5), ((hidden,), 1.0),
            ((width, hidden), hidden**-0.5), ((width,), 1.0),
        )
    )  # fmt: skip
    mine = rows_of_rank(tokens, rank, world)
    model = ShardedMLP(
        up.chunk(world)[rank], up_bias.chunk(world)[rank], down.chunk(world, 1)[rank], down_bias, tokens,
        options.checkpoint,
    )  # fmt: skip
    whole = [torch.nn.Parameter(p.clone()) for p in (up, up_bias, down, down_bias)]
    sharded_descent, whole_descent = Descent(model.parameters(), options.rate), Descent(whole, options.rate)

    worst = 0.0
    first = last = 0.0
    for _ in range(options.steps):
        y = model(x[mine])
        part = ((y.float() - target[mine].float()) ** 2).sum() / target.numel()
        part.backward()
        sharded_descent.step()
        loss = part.detach().clone()
        dist.all_reduce(loss)

        a, b, c, d = whole
        alone = ((F.gelu(x @ a.t() + b) @ c.t() + d).float() - target.float()).square().mean()
        alone.backward()
        whole_descent.step()
        last = loss.item()
        first = first or last
        difference = abs(last - alone.item()) / abs(alone.item())
        worst = max(worst, difference) if difference == difference else float("inf")

    from overlap.ops import last_plan

    dist.destroy_process_group()
    if not worst <= TOLERANCE[dtype]:
        sys.exit(f"rank {rank}: losses differ by {worst:.1e}, allowed {TOLERANCE[dtype]:.0e}")
    if rank == 0:
        print(
            f"ok: {options.steps} steps of an MLP of {tokens} x {width} x {hidden} on {world} ranks, loss {first:.3f} to "
            f"{last:.3f}, at most {worst:.1e} off the unsharded one; {last_plan('ag_gemm')}; {last_plan('gemm_rs')}"
        )


if __name__ == "__main__":
    main()
