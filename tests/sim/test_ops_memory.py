"""What `overlap.reserve` sets aside for operators: memory of the plans and parts that their calls run, and of no others."""

from __future__ import annotations

import math

import pytest
import torch

from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.region import shard_interval
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan, reserve
from overlap.runtime.workspace import release, workspaces
from overlap.sim import World

pytestmark = pytest.mark.one_triton

WORLD, ROWS, DEPTH, COLUMNS = 2, 40, 16, 24
CALLS = {
    "ag_gemm": (lambda x, w, rank, **how: ag_gemm(x.chunk(WORLD)[rank].clone(), w, **how), ROWS, DEPTH),
    "ag_gemm_k": (lambda x, w, rank, **how: ag_gemm_k(x.chunk(WORLD, 1)[rank].clone(), w, **how), ROWS, DEPTH),
    "gemm_rs": (lambda x, w, rank, **how: gemm_rs(x, w, **how), ROWS, COLUMNS),
    "gemm_ar": (lambda x, w, rank, **how: gemm_ar(x, w, **how), ROWS, COLUMNS),
    "a2a_gemm": (lambda x, w, rank, **how: a2a_gemm(x.chunk(WORLD, 1)[rank].clone(), w, **how), ROWS, DEPTH),
    "gemm_a2a": (lambda x, w, rank, **how: gemm_a2a(x.chunk(WORLD)[rank].clone(), w, **how), ROWS, COLUMNS),
}
"""By operator: a call, and rows and columns of the whole of the tensor that it moves."""
RESERVED = {
    # So here: what is pushed is shards of whole tiles, in sizes that these two are of.
    "ag_gemm": {("all_gather_1d", 1), ("all_gather_1d_push", 1)},
    "ag_gemm_k": {("all_gather_1d", 1)},
    "gemm_rs": {("reduce_scatter_1d", 2)},
    # Which of the two a call runs is up to its size.
    "gemm_ar": {("all_reduce_one_shot", 1), ("all_reduce_two_shot", 1)},
    "a2a_gemm": {("all_to_all_1d_push", (1, 3, 4))},
    "gemm_a2a": {("all_to_all_1d", 1)},
}


def made(group):
    """The memory of a group that holds anything: by plan and parts, elements of the tensor that is moved."""
    names = {find_template(name)[1]: name for name in list_templates()}
    found = {}
    for workspace in workspaces(group.overlap_runtime).values():
        (comm,) = workspace.operator.comms
        if workspace.memory is not None and any(workspace.memory.room.elements):
            how = names[comm.plan], workspace.operator.realization.split
            assert how not in found
            (found[how],) = workspace.memory.room.elements
    return found


@pytest.mark.parametrize("name", CALLS)
def test_reserved_is_what_calls_take_and_nothing_else(name):
    call, rows, width = CALLS[name]
    x, w = torch.randn(ROWS, DEPTH).half(), torch.randn(DEPTH, COLUMNS).half()

    def body(group):
        runtime = group.overlap_runtime
        reserve(group, operator=name, max_tokens=rows, hidden=width, dtype=torch.float16)
        ahead = made(group)
        release(group)
        call(x, w, runtime.rank, group=group, backend="copy_engine")
        runtime.synchronize()
        return ahead, made(group)

    for ahead, called in World(WORLD).run(body):
        assert set(ahead) == RESERVED[name]
        ((how, elements),) = called.items()
        assert ahead[how] == elements


@pytest.mark.parametrize(
    ("shape", "largest"), [((255, 16), 128 * 16), ((1, 128, 16), 128 * 16)], ids=["rows", "one matrix"]
)
def test_of_uneven_shards_the_largest_says_whether_what_pushes_is_reserved(shape, largest, monkeypatch):
    """Calls push where that has ``given_bytes`` of 16-bit elements; a rank's share of the whole has less."""
    x, w = torch.randn(shape).half(), torch.randn(shape[-1], COLUMNS).half()
    options = {"max_tokens": math.prod(shape[:-1]), "hidden": shape[-1], "inner_dims": len(shape) > 2}
    _, pushed = find_template("all_gather_1d_push")

    def body(group):
        runtime = group.overlap_runtime
        reserve(group, dtype=torch.float16, **options)
        mine = x[slice(*shard_interval(shape[0], WORLD, runtime.rank))].clone()
        y = ag_gemm(mine, w, gather_size=shape[0], group=group, backend="copy_engine")
        runtime.synchronize()
        held = [w.memory.room.elements for w in workspaces(runtime).values() if w.operator.comms[0].plan == pushed]
        return y.clone(), any(map(any, held))

    for least, pushes in ((2 * largest, True), (2 * largest + 1, False)):
        monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(least))
        for y, found in World(WORLD).run(body):
            torch.testing.assert_close(y.double(), x.double() @ w.double(), atol=4e-2, rtol=1e-2)
            assert found == pushes
        assert last_plan("ag_gemm").plan == ("all_gather_1d_push" if pushes else "all_gather_1d")


@pytest.mark.parametrize("plan", ["all_to_all_1d", "all_to_all_1d_push"])
def test_a_plan_that_is_asked_for_is_the_only_one(plan):
    def body(group):
        options = {"max_tokens": ROWS, "hidden": DEPTH, "dtype": torch.float16}
        reserve(group, operator="a2a_gemm", plan=plan, split=2, **options)
        return made(group)

    for found in World(WORLD).run(body):
        assert set(found) == {(plan, 2)}


@pytest.mark.parametrize(("asked", "rows"), [("1", 256), ("0", 256), ("", 2048), ("", 64)])
def test_what_calls_take_whose_tiles_add_is_reserved_too(asked, rows, monkeypatch):
    """They have a kernel of their own; where nobody says, which calls do is up to their size."""
    if asked:
        monkeypatch.setenv("OVERLAP_TILE_SUMS", asked)
    x, w = torch.randn(rows, DEPTH).half(), torch.randn(DEPTH, 64).half()

    def body(group):
        runtime = group.overlap_runtime

        def held():
            found = workspaces(runtime).values()
            return {(w.operator.realization.tile_sums, w.memory.room.elements) for w in found if w.memory is not None}

        reserve(group, operator="gemm_rs", max_tokens=rows, hidden=64, dtype=torch.float16)
        ahead = held()
        y = gemm_rs(x, w, group=group, backend="copy_engine")
        runtime.synchronize()
        assert held() == ahead, "calls make no memory"
        return y, {adds for adds, elements in ahead if any(elements)}

    for rank, (y, found) in enumerate(World(WORLD).run(body)):
        exact = (2 * x.double() @ w.double()).chunk(WORLD)[rank]
        torch.testing.assert_close(y.double(), exact, atol=4e-2, rtol=1e-2)
        assert found == ({None, 1} if asked == "1" or rows == 2048 else {None})
