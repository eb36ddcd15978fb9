"""`ag_gemm` as tracers see it: one node, shapes from the fake, the group by name."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx

import overlap
from overlap.annotate.source import SourceUnit
from overlap.codegen.module_io import load_module
from overlap.errors import OverlapError, UsageError
from overlap.ops import a2a_gemm, ag_gemm, gemm_rs, last_plan
from overlap.pipeline import Request, compile_source

X, W = torch.randn(6, 8), torch.randn(8, 5)


class Calls(torch.nn.Module):
    """A function, as exporters take it."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def targets(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function" and "overlap" in str(n.target)]


def test_fakes_give_global_shapes(fake_group):
    with FakeTensorMode():
        x = torch.empty(2, 6, 8, device="cuda", dtype=torch.bfloat16)
        weights = [torch.empty(8, n, device="cuda", dtype=torch.bfloat16) for n in (5, 7)]
        ys, gathered = ag_gemm(x, weights, gather_dim=1, gather_size=23, group=fake_group, return_gathered=True)
        y = ag_gemm(x, weights[0], gather_dim=-3, group=fake_group)
    assert [tuple(t.shape) for t in (*ys, gathered, y)] == [(2, 23, 5), (2, 23, 7), (2, 23, 8), (8, 6, 5)]
    assert {t.dtype for t in ys} == {torch.bfloat16} and y.device.type == "cuda"


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx_sees_one_operator(fake_group, mode):
    graph = make_fx(lambda x, w: ag_gemm(x, w, group=fake_group) + 1, tracing_mode=mode)(X, W).graph
    assert targets(graph) == ["overlap.ag_gemm.default"]


def test_compile_keeps_the_whole_function(fake_group):
    """Every spelling of a group, several weights, a bias: no graph break, and the call runs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    row = mesh["tp"]
    seen = []

    def backend(module, inputs):
        seen.append(targets(module.graph))
        return module

    spellings = [(fake_group, 4), (fake_group.group_name, 4), (None, 4), (row, 2), ((mesh, "tp"), 2), ((mesh, 0), 2)]
    for group, world in spellings:

        def step(x, w, group=group):
            (a, b), whole = ag_gemm(x * 2, [w, w], bias=[None, w[0]], group=group, return_gathered=True)
            return a + b, whole

        torch._dynamo.reset()
        summed, whole = torch.compile(step, fullgraph=True, backend=backend)(X, W)
        assert summed.shape == (6 * world, 5) and whole.shape == (6 * world, 8)
    assert seen == [["overlap.ag_gemm.default"]] * len(spellings)


def test_calls_with_out_and_transfers_are_made_between_graphs(fake_group):
    y = torch.empty(24, 5)
    calls = {
        "ag_gemm": lambda x: ag_gemm(x * 2, W, out=y, group=fake_group) + 1,
        "gemm_rs": lambda x: gemm_rs(x * 2, W, out=y[:2], group=fake_group) + 1,
        "a2a_gemm": lambda x: a2a_gemm(x[:, :2] * 2, W, out=y[:2], group=fake_group) + 1,
        "transfer": lambda x: overlap.transfer("all_gather", x * 2, path="direct", group=fake_group) + 1,
    }
    for call in calls.values():
        torch._dynamo.reset()
        found = torch.compile(call, backend="eager")(X)
        assert found.shape == call(X).shape
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="made between graphs"):
            torch.compile(call, backend="eager", fullgraph=True)(X)


def test_a_call_with_out_is_told_what_its_tensors_memory_holds(fake_group):
    """A tracer cannot tell: it is asked when the call is made."""
    call = torch.compile(lambda x, w: ag_gemm(x, w, out=torch.empty(24, 5), group=fake_group), backend="eager")
    with pytest.raises(UsageError, match="x is a negated view"):
        call(torch._neg_view(X), W)
    with pytest.raises(UsageError, match="weight 0 is a negated view"):
        call(X, torch._neg_view(W))


def test_compiled_functions_and_kernels_are_called_between_graphs(fake_group, repo, tmp_path):
    """On the CPU none is carried out; what is told is what a call without a tracer is told."""
    source = repo / "templates/kernels/grouped_gemm.py"
    path = tmp_path / "module.py"
    path.write_text(compile_source(Request(SourceUnit.from_file(source), "all_gather_1d", "a[M]")).module.text)
    matmul = load_module(str(path)).matmul
    how = {"plan": "all_gather_1d", "on": "a[M]", "backend": "copy_engine"}
    kernel = overlap.compile(**how)(load_module(str(source)).matmul_kernel)

    def launch(x):
        kernel[lambda meta: (1,)](x * 2, W, W, 24, 5, 8, 8, 1, 5, 1, 5, 1, group=fake_group)
        return x + 1

    for call, said in (
        (lambda x: matmul(x * 2, W, group=fake_group) + 1, "no GPU|on cpu"),
        (launch, "is impossible here"),
    ):
        torch._dynamo.reset()
        with pytest.raises(OverlapError, match=said):
            torch.compile(call, backend="eager")(X)
        with pytest.raises(OverlapError, match=said):
            torch.export.export(Calls(call), (X,), strict=False)  # runs it as it is, on fake tensors


def test_the_schema_and_the_fake_agree_with_the_operator(fake_group):
    ag_gemm(X, W, group=fake_group)
    arguments = (X, [W], [], [], 0, None, fake_group.group_name, None, "all_gather_1d", "1", 0, True, [])
    torch.library.opcheck(torch.ops.overlap.ag_gemm.default, arguments)


def test_the_other_half_is_the_gradient(fake_group):
    x = X.clone().requires_grad_()
    ag_gemm(x, W, group=fake_group).sum().backward()
    assert x.grad.shape == X.shape and last_plan("gemm_rs").shape == (24, 8)


def test_why_serial_ran_is_said_once(fake_group, caplog, monkeypatch):
    monkeypatch.setattr("overlap.api.report._LOGGED", set())
    monkeypatch.setattr("overlap.ops.record._LAST", {})
    with caplog.at_level("INFO", logger="overlap"):
        for _ in range(3):
            ag_gemm(X, W, group=fake_group)
    assert last_plan().backend == "serial"
    assert "no peer copies for tensors on cpu" in last_plan().why_serial
    (record,) = [r for r in caplog.records if r.name == "overlap"]
    assert record.levelname == "WARNING" and "24x8 torch.float32 over 4 ranks" in record.getMessage()
