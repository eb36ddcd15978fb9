"""Which runs read nothing but what their rank holds from the start, so that they can read it where its caller has it.

    M = 128, 4 ranks, block 32, rank 1: each tile reads rows of one shard       M = 136: tile 1 reads rows of shards 0 and 1
    runs        [1] own         [2] [3] [0] wait for peers                      runs   [2] own    [3, 4] wait    [0, 1] wait
    shard 1     read by [1]     and by no other                                 shard 1 is read by [0, 1] too: it is staged

A tile loads a box at a time, from one place. So it is all or nothing: where a tile reads a part of the rank's own chunk and a
part of another's, the rank's own lies beside what arrives, and all tiles read it there.
"""

from __future__ import annotations

from collections.abc import Sequence

from .depgraph import DependenceGraph
from .model import Run


def reading(runs: Sequence[Run], alone: Sequence[bool], graph: DependenceGraph) -> tuple[bool, ...]:
    """By run, whether its tiles read some of what the rank holds and nothing else, if all tiles that read any of that do.

    Args:
        alone: by run, whether its tiles read nothing that arrives.
    """
    held = [tiles for _, sets in graph.own for tiles in sets]
    found = []
    for run, nothing_else in zip(runs, alone, strict=True):
        reads = any(tiles.meets(run.origin, run.counts) for tiles in held)
        if reads and not nothing_else:
            return (False,) * len(runs)
        found.append(reads)
    return tuple(found)
