"""`overlap.transfer` of pieces whose sizes change from call to call, on simulated ranks."""

from __future__ import annotations

import pytest
import torch

import overlap
import overlap.runtime.transfer.transfer
from overlap.chunkplan.counts import CountArray
from overlap.errors import PlanError, RuntimeContractError
from overlap.runtime import workspace as workspace_layer
from overlap.runtime.instances import instances
from overlap.runtime.workspace import workspaces
from overlap.sim import World
from tests.support.exchange import counts_of, received

pytestmark = pytest.mark.one_triton

CALLS = 7


def data(call: int, world: int, dtype: torch.dtype = torch.float32, most: int = 9) -> list[torch.Tensor]:
    """What each rank sends in a call: rows by destination."""
    counts = counts_of(call, world, most)
    generator = torch.Generator().manual_seed(call)
    return [torch.randn((sum(row), 3), generator=generator).to(dtype) for row in counts]


@pytest.mark.parametrize(
    ("world", "dtype"), [(1, torch.float32), (2, torch.bfloat16), (3, torch.float16), (4, torch.int64)]
)
def test_sizes_change_from_call_to_call(world, dtype):
    given = [data(call, world, dtype) for call in range(CALLS)]

    def body(group):
        rank = group.overlap_runtime.rank
        return [
            overlap.transfer("all_to_all_v", given[call][rank], group=group, counts={"sent": counts_of(call, world, 9)})
            for call in range(CALLS)
        ]

    for rank, results in enumerate(World(world, seed=world).run(body)):
        for call, got in enumerate(results):
            wanted = received(counts_of(call, world, 9), given[call], rank)
            assert got.dtype == dtype and torch.equal(got, wanted), (rank, call)


def test_options_and_forms_of_counts():
    world, call = 3, 0
    counts, given = counts_of(call, world, 9), data(call, world)
    wanted = [received(counts, given, rank) for rank in range(world)]
    total = sum(map(sum, counts))
    out = [torch.empty_like(tensor) for tensor in wanted]

    def body(group):
        rank = group.overlap_runtime.rank
        ways = {
            "tensor": {"counts": {"sent": torch.tensor(counts)}},
            "array": {"counts": {"sent": CountArray.of(counts)}},
            "room": {"counts": {"sent": counts}, "shape": (total + 5, 3)},
            "pushed in parts": {"counts": {"sent": counts}, "direction": "push", "split": 2},
            "out": {"counts": {"sent": counts}, "out": out[rank]},
        }
        found = {name: overlap.transfer("all_to_all_v", given[rank], group=group, **way) for name, way in ways.items()}
        held = given[rank].t().contiguous()
        found["columns"] = overlap.transfer("all_to_all_v", held, group=group, dim=1, counts={"sent": counts}).t()
        return found

    for rank, found in enumerate(World(world).run(body)):
        for name, got in found.items():
            assert torch.equal(got, wanted[rank]), name


@pytest.mark.parametrize(
    ("plan", "counts", "rows", "error", "said"),
    [
        ("all_to_all_v", None, 3, PlanError, "needs the counts `sent`"),
        (
            "all_to_all_v",
            {"sent": [[1, 2]]},
            3,
            PlanError,
            "index 0 of counts `sent` has 2 values here, and 1 are given",
        ),
        ("all_to_all_v", {"sent": [[1, 2], [3, -1]]}, 3, PlanError, r"the count at \[1, 1\] is -1"),
        ("all_to_all_v", {"send": [[1, 2], [2, 1]]}, 3, PlanError, "has no counts `send`"),
        ("all_to_all_v", {"sent": [[1, 2], [1, 1]]}, 3, RuntimeContractError, "rank 1 of 2 holds"),
        ("all_gather_1d", {"sent": [[1, 2], [1, 1]]}, 3, PlanError, "has no counts `sent`"),
    ],
)
def test_counts_that_do_not_fit(plan, counts, rows, error, said):
    """Every rank is told, and none waits for another."""
    given = torch.zeros(rows, 3)
    seen = []

    def body(group):
        try:
            overlap.transfer(plan, given, group=group, counts=counts)
        except (PlanError, RuntimeContractError) as caught:
            seen.append(caught)

    World(2).run(body)
    assert len(seen) == 2
    with pytest.raises(error, match=said) as told:
        raise next(caught for caught in seen if isinstance(caught, error))
    assert told.value.help


def test_counts_that_differ_between_ranks():
    given = [torch.zeros(3, 2), torch.zeros(3, 2)]
    told = []

    def body(group):
        rank = group.overlap_runtime.rank
        counts = [[1, 2], [2, 1]] if rank == 0 else [[2, 1], [1, 2]]
        try:
            overlap.transfer("all_to_all_v", given[rank], group=group, counts={"sent": counts})
        except RuntimeContractError as error:
            told.append(error.message)

    World(2).run(body)
    assert len(told) == 2 and all("what moves" in message for message in told)


def test_plans_that_were_called_long_ago_are_forgotten(monkeypatch):
    """By every rank the same ones, so that all meet over the new one."""
    monkeypatch.setattr(overlap.runtime.transfer.transfer, "KEPT", 2)
    world, order = 2, (0, 2, 3, 0, 2, 2, 4, 0)
    given = {call: data(call, world) for call in order}

    def body(group):
        runtime = group.overlap_runtime
        results = [
            overlap.transfer(
                "all_to_all_v", given[call][runtime.rank], group=group, counts={"sent": counts_of(call, world, 9)}
            )
            for call in order
        ]
        kept = {id(found) for key, found in instances(runtime).items() if key[0] == "transfer"}
        (workspace,) = workspaces(runtime).values()
        return results, len(kept), [found is not None for found in workspace.instances]

    for rank, (results, kept, living) in enumerate(World(world).run(body)):
        for call, got in zip(order, results, strict=True):
            assert torch.equal(got, received(counts_of(call, world, 9), given[call], rank))
        assert kept == 2
        # 0 and 2 are made, then 3 in place of 0, 0 of 2, 2 of 3, 4 of 0, and 0 of 2.
        assert living == [False] * 5 + [True] * 2


def test_memory_grows_a_few_times_only(monkeypatch):
    """However many sizes come, each a little larger than the one before."""
    made = []
    new = workspace_layer.Memory

    def memory(runtime, need, dtypes):
        made.append((runtime.rank, need.elements))
        return new(runtime, need, dtypes)

    monkeypatch.setattr(workspace_layer, "Memory", memory)
    sizes = range(4, 44, 2)
    given = [torch.arange(2.0 * n) for n in sizes]

    def body(group):
        counts = [{"sent": [[n, n], [n, n]]} for n in sizes]
        return [
            overlap.transfer("all_to_all_v", one, group=group, counts=c) for one, c in zip(given, counts, strict=True)
        ]

    for rank, results in enumerate(World(2).run(body)):
        for n, one, got in zip(sizes, given, results, strict=True):
            assert torch.equal(got, one[rank * n : (rank + 1) * n].repeat(2))
    grown = [elements for rank, elements in made if rank == 0]
    assert grown == [elements for rank, elements in made if rank == 1]
    assert 3 <= len(grown) <= 8
    assert all(b[0] >= a[0] + a[0] // 2 for a, b in zip(grown, grown[1:], strict=False))
