"""Happens-before against networkx's transitive closure."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.errors import PlanError

from .oracle import graph_of

WHOLE = Chunk("a", Box.whole((4,)))


def random_plan(dice: random.Random, world: int, length: int, channels: int, links: int) -> CommPlan:
    """Operations whose data does not matter, with random lanes and dependencies."""
    lists = []
    for rank in range(world):
        row = []
        for _ in range(dice.randrange(length + 1)):
            peer = (rank + dice.randrange(1, world)) % world
            row.append(P2P("pull", peer, rank, WHOLE, WHOLE, (), dice.randrange(channels)))
        lists.append(row)
    ids = [(r, i) for r, row in enumerate(lists) for i in range(len(row))]
    for rank, row in enumerate(lists):
        for index, op in enumerate(row):
            depends = tuple(dice.sample(ids, min(len(ids), dice.randrange(links + 1))))
            row[index] = P2P("pull", op.src_rank, rank, WHOLE, WHOLE, depends, op.channel)
    held = ((WHOLE,),) * world
    return CommPlan("random", world, (TensorSpec("a", (4,)),), held, held, tuple(map(tuple, lists)))


def test_every_pair_of_random_plans():
    dice = random.Random(7)
    acyclic = cyclic = 0
    for _ in range(400):
        plan = random_plan(dice, dice.randint(2, 4), 4, dice.randint(1, 3), dice.choice([0, 1, 1, 2]))
        graph = graph_of(plan)
        if not nx.is_directed_acyclic_graph(graph):
            cyclic += 1
            with pytest.raises(PlanError) as caught:
                happens_before(plan)
            check_cycle(caught.value.message, graph)
            continue
        acyclic += 1
        order = happens_before(plan)
        closed = nx.transitive_closure(graph)
        for a in graph:
            for b in graph:
                assert order.before(a, b) == closed.has_edge(a, b), (plan.ops, a, b)
                assert order.ordered(a, b) == (closed.has_edge(a, b) or closed.has_edge(b, a))
        place = {op_id: i for i, op_id in enumerate(order.order)}
        assert all(place[a] < place[b] for a, b in graph.edges)
    assert acyclic > 60 and cyclic > 60


def check_cycle(message: str, graph: nx.DiGraph) -> None:
    """Every step that the message names is an edge, and the chain closes."""
    steps = message.split("in a cycle: ")[1].split("; ")
    edges = []
    for step in steps:
        left, right = step.split(" waits for ")
        at = tuple(int(word) for word in left.split(" (")[0].split() if word.isdigit())
        before = tuple(int(word) for word in right.split(" (")[0].split() if word.isdigit())
        edges.append((before, at))
    assert all(graph.has_edge(*edge) for edge in edges)
    assert [before for before, _ in edges] == [at for _, at in edges[1:]] + [edges[0][1]]
