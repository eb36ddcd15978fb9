"""A simulated group of ranks: one `World` is one run, decided by its chooser alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap import settings
from overlap.errors import AlignmentError, DeadlockFault, KernelCrashFault, OverlapError
from overlap.runtime.group.reach import nodes_of

from . import awaits, boxes  # noqa: F401 - they declare what their assembly does
from .access import KernelMemory
from .clocks import Agent
from .device import simulated_device
from .engine import NOWHERE, Device, Stream, launch_operation
from .fibres import Chooser, Condition, Deadlock, Fibre, RandomChooser, Scheduler
from .kernel import KernelFunction, kernel_function
from .memory import Memory
from .packets import Packets
from .patch import interpreted
from .puts import Puts
from .regions import RegionNames
from .runtime import SimGroup, SimRuntime
from .shadow import Access, Shadow, span
from .statewords import StateWords

DEFAULT_SMS = 4
_generations = itertools.count(1)


class World:
    """``world`` ranks with ``sms`` program slots each.

    Args:
        world: number of ranks.
        sms: programs of a rank that are resident at a time.
        seed: seed of the random chooser, if ``chooser`` is not given.
        flattened: whether waits of the next tile run before this tile's stores in tile loops; None: where a loop
            says ``flatten=True``, as on GPUs.
        late_tma_stores: whether TMA stores land only when waited for; None: as the installed Triton does.
        autotune_choice: which configuration of autotuned kernels runs.
        blocking: whether the host waits for every kernel that it launches, as with ``CUDA_LAUNCH_BLOCKING=1``.
        node_ranks: ranks of a node, between which pointers reach; None: as the setting says, else all.
    """

    def __init__(
        self,
        world: int,
        *,
        sms: int = DEFAULT_SMS,
        seed: int = 0,
        chooser: Chooser | None = None,
        flattened: bool | None = None,
        late_tma_stores: bool | None = None,
        autotune_choice: int = 0,
        blocking: bool = False,
        node_ranks: int | None = None,
    ) -> None:
        self.size = world
        self.sms = sms
        self.seed = seed
        self.flattened = flattened
        self.late_tma_stores = _stores_land_late() if late_tma_stores is None else late_tma_stores
        self.autotune_choice = autotune_choice
        self.blocking = blocking
        self.generation = next(_generations)
        self.scheduler = Scheduler(chooser if chooser is not None else RandomChooser(seed))
        self.nodes = nodes_of(world, settings.get("node_ranks", node_ranks) or world)
        self.memory = Memory()
        self.shadow = Shadow()
        self.kernel_memory = KernelMemory(self)
        self.puts = Puts(self)
        self.packets = Packets(self)
        self.devices = [Device(self, rank, sms) for rank in range(world)]
        self.events_changed = Condition(self.scheduler)
        self.meetings: dict[int, Any] = {}
        self.library: dict[int, Any] = {}
        """Calls of the communication library, by number."""
        self.runtimes = [SimRuntime(self, rank) for rank in range(world)]
        self.groups = [SimGroup(runtime) for runtime in self.runtimes]

    def run(self, body: Callable[[Any], Any]) -> list[Any]:
        """Runs ``body(group)`` as every rank's host code and waits for all streams; returns the results in rank order.

        Raises:
            SimFault: a fault was found.
            OverlapError: host code raised one.
        """
        hosts = [
            self.scheduler.spawn(runtime.host, partial(body, group))
            for runtime, group in zip(self.runtimes, self.groups, strict=True)
        ]
        with interpreted(self), simulated_device(self), np.errstate(all="ignore"):
            try:
                self.scheduler.run()
                self.shadow.check_early_reads()
            except Deadlock as deadlock:
                raise self._deadlock(deadlock.stuck) from None
            except OverlapError:
                raise
            except Exception as error:
                raise self.crash(error, self.scheduler.failed) from error
        return [host.result for host in hosts]

    def current_runtime(self) -> SimRuntime | None:
        """The runtime of the rank whose host code runs now."""
        fibre = self.scheduler.current
        return self.runtimes[fibre.agent.rank] if fibre is not None and fibre.agent.kind == "host" else None

    def prepare(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rank: int
    ) -> tuple[KernelFunction, str, tuple[int, int, int], dict[str, Any]]:
        """Resolves wrappers around the jitted function, the grid and the arguments of a launch."""
        while hasattr(kernel.fn, "fn"):
            kernel, kwargs = self._unwrap(kernel, args, kwargs)
        fn = kernel.fn
        function = kernel_function(fn, self.generation)
        arguments = function.bind(args, kwargs)
        for hook in getattr(kernel, "pre_run_hooks", ()):
            hook(*args, **kwargs)
        for name, value in arguments.items():
            self._register(name, value, rank, ours=fn.__module__.startswith("overlap."))
        shape = grid(arguments) if callable(grid) else grid
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        full = (*shape, 1, 1)[:3]
        return function, fn.__name__, full, function.values(arguments)

    def _unwrap(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Takes one layer (autotune, heuristics, foreign) off a kernel."""
        kwargs = dict(kwargs)
        if hasattr(kernel, "configs"):
            config = kernel.configs[self.autotune_choice % len(kernel.configs)]
            options = config.all_kwargs()
            if config.pre_hook is not None:
                config.pre_hook({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs, **options})
            kwargs.update(options)
        elif hasattr(kernel, "values"):
            for name, heuristic in kernel.values.items():
                kwargs[name] = heuristic({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
        return kernel.fn, kwargs

    def _register(self, name: str, value: Any, rank: int, *, ours: bool) -> None:
        """Takes in a launch argument under its parameter's name; names from our own kernels give way to the user's."""
        if isinstance(value, TensorDescriptor):
            value = value.base
        if isinstance(value, torch.Tensor):
            buffer = self.memory.register(value, rank)
            buffer.describe(value, name, weak=ours)
            if isinstance(buffer.label, RegionNames) and name.endswith("state") and value.dtype == torch.int64:
                buffer.label = StateWords(self.runtimes[buffer.rank], value.data_ptr())
        elif isinstance(value, tuple):
            for part in value:
                self._register(name, part, rank, ours=ours)

    def host_wrote(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records what a torch operation of host code wrote to registered memory."""
        if self.current_runtime() is None or func.name().startswith("aten::set_"):
            return
        self.record_writes(func, args, kwargs, self.shadow.access(self.scheduler.current.agent, "writes", NOWHERE))

    def written_by(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The arguments that a torch operation changes in place."""
        found = []
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                if isinstance(value, torch.Tensor):
                    found.append(value)
        return found

    def record_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], access: Access) -> None:
        """Tells the shadow memory what a torch operation changes in place."""
        for tensor in self.written_by(func, args, kwargs):
            buffer = self.memory.of(tensor) if tensor.device.type == "cpu" and tensor.numel() else None
            if buffer is not None:
                places = buffer.granules(self.memory.offsets(tensor), tensor.element_size())
                self.shadow.write(buffer, places, access)
                self.scheduler.progress = True
                self.kernel_memory.changed(buffer)

    def launch_from_host(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``kernel[grid](...)`` in host code: a launch on the rank's main stream."""
        runtime = self.current_runtime()
        if runtime is None:
            raise RuntimeError("a kernel launched from inside a kernel")
        runtime.launch(kernel, grid, args, kwargs, runtime.main_stream())

    def enqueue_launch(
        self, stream: Stream, host: Agent, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        function, name, shape, values = self.prepare(kernel, grid, args, kwargs, stream.rank)
        warps = int(kwargs.get("num_warps") or 4)
        stream.enqueue(launch_operation(self, function, name, shape, values, warps), host)

    def run_kernel(self, kernel: KernelFunction, values: dict[str, Any]) -> None:
        """The body of one program."""
        try:
            kernel.call(**values)
        except Deadlock as livelock:
            where = _line_of(livelock, kernel)
            self.scheduler.current.where = (where.path, where.line) if where else None
            raise
        except OverlapError as error:
            where = _line_of(error, kernel)
            raise error.at(where) if where else error from None
        except Exception as error:
            fibre = self.scheduler.current
            raise KernelCrashFault(
                f"crash: {fibre.agent.name}: {type(error).__name__}: {error}", where=_line_of(error, kernel)
            ) from error

    def _deadlock(self, stuck: list[Fibre]) -> DeadlockFault:
        causes = sorted(stuck, key=_as_cause)
        lines = [fibre.describe() for fibre in causes]
        first = causes[0]
        where = span(first.where) if first.where else None
        resident = ""
        waiting = [device.rank for device in self.devices if device._launches]
        if waiting:
            left = {
                d.rank: sum(launch.total - launch.started for launch in d._launches)
                for d in self.devices
                if d._launches
            }
            resident = "; ".join(
                f"rank {rank} has {n} programs that wait for one of {self.sms} SMs" for rank, n in left.items()
            )
        help = "\n".join([*lines, *([resident] if resident else [])])
        return DeadlockFault(f"deadlock: nothing can run: {lines[0]}", where=where, help=help)

    def crash(self, error: Exception, fibre: Fibre | None) -> OverlapError:
        """An exception of host code as a fault at its line; a refused descriptor at the line that makes it."""
        name = fibre.agent.name if fibre is not None else "the run"
        where = caller = None
        trace = error.__traceback__
        while trace is not None:
            if where is not None and os.path.basename(where[0]) not in ("tensor_descriptor.py", "<string>"):
                caller = where
            where = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        if (
            isinstance(error, AssertionError)
            and where
            and os.path.basename(where[0]) == "tensor_descriptor.py"
            and caller
        ):
            return AlignmentError(
                f"a TMA descriptor cannot take this tensor: {error}",
                where=span(caller),
                help="pad the rows to a multiple of 16 bytes, or use a kernel with pointers for such shapes",
            )
        return KernelCrashFault(f"crash: {name}: {type(error).__name__}: {error}", where=span(where) if where else None)


def _as_cause(fibre: Fibre) -> tuple[int, int, int]:
    """Sorts stuck fibres, likely causes first: programs of the user's kernels, held streams, our kernels, the rest."""
    agent = fibre.agent
    if agent.kind == "program":
        ours = fibre.kernel is not None and fibre.kernel.fn.__module__.startswith("overlap.")
        return (2 if ours else 0), agent.rank, agent.id
    return (1 if fibre.holds else 3), agent.rank, agent.id


def _line_of(error: BaseException, kernel: KernelFunction) -> Any:
    """The kernel's line in a traceback."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is kernel.code:
            return span((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return None


def _stores_land_late() -> bool:
    """Triton before 3.8 waits only for the read side of TMA stores."""
    import triton

    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    return (major, minor) < (3, 8)
