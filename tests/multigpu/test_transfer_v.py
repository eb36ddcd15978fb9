"""`overlap.transfer` of pieces whose sizes change from call to call, against `torch.distributed.all_to_all_single`.

Results are poisoned before each call, and compared bit by bit: nothing is computed, rows are only moved.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.errors import PlanError, RuntimeContractError
from tests.support.exchange import Counts, counts_of, received

MOST = 700
COLUMNS = 96


def rows_of(call: int, counts: Counts, rank: int, dtype: torch.dtype, columns: int = COLUMNS) -> torch.Tensor:
    """What a rank sends in a call; every rank can make what any rank has."""
    generator = torch.Generator("cuda").manual_seed(call * 64 + rank)
    return torch.randn((sum(counts[rank]), columns), device="cuda", generator=generator).to(dtype)


def single(counts: Counts, sent: torch.Tensor, group) -> torch.Tensor:
    """torch.distributed's own."""
    rank = dist.get_rank(group)
    splits = [row[rank] for row in counts]
    out = sent.new_full((sum(splits), *sent.shape[1:]), float("nan"))
    dist.all_to_all_single(out, sent, output_split_sizes=splits, input_split_sizes=counts[rank], group=group)
    return out


def told(call: int, counts: Counts, got: torch.Tensor, wanted: torch.Tensor, rank: int) -> str:
    """Which rows are wrong, by the rank they come from."""
    said = f"call {call}, rank {rank}, counts {counts}: {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    if got.shape != wanted.shape:
        return said
    bad = (got != wanted).reshape(len(got), -1).any(1).nonzero().flatten().tolist()
    ends = [sum(row[rank] for row in counts[: i + 1]) for i in range(len(counts))]
    sources = sorted({next(i for i, end in enumerate(ends) if row < end) for row in bad})
    return f"{said}: {len(bad)} rows differ, the first is {bad[:1]}, from ranks {sources}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_sizes_change_from_call_to_call(group, dtype):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for call in range(18):
        counts = counts_of(call, world, MOST)
        sent = rows_of(call, counts, rank, dtype)
        out = sent.new_full((sum(row[rank] for row in counts), COLUMNS), float("nan"))
        got = overlap.transfer("all_to_all_v", sent, group=group, counts={"sent": counts}, out=out)
        wanted = single(counts, sent, group)
        assert torch.equal(got, wanted), told(call, counts, got, wanted, rank)
        everyone = [rows_of(call, counts, other, dtype) for other in range(world)]
        assert torch.equal(wanted, received(counts, everyone, rank)), "torch's own differs from the rule"


def test_calls_that_nobody_waits_for(group):
    """All are enqueued before any result is looked at; sizes come again, and data are new each time."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    made = []
    for call in range(24):
        counts = counts_of(call % 7, world, MOST)
        sent = rows_of(call, counts, rank, torch.bfloat16)
        made.append((counts, sent, overlap.transfer("all_to_all_v", sent, group=group, counts={"sent": counts})))
    for call, (counts, sent, got) in enumerate(made):
        wanted = single(counts, sent, group)
        assert torch.equal(got, wanted), told(call, counts, got, wanted, rank)


@pytest.mark.parametrize("way", [{"direction": "push"}, {"split": 3}, {"direction": "push", "split": 2}, {"room": 100}])
def test_ways(group, way):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    options = dict(way)
    room = options.pop("room", None)
    for call in (0, 1, 2, 3, 5):
        counts = counts_of(call, world, MOST)
        sent = rows_of(call, counts, rank, torch.bfloat16)
        if room is not None:
            options["shape"] = (sum(map(sum, counts)) + room, COLUMNS)
        got = overlap.transfer("all_to_all_v", sent, group=group, counts={"sent": counts}, **options)
        wanted = single(counts, sent, group)
        assert torch.equal(got, wanted), told(call, counts, got, wanted, rank)


@pytest.mark.parametrize("columns", [1, 3, 4096])
def test_rows_of_any_width(group, columns):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for call in (0, 2, 4):
        counts = counts_of(call, world, 50)
        sent = rows_of(call, counts, rank, torch.float16, columns)
        got = overlap.transfer("all_to_all_v", sent, group=group, counts={"sent": torch.tensor(counts)})
        wanted = single(counts, sent, group)
        assert torch.equal(got, wanted), told(call, counts, got, wanted, rank)


def test_a_graph_of_one_exchange(group):
    """Sizes are those of the capture; data are those of the replay."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    counts = counts_of(0, world, MOST)
    sent = rows_of(0, counts, rank, torch.bfloat16)
    out = sent.new_full((sum(row[rank] for row in counts), COLUMNS), float("nan"))
    overlap.transfer("all_to_all_v", sent, group=group, counts={"sent": counts}, out=out)
    torch.cuda.synchronize()
    dist.barrier(group)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        overlap.transfer("all_to_all_v", sent, group=group, counts={"sent": counts}, out=out)
    for call in range(1, 6):
        sent.copy_(rows_of(call, counts, rank, torch.bfloat16))
        out.fill_(float("nan"))
        graph.replay()
        other = counts_of(call, world, MOST)
        between = rows_of(call, other, rank, torch.bfloat16)
        got = overlap.transfer("all_to_all_v", between, group=group, counts={"sent": other})
        for name, one, result, given in (("replay", counts, out, sent), ("call", other, got, between)):
            wanted = single(one, given, group)
            assert torch.equal(result, wanted), f"{name}: {told(call, one, result, wanted, rank)}"


def test_what_does_not_fit_is_refused_everywhere(group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    counts = [[2] * world for _ in range(world)]
    sent = torch.zeros(2 * world, 4, device="cuda")
    for bad, error in (
        ({"sent": [[2] * world] * (world + 1)}, PlanError),
        ({"sent": [[-1] * world for _ in range(world)]}, PlanError),
        (None, PlanError),
        ({"sent": [[3] * world for _ in range(world)]}, RuntimeContractError),
    ):
        with pytest.raises(error):
            overlap.transfer("all_to_all_v", sent, group=group, counts=bad)
    got = overlap.transfer("all_to_all_v", sent + rank, group=group, counts={"sent": counts})
    assert got[:, 0].tolist() == [float(i) for i in range(world) for _ in range(2)]
