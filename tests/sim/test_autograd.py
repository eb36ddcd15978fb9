"""The formulas of `grad_pair` on simulated ranks: two stacked pairs, forward and backward, on shared workspaces.

Autograd's engine is one for all simulated ranks, so the chain rule between operators is written out here; what the engine
does with the same formulas is tested on real ranks. The oracle is autograd on the whole model in fp64.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from overlap.chunkplan.region import shard_interval
from overlap.ops import ag_gemm, gemm_rs, last_plan
from overlap.ops.grad_pair import Half, Needs, ag_gemm_gradients, gemm_rs_gradients
from overlap.ops.grad_weights import MainGrad
from overlap.sim import World

pytestmark = pytest.mark.one_triton

SLICED = {"up": 1, "gate": 1, "up_bias": 0, "down": 0, "down_bias": None}
ALL = Needs(True, (True, True), (True, False))


def model(shape, hidden, dtype, pairs=2):
    """Parameters in `dtype`, input, and the weights of the loss."""
    generator = torch.Generator().manual_seed(hidden)
    width = shape[-1]

    def random(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    parameters = [
        {
            "up": random(width, hidden, scale=width**-0.5),
            "gate": random(width, hidden, scale=width**-0.5),
            "up_bias": random(hidden),
            "down": random(hidden, width, scale=hidden**-0.5),
            "down_bias": random(width),
        }
        for _ in range(pairs)
    ]
    return parameters, random(*shape), random(*shape)


def whole_gradients(parameters, x, c):
    """Results and gradients of the whole model in fp64."""
    pairs = [{name: p.double().requires_grad_() for name, p in pair.items()} for pair in parameters]
    first = x = x.double().requires_grad_()
    for p in pairs:
        x = (F.silu(x @ p["gate"]) * (x @ p["up"] + p["up_bias"])) @ p["down"] + p["down_bias"]
    (x * c.double()).sum().backward()
    return x.detach(), first.grad, [{name: p.grad for name, p in pair.items()} for pair in pairs]


def piece(tensor, dim, world, rank):
    """A rank's own copy: no pointer need reach it."""
    if dim is None:
        return tensor.clone()
    low, high = shard_interval(tensor.shape[dim], world, rank)
    return tensor.narrow(dim, low, high - low).clone()


def run(
    world,
    shape,
    hidden,
    *,
    dim=0,
    dtype=torch.float32,
    save_gathered=True,
    main_grad=False,
    seed=0,
    steps=1,
    backend=None,
):
    parameters, x, c = model(shape, hidden, dtype)
    size = shape[dim]

    def step(group, mine, x, dy, sums):
        half = Half(dim, size, group, backend)
        kept = []
        for p in mine:
            result = ag_gemm(
                x, [p["up"], p["gate"]], bias=[p["up_bias"], None], gather_dim=dim, gather_size=size, group=group,
                return_gathered=save_gathered, backend=backend,
            )  # fmt: skip
            (up, gate), gathered = result if save_gathered else (result, None)
            gated = gate * torch.sigmoid(gate)
            h = gated * up
            y = gemm_rs(h, p["down"], bias=p["down_bias"], scatter_dim=dim, group=group, backend=backend)
            kept.append((x, gathered, up, gate, gated, h))
            x = y
        gradients = []
        for p, into, (x, gathered, up, gate, gated, h) in zip(
            reversed(mine), reversed(sums), reversed(kept), strict=True
        ):
            needs = Needs(True, (True,), (True,))
            into = [MainGrad(t) for t in into]
            dh, down, down_bias = gemm_rs_gradients(half, needs, h, p["down"], dy, into[:1])
            sigmoid = torch.sigmoid(gate)
            dgate = dh * up * (sigmoid + gated * (1 - sigmoid))
            dy, (dup_w, dgate_w), (up_bias, _) = ag_gemm_gradients(
                half, ALL, x, [p["up"], p["gate"]], gathered, [dh * gated, dgate], None, into[1:]
            )
            gradients.insert(
                0, {"up": dup_w, "gate": dgate_w, "up_bias": up_bias, "down": down, "down_bias": down_bias}
            )
        return y, dy, gradients

    def body(group):
        rank = group.overlap_runtime.rank
        mine = [{name: piece(p, SLICED[name], world, rank) for name, p in pair.items()} for pair in parameters]
        sums = [
            [torch.ones(p[name].shape, dtype=torch.float32) for name in ("down", "up", "gate")] if main_grad else []
            for p in mine
        ]
        for _ in range(steps):
            y, dx, gradients = step(group, mine, piece(x, dim, world, rank), piece(c, dim, world, rank), sums)
        group.overlap_runtime.synchronize()
        return y, dx, gradients, sums

    far = {"node_ranks": 1} if backend == "nvshmem" else {}
    results = World(world, seed=seed, **far).run(body)
    said = last_plan("gemm_rs")
    assert said.backend == last_plan("ag_gemm").backend == (backend or "copy_engine")
    whole_y, whole_dx, whole = whole_gradients(parameters, x, c)
    allowed = {torch.float32: 1e-4, torch.bfloat16: 4e-2}[dtype]
    for rank, (y, dx, gradients, sums) in enumerate(results):
        close(y, piece(whole_y, dim, world, rank), allowed)
        close(dx, piece(whole_dx, dim, world, rank), allowed)
        for own, every, into in zip(gradients, whole, sums, strict=True):
            if main_grad:
                for name, total in zip(("down", "up", "gate"), into, strict=True):
                    assert own[name] is None
                    own[name] = (total - 1) / steps
            for name, gradient in own.items():
                close(gradient, piece(every[name], SLICED[name], world, rank), allowed)


def close(got, wanted, allowed):
    """Close to the size of the whole tensor; NaN is not."""
    assert got.shape == wanted.shape
    if wanted.numel():
        assert ((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-3)).item() <= allowed


CASES = {
    "ragged rows": dict(world=3, shape=(37, 16), hidden=21),
    "inner dimension, gathered again": dict(world=2, shape=(2, 19, 16), hidden=24, dim=1, save_gathered=False),
    "a rank without columns": dict(world=4, shape=(8, 8), hidden=5),
    "bf16 into main_grad": dict(world=2, shape=(32, 16), hidden=32, dtype=torch.bfloat16, main_grad=True, steps=2),
    "every rank a node": dict(world=2, shape=(5, 8), hidden=8, backend="nvshmem"),
    "one rank": dict(world=1, shape=(9, 8), hidden=8, save_gathered=False),
}


@pytest.mark.parametrize("name", CASES)
def test_every_gradient_of_two_pairs(name):
    run(**CASES[name], seed=len(name))


def test_nothing_is_recorded_on_simulated_ranks():
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)

    def body(group):
        y = ag_gemm(x, w, group=group)
        group.overlap_runtime.synchronize()
        return y.grad_fn

    assert World(2).run(body) == [None, None]
