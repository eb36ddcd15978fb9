"""A tensor-parallel model of stacked column and row pairs, and the same model on one device: tests compare them.

    a pair    x -> x + (silu(x @ gate.t()) * (x @ up.t() + up_bias)) @ down.t() + down_bias

Every rank draws the whole model from one seed and keeps its slices: rows of ``up`` and ``gate``, columns of ``down``.
Activations between pairs are sharded along one dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from overlap.chunkplan.region import shard_interval
from overlap.ops import ag_gemm, gemm_rs

SLICED = {"up": 0, "gate": 0, "up_bias": 0, "down": 1, "down_bias": None}
"""Parameters of a pair, and the dimension that ranks share out; None for a copy on every rank."""


@dataclass(frozen=True)
class Sizes:
    """``shape``: of the whole input [..., D], sharded along ``dim``; ``hidden``: over all ranks."""

    shape: tuple[int, ...]
    dim: int = 0
    hidden: int = 12
    pairs: int = 2
    dtype: torch.dtype = torch.float64
    device: str = "cpu"


def whole_parameters(sizes: Sizes, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """The parameters of every pair, alike on every rank."""
    width, hidden = sizes.shape[-1], sizes.hidden
    shapes = {"up": (hidden, width), "gate": (hidden, width), "up_bias": (hidden,), "down": (width, hidden),
              "down_bias": (width,)}  # fmt: skip
    return [
        {
            name: random(shape, seed * 1000 + pair * 10 + i, sizes) * shape[-1] ** -0.5
            for i, (name, shape) in enumerate(shapes.items())
        }
        for pair in range(sizes.pairs)
    ]


def random(shape: tuple[int, ...], seed: int, sizes: Sizes) -> torch.Tensor:
    """The same on every rank and device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(sizes.device, sizes.dtype)


def piece(tensor: torch.Tensor, dim: int | None, group: Any) -> torch.Tensor:
    """This rank's slice, in memory of its own."""
    if dim is None:
        return tensor.clone()
    low, high = shard_interval(tensor.shape[dim], dist.get_world_size(group), dist.get_rank(group))
    return tensor.narrow(dim, low, high - low).clone(memory_format=torch.contiguous_format)


def leaves(pairs: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [{name: torch.nn.Parameter(p) for name, p in pair.items()} for pair in pairs]


def pieces(pairs: list[dict[str, torch.Tensor]], group: Any) -> list[dict[str, torch.Tensor]]:
    """This rank's slices of every parameter, as parameters."""
    return leaves([{name: piece(p.detach(), SLICED[name], group) for name, p in pair.items()} for pair in pairs])


def forward_whole(pairs: list[dict[str, torch.Tensor]], x: torch.Tensor) -> torch.Tensor:
    for p in pairs:
        h = F.silu(x @ p["gate"].t()) * (x @ p["up"].t() + p["up_bias"])
        x = x + h @ p["down"].t() + p["down_bias"]
    return x


def forward_sharded(
    pairs: list[dict[str, torch.Tensor]],
    x: torch.Tensor,
    sizes: Sizes,
    group: Any,
    *,
    checkpointed: bool = False,
    save_gathered: bool = True,
    accumulate_main_grad: bool = False,
    named: bool = False,
    backend: str | None = None,
) -> torch.Tensor:
    """This rank's piece of `forward_whole`, from its piece ``x``; ``named`` passes the main_grads themselves."""
    gathers = dict(gather_dim=sizes.dim, gather_size=sizes.shape[sizes.dim], save_gathered=save_gathered)
    ways = dict(group=group, backend=backend)

    def sums(*weights: torch.Tensor) -> dict[str, Any]:
        of = [w.main_grad.t() for w in weights] if named else accumulate_main_grad
        return {**ways, "accumulate_main_grad": of}

    def one(x: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
        wide = [p["up"].t(), p["gate"].t()]
        up, gate = ag_gemm(x, wide, bias=[p["up_bias"], None], **gathers, **sums(p["up"], p["gate"]))
        h, down = F.silu(gate) * up, p["down"]
        return x + gemm_rs(h, down.t(), bias=p["down_bias"], scatter_dim=sizes.dim, **sums(down))

    for p in pairs:
        x = checkpoint(one, x, p, use_reentrant=False) if checkpointed else one(x, p)
    return x


def losses(
    sizes: Sizes, group: Any, steps: int, rate: float = 0.5, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of plain gradient descent on this rank's pieces, summed over ranks, and those of the whole model.

    Args:
        options: for `forward_sharded`; with ``accumulate_main_grad`` weights are updated from their fp32 main_grad.
    """
    x, target = random(sizes.shape, 3, sizes), random(sizes.shape, 4, sizes)
    whole = leaves(whole_parameters(sizes))
    mine = pieces(whole, group)
    accumulate = options.get("accumulate_main_grad", False)
    shard, wanted = piece(x, sizes.dim, group), piece(target, sizes.dim, group)
    found: list[list[float]] = [[], []]
    for _ in range(steps):
        if accumulate:
            for pair in mine:
                for name in ("up", "gate", "down"):
                    pair[name].main_grad = torch.zeros_like(pair[name], dtype=torch.float32)
        y = forward_sharded(mine, shard, sizes, group, **options)
        partial = ((y - wanted).float() ** 2).sum() / x.numel()
        partial.backward()
        summed = partial.detach().clone()
        dist.all_reduce(summed, group=group)
        loss = ((forward_whole(whole, x) - target).float() ** 2).mean()
        loss.backward()
        for values, value in zip(found, (summed, loss), strict=True):
            values.append(value.item())
        with torch.no_grad():
            for pair in (*mine, *whole):
                for p in pair.values():
                    gradient = p.grad if p.grad is not None else p.main_grad.to(p.dtype)
                    p -= rate * gradient
                    p.grad = None
    return torch.tensor(found[0]), torch.tensor(found[1])
