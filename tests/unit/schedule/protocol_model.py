"""A small model of launch steps: streams as FIFO agents, one move at a time, data as launch numbers.

Each rank's elements hold the number of the launch whose data they contain, and what tiles make also whose parts it is
the sum of. A kernel, copy or sum of launch n that finds another number has read stale, torn or overwritten data. Nothing
here knows why a step is there. The kernel of an ``idle`` rank reads nothing and waits for nothing, but the rank's
copies are made all the same. Where tiles produce, every element is a tile.

`outcome` takes one interleaving, `outcomes` all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple

from overlap.chunkplan.plan import Chunk, CommPlan
from overlap.schedule import steps as st

MAIN = None
State = list
"""Everything that steps can change, a word each; positions of the streams are kept apart."""


class Move(NamedTuple):
    """Waits until ``ready`` (None: at once), then does ``act`` (None: nothing).

    ``early``: nothing that another stream does can disable it or see whether it is done a little sooner, so that it
    may be taken as soon as it is ready: waits for words that only grow, and events.
    """

    ready: Callable[[State], bool] | None
    act: Callable[[State], None] | None
    early: bool = False


@cache
def elements(chunk: Chunk) -> tuple[tuple[int, ...], ...]:
    return tuple(product(*map(range, chunk.box.lo, chunk.box.hi)))


class StaleRead(AssertionError):
    pass


class Model:
    """The moves of every stream for some launches in a row, and the words that they work on."""

    def __init__(
        self,
        plan: CommPlan,
        steps: Sequence[Sequence[st.Step]],
        launches: int,
        idle: Collection[int] = (),
        produced: Collection[str] = (),
    ) -> None:
        self.plan = plan
        self.idle = idle
        self.produced = produced
        self.words: dict[object, int] = {}
        self.start: State = []
        self.queues: dict[tuple[int, int | None], list[Move]] = {}
        self.kept = {
            op: piece.ops
            for own in steps
            for step in own
            if isinstance(step, st.Sum)
            for piece in step.pieces
            for op in piece.ops
        }
        self.held = [{step.op for step in own if isinstance(step, st.Copy) and self.is_made(step.op)} for own in steps]
        self.counted = [
            sorted(
                {plan.op(op).src for op in held} | {step.chunk for step in own if isinstance(step, st.Whole)}, key=str
            )
            for held, own in zip(self.held, steps, strict=True)
        ]
        self.staged_apart = [
            any(isinstance(step, st.Stage) or (isinstance(step, st.Kernel) and step.given) for step in own)
            for own in steps
        ]
        for n in range(1, launches + 1):
            for rank, own in enumerate(steps):
                if self.staged_apart[rank]:
                    # The caller reuses its tensor: what it has next is written right behind the launch before.
                    words = [self.word("given", rank, c.tensor, e) for c in self.held_by(rank) for e in elements(c)]
                    self.queues.setdefault((rank, MAIN), []).append(self.write(words, (n, ())))
                for i, step in enumerate(own):
                    self.enqueue(rank, n, i, step)

    def word(self, *key: object) -> int:
        """The place of a word in the state; made, as 0, when it is first named."""
        if key not in self.words:
            self.words[key] = len(self.start)
            self.start.append(0)
        return self.words[key]

    def is_made(self, op_id) -> bool:
        return self.plan.op(op_id).src.tensor in self.produced and op_id not in self.kept

    def held_by(self, rank: int) -> list[Chunk]:
        return [chunk for chunk in self.plan.before[rank] if chunk.tensor not in self.produced]

    def enqueue(self, rank: int, n: int, i: int, step: st.Step) -> None:
        def put(lane: int | None, *moves: Move) -> None:
            self.queues.setdefault((rank, lane), []).extend(moves)

        event = self.word("event", rank, n, i)
        record, wait = Move(None, setting(event, 1), True), Move(lambda s: s[event] == 1, None, True)
        match step:
            case st.Fork(lane):
                put(MAIN, record)
                put(lane, wait)
            case st.Join(lane):
                put(lane, record)
                put(MAIN, wait)
            case st.Entry():
                put(MAIN, *self.entry(rank, n, step))
            case st.Kernel():
                put(MAIN, *self.kernel(rank, n, step))
            case st.Branch(lane, behind):
                put(behind, record)
                put(lane, wait)
            case st.Sum(_, pieces, lane, stores):
                # On a lane it never waits itself: it could keep out what it waits for.
                moves = [self.sum(rank, n, piece, stores) for piece in pieces]
                put(lane, *(move for several in moves for move in (several if lane is MAIN else several[1:])))
                put(lane, *(copying(self.word("flag", op), self.word("epoch", rank)) for op in stores))
            case st.Whole(lane, chunk):
                put(lane, self.counted_up(rank, chunk))
            case st.Gather(lane, ops):
                flags, now = [self.word("flag", op) for op in ops], self.word("epoch", rank)
                put(lane, Move(lambda s: all(s[flag] >= s[now] for flag in flags), None, True))
            case st.Credit(peer, lane):
                put(lane, copying(self.word("done", peer, rank), self.word("epoch", rank)))
            case st.Await(lane, op, where):
                assert self.plan.op(op).dst_rank == where
                flag, epoch = self.word("flag", op), self.word("epoch", rank)
                put(lane, Move(lambda s: s[flag] >= s[epoch], None, True))
            case st.Hold(lane, op):
                put(lane, self.counted_up(rank, self.plan.op(op).src))
            case st.Copy(lane, op, given):
                put(lane, *self.copy(n, op, "given" if given else "data"))
            case st.Stage():
                for chunk in self.held_by(rank):
                    pairs = [(self.word("given", *at), self.word("data", *at)) for at in self.places(rank, chunk)]
                    put(MAIN, Move(None, None), *(self.move([pair], str(chunk), n) for pair in pairs))
            case st.Raise(lane, op):
                put(lane, copying(self.word("flag", op), self.word("epoch", self.plan.op(op).src_rank)))

    def counted_up(self, rank: int, chunk: Chunk) -> Move:
        counter, target = self.word("counter", rank, chunk), len(elements(chunk))
        return Move(lambda s: s[counter] >= target, None)

    def entry(self, rank: int, n: int, step: st.Entry) -> list[Move]:
        peers = [p for p in range(self.plan.world) if p != rank]
        moves: list[Move] = []
        if step.wait_done:
            done = [self.word("done", rank, p) for p in peers]
            moves.append(Move(lambda s: all(s[d] >= n - 1 for d in done), None, True))
        if not self.staged_apart[rank]:
            for chunk in self.held_by(rank):
                moves.append(self.write([self.word("data", *at) for at in self.places(rank, chunk)], (n, ())))
        if step.counters:
            counters = [self.word("counter", rank, chunk) for chunk in self.counted[rank]]
            moves.append(self.write(counters, 0))
        moves.append(self.write([self.word("epoch", rank)], n))
        if step.ready:
            moves += [self.write([self.word("ready", p, rank)], n) for p in peers]
            ready = [self.word("ready", rank, p) for p in peers]
            moves.append(Move(lambda s: all(s[r] >= n for r in ready), None, True))
        return moves

    @staticmethod
    def places(rank: int, chunk: Chunk) -> list[tuple]:
        return [(rank, chunk.tensor, e) for e in elements(chunk)]

    def write(self, words: Sequence[int], value: object) -> Move:
        def act(state: State) -> None:
            for word in words:
                state[word] = value

        return Move(None, act)

    def read(self, what: str, words: Sequence[int], n: int) -> Move:
        def act(state: State) -> None:
            for word in words:
                check(state[word], n, what)

        return Move(None, act)

    def kernel(self, rank: int, n: int, step: st.Kernel) -> list[Move]:
        moves = [Move(None, None, True)]
        landing = [op for op in self.plan.arriving(rank) if self.plan.op(op).dst.tensor not in self.produced]
        if rank not in self.idle:
            seen: list[Move] = []
            own = self.held_by(rank)
            for op, chunk in [*((op, self.plan.op(op).dst) for op in landing), *((None, chunk) for chunk in own)]:
                where = "given" if op is None and chunk in step.given else "data"
                read = self.read(str(chunk), [self.word(where, *at) for at in self.places(rank, chunk)], n)
                if op is not None:
                    flag = self.word("flag", op)
                    moves += [Move(lambda s, flag=flag: s[flag] >= n, None, True), read]
                # Other programs of the grid read the same chunks, until the grid ends.
                seen.append(read)
            moves += seen
        placed = {(piece.chunk.tensor, e) for piece in step.placed for e in elements(piece.chunk)}
        for chunk in self.plan.before[rank]:
            if chunk.tensor in self.produced:
                for e in elements(chunk):
                    into = "result" if (chunk.tensor, e) in placed else "partial"
                    moves += self.tile(rank, n, chunk.tensor, e, into)
        return moves

    def tile(self, rank: int, n: int, tensor: str, element: tuple[int, ...], into: str) -> list[Move]:
        """Stores its part in the partial or the result, then counts it into every chunk that it is part of."""
        counters = [self.word("counter", rank, c) for c in self.counted[rank] if element in elements(c)]

        def count(state: State) -> None:
            for counter in counters:
                state[counter] += 1

        return [self.write([self.word(into, rank, tensor, element)], (n, (rank,))), Move(None, count)]

    def copy(self, n: int, op_id, source: str) -> list[Move]:
        """Element by element where tiles produce, so that a copy beside its producer is torn."""
        op = self.plan.op(op_id)
        if op.src.tensor not in self.produced:
            pairs = [
                (self.word(source, op.src_rank, op.src.tensor, a), self.word("data", op.dst_rank, op.dst.tensor, b))
                for a, b in zip(elements(op.src), elements(op.dst), strict=True)
            ]
            return [Move(None, None), self.read(str(op), [a for a, _ in pairs], n), self.move(pairs, str(op), n)]
        return [self.move([(self.source(op_id, e), self.word("slot", op_id, e))], str(op), n) for e in elements(op.src)]

    def source(self, op_id, element: tuple[int, ...]) -> int:
        if op_id in self.kept:
            return self.word("kept", self.kept[op_id], element)
        op = self.plan.op(op_id)
        return self.word("partial", op.src_rank, op.src.tensor, element)

    def move(self, pairs: Sequence[tuple[int, int]], what: str, n: int) -> Move:
        def act(state: State) -> None:
            for src, dst in pairs:
                check(state[src], n, what)
                state[dst] = state[src]

        return Move(None, act)

    def sum(self, rank: int, n: int, piece: st.Piece, stores: Sequence) -> list[Move]:
        flags = [self.word("flag", op) for op in piece.summands if op is not None]
        moves = [Move(lambda s: all(s[flag] >= n for flag in flags), None, True)]
        for e in elements(piece.chunk):
            summands = [
                self.word("partial", rank, piece.chunk.tensor, e) if op is None else self.word("slot", op, e)
                for op in piece.summands
            ]
            into = [self.word("kept", piece.ops, e)] if piece.keep else []
            into += [self.word("result", rank, piece.chunk.tensor, e)] if piece.out else []
            into += [self.word("slot", op, e) for op in stores if op in piece.ops]

            def act(state: State, summands=tuple(summands), into=tuple(into)) -> None:
                parts = [check(state[word], n, str(piece.chunk)) for word in summands]
                for word in into:
                    state[word] = (n, tuple(rank for part in parts for rank in part))

            moves.append(Move(None, act))
        return moves

    def results(self, state: State) -> list[dict]:
        """What each rank ends with: by (tensor, element) the launch and the ranks whose parts were added."""
        found: list[dict] = [{} for _ in range(self.plan.world)]
        for key, word in self.words.items():
            if isinstance(key, tuple) and key[0] == "result":
                found[key[1]][key[2:]] = state[word]
        return found


def check(value, n: int, what: str) -> tuple[int, ...]:
    launch, parts = value or (0, ())
    if launch != n:
        raise StaleRead(f"launch {n} reads {what} of launch {launch}")
    return parts


def setting(word: int, value: object) -> Callable[[State], None]:
    def act(state: State) -> None:
        state[word] = value

    return act


def copying(dst: int, src: int) -> Move:
    def act(state: State) -> None:
        state[dst] = state[src]

    return Move(None, act)


@lru_cache(maxsize=8)
def _model(plan: CommPlan, steps, launches: int, idle: tuple[int, ...], produced: tuple[str, ...]) -> Model:
    return Model(plan, steps, launches, idle, produced)


def outcome(
    plan: CommPlan,
    steps: Sequence[Sequence[st.Step]],
    seed: int,
    *,
    idle: Collection[int] = (),
    launches: int = 3,
    produced: Collection[str] = (),
    results: list | None = None,
) -> str:
    """``ok``, ``stale`` or ``stuck``: one interleaving of ``launches`` launches with these steps of all ranks.

    Args:
        results: what each rank ended with is appended here.
    """
    model = _model(plan, tuple(map(tuple, steps)), launches, tuple(idle), tuple(produced))
    choose = random.Random(seed)
    weight = {key: choose.choice((1, 1, 4, 20)) for key in model.queues}
    state = list(model.start)
    at = dict.fromkeys(model.queues, 0)
    while any(at[key] < len(queue) for key, queue in model.queues.items()):
        able = [
            key
            for key, queue in model.queues.items()
            if at[key] < len(queue) and ((ready := queue[at[key]].ready) is None or ready(state))
        ]
        if not able:
            return "stuck"
        key = choose.choices(able, [weight[k] for k in able])[0]
        act = model.queues[key][at[key]].act
        at[key] += 1
        if act is not None:
            try:
                act(state)
            except StaleRead:
                return "stale"
    if results is not None:
        results += model.results(state)
    return "ok"


def outcomes(
    plan: CommPlan,
    steps: Sequence[Sequence[st.Step]],
    *,
    launches: int = 3,
    produced: Collection[str] = (),
    until: Collection[str] = ("stale", "stuck"),
    most: int = 2_000_000,
) -> set[str]:
    """What any interleaving comes to: every state that can be reached is visited once.

    Args:
        until: stops at the first of these.
    """
    model = Model(plan, steps, launches, (), produced)
    queues = list(model.queues.values())
    first = ((0,) * len(queues), tuple(model.start))
    seen = {first}
    todo = [first]
    found: set[str] = set()

    def ready(move: Move, state: Sequence) -> bool:
        return move.ready is None or move.ready(state)

    while todo:
        at, words = todo.pop()
        moves = [
            (i, queue[at[i]]) for i, queue in enumerate(queues) if at[i] < len(queue) and ready(queue[at[i]], words)
        ]
        if not moves:
            found.add("ok" if all(at[i] == len(queue) for i, queue in enumerate(queues)) else "stuck")
        early = [(i, move) for i, move in moves if move.early]
        for i, move in early[:1] or moves:
            state = list(words)
            if move.act is not None:
                try:
                    move.act(state)
                except StaleRead:
                    found.add("stale")
                    continue
            after = ((*at[:i], at[i] + 1, *at[i + 1 :]), tuple(state))
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if found & set(until):
            break
        assert len(seen) < most, "too many states"
    return found
