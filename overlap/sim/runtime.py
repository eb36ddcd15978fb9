"""`SimRuntime`: the runtime protocol on simulated ranks.

Collective calls meet by their order, as on a real group; a rank that calls something else, or nothing, is named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from overlap.chunkplan.plan import CommPlan
from overlap.errors import RuntimeContractError
from overlap.runtime.calls.resolve import parameters_of, python_function
from overlap.runtime.group.library import Boxed
from overlap.runtime.group.reach import far, refuse
from overlap.runtime.protocol import NONE_LATER
from overlap.runtime.repeat.places import NOTHING, Carried, Place, over_base, without_base

from .clocks import Agent
from .engine import (
    Event,
    Stream,
    copy_operation,
    fill_operation,
    hold_operation,
    record_operation,
    torch_operation,
    wait_operation,
)
from .fibres import Condition
from .library import collective_operation
from .regions import RegionNames

if TYPE_CHECKING:
    from .world import World


class SimGroup:
    """What generated host functions take as ``group``: it carries the rank's runtime."""

    def __init__(self, runtime: SimRuntime) -> None:
        self.overlap_runtime = runtime

    def rank(self) -> int:
        """This rank, as of a process group."""
        return self.overlap_runtime.rank

    def size(self) -> int:
        """The number of ranks, as of a process group."""
        return self.overlap_runtime.world

    def __repr__(self) -> str:
        return f"SimGroup(rank={self.overlap_runtime.rank}, world={self.overlap_runtime.world})"


class _Meeting:
    """One collective call: what each rank brought."""

    def __init__(self, world: World) -> None:
        self.brought: dict[int, tuple[str, Any]] = {}
        self.clock: dict[int, int] = {}
        self.results: dict[int, Any] = {}
        self.condition = Condition(world.scheduler)


class SimRuntime:
    """One rank of a `World` as `overlap.runtime.protocol.Runtime`."""

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.world = world.size
        self.host = Agent(f"rank {rank} host", rank, "host")
        self._main = Stream(world, rank, "main stream")
        self._streams: dict[Any, Stream] = {}
        self._events: dict[Any, Event] = {}
        self._meetings = 0
        self._collectives = 0

    def __repr__(self) -> str:
        return f"SimRuntime(rank={self.rank}, world={self.world})"

    @property
    def sm_count(self) -> int:
        return self._world.sms

    @property
    def launches_early(self) -> bool:
        return True

    @property
    def blocking(self) -> bool:
        return self._world.blocking

    @property
    def one_queue(self) -> bool:
        return False

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._world.nodes

    @property
    def pes(self) -> tuple[int, ...]:
        """Other numbers than the ranks', so that taking one for the other is found."""
        return tuple(reversed(range(self.world)))

    @property
    def linked(self) -> dict[str, Any]:
        """Nothing is linked: kernels find NVSHMEM's functions replaced."""
        return {}

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    # memory

    def symmetric(self, shape: Sequence[int], dtype: Any, *, zero: bool = False) -> Any:
        """Raises RuntimeContractError when ranks ask for different tensors."""
        world = self._world
        tensor, buffer = world.memory.allocate(self.rank, shape, dtype, zero=zero)
        buffer.name = "symmetric memory"
        asked = self._meet(f"symmetric({tuple(shape)}, {dtype})", buffer)
        for copy in asked:
            copy.copies = tuple(asked)
        buffer.label = RegionNames(self, tensor.data_ptr())
        return tensor

    def peer(self, tensor: Any, rank: int) -> Any:
        """Raises RuntimeContractError when ``tensor`` is not symmetric, or ``rank`` is on another node."""
        if rank == self.rank:
            return tensor
        buffer = self._world.memory.of(tensor)
        if buffer is None or buffer.copies is None:
            raise RuntimeContractError(f"peer: a tensor of shape {tuple(tensor.shape)} is not symmetric memory")
        if not 0 <= rank < self.world:
            raise RuntimeContractError(f"peer: rank {rank} in a world of {self.world}")
        if far(self, rank):
            raise refuse(self, rank)
        flat = buffer.copies[rank].storage.view(torch.uint8).view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def table(self, values: Sequence[int], *, bits: int = 32, into: Any = None) -> Any:
        dtype = torch.int32 if bits == 32 else torch.int64
        made = torch.tensor(list(values), dtype=dtype)
        if into is not None:
            return into.copy_(made)
        tensor, buffer = self._world.memory.allocate(self.rank, (len(made),), dtype, zero=True)
        buffer.name = "table"
        tensor.copy_(made)
        return tensor

    def label(self, tensor: Any, name: Callable[[int], str]) -> None:
        """Names the words of a symmetric tensor in faults: ``name(word)`` gives "flag 2 (chunk from rank 3)"."""
        buffer = self._world.memory.of(tensor)
        for copy in (buffer.copies or (buffer,)) if buffer is not None else ():
            copy.label = name

    # ranks together

    def agree(self, what: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        """A rank that never comes is a deadlock, so there are no seconds to count."""
        return self._meet(f"agree({what!r})", value)

    def _meet(self, call: str, value: Any) -> list[Any]:
        world, scheduler = self._world, self._world.scheduler
        scheduler.pause()
        number = self._meetings
        self._meetings += 1
        meeting = world.meetings.setdefault(number, _Meeting(world))
        meeting.brought[self.rank] = (call, value)
        self.host.tick()
        for agent, step in self.host.clock.items():
            meeting.clock[agent] = max(step, meeting.clock.get(agent, 0))
        others = {rank: brought for rank, (brought, _) in meeting.brought.items() if brought != call}
        if others:
            rank, brought = next(iter(others.items()))
            raise RuntimeContractError(f"rank {self.rank} calls {call} where rank {rank} calls {brought}")

        meeting.condition.notify()
        if isinstance(value, BaseException):
            return []

        def failed() -> dict[int, BaseException]:
            return {rank: told for rank, (_, told) in meeting.brought.items() if isinstance(told, BaseException)}

        def missing() -> str:
            absent = [str(rank) for rank in range(self.world) if rank not in meeting.brought]
            return f"rank {', '.join(absent)} to call {call}"

        meeting.condition.wait(lambda: len(meeting.brought) == self.world or bool(failed()), missing)
        self.host.see(meeting.clock)
        for rank, error in failed().items():
            raise RuntimeContractError(f"rank {rank} raised instead of coming to {call}: {error}")
        return [meeting.brought[rank][1] for rank in range(self.world)]

    # streams

    def main_stream(self) -> Stream:
        return self._main

    @contextlib.contextmanager
    def on_stream(self, name: str) -> Iterator[Stream]:
        """Another stream as the caller's, as ``with torch.cuda.stream(...)`` would."""
        before, self._main = self._main, self._stream(name)
        try:
            yield self._main
        finally:
            self._main = before

    def _stream(self, name: str) -> Stream:
        if name not in self._streams:
            self._streams[name] = Stream(self._world, self.rank, name)
        return self._streams[name]

    def collectives(self, plan: CommPlan, source: Boxed, target: Boxed) -> None:
        self._step()
        number, self._collectives = self._collectives, self._collectives + 1
        self._main.enqueue(collective_operation(self._world, self.rank, number, plan, source, target), self.host)

    def fork(self, lane: int) -> Stream:
        return self.forks((lane,))[0]

    def forks(self, lanes: Sequence[int]) -> list[Stream]:
        sides = [self._stream(f"lane {lane}") for lane in lanes]
        event = self._record(self._main)
        for side in sides:
            side.enqueue(wait_operation(event, f"the main stream of rank {self.rank}"), self.host)
        return sides

    def behind(self, stream: Stream, other: Stream) -> None:
        event = self._record(other)
        stream.enqueue(wait_operation(event, f"{other.name} of rank {self.rank}"), self.host)

    def join(self, stream: Stream) -> None:
        event = self._record(stream)
        self._main.enqueue(wait_operation(event, f"{stream.name} of rank {self.rank}"), self.host)

    def capturing(self) -> bool:
        return False

    @contextlib.contextmanager
    def in_order(self, key: Any, main: Stream) -> Iterator[bool]:
        """One call after the other; nothing is captured on simulated ranks."""
        event = self._events.get(key)
        if event is not None:
            main.enqueue(wait_operation(event, f"the previous call of rank {self.rank}"), self.host)
        yield False
        self._events[key] = self._record(main)

    def _record(self, stream: Stream) -> Event:
        self._step()
        event = Event()
        stream.enqueue(record_operation(event), self.host)
        return event

    def mark(self, stream: Stream) -> list[int]:
        passed: list[int] = []
        self._step()
        stream.enqueue(lambda _: passed.append(self._world.scheduler.steps), self.host)
        return passed

    def passed(self, mark: list[int]) -> bool:
        self._step()
        return bool(mark)

    def elapsed(self, begin: list[int], end: list[int]) -> float:
        return float(end[0] - begin[0])

    def copier(self, dst: Any, src: Any, place: Place | None = None) -> Callable[..., None]:
        if place is None:
            operation = copy_operation(self._world, dst, src, self.rank)

        def enqueue(stream: Stream, carried: Carried = NOTHING) -> None:
            self._step()
            if place is None:
                stream.enqueue(operation, self.host)
            else:
                # Of a call's own tensor the copy reads, when it executes, whatever that holds by then.
                made = copy_operation(self._world, dst, place.view(carried), self.rank, given=True)
                stream.enqueue(made, self.host)

        return enqueue

    def holder(self, word: Any, value: int) -> Callable[[Stream], None]:
        """Raises RuntimeContractError unless ``word`` is one int64 of this rank's own memory."""
        operation = hold_operation(self._world, word, value, self.rank)

        def enqueue(stream: Stream, _: Carried = NOTHING) -> None:
            self._step()
            stream.enqueue(operation, self.host)

        return enqueue

    def chained(self, enqueues: Sequence[Callable[..., None]]) -> Callable[..., None]:
        made = tuple(enqueues)

        def enqueue(stream: Stream, carried: Carried = NOTHING) -> None:
            for each in made:
                each(stream, carried)

        return enqueue

    def settled(self, enqueue: Callable[..., None]) -> Callable[..., None]:
        return enqueue

    def recorded(self, key: Any, steps: Callable[[Any], None]) -> None:
        """There are no graphs here: every call goes by its steps."""

    def warm(
        self,
        kernel: Any,
        grid: Any,
        kwargs: dict[str, Any],
        *,
        leave_room: bool = False,
        later: Mapping[str, Place | None] = NONE_LATER,
    ) -> Callable[..., None]:
        """Nothing is compiled here, and a kernel of one warp fits beside any grid."""
        kept = {name: value for name, value in kwargs.items() if name not in later}
        places = {name: place for name, place in later.items() if place is not None}
        descriptors = {
            name: without_base(kwargs[name]) for name in places if not isinstance(kwargs[name], torch.Tensor)
        }
        parameters = set(parameters_of(python_function(kernel)))

        def enqueue(stream: Stream, carried: Carried = NOTHING, **replaced: Any) -> None:
            # As on a GPU, where launch options went into what was compiled.
            unknown = replaced.keys() - parameters
            if unknown:
                raise KeyError(f"no parameter of the kernel: {', '.join(sorted(unknown))}")
            found = {name: place.view(carried) for name, place in places.items()}
            for name, descriptor in descriptors.items():
                found[name] = over_base(descriptor, found[name])
            self.launch(kernel, grid, (), {**kept, **found, **replaced}, stream)

        return enqueue

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        """One program a multiprocessor, whatever it takes."""
        return self.sm_count

    def launch(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Stream) -> None:
        self._step()
        self._world.enqueue_launch(stream, self.host, kernel, grid, args, kwargs)
        if self.blocking:
            self._wait_for(stream)

    def fill(self, tensor: Any, values: Any) -> None:
        """Writes ``values`` into ``tensor`` in the caller's stream, as a torch operation on a device would."""
        self._step()
        self._main.enqueue(fill_operation(self._world, tensor, values, self.rank), self.host)

    def torch_operation(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Enqueues a torch operation of host code; it writes ``results``, tensors made for it."""
        self.host.tick()
        self._main.enqueue(torch_operation(self._world, func, args, kwargs, results), self.host)

    def watch(self, state: Any, *, packets: bool = False) -> Callable[[], Any]:
        """Simulated waits never give up: a wait in vain is a deadlock, which the simulator finds and names."""
        return lambda: None

    def release(self) -> None:
        """A simulated rank's memory goes with its world."""

    @property
    def busy(self) -> bool:
        """Whether the caller's stream has work left."""
        return not self._main.idle

    def synchronize(self) -> None:
        """Blocks the host until the caller's stream is idle; it then knows all that the stream did."""
        self._step()
        self._wait_for(self._main)

    def _wait_for(self, stream: Stream) -> None:
        stream.changed.wait(lambda: stream.idle, f"the {stream.name} of rank {self.rank}")
        self.host.see(stream.agent.clock)

    def _step(self) -> None:
        self._world.scheduler.pause()
        self.host.tick()
