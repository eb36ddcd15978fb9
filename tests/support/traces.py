"""What is true of every recorded call, on simulated ranks and on GPUs."""

from __future__ import annotations

import math

from overlap.schedule.measured import Measured


def check_tiles(found: Measured) -> None:
    """Every tile of every rank once, each in order of time, and a program's one after the other."""
    for rank, record in enumerate(found.records):
        assert record.rank == rank
        positions = [at for run in record.schedule.runs for at in range(run.first, run.first + run.tiles)]
        assert [tile.position for tile in record.tiles] == positions
        # Coordinates are those of all tiles of the grid.
        grid = math.prod(axis.count for axis in record.schedule.axes)
        assert len(set(record.names)) == len(record.names) == grid
        for tile in record.tiles:
            parts = (moment for part in tile.parts if part for moment in part)
            moments = [tile.begins, tile.waits, tile.ready, *parts, tile.ends]
            assert moments == sorted(moments) and tile.begins < tile.ends
        for tiles in record.programs.values():
            for one, other in zip(tiles, tiles[1:], strict=False):
                assert one.ends <= other.ends and one.begins < other.begins
        assert -record.exactly <= record.begin <= record.tiles_end <= record.end


def check_chunks(found: Measured, slack: float = 0.0) -> None:
    """What tiles use had come, and what leaves was made and told behind it; marks of streams may be ``slack`` seconds off."""
    off = 2 * found.exactly + slack
    copied = {op: (record.rank, times) for record in found.records for op, times in record.copied.items()}
    for record in found.records:
        flags = set(record.schedule.slots)
        assert set(record.watched) == flags and set(record.arrivals()) <= flags
        came = record.came()
        for run in record.schedule.runs:
            for tile in record.tiles[run.first : run.first + run.tiles]:
                assert all(came[wait.op] <= tile.ready for wait in run.waits)
        for op, made in record.made().items():
            assert made <= found.records[found.plan.op(op).dst_rank].watched[op] + off
            assert op not in copied or made <= copied[op][1][1] + off
    for op, (rank, (start, end)) in copied.items():
        assert rank == op[0] and -off <= start <= end
        assert end <= found.records[found.plan.op(op).dst_rank].watched[op] + off
