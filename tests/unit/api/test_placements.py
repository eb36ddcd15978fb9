"""Redistributions of DTensor as plans: each rank ends with what `redistribute` itself gives, run on four threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from overlap.chunkplan.importers import placement as plain
from overlap.chunkplan.links import full_mesh
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from overlap.interop.placements import mesh_of, placement_of, plan_rank, redistribute_plan
from tests.unit.chunkplan.values import execute

WORDS = {"R": Replicate(), "P": Partial(), "S(0)": Shard(0), "S(1)": Shard(1)}
SHAPES = ((7, 5), (2, 3))
PAIRS = [
    ((4,), before, after)
    for before, after in [
        ("S(0)", "R"),
        ("S(1)", "R"),
        ("R", "S(0)"),
        ("S(0)", "S(1)"),
        ("S(1)", "S(0)"),
        ("P", "R"),
        ("P", "S(0)"),
        ("P", "S(1)"),
    ]
] + [
    ((2, 2), before, after)
    for before, after in [
        ("S(0) S(0)", "R R"),
        ("S(0) S(1)", "S(1) S(0)"),
        ("S(0) R", "R S(0)"),
        ("S(0) S(0)", "S(1) R"),
        ("R S(1)", "S(0) S(1)"),
        ("P S(0)", "S(0) R"),
        ("P P", "R R"),
        ("P P", "S(0) S(1)"),
        ("S(0) P", "S(0) R"),
        ("S(1) P", "R S(0)"),
        ("R P", "S(0) S(0)"),
        ("P R", "P S(1)"),
    ]
]


def on_threads(world: int, body) -> list:
    """What ``body(rank)`` gives on each rank of a process group of threads."""
    results: list = [None] * world
    errors: list[BaseException] = []
    world_of_threads = threaded._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store = dist.HashStore()

    def run(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
            results[rank] = body(rank)
        except BaseException as error:
            errors.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            if world_of_threads.default_pg is not None:
                dist.destroy_process_group()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        threaded._uninstall_threaded_pg()
    assert not errors, errors
    return results


@pytest.fixture(scope="module")
def redistributed():
    """For each pair and shape: the plan, the ranks' tensors before, and what redistribute leaves on each rank."""

    def body(rank: int) -> list:
        found = []
        meshes = {sizes: init_device_mesh("cpu", sizes) for sizes in ((4,), (2, 2))}
        for number, (sizes, before, after) in enumerate(PAIRS):
            for shape in SHAPES:
                mesh = meshes[sizes]
                old, new = ([WORDS[word] for word in text.split()] for text in (before, after))
                at = mesh.get_coordinate()
                part = sum(c * 2**i for i, c in enumerate(at) if old[i].is_partial())
                whole = torch.arange(number, number + shape[0] * shape[1], dtype=torch.float64).reshape(shape) * (
                    part + 1
                )
                local = whole
                for axis, placement in enumerate(old):
                    if placement.is_shard():
                        pieces = torch.chunk(local, sizes[axis], placement.dim)
                        empty = local.narrow(placement.dim, 0, 0)
                        local = pieces[at[axis]] if at[axis] < len(pieces) else empty
                given = DTensor.from_local(local, mesh, old, run_check=False, shape=shape, stride=(shape[1], 1))
                wanted = given.redistribute(placements=new).to_local()
                plans = redistribute_plan(given, new), redistribute_plan(given, new, path="synth", links=full_mesh(4))
                found.append((plans, whole.numpy(), wanted.numpy(), plan_rank(mesh)))
        return found

    return on_threads(4, body)


@pytest.mark.parametrize("number", range(len(PAIRS) * len(SHAPES)))
def test_a_plan_leaves_what_redistribute_does(redistributed, number):
    plans = redistributed[0][number][0]
    start = np.stack([found[number][1] for found in redistributed])
    for way, plan in enumerate(plans):
        verify_plan(plan)
        memory = execute(plan, {"x": start}, number)
        for rank, found in enumerate(redistributed):
            assert found[number][0][way] == plan and found[number][3] == rank
            np.testing.assert_array_equal(memory[rank]["x"], found[number][2])


def test_meshes_keep_their_names(fake_group):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert str(mesh_of(mesh)) == "dp=2,tp=2"
    assert plan_rank(mesh) == 1
    assert (str(mesh_of(mesh["tp"])), plan_rank(mesh["tp"])) == ("tp=2", 1)
    assert plan_rank(mesh["dp"]) == 0


def test_placements_as_plain_data():
    assert placement_of(Shard(-1)) == plain.Shard(-1)
    assert placement_of(Replicate()) == plain.Replicate()
    assert placement_of(Partial()) == plain.Partial()


def test_what_no_plan_knows_is_told(fake_group):
    from torch.distributed.tensor.placement_types import _StridedShard

    with pytest.raises(PlanError, match="interleaves") as caught:
        placement_of(_StridedShard(0, split_factor=2))
    assert "in their order" in caught.value.help
    with pytest.raises(PlanError, match="is no placement that a plan knows"):
        placement_of("S(0)")
    mesh = init_device_mesh("cpu", (4,))
    replicated = DTensor.from_local(torch.ones(8, 4), mesh, [Replicate()], run_check=False)
    with pytest.raises(PlanError, match="no transfer makes parts of a whole"):
        redistribute_plan(replicated, [Partial()])
    averaged = DTensor.from_local(torch.ones(8, 4), mesh, [Partial("avg")], run_check=False)
    with pytest.raises(PlanError, match="no plan carries out") as caught:
        redistribute_plan(averaged, [Replicate()])
    assert "partial(sum)" in caught.value.help
