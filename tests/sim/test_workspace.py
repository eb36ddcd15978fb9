"""One workspace, many shapes: shared epochs, growth, reserve, release, and what a failed call leaves behind."""

import contextlib
import weakref
from functools import cache

import pytest
import torch

from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, UsageError
from overlap.runtime import instances as instance_layer
from overlap.runtime import workspace as workspace_layer
from overlap.runtime.launch import acts as acts_layer
from overlap.runtime.workspace import check, release, reserve, workspaces
from overlap.schedule.steps import Copy
from overlap.sim import World
from overlap.sim.runtime import SimRuntime

pytestmark = pytest.mark.one_triton

K, N = 16, 8


@pytest.fixture(scope="module")
def module(repo):
    return load_module(str(repo / "tests/golden/hand/grouped_gemm.py"))


@cache
def operands(m, seed, dtype=torch.float32, rank=0):
    """A and B of a call, in memory of this rank's own."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in ((m, K), (K, N)))


@pytest.fixture(scope="module", autouse=True)
def made_before():
    """Data exist before a simulation begins: what its host code computes would be part of it."""
    for m in (0, 1, 2, 3, 8, 64, 70, 71, 100, 101, 129, 130, 200):
        for seed in range(8):
            for rank in range(3):
                for dtype in (torch.float32, torch.float16):
                    operands(m, seed, dtype, rank)


def call(module, group, m, seed, dtype=torch.float32):
    """One call on this rank: its size, its data and its result."""
    runtime = group.overlap_runtime
    a, b = operands(m, seed, dtype, runtime.rank)
    low, high = shard_interval(m, runtime.world, runtime.rank)
    return m, seed, dtype, module.matmul(a[low:high], b, group=group, sizes={"M": m, "K": K, "N": N})


def calls(module, group, *shapes):
    """Calls of these M in a row."""
    return [call(module, group, m, seed) for seed, m in enumerate(shapes)]


def run(world, body, seed=0):
    """Runs ``body``, which returns calls; all results are compared when the run is over."""
    for results in World(world, seed=seed).run(body):
        for m, number, dtype, got in results:
            a, b = operands(m, number, dtype)
            wanted = a.float() @ b.float()
            torch.testing.assert_close(got.float(), wanted, atol=2e-2, rtol=2e-2, msg=f"call {number}, M={m}")


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_shapes_alternate_on_one_epoch(module, world, seed):
    """Small after large and back: each launch waits for its own flags at the shared epoch."""

    def body(group):
        results = calls(module, group, 130, 1, 70, 130, 3, 1, 70)
        assert len(workspaces(group.overlap_runtime)) == 1
        return results

    run(world, body, seed)


def test_a_shape_that_fits_allocates_nothing(module):
    def body(group):
        runtime = group.overlap_runtime
        results = calls(module, group, 130)
        (workspace,) = workspaces(runtime).values()
        memory, before = workspace.memory, runtime._world.memory
        held = sum(buffer.copies is not None for buffer in before._buffers)
        results += calls(module, group, 64, 1, 129, 0)
        assert workspace.memory is memory
        assert sum(buffer.copies is not None for buffer in before._buffers) == held
        return results

    run(2, body)


def test_growth_rebinds_the_shapes_before_it(module):
    def body(group):
        results = calls(module, group, 8, 70, 8, 200, 70, 8)
        (workspace,) = workspaces(group.overlap_runtime).values()
        assert workspace.memory.room.elements == (200 * K,) and workspace.kept == []
        called = [instance for instance in workspace.instances if instance.shape[0] in (70, 8)]
        assert {instance.memory for instance in called} == {workspace.memory}
        return results

    run(3, body, seed=1)


def test_memory_that_a_graph_uses_is_kept(module):
    def body(group):
        results = calls(module, group, 8)
        (workspace,) = workspaces(group.overlap_runtime).values()
        small = workspace.memory
        small.captured = True
        results += calls(module, group, 70, 8)
        assert workspace.kept == [small]
        return results

    run(2, body)


@pytest.mark.parametrize("again", [False, True])
def test_a_call_that_is_captured_goes_on_in_the_memory_it_knows(module, monkeypatch, again):
    """Another shape's call has made larger memory since; tables for that cannot be made in a capture."""
    said, plain, table = [False], SimRuntime.in_order, SimRuntime.table

    @contextlib.contextmanager
    def in_order(runtime, key, main):
        with plain(runtime, key, main):
            yield said[0]

    def refused_in_a_capture(runtime, values, **options):
        assert not said[0], "a table is made in a capture"
        return table(runtime, values, **options)

    monkeypatch.setattr(SimRuntime, "in_order", in_order)
    monkeypatch.setattr(SimRuntime, "table", refused_in_a_capture)
    monkeypatch.setattr(SimRuntime, "capturing", lambda runtime: said[0])

    def body(group):
        runtime = group.overlap_runtime
        results = calls(module, group, 8)
        (workspace,) = workspaces(runtime).values()
        small = workspace.memory
        results += calls(module, group, 70, *([8, 70] if again else []))
        runtime.agree("before the capture", None)
        said[0] = True
        results += calls(module, group, 8, 70, 8)
        runtime.agree("behind the capture", None)
        said[0] = False
        assert workspace.memory.captured and workspace.kept == ([] if again else [small])
        results += calls(module, group, 8, 70)
        assert small.captured == (not again) and all(
            instance.memory is workspace.memory for instance in workspace.instances
        )
        return results

    run(2, body)


def test_reserve_holds_everything_up_to_its_sizes_and_names_both_beyond(module):
    def body(group):
        runtime = group.overlap_runtime
        reserve(module.OL_OPERATOR, group, {"M": 100, "K": K}, torch.float32)
        (workspace,) = workspaces(runtime).values()
        memory = workspace.memory
        results = calls(module, group, 100, 1, 64)
        with pytest.raises(RuntimeContractError, match=r"\(101, 16\) needs 6464 bytes.*reserved are 6400 bytes"):
            call(module, group, 101, 0)
        results += calls(module, group, 100, 1, 3)
        assert workspace.memory is memory
        tables = [table.words for instance in workspace.instances for table in instance._tables.values()]
        places = [words.storage_offset() for words in tables]
        assert len(places) == 4 and len(set(places)) == 4 and all(place % 64 == 0 for place in places)
        return results

    run(2, body)


@pytest.mark.parametrize("sizes", [{"M": 4}, {"M": 4, "K": -1}, {"M": 4, "K": True}, {"M": "4", "K": 4}])
def test_reserve_wants_a_size_of_every_axis(module, sizes):
    def body(group):
        reserve(module.OL_OPERATOR, group, sizes, torch.float32)

    with pytest.raises(UsageError, match="reserve needs the largest size of [MK]"):
        World(1).run(body)


def test_ranks_that_reserve_differently_are_told(module):
    def body(group):
        rank = group.overlap_runtime.rank
        reserve(module.OL_OPERATOR, group, {"M": 100 + rank, "K": K}, torch.float32)

    with pytest.raises(RuntimeContractError, match=r"reserves.*10\d, 16.*rank \d .*10\d, 16"):
        World(2).run(body)


def test_tables_past_the_reserve_are_ordinary_memory(module, monkeypatch):
    monkeypatch.setattr(workspace_layer, "TABLE_WORDS", 200)

    def body(group):
        reserve(module.OL_OPERATOR, group, {"M": 130, "K": K}, torch.float32)
        return calls(module, group, 130, 64, 1, 70, 3, 130, 64)

    run(3, body)


def test_dtypes_have_workspaces_of_their_own(module):
    def body(group):
        results = [call(module, group, 70, 0, dtype) for dtype in (torch.float32, torch.float16, torch.float32)]
        assert len(workspaces(group.overlap_runtime)) == 2
        return results

    run(2, body)


def test_release_starts_anew(module):
    def body(group):
        results = calls(module, group, 70, 8)
        release(group)
        assert not workspaces(group.overlap_runtime)
        results += calls(module, group, 8, 70)
        check(group)
        return results

    run(3, body)


def test_release_lets_go_of_the_memory_of_the_last_call(module):
    def body(group):
        results = calls(module, group, 70, 70)
        (workspace,) = workspaces(group.overlap_runtime).values()
        memory = weakref.ref(workspace.memory)
        release(group)
        assert memory() is None
        return results

    run(2, body)


@pytest.mark.parametrize(
    ("other", "difference"),
    [({"m": 71}, r"shape \(\d+, 16\) against \(\d+, 16\)"), ({"dtype": torch.float16}, r"dtype torch.\w+ against")],
)
def test_ranks_that_call_differently_are_told_the_first_difference(module, other, difference):
    def body(group):
        call(module, group, **{"m": 70, "seed": 0, **(other if group.overlap_runtime.rank else {})})

    with pytest.raises(RuntimeContractError, match=f"call `matmul` differently: {difference}"):
        World(2).run(body)


def test_uneven_shards_without_a_global_size_are_told_how_to_give_it(module):
    """Each rank takes its shard for one of equal ones."""

    def body(group):
        a, b = operands(71, 0, rank=0)
        low, high = shard_interval(71, 2, group.overlap_runtime.rank)
        module.matmul(a[low:high], b, group=group)

    with pytest.raises(RuntimeContractError, match=r"differently: shape \(7\d, 16\) against \(7\d, 16\)") as told:
        World(2).run(body)
    assert "sizes= of a host function" in told.value.help


def test_a_rank_that_raises_in_a_first_call_tells_the_others(module):
    """Both go on from there: the failed call counted the same meetings on every rank."""

    def body(group):
        runtime = group.overlap_runtime
        a, b = operands(70, 0, rank=runtime.rank)
        low, high = shard_interval(70, 2, runtime.rank)
        wrong = runtime.rank == 1
        with pytest.raises(ValueError if wrong else RuntimeContractError) as caught:
            module.matmul(a[low:high], b[:, 0] if wrong else b, group=group, sizes={"M": 70})
        assert wrong or "rank 1 raised instead of coming" in str(caught.value)
        return calls(module, group, 70)

    run(2, body, seed=3)


def test_a_launch_that_raises_half_way_poisons_its_workspace(module, monkeypatch):
    prepared, failing = acts_layer.lane_step, set()

    def sometimes(instance, table, step):
        enqueue = prepared(instance, table, step)

        def guarded(stream, carried):
            if instance.runtime.rank in failing:
                raise ValueError("the driver said no")
            enqueue(stream, carried)

        return guarded if isinstance(step, Copy) else enqueue

    monkeypatch.setattr(acts_layer, "lane_step", sometimes)

    def body(group):
        results = calls(module, group, 70)
        failing.add(group.overlap_runtime.rank)
        with pytest.raises(ValueError, match="the driver said no"):
            call(module, group, 70, 1)
        failing.discard(group.overlap_runtime.rank)
        for m in (70, 8):
            with pytest.raises(
                RuntimeContractError, match="earlier launch of `matmul` raised half-way.*driver said no"
            ):
                call(module, group, m, 2)
        release(group)
        return results + calls(module, group, 8)

    run(2, body)


def test_an_unclear_shard_keeps_one_instance_whatever_its_strides(module):
    """One row: its strides say nothing about memory order, and differ from call to call on one rank only."""

    def body(group):
        runtime = group.overlap_runtime
        a, b = operands(2, 0, rank=runtime.rank)
        low, high = shard_interval(2, 2, runtime.rank)
        results = []
        for stride in (K, 1, 7):
            shard = a[low:high].as_strided((1, K), (stride if runtime.rank else K, 1))
            results.append((2, 0, torch.float32, module.matmul(shard, b, group=group, sizes={"M": 2})))
        assert len(instance_layer.instances(runtime)) == 1
        return results

    run(2, body)
