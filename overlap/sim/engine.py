"""Streams, events, copy engines and the SM slots they compete for.

A stream is an agent that does its operations in order. Kernels of all streams of a rank share ``sms`` slots, one
program a slot, started in program order; a local device-to-device copy needs a slot too, because drivers run it as
a kernel (overlap/backends/memory_rules.py), a copy between ranks does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from overlap.errors import RuntimeContractError

from .clocks import Agent, Clock
from .dtypes import numpy_of_torch
from .fibres import Condition
from .kernel import KernelFunction
from .memory import array_of
from .regions import RegionNames

if TYPE_CHECKING:
    from .memory import Buffer
    from .world import World

NOWHERE = ("", 0)


class Event:
    """A point in a stream that others can wait for."""

    def __init__(self) -> None:
        self.clock: Clock | None = None


class Stream:
    """A FIFO of operations of one rank. An operation is called with the stream when its turn comes."""

    def __init__(self, world: World, rank: int, name: str) -> None:
        self._world = world
        self.rank = rank
        self.name = name
        self.agent = Agent(f"rank {rank} {name}", rank, "stream")
        self._queue: deque[tuple[Callable[[Stream], None], Clock]] = deque()
        self._running = False
        self.changed = Condition(world.scheduler)

    def enqueue(self, operation: Callable[[Stream], None], host: Agent) -> None:
        """Appends an operation; it starts after what ``host`` has done so far."""
        self._queue.append((operation, dict(host.clock)))
        if not self._running:
            self._running = True
            self._world.scheduler.spawn(self.agent, self._drain)

    @property
    def idle(self) -> bool:
        return not self._running

    def _drain(self) -> None:
        while self._queue:
            operation, clock = self._queue.popleft()
            self._world.scheduler.pause()
            self.agent.see(clock)
            operation(self)
            self.agent.tick()
        self._running = False
        self.changed.notify()


class Device:
    """One rank's GPU: slots for programs."""

    def __init__(self, world: World, rank: int, sms: int) -> None:
        self._world = world
        self.rank = rank
        self.free = sms
        self._launches: deque[Launch] = deque()
        self.freed = Condition(world.scheduler)

    def start(self, launch: Launch) -> None:
        """Starts the programs of a launch as slots allow; a single warp fits beside whatever is resident."""
        if launch.narrow:
            launch.start_next()
            return
        self._launches.append(launch)
        self.fill()

    def fill(self) -> None:
        """Starts waiting programs, oldest launch first, while slots are free."""
        while self.free and self._launches:
            launch = self._launches[0]
            self.free -= 1
            launch.start_next()
            if launch.started == launch.total:
                self._launches.popleft()

    def release(self) -> None:
        self.free += 1
        self.fill()
        self.freed.notify()

    def take(self, what: str) -> None:
        """Blocks the running fibre until a slot is free, behind the programs that wait."""
        self.freed.wait(lambda: self.free > 0, f"a free SM: {what} runs as a kernel, and every SM is taken")
        self.free -= 1


class Launch:
    """One kernel launch: ``total`` programs in program order (the first grid axis varies fastest)."""

    def __init__(
        self,
        world: World,
        device: Device,
        kernel: KernelFunction,
        name: str,
        grid: tuple[int, int, int],
        values: dict[str, Any],
        clock: Clock,
        narrow: bool,
    ) -> None:
        self._world = world
        self._device = device
        self._kernel = kernel
        self._name = name
        self._grid = grid
        self._values = values
        self._clock = clock
        self.narrow = narrow
        self.total = grid[0] * grid[1] * grid[2]
        self.started = 0
        self.ended: list[Agent] = []
        self.done = Condition(world.scheduler)

    def start_next(self) -> None:
        index = self.started
        self.started += 1
        agent = Agent(
            f"rank {self._device.rank} program {index} of {self._name}", self._device.rank, "program", self._clock
        )
        fibre = self._world.scheduler.spawn(agent, self._run)
        nx, ny, _ = self._grid
        fibre.index = (index % nx, index // nx % ny, index // (nx * ny))
        fibre.grid = self._grid
        fibre.kernel = self._kernel

    def _run(self) -> None:
        fibre = self._world.scheduler.current
        self._world.run_kernel(self._kernel, self._values)
        fibre.frame = None
        fibre.agent.tick()
        if fibre.tma is not None:
            fibre.tma.tick()
            fibre.agent.see(fibre.tma.clock)
        self.ended.append(fibre.agent)
        if not self.narrow:
            self._device.release()
        if len(self.ended) == self.total:
            self.done.notify()

    def complete(self, stream: Agent) -> None:
        """The stream learns all that the programs did, and stands for them from now on."""
        mine = {agent.id for agent in self.ended}
        for agent in self.ended:
            stream.see({key: step for key, step in agent.clock.items() if key not in mine})
            stream.see(agent.heard)
        for agent in self.ended:
            agent.retired = (stream, stream.step)
            agent.clock, agent.fenced, agent.known, agent.known_async = {}, {}, set(), set()
            agent.lanes, agent.heard = {}, {}


def launch_operation(
    world: World, kernel: KernelFunction, name: str, grid: tuple[int, int, int], values: dict[str, Any], warps: int
) -> Callable[[Stream], None]:
    """A kernel launch as a stream operation. One program of one warp takes no slot."""
    narrow = grid == (1, 1, 1) and warps == 1

    def run(stream: Stream) -> None:
        device = world.devices[stream.rank]
        launch = Launch(world, device, kernel, name, grid, values, stream.agent.clock, narrow)
        if launch.total:
            device.start(launch)
            launch.done.wait(
                lambda: len(launch.ended) == launch.total,
                lambda: f"kernel {name}, {len(launch.ended)} of {launch.total} programs ended",
            )
            launch.complete(stream.agent)

    return run


def record_operation(event: Event) -> Callable[[Stream], None]:
    """Records ``event``."""

    def run(stream: Stream) -> None:
        event.clock = dict(stream.agent.clock)
        stream._world.events_changed.notify()

    return run


def wait_operation(event: Event, what: str) -> Callable[[Stream], None]:
    """Orders the stream behind ``event``."""

    def run(stream: Stream) -> None:
        stream._world.events_changed.wait(lambda: event.clock is not None, what)
        assert event.clock is not None
        stream.agent.see(event.clock)

    return run


def copy_operation(
    world: World, dst: torch.Tensor, src: torch.Tensor, rank: int, *, given: bool = False
) -> Callable[[Stream], None]:
    """A copy engine's copy of ``src`` to ``dst``, views of one shape.

    Args:
        given: ``src`` is the caller's, who may give simulated ranks views of one tensor.

    Raises:
        RuntimeContractError: shapes or dtypes differ, or an end is ordinary memory of another rank.
    """
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise RuntimeContractError(f"copy of {tuple(src.shape)} {src.dtype} to {tuple(dst.shape)} {dst.dtype}")
    source, target = world.memory.register(src, rank), world.memory.register(dst, rank)
    ends = [(target, "writes")] if given else [(source, "reads"), (target, "writes")]
    for buffer, end in ends:
        if buffer.rank != rank and buffer.copies is None:
            raise RuntimeContractError(
                f"a copy on rank {rank} {end} ordinary memory of rank {buffer.rank}",
                help="peers reach symmetric memory only",
            )
    for buffer, end in ends:
        if world.nodes[buffer.rank] != world.nodes[rank]:
            raise RuntimeContractError(
                f"a copy on rank {rank} {end} memory of rank {buffer.rank}, which no pointer reaches"
            )
    reads, writes = world.memory.offsets(src), world.memory.offsets(dst)
    dtype = numpy_of_torch(dst.dtype)
    is_word = len(reads) == 1 and dtype.itemsize >= 4 and dtype.kind in "iu" and target.copies is not None
    local = target.rank == rank and (given or source.rank == rank)

    def run(stream: Stream) -> None:
        if not len(reads):
            return
        if local:
            world.devices[rank].take("a local copy")
        is_flag = is_word and not (isinstance(source.label, RegionNames) and source.label.of_tensor())
        (_copy_word if is_flag else _copy_data)(world, stream, source, reads, target, writes, dtype)
        if local:
            world.devices[rank].release()

    return run


def hold_operation(world: World, word: torch.Tensor, value: int, rank: int) -> Callable[[Stream], None]:
    """Holds a stream until the low 32 bits of ``word`` have reached ``value``, and lets it see what the word stands for.

    Compared cyclically, as the stream operations of drivers do.

    Raises:
        RuntimeContractError: ``word`` is not one int64, or lies in another rank's memory.
    """
    if word.numel() != 1 or word.dtype != torch.int64:
        raise RuntimeContractError(f"a stream holds on one int64 word, not on {tuple(word.shape)} {word.dtype}")
    buffer = world.memory.register(word, rank)
    if buffer.rank != rank:
        raise RuntimeContractError(
            f"a stream of rank {rank} holds on memory of rank {buffer.rank}",
            help="a stream holds on a counter of its own device; across ranks a flag is polled",
        )
    offset = word.storage_offset() * 8
    place = np.array([offset])

    def seen() -> int:
        return int(buffer.view(np.dtype(np.int32))[offset // 4])

    def run(stream: Stream) -> None:
        agent = stream.agent
        while (seen() - value) & 0xFFFFFFFF >= 1 << 31:
            world.kernel_memory.sleep_on(
                buffer, offset, lambda: f"{buffer.element(offset >> buffer.shift)} to reach {value}, saw {seen()}"
            )
        sync = buffer.word(offset)
        sync.acquire_count(agent, value)
        if sync.last is not None and (sync.last[1] in ("relaxed", "acquire") or sync.last[2] != "sys"):
            agent.hint = (
                f"{buffer.element(offset >> buffer.shift)} was counted with {sync.last[1]} semantics at {sync.last[2]} "
                'scope, which a copy engine cannot rely on: use sem="release", scope="sys"'
            )
        access = world.shadow.access(agent, "holds on", NOWHERE, "sys")
        world.shadow.atomic(buffer, buffer.granules(place, 8), access, modifies=False)

    return run


def fill_operation(world: World, tensor: torch.Tensor, values: torch.Tensor, rank: int) -> Callable[[Stream], None]:
    """Writes ``values`` into ordinary or symmetric memory of ``rank``."""
    buffer = world.memory.register(tensor, rank)

    def run(stream: Stream) -> None:
        if tensor.numel():
            size = tensor.element_size()
            places = world.memory.offsets(tensor)
            world.shadow.write(
                buffer, buffer.granules(places, size), world.shadow.access(stream.agent, "fills", NOWHERE)
            )
            buffer.view(numpy_of_torch(tensor.dtype))[places // size] = array_of(values.contiguous()).reshape(-1)
            world.scheduler.progress = True
            world.kernel_memory.changed(buffer)

    return run


def torch_operation(world: World, func: Any, args: Any, kwargs: Any, results: Any) -> Callable[[Stream], None]:
    """Runs a torch operation on what its arguments hold by then, and puts its results where they were promised."""
    inference = torch.is_inference_mode_enabled()  # without it, what was made in it may not be written

    def run(stream: Stream) -> None:
        access = world.shadow.access(stream.agent, f"runs {func.name().removeprefix('aten::')} on", NOWHERE)
        written = world.written_by(func, args, kwargs)
        for value in tree_leaves((args, kwargs)):
            if not isinstance(value, torch.Tensor) or not value.numel() or any(value is w for w in written):
                continue
            buffer = world.memory.of(value)
            if buffer is not None:
                world.shadow.read(buffer, buffer.granules(world.memory.offsets(value), value.element_size()), access)
        with torch.inference_mode(inference):
            made = func(*args, **kwargs)
        world.record_writes(func, args, kwargs, access)
        for target, value in zip(tree_leaves(results), tree_leaves(made), strict=True) if results is not None else ():
            fill_operation(world, target, value, stream.rank)(stream)

    return run


def _copy_data(
    world: World, stream: Stream, source: Buffer, reads: np.ndarray, target: Buffer, writes: np.ndarray, dtype: np.dtype
) -> None:
    """Reads, then writes, in a few pieces with others in between."""
    agent, shadow, scheduler = stream.agent, world.shadow, world.scheduler
    reading = shadow.access(agent, f"copies (to rank {target.rank}) from", NOWHERE)
    writing = shadow.access(agent, f"copies from rank {source.rank} to", NOWHERE)
    pieces = _pieces(world, len(reads))
    held = []
    for begin, end in pieces:
        scheduler.pause()
        part = reads[begin:end]
        shadow.read(source, source.granules(part, dtype.itemsize), reading)
        held.append(source.view(dtype)[part // dtype.itemsize])
    for (begin, end), values in zip(pieces, held, strict=True):
        scheduler.pause()
        part = writes[begin:end]
        shadow.write(target, target.granules(part, dtype.itemsize), writing)
        target.view(dtype)[part // dtype.itemsize] = values
        scheduler.progress = True
        world.kernel_memory.changed(target)


def _pieces(world: World, count: int) -> list[tuple[int, int]]:
    parts = min(count, 1 + world.scheduler.chooser.number(3))
    edges = [count * i // parts for i in range(parts + 1)]
    return list(zip(edges, edges[1:], strict=False))


def _copy_word(
    world: World, stream: Stream, source: Buffer, reads: np.ndarray, target: Buffer, writes: np.ndarray, dtype: np.dtype
) -> None:
    """A copied word is a flag: it is read when the copy executes, and publishes all that precedes it on its stream."""
    agent, shadow = stream.agent, world.shadow
    world.scheduler.pause()
    shadow.read(
        source,
        source.granules(reads, dtype.itemsize),
        shadow.access(agent, f"copies (to rank {target.rank}) from", NOWHERE),
    )
    value = source.view(dtype)[reads // dtype.itemsize]
    world.scheduler.pause()
    agent.tick()
    if value[0] != target.view(dtype)[writes[0] // dtype.itemsize]:
        word = target.word(int(writes[0]))
        word.release(agent, "sys", replace=True)
        word.last = (agent, "release", "sys")
    access = shadow.access(agent, f"copies a word from rank {source.rank} to", NOWHERE, "sys")
    shadow.atomic(target, target.granules(writes, dtype.itemsize), access, modifies=True)
    target.view(dtype)[writes // dtype.itemsize] = value
    world.scheduler.progress = True
    world.kernel_memory.changed(target)
