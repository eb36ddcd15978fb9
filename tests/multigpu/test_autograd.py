"""Gradients of `ag_gemm` and `gemm_rs` on real GPUs, against autograd on the whole model in fp32.

Two stacked pairs share the group's workspaces: every forward and backward is four gathers and four scatters or more.
"""

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.ops import last_plan
from tests.support import tp_model
from tests.support.ranks import delay
from tests.support.tp_model import SLICED, Sizes, forward_sharded, forward_whole, leaves, piece, pieces, random

pytestmark = pytest.mark.usefixtures("one_folder")
FUSED = "copy_engine"
WEIGHTS = ("up", "gate", "down")
ALLOWED = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4}
"""Of the largest element of a gradient: activations are rounded between operators."""

SIZES = [
    Sizes((1024, 256), hidden=1024, dtype=torch.bfloat16, device="cuda"),
    Sizes((1030, 136), hidden=514, dtype=torch.float16, device="cuda"),
    Sizes((2, 515, 128), dim=1, hidden=384, dtype=torch.bfloat16, device="cuda"),
    Sizes((515, 100), hidden=260, dtype=torch.float32, device="cuda"),
    Sizes((3, 64), hidden=64, dtype=torch.float32, device="cuda"),
]


class Model:
    """The whole model in fp32 with its gradients, and this rank's pieces in the dtype of ``sizes``."""

    def __init__(self, sizes: Sizes, group, seed: int = 0) -> None:
        self.sizes, self.group = sizes, group
        parameters = tp_model.whole_parameters(sizes, seed)
        x, c = random(sizes.shape, seed + 1, sizes), random(sizes.shape, seed + 2, sizes)
        self.mine = pieces(leaves(parameters), group)
        self.shard = piece(x, sizes.dim, group).requires_grad_()
        self.c = piece(c, sizes.dim, group)
        self.whole = leaves([{name: p.float() for name, p in pair.items()} for pair in parameters])
        self.x = x.float().requires_grad_()
        self.y = forward_whole(self.whole, self.x)
        (self.y * c.float()).sum().backward()

    def step(self, **options) -> torch.Tensor:
        y = forward_sharded(self.mine, self.shard, self.sizes, self.group, backend=FUSED, **options)
        y.backward(self.c)
        return y

    def clear(self) -> None:
        self.shard.grad = None
        for pair in self.mine:
            for p in pair.values():
                p.grad = None

    def wrong(self, y: torch.Tensor) -> list[str]:
        """What is not right: names of gradients of pairs, ``x`` and ``y``."""
        dim = self.sizes.dim
        pairs = [("y", y, piece(self.y, dim, self.group)), ("x", self.shard.grad, piece(self.x.grad, dim, self.group))]
        for number, (own, every) in enumerate(zip(self.mine, self.whole, strict=True)):
            for name, p in own.items():
                got = p.grad if p.grad is not None else p.main_grad
                pairs.append((f"{name} {number}", got, piece(every[name].grad, SLICED[name], self.group)))
        allowed = ALLOWED[self.sizes.dtype]
        bad = []
        for name, got, wanted in pairs:
            near = (got.float() - wanted).abs().max() <= allowed * wanted.abs().max() if wanted.numel() else True
            if got.shape != wanted.shape or not near:
                bad.append(name)
        return bad


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: f"{'x'.join(map(str, s.shape))} {s.dtype}")
@pytest.mark.parametrize("save_gathered", [True, False])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_every_gradient_of_two_pairs(group, sizes, save_gathered, checkpointed):
    model = Model(sizes, group)
    y = model.step(save_gathered=save_gathered, checkpointed=checkpointed)
    assert not model.wrong(y)
    assert last_plan("ag_gemm").backend == last_plan("gemm_rs").backend == FUSED
    overlap.check(group)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_main_grads_add_up(group, dtype, checkpointed):
    """Four backwards into one fp32 main_grad, in place."""
    model = Model(Sizes((1030, 256), hidden=512, dtype=dtype, device="cuda"), group)
    places = {}
    for pair in model.mine:
        for name in WEIGHTS:
            pair[name].main_grad = torch.zeros_like(pair[name], dtype=torch.float32)
            places[pair[name]] = pair[name].main_grad.data_ptr()
    for _ in range(4):
        y = model.step(accumulate_main_grad=True, checkpointed=checkpointed)
    for pair in model.mine:
        for name in WEIGHTS:
            assert pair[name].grad is None and pair[name].main_grad.data_ptr() == places[pair[name]]
    model.shard.grad /= 4
    for pair in model.mine:
        for p in pair.values():
            (p.main_grad if p.grad is None else p.grad).div_(4)
    assert not model.wrong(y)
    overlap.check(group)


def test_fifty_steps_on_shared_workspaces(group):
    """Forward and backward of several shapes in turn, with ranks that lag; nothing is read back in between."""
    models = [Model(sizes, group, seed) for seed, sizes in enumerate(SIZES[:3])]
    for step in range(50):
        model = models[step % len(models)]
        model.clear()
        delay(step, dist.get_rank(group))
        y = model.step(save_gathered=step % 2 == 0, checkpointed=step % 5 == 0)
        if step >= 47:
            assert not model.wrong(y), step
    overlap.check(group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"checkpointed": True, "save_gathered": False}, {"accumulate_main_grad": True}]
)
@pytest.mark.parametrize("backend", [FUSED, "serial"])
def test_training_follows_the_unsharded_loss(group, dtype, options, backend):
    """Twenty steps of a two-layer MLP."""
    sizes = Sizes((1030, 64), hidden=256, pairs=1, dtype=dtype, device="cuda")
    sharded, unsharded = tp_model.losses(sizes, group, steps=20, rate=2.0, backend=backend, **options)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(sharded, unsharded, rtol=tolerance, atol=1e-6)
    assert unsharded[-1] < 0.7 * unsharded[0]
    overlap.check(group)


@pytest.mark.parametrize("named", [False, True])
def test_under_torch_compile(group, named):
    """Forward and backward traced whole give what eager mode gives."""
    model = Model(Sizes((1024, 128), hidden=512, pairs=1, dtype=torch.bfloat16, device="cuda"), group)
    if named:
        for pair in model.mine:
            for name in WEIGHTS:
                pair[name].main_grad = torch.zeros_like(pair[name], dtype=torch.float32)

    def forward(x):
        return forward_sharded(model.mine, x, model.sizes, group, backend=FUSED, named=named)

    torch._dynamo.reset()
    y = torch.compile(forward, fullgraph=True)(model.shard)
    y.backward(model.c)
    assert not model.wrong(y)
    overlap.check(group)


def test_backward_in_a_graph(group):
    """Forward and backward captured together, replayed with new data."""
    sizes = Sizes((1024, 128), hidden=512, dtype=torch.bfloat16, device="cuda")
    model = Model(sizes, group)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model.clear()
            model.step()
    torch.cuda.current_stream().wait_stream(side)
    model.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model.step()
    for seed in range(1, 6):
        other = Model(sizes, group, seed)
        with torch.no_grad():
            model.shard.copy_(other.shard)
            model.c.copy_(other.c)
            for own, new in zip(model.mine, other.mine, strict=True):
                for name, p in own.items():
                    p.copy_(new[name])
                    p.grad.fill_(float("nan"))
        graph.replay()
        other.mine, other.shard = model.mine, model.shard
        assert not other.wrong(y), seed
    overlap.check(group)
