"""What a plan does, worked out another way than `overlap.chunkplan` does: element by element.

`judge` decides with sets of single elements and networkx's transitive closure; `execute` moves real numbers in a random
order that the plan allows. `judge_sums` and `execute_sums` are the same for plans that reduce, where the value of an
element is how often it counts each rank.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import product

import networkx as nx
import numpy as np

from overlap.chunkplan.plan import Chunk, CommPlan, OpId


def elements(chunk: Chunk) -> set[tuple[str, tuple[int, ...]]]:
    """Every element of a chunk by name and index."""
    ranges = (range(lo, hi) for lo, hi in zip(chunk.box.lo, chunk.box.hi, strict=True))
    return {(chunk.tensor, index) for index in product(*ranges)}


def graph_of(plan: CommPlan) -> nx.DiGraph:
    """An edge from each operation to those that start after it is complete."""
    graph = nx.DiGraph()
    for rank, ops in enumerate(plan.ops):
        last: dict[int, OpId] = {}
        for index, op in enumerate(ops):
            graph.add_node((rank, index))
            if op.channel in last:
                graph.add_edge(last[op.channel], (rank, index))
            last[op.channel] = (rank, index)
            for dep in op.depends:
                graph.add_edge(dep, (rank, index))
    return graph


def judge(plan: CommPlan) -> str | None:
    """What is wrong with a plan of moves, in one word; None when nothing is."""
    graph = graph_of(plan)
    if not nx.is_directed_acyclic_graph(graph):
        return "cycle"
    closed = nx.transitive_closure(graph)
    owned = [set().union(*(elements(chunk) for chunk in chunks)) for chunks in plan.before]
    have = [set(part) for part in owned]
    moves = {(r, i): op for r, ops in enumerate(plan.ops) for i, op in enumerate(ops)}
    wrong = []
    for op_id, op in moves.items():
        earlier = [moves[a] for a in nx.ancestors(graph, op_id)]
        arrived = set().union(*(elements(e.dst) for e in earlier if e.dst_rank == op.src_rank))
        if elements(op.src) - owned[op.src_rank] - arrived:
            wrong.append("reads what is not there")
        if elements(op.dst) & owned[op.dst_rank]:
            wrong.append("overwrites what is owned")
        have[op.dst_rank] |= elements(op.dst)
        for other_id, other in moves.items():
            if other_id == op_id or closed.has_edge(op_id, other_id) or closed.has_edge(other_id, op_id):
                continue
            if op.dst_rank == other.dst_rank and elements(op.dst) & elements(other.dst):
                wrong.append("written twice")
            if op.dst_rank == other.src_rank and elements(op.dst) & elements(other.src):
                wrong.append("read and overwritten")
    for rank, chunks in enumerate(plan.after):
        if set().union(*(elements(chunk) for chunk in chunks)) - have[rank]:
            wrong.append("never arrives")
    return wrong[0] if wrong else None


def execute(plan: CommPlan, truth: dict[str, np.ndarray], seed: int) -> None:
    """Carries a plan out in a random allowed order, from poisoned memory, and checks every promised chunk."""
    memory = [{name: np.full(data.shape, np.nan) for name, data in truth.items()} for _ in range(plan.world)]

    def part(data: np.ndarray, chunk: Chunk) -> np.ndarray:
        return data[tuple(slice(lo, hi) for lo, hi in zip(chunk.box.lo, chunk.box.hi, strict=True))]

    for rank, chunks in enumerate(plan.before):
        for chunk in chunks:
            part(memory[rank][chunk.tensor], chunk)[...] = part(truth[chunk.tensor], chunk)
    graph = graph_of(plan)
    waiting = {node: graph.in_degree(node) for node in graph}
    ready = sorted(node for node, count in waiting.items() if count == 0)
    dice = random.Random(seed)
    done = 0
    while ready:
        node = ready.pop(dice.randrange(len(ready)))
        op = plan.op(node)
        moved = part(memory[op.src_rank][op.src.tensor], op.src).copy()
        assert not np.isnan(moved).any(), f"{op} reads elements that are not there"
        part(memory[op.dst_rank][op.dst.tensor], op.dst)[...] = moved
        done += 1
        for follower in graph.successors(node):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    assert done == graph.number_of_nodes(), "the plan does not finish"
    for rank, chunks in enumerate(plan.after):
        for chunk in chunks:
            np.testing.assert_array_equal(part(memory[rank][chunk.tensor], chunk), part(truth[chunk.tensor], chunk))


# Plans that reduce

Element = tuple[str, tuple[int, ...]]


def reduces(plan: CommPlan) -> bool:
    return any(op.reduce is not None for _, op in plan.items())


def judge_sums(plan: CommPlan, seed: int = 0) -> frozenset[str]:
    """All that is wrong with a plan of moves and reductions inside its tensors, in a few words each."""
    graph = graph_of(plan)
    if not nx.is_directed_acyclic_graph(graph):
        return frozenset(["cycle"])
    ops = dict(plan.items())
    behind = {op_id: nx.ancestors(graph, op_id) for op_id in ops}
    owned = [set().union(*(elements(chunk) for chunk in chunks)) for chunks in plan.before]
    wrong = set()
    for op_id, op in ops.items():
        for rank, chunk in [(op.src_rank, op.src)] + ([(op.dst_rank, op.dst)] if op.reduce else []):
            arrived = set().union(*(elements(ops[a].dst) for a in behind[op_id] if ops[a].dst_rank == rank))
            if elements(chunk) - owned[rank] - arrived:
                wrong.add("reads what is not there")
    for (a, first), (b, second) in product(ops.items(), repeat=2):
        if a == b or a in behind[b] or b in behind[a]:
            continue
        if first.dst_rank == second.dst_rank and elements(first.dst) & elements(second.dst):
            if not (first.reduce and second.reduce):
                wrong.add("written twice")
        if not first.reduce and first.dst_rank == second.src_rank and elements(first.dst) & elements(second.src):
            wrong.add("read and overwritten")
    return frozenset(wrong) or execute_sums(plan, seed)


def execute_sums(plan: CommPlan, seed: int) -> frozenset[str]:
    """Carries a plan out in a random allowed order; what is wrong with its values.

    What arrives is kept apart, in the order of arrival, and an operation combines what it is ordered behind.
    """
    graph = graph_of(plan)
    behind = {node: nx.ancestors(graph, node) for node in graph}
    start: list[dict[Element, Counter[int]]] = [
        {element: Counter([rank]) for chunk in chunks for element in elements(chunk)}
        for rank, chunks in enumerate(plan.before)
    ]
    arrived: list[dict[Element, list[tuple[OpId, bool, Counter[int]]]]] = [defaultdict(list) for _ in start]

    def value(rank: int, element: Element, reader: OpId | None) -> Counter[int]:
        total = Counter(start[rank].get(element, {}))
        for writer, adds, brought in arrived[rank][element]:
            if reader is None or writer in behind[reader]:
                total = total + brought if adds else Counter(brought)
        return total

    waiting = {node: graph.in_degree(node) for node in graph}
    ready = sorted(node for node, count in waiting.items() if count == 0)
    dice = random.Random(seed)
    while ready:
        node = ready.pop(dice.randrange(len(ready)))
        op = plan.op(node)
        moved = {element: value(op.src_rank, element, node) for element in elements(op.src)}
        for element, brought in moved.items():
            arrived[op.dst_rank][element].append((node, op.reduce is not None, brought))
        for follower in graph.successors(node):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    wrong = set()
    for rank, chunks in enumerate(plan.after):
        for element in set().union(*(elements(chunk) for chunk in chunks)):
            found = value(rank, element, None)
            if max(found.values(), default=0) > 1:
                wrong.add("counted twice")
            if not found:
                wrong.add("never arrives")
            elif set(found) != set(range(plan.world)):
                wrong.add("missing")
    return frozenset(wrong)


# Collectives, as numpy does them


def collective(plan: CommPlan, kind: str | None, seed: int) -> None:
    """Carries a plan over its one tensor out in a random allowed order and compares every rank with the collective.

    ``kind`` reduce_scatter and all_reduce sum the ranks' own whole tensors; any other moves the one truth. What arrives
    is combined as a plan says: a reader sees its own value and what is ordered before it.
    """
    (spec,) = plan.tensors
    sums = kind in ("reduce_scatter", "all_reduce")
    base = np.arange(1, 1 + int(np.prod(spec.shape)), dtype=np.int64).reshape(spec.shape)
    own = [base * 16**rank if sums else base for rank in range(plan.world)]
    truth = np.sum(np.stack(own), axis=0) if sums else base

    def cut(chunk: Chunk) -> tuple[slice, ...]:
        return tuple(slice(lo, hi) for lo, hi in zip(chunk.box.lo, chunk.box.hi, strict=True))

    missing = -1
    start = [np.full(spec.shape, missing, dtype=np.int64) for _ in own]
    for rank, chunks in enumerate(plan.before):
        for chunk in chunks:
            start[rank][cut(chunk)] = own[rank][cut(chunk)]
    graph = graph_of(plan)
    behind: dict[OpId, set[OpId]] = {}
    arrived: list[list[tuple[OpId, Chunk, bool, np.ndarray]]] = [[] for _ in own]

    def value(rank: int, reader: OpId | None) -> np.ndarray:
        found = start[rank].copy()
        for writer, chunk, adds, brought in arrived[rank]:
            if reader is None or writer in behind[reader]:
                here = found[cut(chunk)]
                found[cut(chunk)] = here + brought if adds else brought
        return found

    waiting = {node: graph.in_degree(node) for node in graph}
    ready = sorted(node for node, count in waiting.items() if count == 0)
    dice = random.Random(seed)
    while ready:
        node = ready.pop(dice.randrange(len(ready)))
        before = list(graph.predecessors(node))
        behind[node] = set(before).union(*(behind[b] for b in before))
        op = plan.op(node)
        moved = value(op.src_rank, node)[cut(op.src)]
        assert (moved != missing).all(), f"{op} reads elements that are not there"
        arrived[op.dst_rank].append((node, op.dst, op.reduce is not None, moved))
        for follower in graph.successors(node):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    assert len(behind) == len(graph)
    for rank, chunks in enumerate(plan.after):
        found = value(rank, None)
        for chunk in chunks:
            assert (found[cut(chunk)] == truth[cut(chunk)]).all(), f"rank {rank} ends with other numbers in {chunk}"
