"""Schedules as text."""

from __future__ import annotations

from overlap.chunkplan.plan import Collective
from overlap.schedule.describe import describe
from overlap.schedule.runs import schedule_rank

from .plans import both, chunk_of, finish, gather, gemm_axes, one_shot, pieces, reads_a, reduce_scatter, writes_c


def shown(plan, axes, rank, **how) -> str:
    return describe(schedule_rank(plan, reads_a(), axes, rank, **how), plan)


def test_runs_and_waits():
    assert (
        shown(gather((136, 64), 0, 4), gemm_axes(136, 100, 32, 64), 3)
        == """\
rank 3 of 4: 10 tiles (M 5 x N 2) in 4 runs, 3 flags
  run  tiles  box            ready with                          waits for
  0    0..1   M[4:5] N[0:2]  own chunk                           nothing
  1    2..3   M[0:1] N[0:2]  a[0:34, 0:64] (pull from rank 0)    flag 0
  2    4..5   M[1:2] N[0:2]  a[34:68, 0:64] (pull from rank 1)   flag 1
  3    6..9   M[2:4] N[0:2]  a[68:102, 0:64] (pull from rank 2)  flag 2"""
    )


def test_several_flags_and_an_empty_chunk():
    plan, axes = gather((3, 4), 0, 4, direction="push"), gemm_axes(3, 100, 32, 64)
    assert (
        shown(plan, axes, 1)
        == """\
rank 1 of 4: 2 tiles (M 1 x N 2) in 1 run, 3 flags
  run  tiles  box            ready with                      waits for
  0    0..1   M[0:1] N[0:2]  a[0:1, 0:4] (push from rank 0)  flag 1, flag 0
  flag 2 is of an empty chunk, raised all the same: rank 3 operation 1 (push a[3:3, 0:4] to rank 1)"""
    )


def test_a_listed_order_and_an_empty_grid():
    plan = gather((8, 4), 0, 2)
    text = shown(plan, gemm_axes(8, 8, 4, 4), 0, tile_map=lambda tile, counts: (0, 0))
    assert "no bijection on some run, so the table lists every tile" in text
    text = shown(gather((0, 4), 0, 2), gemm_axes(0, 8, 4, 4), 0)
    assert text.splitlines()[0] == "rank 0 of 2: 0 tiles (M 0 x N 2) in 0 runs, 1 flag"


def test_a_collective():
    parts = pieces((8, 2), 0, 2, 1)
    whole = chunk_of((8, 2), 0, 0, 8)
    ops = [[Collective("all_gather", (0, 1), parts[rank][0], whole)] for rank in range(2)]
    text = shown(finish("library", 2, (8, 2), parts, ops), gemm_axes(8, 4, 4, 4), 1)
    assert text.splitlines()[3].split("  ")[-2:] == ["a[0:8, 0:2] (all_gather)", "flag 0"]


def test_counters():
    plan = both(gather((130, 8), 0, 4), reduce_scatter((130, 48), 0, 4), channel=1)
    assert (
        shown(plan, gemm_axes(130, 48, 32, 16), 1, writes=writes_c())
        == """\
rank 1 of 4: 15 tiles (M 5 x N 3) in 4 runs, 6 flags, 3 counters
  run  tiles  box            ready with                         waits for  counts into
  0    0..2   M[2:3] N[0:3]  a[66:99, 0:8] (pull from rank 2)   flag 1     counter 0
  1    3..5   M[3:4] N[0:3]  a[99:130, 0:8] (pull from rank 3)  flag 2     counter 0, counter 1
  2    6..8   M[4:5] N[0:3]  a[99:130, 0:8] (pull from rank 3)  flag 2     counter 1
  3    9..14  M[0:2] N[0:3]  a[0:33, 0:8] (pull from rank 0)    flag 3     counter 2
  counter 0: c[66:99, 0:48] is whole at 6 tiles; sent to rank 2
  counter 1: c[99:130, 0:48] is whole at 6 tiles; sent to rank 3
  counter 2: c[0:33, 0:48] is whole at 6 tiles; sent to rank 0"""
    )


def test_a_chunk_that_goes_to_several_ranks_and_tiles_that_wait_for_nothing():
    plan = one_shot((8, 4), 3)
    text = describe(schedule_rank(plan, (), gemm_axes(8, 4, 4, 4), 0, writes=writes_c()), plan)
    assert text.splitlines()[2:] == [
        "  0    0..1   M[0:2] N[0:1]  the launch  nothing    counter 0",
        "  counter 0: c[0:8, 0:4] is whole at 2 tiles; sent to rank 1, sent to rank 2",
    ]
