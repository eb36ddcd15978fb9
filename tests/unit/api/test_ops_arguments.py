"""Arguments of `ag_gemm` that cannot be meant, and how a gathered tensor is viewed."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from overlap import tune
from overlap.errors import PlanError, RuntimeContractError, UnsupportedError, UsageError
from overlap.ops import ag_gemm, last_plan, reserve
from overlap.ops.blocks import choose_blocks
from overlap.ops.gather_call import compiled_kernel
from overlap.ops.kernels import ag_gemm_any, ag_gemm_tma
from overlap.ops.views import gather_view

X, W, BOTH = torch.randn(6, 8), torch.randn(8, 5), torch.randn(160)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((X, W.t()), UsageError, "weight 0 has shape.*weight.t()"),
        ((X, [W, W[0]]), UsageError, "weight 1 has shape"),
        ((X, []), UsageError, "no weight"),
        ((X, W.double()), UsageError, "weight 0 is torch.float64, x is torch.float32"),
        ((X, W, dict(bias=W[:, 0])), UsageError, "bias 0 has shape"),
        ((X, W, dict(bias=W[0].half())), UsageError, "bias 0 is torch.float16, x is torch.float32"),
        ((X, [W, W], dict(bias=W[0])), UsageError, "one bias for 2 weights"),
        ((X, [W, W], dict(bias=[W[0]])), UsageError, "1 biases for 2 weights"),
        ((X, W, dict(gather_dim=1)), UnsupportedError, "sums over.*along K"),
        ((X, W, dict(gather_dim=-1)), UnsupportedError, "sums over"),
        ((X, W, dict(gather_dim=2)), UsageError, "gather_dim=2, x has 2 dimensions"),
        ((X, W, dict(gather_dim="rows")), UsageError, "gather_dim='rows'.*\n.*is one of 0 to 0"),
        ((X[0], W), UsageError, "x has 1 dimensions"),
        ((X, W, dict(gather_size=23)), RuntimeContractError, r"rank 1 of 4: the piece of 23 .* is 6|x has 6"),
        ((X, W, dict(gather_size=-4)), RuntimeContractError, "the piece of -4"),
        ((X, W, dict(gather_size=24.0)), UsageError, "gather_size=24.0.*a whole number"),
        ((X, W, dict(gather_size="24")), UsageError, "gather_size='24'.*a whole number"),
        ((X, W, dict(backend=["copy_engine"])), UsageError, "backend is a list.*backends: copy_engine"),
        ((X, W, dict(plan="all_gather_1D")), PlanError, "unknown plan `all_gather_1D`.*all_gather_1d"),
        ((X, W, dict(plan="no/such.yaml")), PlanError, "there is no plan file no/such.yaml"),
        ((X, W, dict(plan=3)), UsageError, "plan is a int.*name of a plan template"),
        ((X, W, dict(out=torch.empty(24, 5).requires_grad_())), UsageError, "out 0 requires a gradient.*detach"),
        ((X, [W], dict(out=["y"])), UsageError, "out 0 is a str"),
        ((X, W, dict(backend="copy_engin")), UsageError, "did you mean 'copy_engine'"),
        ((X, W, dict(backend="copy_engine")), UsageError, "copy_engine is impossible here.*cpu"),
        ((X, W, dict(out=torch.empty(24, 4))), UsageError, r"out 0 is \(24, 4\).*\(24, 5\)"),
        ((X, W, dict(out=torch.empty(5, 24).t())), UsageError, "contiguous"),
        ((X, [W, W], dict(out=torch.empty(24, 5))), UsageError, "1 tensors in out for 2 weights"),
        ((X, BOTH[:40].view(8, 5), dict(out=BOTH[39:159].view(24, 5))), UsageError, "out 0 shares memory"),
        ((BOTH[:48].view(6, 8), W, dict(out=BOTH[40:160].view(24, 5))), UsageError, "out 0 shares memory"),
        ((X, [W, W], dict(out=[BOTH[:120].view(24, 5)] * 2)), UsageError, "out 1 shares memory"),
        ((X, W, dict(bias=BOTH[:5], out=BOTH[:120].view(24, 5))), UsageError, "out 0 shares memory"),
        ((torch._neg_view(X), W), UsageError, "x is a negated view.*resolve_neg"),
        ((X, [W, torch._neg_view(W)]), UsageError, "weight 1 is a negated view"),
        ((X, W, dict(bias=torch._neg_view(W[0]))), UsageError, "bias 0 is a negated view"),
        ((X.to_sparse(), W), UsageError, "x is torch.sparse_coo.*dense"),
        ((X.to("meta"), W.to("meta")), UsageError, "x has no memory of its own .Tensor on meta"),
        ((X, None), UsageError, "w is a NoneType.*list of tensors"),
        ((X, [W, W.tolist()]), UsageError, "weight 1 is a list"),
        ((X, W, dict(bias=1.0)), UsageError, "bias is a float"),
        ((X, W, dict(out=torch._neg_view(torch.empty(24, 5)))), UsageError, "out 0 is a negated view"),
        (
            (TwoTensor(X, X), W, dict(out=torch.empty(24, 5))),
            UsageError,
            "x has no memory of its own .TwoTensor on cpu",
        ),
    ],
)
def test_refused_with_what_to_write(fake_group, arguments, error, said):
    *positional, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    if options.get("gather_size") == 23:
        positional[0] = positional[0][:5]  # rank 1's piece of 23 is 6
    with pytest.raises(error, match="(?s)" + said):
        ag_gemm(*positional, **options, group=fake_group)


def test_uneven_pieces_follow_torch_chunk(fake_group):
    assert ag_gemm(X, W, gather_size=23, group=fake_group).shape == (23, 5)


@pytest.mark.parametrize(
    ("shape", "dim", "size", "wanted"),
    [
        ((6, 8), 0, None, (1, 24, "M")),
        ((6, 3, 8), 0, None, (1, 72, "M")),
        ((6, 3, 8), 0, 23, (23, 3, "B")),
        ((2, 6, 8), 1, 23, (2, 23, "M")),
        ((2, 6, 3, 8), 1, None, (2, 72, "M")),
        ((6, 1, 8), -3, 23, (1, 23, "M")),
    ],
)
def test_views_cover_every_dimension(shape, dim, size, wanted):
    x = torch.empty(shape)
    view = gather_view(x, dim, size, 4, 1)
    assert (view.batch, view.rows, view.along) == wanted and view.possible
    shard = view.shard(x, dim % x.dim())
    assert shard.shape[2] == 8 and shard.numel() == x.numel() and shard.data_ptr() == x.data_ptr()


def test_uneven_shards_between_two_dimensions_need_a_collective(fake_group):
    assert not gather_view(torch.empty(2, 6, 3, 8), 1, 23, 4, 1).possible
    assert ag_gemm(torch.randn(2, 6, 3, 8), W, gather_dim=1, gather_size=23, group=fake_group).shape == (2, 23, 3, 5)


@pytest.mark.parametrize("descriptors", [True, False])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_blocks_keep_multiprocessors_busy(descriptors, itemsize):
    for rows in (1, 3, 16, 64, 130, 1000, 8192):
        for columns in (1, 64, 257, 14336):
            blocks = choose_blocks(
                descriptors=descriptors,
                itemsize=itemsize,
                batch=1,
                rows=rows,
                columns=columns,
                multiprocessors=132,
            )
            assert blocks.m >= 16 and blocks.n >= 16 and blocks.k >= 16
            assert blocks.m <= 2 * max(rows, 32)
    large = choose_blocks(descriptors=True, itemsize=2, batch=1, rows=8192, columns=14336, multiprocessors=132)
    assert (large.m, large.n, large.k, large.warps, large.stages) == (128, 256, 64, 8, 3)
    few = choose_blocks(descriptors=True, itemsize=2, batch=1, rows=64, columns=7168, multiprocessors=132)
    assert few.tiles(1, 64, 7168) == 112, "as many tiles as there are multiprocessors for"


@pytest.mark.parametrize("sizes", [dict(max_tokens=0, hidden=8), dict(max_tokens=8, hidden=2.5)])
def test_reserve_takes_positive_sizes(fake_group, sizes):
    with pytest.raises(UsageError, match="positive integer"):
        reserve(fake_group, **sizes)
    with pytest.raises(UsageError, match="(?s)dtype='bf16'.*torch.bfloat16"):
        reserve(fake_group, max_tokens=8, hidden=8, dtype="bf16")


def test_tune_refuses_what_names_no_problem(fake_group):
    for positional, named, said in (
        (("ag_gemm", 3), {}, "sizes=3"),
        (("ag_gemm", {"M": True, "N": 8, "K": 8}), {}, "sizes="),
        (("ag_gemm", {"M": 8, "N": 8, "K": 8}), {"lock": 3}, "lock is a int"),
        (("ag_gemm", {"M": 8, "N": 8, "K": 8}), {"dtype": "bf16"}, "bf16 is not tuned"),
    ):
        with pytest.raises(UsageError, match=said):
            tune(*positional, **named, group=fake_group)


@pytest.mark.parametrize(
    ("kernel", "along"),
    [(kernel, along) for kernel in (ag_gemm_tma, ag_gemm_any) for along in "MB"],
)
def test_tiles_wait_for_their_own_rows_only(kernel, along):
    """A read that is not understood would wait for the whole tensor."""
    operator = compiled_kernel(kernel, along, "all_gather_1d", 1).operator
    assert [read.axes for read in operator.reads] == [("B", "M", None)]
    assert operator.axis == along


def test_without_process_groups_there_is_one_rank():
    y, whole = ag_gemm(X, W, bias=W[0], return_gathered=True)
    torch.testing.assert_close(y, X @ W + W[0])
    assert torch.equal(whole, X) and whole.data_ptr() != X.data_ptr()
    assert last_plan().why_serial == "no process group, so one rank"
    with pytest.raises(RuntimeContractError, match="rank 0 of 1: the piece of 7"):
        ag_gemm(X, W, gather_size=7)


def test_without_peer_copies_there_is_nothing_to_reserve(fake_group, caplog):
    with caplog.at_level("INFO", logger="overlap"):
        reserve(fake_group, max_tokens=64, hidden=64)
    assert {"nothing to reserve for ag_gemm_any", "nothing to reserve for ag_gemm_tma"} == {
        r.getMessage().split(":")[0] for r in caplog.records if r.name == "overlap"
    }


def test_the_last_plan_of_no_operator():
    with pytest.raises(UsageError, match="operator is a int\n.*one of ag_gemm, "):
        last_plan(3)
    with pytest.raises(UsageError, match="no operator 'ag_gem'\n.*did you mean `ag_gemm`"):
        last_plan("ag_gem")
