"""Operators whose result is communicated, and those around exchanges: arguments that cannot be meant, views, tracing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap.errors import PlanError, RuntimeContractError, UsageError
from overlap.ops import a2a_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan
from overlap.ops.arguments import check_heads
from overlap.ops.reduce_gemm import ONE_SHOT, TWO_SHOT, default_plan
from overlap.ops.views import scatter_view

X, W = torch.randn(6, 8), torch.randn(8, 12)
PIECE = torch.randn(6, 2)
"""A rank's piece of eight columns over four ranks."""

SHARED = torch.randn(6, 12)


@pytest.mark.parametrize("operator", [gemm_rs, gemm_ar, gemm_a2a])
@pytest.mark.parametrize(
    ("positional", "options", "said"),
    [
        ((X, W.t()), {}, r"the weight has shape \(12, 8\), x has \(6, 8\).*weight.t\(\)"),
        ((X[0], W), {}, "x has 1 dimensions"),
        ((X, W[0]), {}, "the weight has shape"),
        ((X, W.double()), {}, "the weight is torch.float64, x is torch.float32"),
        ((X, W), dict(bias=W[:, 0]), r"the bias has shape \(8,\)"),
        ((X, W), dict(bias=W[0].half()), "the bias is torch.float16"),
        ((X, W), dict(backend="copy_engin"), "did you mean 'copy_engine'"),
        ((X, W), dict(backend="copy_engine"), "copy_engine is impossible here.*cpu"),
        ((X, torch._neg_view(W)), {}, "the weight is a negated view.*resolve_neg"),
        ((X, W), dict(out=torch.empty(1, 1)), r"out is \(1, 1\)"),
        ((X, W), dict(out=[torch.empty(6, 12)]), "out is a list"),
        ((X, W), dict(out=torch.empty(6, 12).requires_grad_()), "out requires a gradient.*detach"),
        ((X, W), dict(backend=3), "backend is a int.*backends: copy_engine"),
        ((X, W), dict(backend=["serial"]), "backend is a list.*backends: copy_engine"),
        ((X, W), dict(plan=3), "plan is a int.*name of a plan template"),
        ((X, W), dict(plan={}), "plan is a dict.*name of a plan template"),
        ((X, W), dict(out_dtype=torch.int8), "the result is torch.int8.*they take float16"),
        ((X, W), dict(transport_dtype=torch.float8_e4m3fn), "transport_dtype is torch.float8_e4m3fn.*bfloat16"),
        ((X.to(torch.complex64), W.to(torch.complex64)), {}, "x is torch.complex64"),
        (
            (X, W),
            dict(out=torch.empty(6, 12), out_dtype=torch.float64),
            "out is torch.float32, out_dtype is torch.float64",
        ),
    ],
)
def test_refused_with_what_to_write(fake_group, operator, positional, options, said):
    with pytest.raises(UsageError, match="(?s)" + said):
        operator(*positional, **options, group=fake_group)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g: gemm_rs(X, W, scatter_dim=2, group=g), "scatter_dim=2, x has 2 dimensions.*one of 0 to 1"),
        (lambda g: gemm_rs(X, W, scatter_dim=-3, group=g), "scatter_dim=-3"),
        (lambda g: gemm_rs(X, W, scatter_dim=True, group=g), "scatter_dim=True"),
        (lambda g: a2a_gemm(PIECE, W, scatter_dim=1, group=g), "scatter_dim=1, x has 2 dimensions.*one of 0 to 0"),
        (lambda g: gemm_a2a(X, W, gather_dim=-1, group=g), "gather_dim=-1"),
        (lambda g: gemm_rs(X, W, out=torch.empty(12, 2).t(), group=g), "contiguous"),
        (lambda g: gemm_ar(SHARED[:, :8], W, out=SHARED, group=g), "out shares memory with an operand"),
        (lambda g: gemm_ar(X, W, bias=SHARED[5], out=SHARED, group=g), "out shares memory with an operand"),
        (lambda g: a2a_gemm(PIECE, W, heads=3, group=g), "heads=3 do not make up K=8"),
        (lambda g: a2a_gemm(PIECE, W, heads=2, group=g), "2 heads cannot be shared evenly by 4 ranks.*pad K"),
        (lambda g: gemm_a2a(X, W, heads=6, group=g), "6 heads cannot be shared evenly by 4 ranks.*pad N"),
        (lambda g: gemm_a2a(X, W, heads=0, group=g), "heads=0"),
        (lambda g: a2a_gemm(PIECE, W, out=torch.empty(2, 12).requires_grad_(), group=g), "out requires a gradient"),
        (lambda g: ag_gemm_k(PIECE, W, out=[torch.empty(6, 12)], group=g), "out is a list"),
        (lambda g: ag_gemm_k(PIECE, W, backend="copy_engine", group=g), "copy_engine is impossible here.*cpu"),
    ],
)
def test_what_only_some_take_is_refused(fake_group, call, said):
    with pytest.raises(UsageError, match="(?s)" + said):
        call(fake_group)


@pytest.mark.parametrize(
    ("operator", "x"), [(gemm_rs, X), (gemm_ar, X), (gemm_a2a, X), (ag_gemm_k, PIECE), (a2a_gemm, PIECE)]
)
def test_a_plan_that_there_is_not_is_refused_by_calls_that_need_none(fake_group, operator, x):
    with pytest.raises(PlanError, match="unknown plan `ring`"):
        operator(x, W, plan="ring", group=fake_group)


def test_a_result_that_requires_a_gradient_is_written_where_none_is_recorded(fake_group):
    out = torch.empty(6, 12).requires_grad_()
    with torch.no_grad():
        assert gemm_ar(X, W, out=out, group=fake_group) is out


def test_a_refused_call_has_written_nothing(fake_group):
    before = SHARED.clone()
    with pytest.raises(UsageError):
        gemm_ar(SHARED[:, :8], W, out=SHARED, group=fake_group)
    assert torch.equal(SHARED, before)


@pytest.mark.parametrize(
    "call",
    [
        lambda g: a2a_gemm(X, W, group=g),
        lambda g: ag_gemm_k(X, W, group=g),
        lambda g: gemm_a2a(X, W, gather_size=23, group=g),
        lambda g: gemm_a2a(X, W, gather_size=-4, group=g),
    ],
)
def test_a_tensor_that_is_not_the_ranks_piece(fake_group, call):
    """Among them K split unevenly where the weight says it is even."""
    if call.__code__.co_consts and 23 in call.__code__.co_consts:
        with pytest.raises(RuntimeContractError, match="rank 1 of 4: the piece of 22 .* is 6|x has 5"):
            gemm_a2a(X[:5], W, gather_size=22, group=fake_group)
        return
    with pytest.raises(RuntimeContractError, match="rank 1 of 4: the piece of"):
        call(fake_group)


def test_heads_that_ranks_can_share():
    check_heads(None, 7, 4, "K")
    check_heads(8, 64, 4, "K")


@pytest.mark.parametrize(
    ("lead", "dim", "wanted"),
    [
        ((8,), 0, (1, 8, 5, "M", (2, 5))),
        ((8,), 1, (1, 8, 5, "N", (8, 2))),
        ((7,), 0, (1, 7, 5, "M", (2, 5))),
        ((3, 8), 1, (3, 8, 5, "M", (3, 2, 5))),
        ((3, 7), 1, (3, 7, 5, "M", (3, 2, 5))),
        ((8, 3), 0, (1, 24, 5, "M", (2, 3, 5))),
        ((7, 3), 0, (7, 3, 5, "B", (2, 3, 5))),
        ((2, 7, 3), 2, (14, 3, 5, "M", (2, 7, 1, 5))),
        ((2, 7, 3), 3, (1, 42, 5, "N", (2, 7, 3, 2))),
    ],
)
def test_views_of_results_cover_every_dimension(lead, dim, wanted):
    view = scatter_view(lead, 5, dim, 4, 1)
    assert (view.batch, view.rows, view.columns, view.along, view.shape) == wanted and view.possible
    out = torch.empty(view.shape)
    part = view.shard(out)
    assert part.dim() == 3 and part.data_ptr() == out.data_ptr() and part.numel() == out.numel()
    assert view.left(torch.empty(*lead, 9)).shape == (view.batch, view.rows, 9)


def test_uneven_pieces_between_two_dimensions_need_a_collective(fake_group):
    assert not scatter_view((2, 7, 3), 5, 1, 4, 1).possible
    assert gemm_rs(torch.randn(2, 7, 3, 8), W, scatter_dim=1, group=fake_group).shape == (2, 2, 3, 12)
    assert a2a_gemm(torch.randn(2, 7, 3, 2), W, scatter_dim=1, group=fake_group).shape == (2, 2, 3, 12)
    assert gemm_a2a(torch.randn(2, 2, 3, 8), W, gather_dim=1, gather_size=7, group=fake_group).shape == (2, 7, 3, 3)


def test_one_step_for_small_results(monkeypatch):
    monkeypatch.setenv("OVERLAP_ONE_SHOT_BELOW_BYTES", "1000")
    assert [default_plan(n) for n in (0, 999, 1000)] == [ONE_SHOT, ONE_SHOT, TWO_SHOT]


CALLS = {
    "gemm_rs": (lambda x, p, w, g: gemm_rs(x, w, bias=w[0], scatter_dim=-1, group=g), (6, 3)),
    "gemm_ar": (lambda x, p, w, g: gemm_ar(x, w, bias=w[0], out_dtype=torch.float64, group=g), (6, 12)),
    "a2a_gemm": (lambda x, p, w, g: a2a_gemm(p, w, bias=w[0], heads=4, group=g), (2, 12)),
    "gemm_a2a": (lambda x, p, w, g: gemm_a2a(x, w, bias=w[0], gather_size=23, group=g), (23, 3)),
    "ag_gemm_k": (lambda x, p, w, g: ag_gemm_k(p, w, bias=w[0], group=g), (6, 12)),
}


def targets(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function" and "overlap" in str(n.target)]


@pytest.mark.parametrize("name", CALLS)
def test_fakes_and_real_calls_give_the_same_shapes(fake_group, name):
    call, shape = CALLS[name]
    real = call(X, PIECE, W, fake_group)
    with FakeTensorMode():
        tensors = [torch.empty(t.shape) for t in (X, PIECE, W)]
        fake = call(*tensors, fake_group)
    assert (tuple(fake.shape), fake.dtype) == (tuple(real.shape), real.dtype)
    assert tuple(real.shape) == shape
    assert (last_plan(name).operator, last_plan(name).backend) == (name, "serial")


@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("name", CALLS)
def test_tracers_see_one_operator(fake_group, name, mode):
    call, _ = CALLS[name]
    graph = make_fx(lambda x, p, w: call(x, p, w, fake_group) + 1, tracing_mode=mode)(X, PIECE, W).graph
    assert targets(graph) == [f"overlap.{name}.default"]


def test_compile_keeps_the_whole_function(fake_group):
    seen = []

    def backend(module, inputs):
        seen.append(targets(module.graph))
        return module

    for name, (call, shape) in CALLS.items():
        torch._dynamo.reset()
        step = torch.compile(
            lambda x, p, w, call=call: call(x * 2, p, w, fake_group) * 2, fullgraph=True, backend=backend
        )
        assert step(X, PIECE, W).shape == shape
        assert seen.pop() == [f"overlap.{name}.default"]


@pytest.mark.parametrize("name", CALLS)
def test_schemas_and_fakes_agree_with_the_operators(fake_group, name):
    group = fake_group.group_name
    arguments = {
        "gemm_rs": (X, W, W[0], 0, group, None, torch.float64, True, None, "reduce_scatter_1d", "1", []),
        "gemm_ar": (X, W, None, group, torch.float64, None, False, "serial", None, "1"),
        "a2a_gemm": (PIECE, W, W[0], 0, None, group, None, None, "all_to_all_1d", "1", 0),
        "gemm_a2a": (X, W, None, 0, 23, 4, group, None, torch.float64, None, "all_to_all_1d", "1"),
        "ag_gemm_k": (PIECE, W, None, group, torch.float64, None, "all_gather_1d", "1", 0),
    }
    CALLS[name][0](X, PIECE, W, fake_group)
    torch.library.opcheck(getattr(torch.ops.overlap, name).default, arguments[name])


@pytest.mark.parametrize("name", ["gemm_ar", "a2a_gemm", "gemm_a2a", "ag_gemm_k"])
def test_a_gradient_is_refused_not_wrong(fake_group, name):
    call, shape = CALLS[name]
    y = call(X, PIECE, W.clone().requires_grad_(), fake_group)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        y.sum().backward()
    operator = {"gemm_ar": gemm_ar, "a2a_gemm": a2a_gemm, "gemm_a2a": gemm_a2a, "ag_gemm_k": ag_gemm_k}[name]
    held = PIECE if name in ("a2a_gemm", "ag_gemm_k") else X
    with pytest.raises(UsageError, match=f"{name} has no gradient"):
        operator(held, W.clone().requires_grad_(), out=torch.empty(24, 3), group=fake_group)


def test_without_process_groups_there_is_one_rank():
    for call in (gemm_rs, gemm_ar, a2a_gemm, gemm_a2a, ag_gemm_k):
        torch.testing.assert_close(call(X, W, bias=W[0]), X @ W + W[0])
        assert last_plan(call.__name__).why_serial == "no process group, so one rank"
    y = gemm_rs(X.bfloat16(), W.bfloat16(), out_dtype=torch.float32)
    torch.testing.assert_close(y, X.bfloat16().float() @ W.bfloat16().float())


def test_results_go_where_the_caller_says():
    for call in (gemm_rs, gemm_ar, a2a_gemm, gemm_a2a, ag_gemm_k):
        out = torch.full((6, 12), float("nan"), dtype=torch.float64)
        assert call(X, W, out=out) is out
        torch.testing.assert_close(out, X.double() @ W.double())


def test_why_serial_ran_is_said_once(fake_group, caplog, monkeypatch):
    monkeypatch.setattr("overlap.api.report._LOGGED", set())
    monkeypatch.setattr("overlap.ops.record._LAST", {})
    with caplog.at_level("INFO", logger="overlap"):
        for _ in range(2):
            for call, _ in CALLS.values():
                call(X, PIECE, W, fake_group)
    told = [r.getMessage().split(":")[1].split(" over")[0] for r in caplog.records if r.name == "overlap"]
    assert told == [
        " serial, reduce-scatters 6x12 torch.float32",
        " serial, all-reduces 6x12 torch.float64",
        " serial, exchanges 6x8 torch.float32",
        " serial, exchanges 23x12 torch.float32",
        " serial, gathers 6x8 torch.float32",
    ]
