"""Gradients on four real ranks over gloo, on the CPU; run by test_autograd.py with a folder and the names of checks.

Ranks are forks of this process, which has imported everything once. Worlds of one to four ranks are sub-groups. Every
check prints its name to the rank's file in the folder once it has passed there; a rank that fails ends all.
"""

import itertools
import os
import signal
import sys
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from overlap.errors import UsageError
from overlap.ops import ag_gemm, gemm_rs
from tests.support import tp_model
from tests.support.tp_model import SLICED, Sizes, forward_sharded, forward_whole, leaves, piece, pieces, random

TIGHT = dict(rtol=1e-9, atol=1e-9)
WORLDS = {"under_torch_compile": (2,), "refusals": (2,), "gradients_of_gradients": (1, 4), "main_grads": (1, 3),
          "finite_differences": (1, 3)}  # fmt: skip
"""Sizes of groups, where not every one from one to four."""


def total(value: torch.Tensor, group) -> float:
    """The sum over ranks."""
    value = value.detach().clone()
    dist.all_reduce(value, group=group)
    return value.item()


def oracle(sizes: Sizes):
    """Parameters, input and weights of the loss on one device, with their gradients."""
    whole = leaves(tp_model.whole_parameters(sizes))
    x = random(sizes.shape, 1, sizes).requires_grad_()
    c = random(sizes.shape, 2, sizes)
    (forward_whole(whole, x) * c).sum().backward()
    return whole, x, c


def same_gradients(mine, whole, group, tolerance) -> None:
    for own, every in zip(mine, whole, strict=True):
        for name, parameter in own.items():
            torch.testing.assert_close(parameter.grad, piece(every[name].grad, SLICED[name], group), **tolerance)
            assert parameter.grad.is_contiguous(), name


def check_every_gradient_of_two_pairs(group) -> None:
    """Every dimension, even and uneven pieces, fewer rows than ranks; x kept or gathered again; with checkpoints."""
    cases = {
        Sizes((8, 6)): [(False, True), (True, False)],
        Sizes((7, 6), hidden=10): [(False, False), (True, True)],
        Sizes((2, 6), hidden=3): [(False, True)],
        Sizes((5, 3, 6)): [(False, False)],
        Sizes((2, 7, 6), dim=1): [(True, False)],
        Sizes((3, 4, 2, 6), dim=1): [(False, True)],
        Sizes((2, 8, 6), dim=-2): [(False, False)],
    }
    for sizes, ways in cases.items():
        whole, x, c = oracle(sizes)
        for checkpointed, save_gathered in ways:
            mine = pieces(whole, group)
            shard = piece(x.detach(), sizes.dim, group).requires_grad_()
            y = forward_sharded(
                mine, shard, sizes, group, checkpointed=checkpointed, save_gathered=save_gathered
            )  # fmt: skip
            (y * piece(c, sizes.dim, group)).sum().backward()
            torch.testing.assert_close(y, piece(forward_whole(whole, x).detach(), sizes.dim, group), **TIGHT)
            torch.testing.assert_close(shard.grad, piece(x.grad, sizes.dim, group), **TIGHT)
            same_gradients(mine, whole, group, TIGHT)


def check_main_grads(group) -> None:
    """Gradients of weights are added to main_grad in fp32, and appear nowhere else; biases have theirs in grad."""
    sizes = Sizes((7, 6), hidden=10, dtype=torch.float32)
    whole, x, c = oracle(sizes)
    for checkpointed, save_gathered in itertools.product((False, True), repeat=2):
        mine = pieces(whole, group)
        before = {}
        for pair in mine:
            for name in ("up", "gate", "down"):
                pair[name].main_grad = before[pair[name]] = torch.randn_like(pair[name])
        shard = piece(x.detach(), 0, group).requires_grad_()
        for _ in range(2):
            kept = [{n: p.main_grad.clone() for n, p in pair.items() if hasattr(p, "main_grad")} for pair in mine]
            y = forward_sharded(
                mine, shard, sizes, group, checkpointed=checkpointed, save_gathered=save_gathered,
                accumulate_main_grad=True,
            )  # fmt: skip
            (y * piece(c, 0, group)).sum().backward()
            for pair, every, old in zip(mine, whole, kept, strict=True):
                for name, was in old.items():
                    wanted = piece(every[name].grad, SLICED[name], group)
                    torch.testing.assert_close(pair[name].main_grad - was, wanted, rtol=1e-4, atol=1e-4)
                    assert pair[name].grad is None and pair[name].main_grad is before[pair[name]]
        for pair, every in zip(mine, whole, strict=True):
            for name in ("up_bias", "down_bias"):
                wanted = piece(every[name].grad, SLICED[name], group)
                torch.testing.assert_close(pair[name].grad / 2, wanted, rtol=1e-4, atol=1e-4)


def check_results_that_nothing_depends_on(group) -> None:
    """One of two products, or the gathered x, or a single gradient is wanted."""
    sizes = Sizes((7, 6))
    w, v = random((6, 5), 3, sizes), random((6, 4), 4, sizes)
    whole = random(sizes.shape, 1, sizes)
    c, d = random((7, 5), 5, sizes), random((7, 6), 6, sizes)
    shard = piece(whole, 0, group)
    world = dist.get_world_size(group)
    rank = dist.get_rank(group)

    x = shard.clone().requires_grad_()
    (y, _), gathered = ag_gemm(x, [w, v], gather_size=7, group=group, return_gathered=True)
    assert y.requires_grad and gathered.requires_grad and gathered.equal(whole)
    ((y * c).sum() + (rank + 1) * (gathered * d).sum()).backward()
    wanted = world * c @ w.t() + d * sum(range(1, world + 1))
    torch.testing.assert_close(x.grad, piece(wanted, 0, group), **TIGHT)

    for save_gathered in (True, False):
        w_alone, bias = w.clone().requires_grad_(), torch.zeros(5, dtype=w.dtype, requires_grad=True)
        y, z = ag_gemm(
            shard, [v, w_alone], bias=[None, bias], gather_size=7, group=group, save_gathered=save_gathered
        )  # fmt: skip
        assert z.requires_grad
        (z * c).sum().backward()
        torch.testing.assert_close(w_alone.grad, whole.t() @ c, **TIGHT)
        torch.testing.assert_close(bias.grad, c.sum(0), **TIGHT)

    a = random((7, 3), 7 + rank, sizes)
    u = random((3, 5), 20 + rank, sizes)
    for wanted_of in ("x", "w", "bias"):
        given = {"x": a.clone(), "w": u.clone(), "bias": torch.zeros(5, dtype=a.dtype)}
        given[wanted_of].requires_grad_()
        y = gemm_rs(**given, group=group)
        (y * piece(c, 0, group)).sum().backward()
        wanted = {"x": c @ u.t(), "w": a.t() @ c, "bias": c.sum(0)}[wanted_of]
        torch.testing.assert_close(given[wanted_of].grad, wanted, **TIGHT)


def check_scatter_of_the_last_dimension(group) -> None:
    """And a result of another dtype than x's."""
    sizes = Sizes((2, 5, 6))
    rank = dist.get_rank(group)
    x = random((2, 5, 3), 30 + rank, sizes).requires_grad_()
    w = random((3, 7), 40 + rank, sizes).requires_grad_()
    bias = random((7,), 50, sizes).requires_grad_()
    c = random((2, 5, 7), 60, sizes)
    y = gemm_rs(x, w, bias=bias, scatter_dim=-1, group=group)
    (y * piece(c, 2, group)).sum().backward()
    for tensor, wanted in ((x, c @ w.t()), (w, x.flatten(0, 1).t() @ c.flatten(0, 1)), (bias, c.sum((0, 1)))):
        torch.testing.assert_close(tensor.grad, wanted, **TIGHT)

    x32 = x.detach().float().requires_grad_()
    y = gemm_rs(x32, w.detach().float(), scatter_dim=1, out_dtype=torch.float64, group=group)
    assert y.dtype == torch.float64
    (y * piece(c, 1, group)).sum().backward()
    assert x32.grad.dtype == torch.float32
    torch.testing.assert_close(x32.grad, (c @ w.t()).float(), rtol=1e-5, atol=1e-5)


def check_finite_differences(group) -> None:
    """fp64: every element that a rank holds is moved, and the summed loss of all ranks follows its gradient."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    for dim, shape in ((0, (4, 2)), (1, (2, 3, 2))):
        sizes = Sizes(shape, dim=dim, hidden=3, pairs=1)
        mine = pieces(tp_model.whole_parameters(sizes), group)
        shard = piece(random(shape, 1, sizes), dim, group).requires_grad_()
        c = piece(random(shape, 2, sizes), dim, group)

        def loss(shard=shard, mine=mine, sizes=sizes, c=c):
            return (forward_sharded(mine, shard, sizes, group).tanh() * c).sum()

        loss().backward()
        # A copied bias moves on every rank at once, as one parameter does.
        copied = [p for pair in mine for name, p in pair.items() if SLICED[name] is None]
        own = [shard] + [p for pair in mine for name, p in pair.items() if SLICED[name] is not None]
        for mover in range(world + 1):
            moving = (copied if mover == world else own) if rank == mover or mover == world else []
            numel = torch.tensor([sum(t.numel() for t in moving) if rank == mover % world else 0])
            dist.all_reduce(numel, group=group)
            places = [(t, i) for t in moving for i in range(t.numel())] or [(None, 0)] * int(numel)
            assert len(places) == int(numel)
            for tensor, i in places:
                values = []
                for step in (1e-6, -2e-6, 1e-6):
                    if tensor is not None:
                        tensor.data.view(-1)[i] += step
                    if len(values) < 2:
                        with torch.no_grad():
                            values.append(total(loss(), group))
                if tensor is not None:
                    slope, said = (values[0] - values[1]) / 2e-6, tensor.grad.view(-1)[i].item()
                    assert abs(slope - said) <= 1e-6 * (1 + abs(said)), (tensor.shape, i, slope, said)


def check_gradients_of_gradients(group) -> None:
    """The gradient of a function of gradients is that of the unsharded model."""
    for save_gathered in (True, False):
        sizes = Sizes((5, 4), hidden=5)
        whole = leaves(tp_model.whole_parameters(sizes))
        x, c = random(sizes.shape, 1, sizes).requires_grad_(), random(sizes.shape, 2, sizes)
        mine, shard = pieces(whole, group), piece(x.detach(), 0, group).requires_grad_()

        def second(pairs, x, y, c):
            # A bias of which every rank holds a copy counts on each: left out of what is differentiated again.
            of = [x, *[p for pair in pairs for name, p in pair.items() if SLICED[name] is not None]]
            first = torch.autograd.grad((y.tanh() * c).sum(), of, create_graph=True)
            torch.autograd.backward(sum((g**3).sum() for g in first))

        second(whole, x, forward_whole(whole, x), c)
        y = forward_sharded(mine, shard, sizes, group, save_gathered=save_gathered)
        second(mine, shard, y, piece(c, 0, group))
        torch.testing.assert_close(shard.grad, piece(x.grad, 0, group), rtol=1e-8, atol=1e-8)
        for own, every in zip(mine, whole, strict=True):
            for name, parameter in own.items():
                if SLICED[name] is not None:
                    wanted = piece(every[name].grad, SLICED[name], group)
                    torch.testing.assert_close(parameter.grad, wanted, rtol=1e-8, atol=1e-8)


def check_training_follows_the_unsharded_loss(group) -> None:
    """Twenty steps of a two-layer MLP: the same losses, whichever way gradients are kept and summed."""
    sizes = Sizes((13, 16), hidden=24, pairs=1, dtype=torch.float32)
    for options in ({}, {"checkpointed": True, "save_gathered": False}, {"accumulate_main_grad": True}):
        sharded, unsharded = tp_model.losses(sizes, group, steps=20, **options)
        torch.testing.assert_close(sharded, unsharded, rtol=1e-4, atol=1e-6)
        assert unsharded[-1] < 0.5 * unsharded[0]


def check_under_torch_compile(group) -> None:
    """Forward and backward traced whole: the gradients of eager mode, main_grad included."""
    for named, save_gathered in ((False, True), (True, False)):
        sizes = Sizes((2, 6, 6), dim=1, pairs=1, dtype=torch.float32)
        whole, x, c = oracle(sizes)
        found = []
        for compiled in (False, True):
            torch._dynamo.reset()
            mine, shard = pieces(whole, group), piece(x.detach(), 1, group).requires_grad_()
            for pair in mine:
                for name in ("up", "gate", "down"):
                    pair[name].main_grad = torch.zeros_like(pair[name])

            def step(shard, mine=mine, sizes=sizes, named=named, save_gathered=save_gathered):
                return forward_sharded(
                    mine, shard, sizes, group, save_gathered=save_gathered, named=named
                )  # fmt: skip

            if compiled:
                step = torch.compile(step, fullgraph=True, backend="aot_eager")
            y = step(shard)
            (y * piece(c, 1, group)).sum().backward()
            found.append(
                [y, shard.grad]
                + [p.grad for pair in mine for p in pair.values() if p.grad is not None]
                + [p.main_grad for pair in mine for p in pair.values() if hasattr(p, "main_grad")]
            )
        assert len(found[0]) == len(found[1])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def check_refusals(group) -> None:
    x = torch.randn(2, 4, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(3, 4))
    y = torch.empty(2 * dist.get_world_size(group), 3)
    with pytest.raises(UsageError, match="out= has no gradient"):
        ag_gemm(x, w.t(), out=y, group=group)
    with pytest.raises(UsageError, match="out= has no gradient"):
        gemm_rs(x, w.t(), out=y, group=group)
    for give in (lambda: None, lambda: torch.zeros(4, 3), lambda: torch.zeros(3, 4, dtype=torch.int32)):
        w.main_grad = give()
        for operator in (ag_gemm, gemm_rs):
            with pytest.raises(UsageError, match="main_grad"):
                operator(x, w.t(), accumulate_main_grad=True, group=group)
    with torch.no_grad():
        assert F.relu(ag_gemm(x, w.t(), out=y, accumulate_main_grad=True, group=group)).shape == y.shape


def run_rank(rank: int, world: int, folder: str, checks: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(seconds=100)
    )
    groups = [dist.new_group(list(range(size))) for size in range(1, world)] + [dist.group.WORLD]
    for name in checks:
        check = globals()[f"check_{name}"]
        for size in WORLDS.get(name, range(1, world + 1)):
            if rank < size:
                check(groups[size - 1])
        dist.barrier()
        print(f"passed: {name}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    world, folder, checks = 4, sys.argv[1], sys.argv[2:]
    children = []
    for rank in range(world):
        child = os.fork()
        if child:
            children.append(child)
            continue
        status = 1
        try:
            with open(f"{folder}/rank{rank}.txt", "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            run_rank(rank, world, folder, checks)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    failed = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = 1
            for other in children:
                os.kill(other, signal.SIGKILL)
    sys.exit(failed)


if __name__ == "__main__":
    main()
