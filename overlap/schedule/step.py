"""The steps that one rank's host enqueues for a launch, each a value; `steps` puts them in order and says why."""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.plan import Chunk, OpId

from .moves import Move
from .pieces import Piece


@dataclass(frozen=True)
class Entry:
    """The entry kernel: wait for ``done``, stage the own chunk unless a `Stage` does, reset ``counters``, bump the epoch,
    exchange ``ready``."""

    wait_done: bool
    ready: bool
    counters: bool = False


@dataclass(frozen=True)
class Stage:
    """Copies the own chunk into symmetric memory, on the main stream, beside lanes that send it from where the caller has it:
    what of it the kernel reads, or what is sent otherwise."""


@dataclass(frozen=True)
class Fork:
    """The lane goes on behind what the main stream holds so far, and behind what it holds itself."""

    lane: int


@dataclass(frozen=True)
class Branch:
    """The lane goes on behind what the lane ``behind`` holds so far, and behind what it holds itself."""

    lane: int
    behind: int


@dataclass(frozen=True)
class Await:
    """A one-warp wait kernel on the lane: the operation ``op`` has landed at ``rank`` (flag slot there)."""

    lane: int
    op: OpId
    rank: int


@dataclass(frozen=True)
class Hold:
    """The lane waits until the counter of the chunk that ``op`` sends is at its target; no kernel runs for that."""

    lane: int
    op: OpId


@dataclass(frozen=True)
class Whole:
    """The lane waits until tiles have made all of ``chunk``, of which the rank's own sum is made; as `Hold` does."""

    lane: int
    chunk: Chunk


@dataclass(frozen=True)
class Gather:
    """A one-warp wait kernel on the lane: all of ``ops`` have landed here."""

    lane: int
    ops: tuple[OpId, ...]


@dataclass(frozen=True)
class Copy:
    """The operation's copy; its source is the kernel's partial, a kept sum (`pieces.Piece`), gathered memory, or, with
    ``given``, the caller's tensor."""

    lane: int
    op: OpId
    given: bool = False


@dataclass(frozen=True)
class Raise:
    """Copies the source rank's epoch word into the operation's flag."""

    lane: int
    op: OpId


@dataclass(frozen=True)
class Kernel:
    """The user's kernel, on the main stream. ``stores``: operations that it carries out itself, storing tiles into slots
    of other ranks and raising the flags behind the last. ``moves``: operations that programs of its launch carry out beside
    those that compute. ``placed``: pieces of results that its tiles store in the result itself (`staying.staying`);
    ``finished``: those to which its tiles add what has come of them, and store there too (`tile_sums`). ``given``: chunks that
    its tiles read where the caller has them."""

    stores: tuple[OpId, ...] = ()
    moves: tuple[Move, ...] = ()
    placed: tuple[Piece, ...] = ()
    given: tuple[Chunk, ...] = ()
    finished: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Sum:
    """One reduction kernel on the main stream, or on ``lane`` beside the user's kernel, for pieces of one tensor.

    It waits for the flags of their summands, adds them in the order given and writes each piece to symmetric memory
    (``keep``), to the result (``out``), or to both. ``stores``: operations that it carries out itself, storing what they send
    into slots of other ranks and raising the flags behind all of it.
    """

    tensor: str
    pieces: tuple[Piece, ...]
    lane: int | None = None
    stores: tuple[OpId, ...] = ()


@dataclass(frozen=True)
class Library:
    """The collectives of one tensor, by a library, on the main stream: what the kernel reads ahead of it, else behind it."""

    tensor: str


@dataclass(frozen=True)
class Credit:
    """Copies this rank's epoch word into ``done[rank]`` at ``peer``; ``lane`` None means the main stream."""

    peer: int
    lane: int | None


@dataclass(frozen=True)
class Join:
    lane: int


Step = (
    Entry
    | Stage
    | Fork
    | Branch
    | Await
    | Hold
    | Whole
    | Gather
    | Copy
    | Raise
    | Kernel
    | Sum
    | Library
    | Credit
    | Join
)
