"""A small model of launch steps: streams as FIFO agents, one move at a time, data as launch numbers.

Each rank's elements hold the number of the launch whose data they contain. A kernel or copy of launch n that finds
another number has read stale or overwritten data. Nothing here knows why a step is there. The kernel of an ``idle``
rank has no tiles: it waits for nothing and reads nothing, but the rank's copies are made all the same.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import product

from overlap.chunkplan.plan import Chunk, CommPlan
from overlap.schedule import steps as st

MAIN = None
Program = Iterator["Callable[[], bool] | None"]
"""A generator of one step's moves: None is one move done, a function is waited for until it returns True."""


@cache
def elements(chunk: Chunk) -> tuple[tuple[int, ...], ...]:
    return tuple(product(*map(range, chunk.box.lo, chunk.box.hi)))


class StaleRead(AssertionError):
    pass


class Stuck(AssertionError):
    pass


class Model:
    def __init__(
        self, plan: CommPlan, steps: Sequence[Sequence[st.Step]], launches: int, idle: Collection[int]
    ) -> None:
        self.plan = plan
        world = plan.world
        self.data: list[dict] = [{} for _ in range(world)]
        self.epoch = [0] * world
        self.ready = [[0] * world for _ in range(world)]
        self.done = [[0] * world for _ in range(world)]
        self.flags: dict = {}
        self.events: set = set()
        self.queues: dict[tuple[int, int | None], deque] = {}
        self.idle = idle
        for n in range(1, launches + 1):
            for rank, own in enumerate(steps):
                for i, step in enumerate(own):
                    self.enqueue(rank, n, i, step)

    def enqueue(self, rank: int, n: int, i: int, step: st.Step) -> None:
        def queue(lane: int | None) -> deque:
            return self.queues.setdefault((rank, lane), deque())

        match step:
            case st.Fork(lane):
                queue(MAIN).append(self.record((rank, n, i)))
                queue(lane).append(self.wait_event((rank, n, i)))
            case st.Join(lane):
                queue(lane).append(self.record((rank, n, i)))
                queue(MAIN).append(self.wait_event((rank, n, i)))
            case st.Entry():
                queue(MAIN).append(self.entry(rank, n, step))
            case st.Kernel():
                queue(MAIN).append(self.kernel(rank, n))
            case st.Credit(peer, lane):
                queue(lane).append(self.credit(rank, peer))
            case st.Await(lane, op, where):
                queue(lane).append(self.awaiting(rank, op, where))
            case st.Copy(lane, op):
                queue(lane).append(self.copy(n, op))
            case st.Raise(lane, op):
                queue(lane).append(self.raising(op))

    def record(self, event) -> Program:
        self.events.add(event)
        yield None

    def wait_event(self, event) -> Program:
        yield lambda: event in self.events

    def entry(self, rank: int, n: int, step: st.Entry) -> Program:
        peers = [p for p in range(self.plan.world) if p != rank]
        if step.wait_done:
            yield lambda: all(self.done[rank][p] >= n - 1 for p in peers)
        for chunk in self.plan.before[rank]:
            self.write(rank, chunk, n)
            yield None
        self.epoch[rank] = n
        yield None
        if step.ready:
            for p in peers:
                self.ready[p][rank] = n
                yield None
            yield lambda: all(self.ready[rank][p] >= n for p in peers)

    def write(self, rank: int, chunk: Chunk, n: int) -> None:
        self.data[rank].update(dict.fromkeys(elements(chunk), n))

    def read(self, rank: int, chunk: Chunk, n: int) -> None:
        found = {self.data[rank].get(element, 0) for element in elements(chunk)}
        if found - {n}:
            raise StaleRead(f"launch {n} reads {chunk} of launches {found} on rank {rank}")

    def kernel(self, rank: int, n: int) -> Program:
        yield None
        if rank in self.idle:
            return
        landing = self.plan.arriving(rank)
        for op in landing:
            yield lambda op=op: self.flags.get(op, 0) >= n
            self.read(rank, self.plan.op(op).dst, n)
        # Other programs of the grid read the same chunks, until the grid ends.
        for chunk in (*self.plan.before[rank], *(self.plan.op(op).dst for op in landing)):
            yield None
            self.read(rank, chunk, n)

    def awaiting(self, rank: int, op, where: int) -> Program:
        assert self.plan.op(op).dst_rank == where
        yield lambda: self.flags.get(op, 0) >= self.epoch[rank]

    def copy(self, n: int, op_id) -> Program:
        op = self.plan.op(op_id)
        yield None
        self.read(op.src_rank, op.src, n)
        yield None
        self.write(op.dst_rank, op.dst, n)

    def raising(self, op_id) -> Program:
        yield None
        self.flags[op_id] = self.epoch[self.plan.op(op_id).src_rank]

    def credit(self, rank: int, peer: int) -> Program:
        yield None
        self.done[peer][rank] = self.epoch[rank]

    def run(self, seed: int) -> None:
        """One interleaving.

        Raises:
            StaleRead: a copy or kernel read data of another launch.
            Stuck: nothing can move.
        """
        choose = random.Random(seed)
        weight = {key: choose.choice((1, 1, 4, 20)) for key in self.queues}
        waiting: dict = {}
        while any(self.queues.values()):
            able = [key for key, queue in self.queues.items() if queue and (key not in waiting or waiting[key]())]
            if not able:
                raise Stuck(f"nothing moves: {sorted(waiting, key=str)}")
            key = choose.choices(able, [weight[k] for k in able])[0]
            waiting.pop(key, None)
            try:
                wait = next(self.queues[key][0])
                if wait is not None:
                    waiting[key] = wait
            except StopIteration:
                self.queues[key].popleft()


def outcome(
    plan: CommPlan, steps: Sequence[Sequence[st.Step]], seed: int, *, idle: Collection[int] = (), launches: int = 3
) -> str:
    """``ok``, ``stale`` or ``stuck``: one interleaving of ``launches`` launches with these steps of all ranks."""
    try:
        Model(plan, steps, launches, idle).run(seed)
    except StaleRead:
        return "stale"
    except Stuck:
        return "stuck"
    return "ok"
