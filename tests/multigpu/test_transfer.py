"""`overlap.transfer` on GPUs: every template, on ranks in a row and on a mesh of two axes, against torch.distributed.

Every rank makes all its calls whatever it finds, and complains at the end: what is wrong on one rank does not hold up the
others. A message names template, shape, call, and which places are wrong.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.collectives.direct import direct_plan
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.library import list_templates
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import RuntimeContractError
from tests.support.ranks import delay
from tests.support.transfers import COLLECTIVES, KIND, ON_A_MESH, TEMPLATES, Case, difference, shapes

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOVED = (torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.float64)
CALLS = 4


def case_of(group, name: str, pieces: str, number: int) -> Case:
    """Dimension and dtype go round with the number."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    dtypes = DTYPES if KIND[name] in ("scatter", "reduce") else MOVED
    return Case(name, shapes(world)[pieces], number % 2, dtypes[number % len(dtypes)], rank, world)


def call(case: Case, held, group, **options):
    """One transfer; results by name."""
    got = overlap.transfer(case.name, held, group=group, dim=case.dim, to_dim=case.to_dim, shape=case.shape, **options)
    return got if isinstance(got, dict) else {"x": got}


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Nothing of the data is that large."""
    return tensor.fill_(1 if tensor.dtype == torch.bool else 113)


def outs_of(wanted: dict[str, torch.Tensor]):
    """Memory for results that holds none of them yet."""
    made = {name: poison(torch.empty(t.shape, dtype=t.dtype, device=t.device)) for name, t in wanted.items()}
    return made if len(made) > 1 else next(iter(made.values()))


def complaints(case: Case, group, **options) -> list[str]:
    """Several calls in a row with new data: fresh results, and results of the caller's own."""
    found = []
    for number in range(CALLS):
        delay(number, case.rank)
        wanted = case.wanted(number)
        held = case.held(number)
        if number % 2:
            options["out"] = outs_of(wanted)
        got = call(case, held, group, **options)
        options.pop("out", None)
        for name, tensor in got.items():
            found.append(difference(f"{case}, {name}, call {number}, {options}", tensor, wanted[name]))
    return [text for text in found if text]


def test_every_template_is_here():
    assert {*TEMPLATES, "all_to_all_v"} == set(list_templates())


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ON_A_MESH])
def test_ranks_in_a_row(group, name):
    found = []
    for number, pieces in enumerate(shapes(1)):
        for turned in (0, 1):
            found += complaints(case_of(group, name, pieces, number + turned), group, split=1 + number % 3)
    assert not found, "\n".join(found)
    overlap.check(group)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_mesh_of_two_axes(group, name):
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size(group)
    sizes = (2, world // 2) if world % 2 == 0 else (1, world)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("node", "gpu"))
    found = []
    for number, pieces in enumerate(shapes(1)):
        for turned in (0, 1):
            case = case_of(group, name, pieces, number + turned + 1)
            found += complaints(case, group, mesh=mesh, split=1 + (number + turned) % 2)
    assert not found, "\n".join(found)
    overlap.check(group)


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("name", ["all_gather_2d", "all_to_all_2d", "halo", "kv_ring", "all_reduce_ring"])
def test_either_side_carries_it_out(group, name, direction):
    """A pull of a sum is turned into a push."""
    world = dist.get_world_size(group)
    mesh = f"2x{world // 2}" if world % 2 == 0 else f"1x{world}"
    found = []
    for number, pieces in enumerate(("even", "uneven", "empty")):
        case = case_of(group, name, pieces, number)
        found += complaints(case, group, mesh=mesh, direction=direction)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("path", ["template", "direct"])
def test_collectives_by_path(group, name, path):
    found = []
    for number, pieces in enumerate(shapes(1)):
        for turned in (0, 1):
            found += complaints(case_of(group, name, pieces, number + turned), group, path=path)
    assert not found, "\n".join(found)


def test_collectives_of_some_ranks_handed_to_the_library(group):
    """Two of them in one plan, over different ranks; those outside hold nothing and get nothing."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    some = tuple(range(1, world)) if world > 2 else (1,)
    steps = [
        CollectiveStep("all_gather", TensorSpec("a", (5, 3)), world, ranks=some),
        CollectiveStep("all_reduce", TensorSpec("b", (7,)), world, ranks=(world - 1, 0)),
    ]
    plan = merge_plans([direct_plan(step) for step in steps])
    for number in range(3):
        whole = torch.arange(15.0, device="cuda").view(5, 3) + number
        box = next((c.box for c in plan.before[rank] if c.tensor == "a"), None)
        a = whole[:0] if box is None else whole[box.lo[0] : box.hi[0]]
        b = torch.full((7,), rank + 1.0 + number, device="cuda")
        got = overlap.transfer(plan, {"a": a, "b": b if rank in (0, world - 1) else b[:0]}, group=group)
        assert torch.equal(got["a"], whole) if rank in some else not got["a"].numel()
        total = world + 1.0 + 2 * number
        assert (got["b"] == total).all() and got["b"].numel() == (7 if rank in (0, world - 1) else 0), (rank, got["b"])


def test_pieces_that_are_no_box_come_one_by_one(group):
    """Every rank ends with the first and the last row, and nothing between; strides are the caller's."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    text = """
plan: ends
before: shard(rank)
after: ["span(0, 1)", "span(extent - 1, extent)"]
ops:
  - {when: rank > 0, pull: "span(0, 1)", from: 0}
  - {when: rank < world - 1, pull: "span(extent - 1, extent)", from: world - 1}
"""
    plan = build_plan(text, world=world, tensor=TensorSpec("x", (3 * world, 5)), dim=0)
    for number in range(3):
        whole = torch.arange(15.0 * world, device="cuda").view(5, 3 * world).t() + 100 * number
        first, last = overlap.transfer(plan, whole[3 * rank : 3 * rank + 3], group=group)
        assert torch.equal(first, whole[:1]) and torch.equal(last, whole[-1:]), (rank, number, first, last, whole)


# Graphs


class Captured:
    """One transfer in a graph, with inputs that can be refilled."""

    def __init__(self, case: Case, group, **options) -> None:
        self.case = case
        held = case.held(0)
        self.held = held if isinstance(held, dict) else {"x": held}
        passed = held if isinstance(held, dict) else self.held["x"]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.got = call(case, passed, group, **options)

    def replay(self, number: int) -> list[str]:
        wanted, new = self.case.wanted(number), self.case.held(number)
        for name, tensor in (new if isinstance(new, dict) else {"x": new}).items():
            self.held[name].copy_(tensor)
        for tensor in self.got.values():
            poison(tensor)
        self.graph.replay()
        said = [
            difference(f"{self.case}, {name}, replay on the data of call {number}", tensor, wanted[name])
            for name, tensor in self.got.items()
        ]
        return [text for text in said if text]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_graph_replayed_with_new_data(group, name):
    world = dist.get_world_size(group)
    mesh = f"2x{world // 2}" if world % 2 == 0 else f"1x{world}"
    case = case_of(group, name, "uneven", 0)
    found = complaints(case, group, mesh=mesh)
    captured = Captured(case, group, mesh=mesh)
    for number in range(20):
        delay(number, case.rank)
        found += captured.replay(number)
        if number % 5 == 0:
            found += complaints(case, group, mesh=mesh)
    assert not found, "\n".join(found)
    overlap.check(group)


def test_graphs_of_several_plans_on_growing_memory_in_random_order(group):
    """All plans share one workspace; what was captured before it grew keeps the memory it knows."""
    names = ("all_gather_ring", "halo", "all_to_all_1d", "broadcast")
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    captured, found = [], []
    for number, name in enumerate(names):
        case = Case(name, (world * 8 * 4**number - 3, 6), 0, torch.float32, rank, world)
        found += complaints(case, group)
        captured.append(Captured(case, group))
    order = random.Random(7)
    for number in range(60):
        delay(number, rank)
        found += order.choice(captured).replay(number)
    assert not found, "\n".join(found)
    overlap.check(group)


def test_calls_on_two_streams_come_one_behind_the_other(group):
    case = case_of(group, "all_reduce_two_shot", "uneven", 2)
    found = complaints(case, group)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for number in range(10, 30, 2):
        results = []
        wanted = [case.wanted(number), case.wanted(number + 1)]
        held = [case.held(number), case.held(number + 1)]
        torch.cuda.synchronize()
        for stream, tensor in zip((first, second), held, strict=True):
            with torch.cuda.stream(stream):
                if stream is first:
                    torch.cuda._sleep(2_000_000)
                results.append(call(case, tensor, group)["x"])
        torch.cuda.synchronize()
        for i, got in enumerate(results):
            found.append(difference(f"{case}, stream {i}, call {number + i}", got, wanted[i]["x"]))
    assert not any(found), "\n".join(text for text in found if text)


# Mistakes


def test_a_rank_with_another_shape_is_named_on_every_rank(group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x = torch.zeros(3 if rank else 2, 4, device="cuda")
    with pytest.raises(RuntimeContractError, match=r"rank 0 of \d+ holds|rank 0 raised instead of coming"):
        overlap.transfer("all_gather_1d", x, group=group, shape=(3 * world, 4))
    whole = overlap.transfer("all_gather_1d", torch.full((3, 4), float(rank), device="cuda"), group=group)
    assert torch.equal(whole[:, 0], torch.arange(world, device="cuda").repeat_interleave(3).float())


def test_ranks_that_call_different_plans_are_told(group):
    rank = dist.get_rank(group)
    x = torch.zeros(3, 4, device="cuda")
    with pytest.raises(RuntimeContractError, match="transfer differently: plan"):
        overlap.transfer("all_gather_1d" if rank else "all_gather_ring", x, group=group)
    with pytest.raises(RuntimeContractError, match=r"gives tensors on cpu"):
        overlap.transfer("all_gather_1d", x.cpu(), group=group)
