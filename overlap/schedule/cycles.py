"""Cycles in a graph given by predecessors, as deadlock checks need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node")


def find_cycle(before: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """A cycle, each node followed by one it waits for and the first repeated at the end; [] if there is none.

    Args:
        before: for each node those that must come before it; all of them are keys.
    """
    done: set[Node] = set()
    for start in before:
        if start in done:
            continue
        path = [start]
        on_path = {start}
        todo = [iter(before[start])]
        while todo:
            for node in todo[-1]:
                if node in on_path:
                    return [*path[path.index(node) :], node]
                if node not in done:
                    path.append(node)
                    on_path.add(node)
                    todo.append(iter(before[node]))
                    break
            else:
                todo.pop()
                done.add(path[-1])
                on_path.discard(path.pop())
    return []
