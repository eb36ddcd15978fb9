"""`overlap.transfer` on simulated ranks: what callers pass and get, and what they are told.

Results are compared behind the run: inside, host code does not wait for its stream. `test_templates` has every template.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import overlap
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.collectives.direct import direct_plan
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.links import ring
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import OverlapError, PlanError, RuntimeContractError, UnsupportedError, UsageError
from overlap.runtime.instances import instances
from overlap.runtime.workspace import workspaces
from overlap.sim import World

pytestmark = pytest.mark.one_triton


def on_ranks(world: int, body, **options):
    """``body(rank, call)`` as every rank's host code; ``call`` is `overlap.transfer` on its group."""

    def run(group):
        rank = group.overlap_runtime.rank
        return body(rank, lambda *args, **keys: overlap.transfer(*args, group=group, **keys))

    return World(world, **options).run(run)


def whole(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


GATHERED = {
    "named template": {"plan": "all_gather_ring"},
    "collective": {"plan": "all_gather"},
    "made for links": {"plan": "all_gather", "path": "synth", "links": ring(4)},
    "mesh as text": {"plan": "all_gather_2d", "mesh": "2x2"},
    "mesh": {"plan": "all_gather_double_ring", "mesh": Mesh((2, 2), ("node", "gpu"))},
    "mesh as torch has it": {
        "plan": "all_gather_2d",
        "mesh": SimpleNamespace(mesh=torch.tensor([[0, 1], [2, 3]]), mesh_dim_names=("node", "gpu")),
    },
    "pushed in parts": {"plan": "all_gather_1d", "direction": "push", "split": 2},
}


def test_ways_to_say_a_gather():
    data = whole(12, 3)

    def body(rank, call):
        return [call(tensors=data[3 * rank : 3 * rank + 3], **keys) for keys in GATHERED.values()]

    for results in on_ranks(4, body):
        for way, got in zip(GATHERED, results, strict=True):
            assert torch.equal(got, data), way


CONJUGATED = torch.complex(torch.arange(3.0), -torch.arange(3.0)).conj()
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.float8_e5m2, torch.float64, torch.complex64)


def test_any_dtype_and_strides_are_moved():
    """Of pieces of one element too, which are no flags."""

    def body(rank, call):
        found = []
        for dtype in DTYPES:
            found.append(call("all_gather_ring", whole(3, 2, dtype=dtype)[rank : rank + 1, 1:]))
        turned = whole(4, 6).t()[2 * rank : 2 * rank + 2]
        found.append(call("all_gather_1d", turned))
        found.append(
            call("all_gather_1d_push", whole(2, 3, 4, 5).permute(2, 0, 3, 1)[:, :, ::2, rank : rank + 1], dim=3)
        )
        found.append(call("all_gather_1d", CONJUGATED[rank : rank + 1]))
        return found

    for *results, turned, deep, conjugated in on_ranks(3, body):
        for dtype, got in zip(DTYPES, results, strict=True):
            assert got.dtype == dtype and torch.equal(
                got.float() if dtype.is_floating_point else got,
                (
                    whole(3, 2, dtype=dtype)[:, 1:].float()
                    if dtype.is_floating_point
                    else whole(3, 2, dtype=dtype)[:, 1:]
                ),
            ), dtype
        assert torch.equal(turned, whole(4, 6).t())
        assert torch.equal(deep, whole(2, 3, 4, 5).permute(2, 0, 3, 1)[:, :, ::2])
        assert torch.equal(conjugated, torch.complex(whole(3), whole(3)))


def test_sums_results_of_the_callers_and_several_tensors():
    parts = [whole(5, 4) * (rank + 1) for rank in range(3)]
    narrow, owns, minus = [part.to(torch.bfloat16) for part in parts], [part.clone() for part in parts], -parts[1]
    outs = [torch.empty(2 if rank < 2 else 1, 4) for rank in range(3)]
    shards = [slice(0, 2), slice(2, 4), slice(4, 5)]

    def body(rank, call):
        scattered = call("reduce_scatter_1d", parts[rank], out=outs[rank])
        assert scattered is outs[rank]
        summed = call("all_reduce_two_shot", narrow[rank], shape=(5, 4))
        own = owns[rank]
        assert call("all_reduce_ring", own, out=own) is own
        pair = call("kv_ring", {"v": parts[0][shards[rank]], "k": minus[shards[rank]]}, shape=(5, 4))
        return summed, own, pair

    for rank, (summed, own, pair) in enumerate(on_ranks(3, body)):
        assert torch.equal(outs[rank], 6 * whole(5, 4)[shards[rank]])
        assert torch.equal(summed, (6 * whole(5, 4)).to(torch.bfloat16)) and torch.equal(own, 6 * whole(5, 4))
        assert list(pair) == ["k", "v"] and torch.equal(pair["v"], parts[0]) and torch.equal(pair["k"], minus)


ENDS = """
plan: ends
before: shard(rank)
after: ["span(0, 1)", "span(extent - 1, extent)"]
ops:
  - {when: rank > 0, pull: "span(0, 1)", from: 0}
  - {when: rank < world - 1, pull: "span(extent - 1, extent)", from: world - 1}
"""


def test_chunks_that_make_no_box_come_one_by_one_and_may_be_given_so():
    plan = build_plan(ENDS, world=3, tensor=TensorSpec("x", (9, 2)), dim=0)
    back = build_plan(
        "plan: back\nbefore: ['span(0, 1)', 'span(extent - 1, extent)']\nafter: ['span(0, 1)']\nops: []\n",
        world=3,
        tensor=TensorSpec("x", (9, 2)),
        dim=0,
    )
    data = whole(9, 2)

    def body(rank, call):
        first, last = call(plan, data[3 * rank : 3 * rank + 3])
        return first, last, call(back, (data[:1], data[8:]))

    for first, last, again in on_ranks(3, body):
        assert torch.equal(first, data[:1]) and torch.equal(last, data[8:]) and torch.equal(again, data[:1])


def test_ranks_that_hold_nothing_and_one_rank_alone():
    data = whole(4, 3, dtype=torch.int64)

    def body(rank, call):
        return call("broadcast", data if rank == 0 else data[:0], shape=(4, 3)), call(
            "all_gather_1d", data[2 * rank : 2 * rank + 2] if rank < 2 else data[:0], shape=(4, 3)
        )

    for results in on_ranks(3, body):
        assert all(torch.equal(got, data) for got in results)
    for name in ("all_gather_ring", "all_reduce_two_shot", "reduce_scatter_1d", "halo", "broadcast"):
        assert torch.equal(on_ranks(1, lambda _, call, name=name: call(name, data.float()))[0], data.float()), name
    nothing = on_ranks(2, lambda _, call: call("all_gather_ring", torch.empty(0, 3)))
    assert [tuple(got.shape) for got in nothing] == [(0, 3)] * 2


def test_a_program_without_process_groups_is_one_rank():
    data = whole(4, 3)
    for name in ("all_gather_ring", "all_reduce_two_shot", "reduce_scatter", "halo", "broadcast"):
        got = overlap.transfer(name, data)
        assert torch.equal(got, data) and got.data_ptr() != data.data_ptr(), name
    assert torch.equal(overlap.transfer("all_gather", data, path="direct", out=torch.empty(4, 3)), data)
    assert torch.equal(overlap.transfer("all_to_all_v", data, counts={"sent": [[4]]}), data)
    assert torch.equal(overlap.transfer("all_to_all_2d", data, mesh="1x1", to_dim=1), data)
    with pytest.raises(RuntimeContractError, match="before plan all_gather_1d, and is given"):
        overlap.transfer("all_gather_1d", data, shape=(5, 3))


def test_plans_share_one_memory_and_what_graphs_know_is_kept():
    def run(group):
        rank, runtime = group.overlap_runtime.rank, group.overlap_runtime
        first = overlap.transfer("all_reduce_ring", whole(4), group=group)
        (workspace,) = workspaces(runtime).values()
        (small,) = {id(made): made for made in instances(runtime).values()}.values()
        old, tables = workspace.memory, small.prepared
        old.captured = True  # as a graph would
        overlap.transfer("all_gather_1d", whole(64)[32 * rank : 32 * rank + 32], group=group)
        overlap.transfer("reduce_scatter_1d", whole(640), group=group)
        again = overlap.transfer("all_reduce_ring", whole(4), group=group)
        sums = [made for made in workspaces(runtime).values() if made.dtypes == (torch.float32,)]
        assert sums == [workspace] and workspace.memory is not old and workspace.kept == [old]
        assert any(held is tables for held in old.pinned), "what a graph reads is gone"
        return first, again

    for results in World(2).run(run):
        assert all(torch.equal(got, 2 * whole(4)) for got in results)


WRONG = [
    (lambda x: ("all_gather_3d", x, {}), PlanError, "unknown plan `all_gather_3d`", "did you mean `all_gather_2d`"),
    (lambda x: ("no/such.yaml", x, {}), PlanError, "there is no plan file no/such.yaml", "path"),
    (lambda x: ("all_gather_2d", x, {}), PlanError, "is for a mesh of 2 axes", "--mesh 2x1"),
    (
        lambda x: ("all_gather_2d", x, {"mesh": "2x3"}),
        RuntimeContractError,
        "mesh 2x3 has 6 ranks, the group has 2",
        "group",
    ),
    (lambda x: ("all_gather_2d", x, {"mesh": 4}), UsageError, "mesh is a int", '"2x4"'),
    (
        lambda x: ("all_gather_1d", x, {"mesh": SimpleNamespace(mesh=torch.tensor([1, 0]), mesh_dim_names=None)}),
        RuntimeContractError,
        r"the mesh has ranks \[1, 0\], the group has \[0, 1\]",
        "row by row",
    ),
    (
        lambda x: ("all_gather_1d", x, {"shape": (9, 2)}),
        RuntimeContractError,
        "before plan all_gather_1d, and is given",
        "shape=",
    ),
    (lambda x: ("halo", x[:, :0], {"dim": 5}), PlanError, "has no dimension 5", "0 to 1"),
    (lambda x: ("kv_ring", x, {}), PlanError, "has no tensor `x`", "k, v"),
    (lambda x: ("kv_ring", {"k": x}, {}), RuntimeContractError, "of v.* and is given nothing", "shape="),
    (lambda x: ("all_gather_1d", {"x": x, "y": x}, {}), UsageError, "has no tensor 'y'", "it has x"),
    (lambda x: ("all_gather_1d", [[1]], {}), UsageError, "does not say how large it is", "shape="),
    (lambda x: ("all_gather_1d", "text", {}), UsageError, "`x` is a str", "tensor"),
    (lambda x: ("all_gather_1d", None, {"shape": (4, 2)}), RuntimeContractError, "is given nothing", "shape="),
    (lambda x: ("broadcast", None, {"shape": (0, 2)}), UsageError, "its dtype cannot be told", "empty tensor"),
    (lambda x: ("all_gather_1d", x, {"path": "direct"}), UsageError, "makes a plan of a collective", "all_gather"),
    (lambda x: ("all_gather", x, {"path": "quick"}), PlanError, "unknown path `quick`", "template"),
    (lambda x: ("all_gather", x, {"path": "synth"}), PlanError, "nothing to make a plan for", "links"),
    (
        lambda x: ("all_gather", x, {"path": "direct"}),
        UnsupportedError,
        "which simulated ranks do not have",
        "template",
    ),
    (lambda x: ("all_reduce_ring", x.int(), {}), UnsupportedError, "cannot be added", "floating-point"),
    (lambda x: ("all_gather_1d", x.to(torch.complex128), {}), UnsupportedError, "16 bytes an element", "view_as_real"),
    (lambda x: ("all_gather_1d", x, {"out": x}), RuntimeContractError, r"out for `x` is \(3, 2\)", ""),
    (lambda x: ("all_gather_1d", x, {"out": [x]}), UsageError, "out is a list", "dict of tensors by name"),
    (lambda x: ("all_gather_1d", x, {"shape": 6}), UsageError, "shape=6", "a tuple of whole numbers"),
    (lambda x: ("all_gather_1d", x, {"shape": (6.0, 2)}), UsageError, r"shape=\(6.0, 2\)", "a tuple of whole numbers"),
    (lambda x: ("all_gather_1d", x, {"dim": "rows"}), UsageError, "dim='rows'", "number of a dimension"),
    (lambda x: ("all_to_all", x, {"to_dim": 1.0}), UsageError, "to_dim=1.0", "number of a dimension"),
    (lambda x: (None, x, {}), UsageError, "plan is a NoneType", "or a CommPlan"),
    (lambda x: ("kv_ring", {"k": x, "v": x}, {"out": x}), UsageError, "ends with k, v", "dict"),
    (lambda x: ("all_gather_1d", x, {"out": {"y": x}}), UsageError, "out names 'y'", ""),
    (lambda x: ("all_gather_1d", x.to("meta"), {}), RuntimeContractError, "gives tensors on meta", "direct"),
    (
        lambda x: (direct_plan(CollectiveStep("all_gather", TensorSpec("x", (6, 2)), 3)), x, {}),
        RuntimeContractError,
        "is for 3 ranks, the group has 2",
        "group",
    ),
    (
        lambda x: (build_plan(ENDS, world=2, tensor=TensorSpec("x", (6, 2)), dim=0), x, {"mesh": "1x2"}),
        UsageError,
        "a CommPlan has its path, mesh and shapes",
        "leave",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "said", "help"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_mistakes_are_told_to_every_rank(call, error, said, help):
    """All ranks make the same mistake; none waits for another, and the next call is right."""
    seen = []

    def body(rank, transfer):
        plan, tensors, keys = call(whole(3, 2))
        try:
            transfer(plan, tensors, **keys)
        except OverlapError as caught:
            seen.append(caught)
        return transfer("all_gather_1d", whole(1) + rank)

    results = on_ranks(2, body)
    assert len(seen) == 2 and all(torch.equal(got, whole(2)) for got in results)
    with pytest.raises(error, match=said) as told:
        raise next((one for one in seen if isinstance(one, error) and "raised instead" not in one.message), seen[0])
    assert help in told.value.help


def test_ranks_that_differ_are_told():
    """In the plan, in the shape, in dtypes of one width, and in one rank alone being wrong."""
    told = []

    def body(rank, call):
        for plan, rows, keys in (
            (("all_gather_ring", "all_gather_1d")[rank], 3, {}),
            ("all_gather_1d", 3 + rank, {}),
            ("all_gather_1d", 3 + rank, {"shape": (6, 2)}),
            ("all_gather_1d", 3, {"dtype": (torch.bfloat16, torch.float16)[rank]}),
        ):
            try:
                call(plan, whole(rows, 2).to(keys.pop("dtype", torch.float32)), **keys)
            except RuntimeContractError as error:
                told.append(error.message)
        return call("all_gather_1d", whole(1) + rank)

    assert all(torch.equal(got, whole(2)) for got in on_ranks(2, body))
    assert len(told) == 8
    assert sum("transfer differently: plan all_gather" in text for text in told) == 2
    assert sum("transfer differently: tensors x[6, 2] against x[8, 2]" in text for text in told) >= 1
    assert sum("transfer differently: dtype torch.bfloat16 against torch.float16" in text for text in told) >= 1
    assert sum("rank 1 raised instead of coming to" in text for text in told) == 1
