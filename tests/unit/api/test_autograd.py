"""Gradients of `ag_gemm` and `gemm_rs` on real ranks, four processes over gloo, and what needs no other rank."""

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap.errors import UsageError
from overlap.ops import ag_gemm, gemm_rs
from overlap.ops.grad_weights import MainGrad, main_grad_of, main_grads_of, weight_gradient
from tests.support.forked import run_alone

CHECKS = (
    "every_gradient_of_two_pairs",
    "main_grads",
    "results_that_nothing_depends_on",
    "scatter_of_the_last_dimension",
    "finite_differences",
    "gradients_of_gradients",
    "training_follows_the_unsharded_loss",
    "under_torch_compile",
    "refusals",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each of four ranks printed."""
    script, folder = Path(__file__).with_name("autograd_ranks.py"), tmp_path_factory.mktemp("ranks")
    cache = str(folder / "cache")
    done = run_alone(script, str(folder), *CHECKS, cwd=folder, timeout=400, OVERLAP_CACHE_DIR=cache)
    assert not done.stderr, done.stderr
    return [(folder / f"rank{rank}.txt").read_text() for rank in range(4)]


@pytest.mark.parametrize("check", CHECKS)
def test_on_one_to_four_ranks(outputs, check):
    for output in outputs:
        assert f"passed: {check}\n" in output, "\n".join(outputs)


def test_one_device_without_a_group():
    """The gradients of linear layers, recorded around the direct call."""
    x = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    w, bias = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    for operator, node in ((ag_gemm, "AgGemmBackward"), (gemm_rs, "GemmRsBackward")):
        y = operator(x, w.t(), bias=bias)
        assert y.grad_fn.name() == node
        assert torch.autograd.gradcheck(lambda x, w, b, f=operator: f(x, w.t(), bias=b), _leaves(x, w, bias))
        assert torch.autograd.gradgradcheck(lambda x, w, b, f=operator: f(x, w.t(), bias=b), _leaves(x, w, bias))


def test_gradients_that_come_as_views_of_complex_numbers():
    """Such a view is the negative of its memory, which kernels would read; no caller sees it."""
    x, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)

    def energy(y):
        return (torch.complex(torch.ones_like(y), y).conj() ** 2).real.sum()

    for operator in (ag_gemm, gemm_rs):
        seen, leaves = [], _leaves(x, w)
        y = operator(*leaves)
        y.register_hook(lambda dy, seen=seen: seen.append(dy.is_neg()))
        energy(y).backward()
        wanted = torch.autograd.grad(energy(x.requires_grad_() @ w.requires_grad_()), (x, w))
        torch.testing.assert_close([leaf.grad for leaf in leaves], list(wanted))
        assert seen == [True]


def _leaves(*tensors):
    return [t.detach().requires_grad_() for t in tensors]


def test_what_is_kept():
    """The gathered x, or this rank's shard of it; nothing but weights where no weight has a gradient."""
    x, w = torch.randn(5, 6), torch.randn(6, 7)

    def kept(x, w, **options):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(tuple(t.shape)) or t, lambda t: t):
            result = ag_gemm(x, w, **options)
        return sizes, result

    held, y = kept(*_leaves(x, w))
    assert held == [(5, 6), (6, 7)]
    gathered = y.grad_fn.saved_tensors[1]
    assert gathered.equal(x) and gathered.data_ptr() != x.data_ptr()
    x2, w2 = _leaves(x, w)
    held, y = kept(x2, w2, save_gathered=False)
    assert held == [(5, 6), (6, 7)] and y.grad_fn.saved_tensors[0].data_ptr() == x2.data_ptr()
    assert kept(x.requires_grad_(), w)[0] == [(6, 7)]


def test_a_main_grad_is_summed_before_it_is_rounded():
    generator = torch.Generator().manual_seed(0)
    a, dy = (torch.randn(300, n, generator=generator).bfloat16() for n in (16, 8))
    start = torch.randn(16, 8, generator=generator)
    wanted = start.double() + a.double().t() @ dy.double()
    for weight, into in ((a.new_empty(16, 8), start.clone()), (a.new_empty(8, 16).t(), start.t().clone().t())):
        assert weight_gradient(a, dy, weight, MainGrad(into)) is None
        torch.testing.assert_close(into.double(), wanted, rtol=1e-6, atol=1e-5)
        plain = weight_gradient(a, dy, weight, None)
        assert plain.dtype == torch.bfloat16 and plain.stride() == weight.stride()
        torch.testing.assert_close(plain.double(), wanted - start.double(), rtol=2**-8, atol=1e-4)


def test_sixteen_bit_products_on_a_gpu_are_one_operator_to_a_tracer():
    def add(a, dy, into):
        weight_gradient(a, dy, a, MainGrad(into))
        return into

    with FakeTensorMode():
        a, dy = (torch.empty(30, n, device="cuda", dtype=torch.bfloat16) for n in (16, 8))
        into = torch.zeros(16, 8, device="cuda")
        graph = make_fx(add)(a, dy, into).graph
    assert "overlap.add_product.default" in [str(node.target) for node in graph.nodes]


def test_the_main_grad_of_a_view():
    parameter = torch.nn.Parameter(torch.randn(6, 4))
    parameter.main_grad = torch.zeros(6, 4)
    views = {
        "itself": lambda t: t,
        "transposed": lambda t: t.t(),
        "rows": lambda t: t[2:5],
        "part": lambda t: t.t()[1:3],
    }
    for name, view in views.items():
        found = main_grad_of(view(parameter)).tensor
        view(parameter.main_grad).fill_(1.0)
        assert found.equal(torch.ones_like(found)) and found.stride() == view(parameter).stride(), name
        assert parameter.main_grad.sum() == found.numel(), name
        parameter.main_grad.zero_()


def test_main_grads_that_do_not_fit():
    def parameter(main_grad):
        made = torch.nn.Parameter(torch.randn(6, 4))
        made.main_grad = main_grad
        return made

    fits = parameter(torch.zeros(6, 4))
    for weight, said in (
        (torch.nn.Parameter(torch.randn(6, 4)).t(), "weight 0 has no main_grad"),
        (fits.double(), "weight 0 has no main_grad"),
        (parameter(torch.zeros(4, 6)).t(), r"is \(4, 6\) on cpu, the weight \(6, 4\)"),
        (parameter(torch.zeros(6, 4, dtype=torch.int32)), "is torch.int32"),
        (parameter(torch.zeros(6, 4, requires_grad=True)), "requires a gradient itself"),
        (parameter(torch.zeros(4, 6).t()).t(), r"strides \(4, 1\), whose main_grad has \(1, 6\)"),
    ):
        with pytest.raises(UsageError, match=said):
            main_grads_of([weight], True)
    with pytest.raises(UsageError, match="1 tensors for 2 weights"):
        main_grads_of([fits, fits], [torch.zeros(6, 4)])
    with pytest.raises(UsageError, match="weight 1 has no main_grad"):
        main_grads_of([fits, fits], [torch.zeros(6, 4), None])
    frozen = torch.zeros(6, 4)
    assert main_grads_of([frozen, fits], [None, fits.main_grad])[1].tensor is fits.main_grad
    assert len(main_grads_of([frozen, fits], True)) == 2


def test_the_mark_of_megatron():
    """A parameter that carries it is told, and gets zeros as its gradient, so that hooks run."""
    x, w = torch.randn(5, 6), torch.nn.Parameter(torch.randn(7, 6))
    w.main_grad, w.grad_added_to_main_grad = torch.zeros(7, 6), False
    hooked = []
    w.register_post_accumulate_grad_hook(lambda p: hooked.append(p.grad.clone()))
    ag_gemm(x, w.t(), accumulate_main_grad=True).sum().backward()
    assert w.grad_added_to_main_grad and [h.abs().max() for h in hooked] == [0]
    torch.testing.assert_close(w.main_grad, x.sum(0).expand(7, 6))


def test_no_gradient_no_node():
    x, w = torch.randn(5, 6, requires_grad=True), torch.randn(6, 7)
    with torch.no_grad():
        assert ag_gemm(x, w).grad_fn is None
    assert gemm_rs(x.detach(), w, accumulate_main_grad=True).grad_fn is None


@pytest.mark.parametrize("operator", [ag_gemm, gemm_rs])
def test_autocast_changes_nothing(operator):
    """Forward and backward keep to the operands' dtype."""
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)
        x, w, bias = _leaves(torch.randn(5, 6), torch.randn(7, 6), torch.randn(7))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = operator(x, w.t(), bias=bias)
            y.square().sum().backward()
        found.append([y, x.grad, w.grad, bias.grad])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
