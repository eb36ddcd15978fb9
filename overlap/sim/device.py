"""What host code finds when it asks for its device: a simulated one, and memory that says when it was never written.

Tensors that host code makes with ``torch.empty`` and its relatives come from the run's arena, filled with NaN and
marked as never written; ``device="cuda"`` means the rank's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime.driver import driver

if TYPE_CHECKING:
    from .world import World

_aten = torch.ops.aten
_EMPTY = {_aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default,
          _aten.new_empty_strided.default}  # fmt: skip


_FACTORIES = tuple(
    "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like rand randn randint arange tensor "
    "as_tensor linspace eye".split()
)


def _on_cpu(function: Any) -> Any:
    """A torch function for which a CUDA device means the simulated rank's memory."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs["device"] = "cpu"
        return function(*["cpu" if _is_cuda(a) else a for a in args], **kwargs)

    call.__name__ = function.__name__
    return call


_READS = (
    "item tolist numpy __bool__ __int__ __float__ __index__ __array__ __contains__ __format__ __repr__ equal allclose"
).split()


def _waiting(function: Any, world: World) -> Any:
    """A torch function that reads data into the host's hands: the host waits for its stream first, as on a device."""

    def call(*args: Any, **kwargs: Any) -> Any:
        runtime = world.current_runtime()
        if runtime is not None and runtime.busy:
            runtime.synchronize()
        return function(*args, **kwargs)

    call.__name__ = getattr(function, "__name__", "call")
    return call


def _is_cuda(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith(("cuda", "hip"))


@cache
def _gives_tensors(func: Any) -> bool:
    """Whether a torch operation has results that are tensors.

    Others are not asked for shapes: on meta tensors they raise, and torch then walks the stack, which on a fibre may crash.
    """
    return any("Tensor" in str(result.type) for result in func._schema.returns)


class _Poisoned(TorchDispatchMode):
    """Uninitialised tensors of host code come from the arena; writes by host code are recorded."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is traced on simulated ranks, and asking torch not to imports its compiler: seconds in every process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _EMPTY and self._world.current_runtime() is not None:
            made = func(*args, **{**kwargs, "device": "meta", "pin_memory": None})
            device = kwargs.get("device") or (
                args[0].device if isinstance(args[0], torch.Tensor) else torch.device("cpu")
            )
            if torch.device(device).type == "cpu" and made.layout == torch.strided:
                rank = self._world.scheduler.current.agent.rank
                tensor, buffer = self._world.memory.allocate(rank, made.shape, made.dtype, stride=made.stride())
                buffer.name = "memory from torch.empty"
                return tensor
        if not func.is_view and self._touches_memory((args, kwargs)):
            deferred = self._in_stream_order(func, args, kwargs)
            if deferred is not None:
                return deferred
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._world.host_wrote(func, args, kwargs)
        return result

    def _touches_memory(self, arguments: Any) -> bool:
        return self._world.current_runtime() is not None and any(
            isinstance(value, torch.Tensor) and value.device.type == "cpu" and self._world.memory.of(value) is not None
            for value in tree_leaves(arguments)
        )

    def _in_stream_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A torch operation of host code is work for the rank's stream; its result is memory that the stream will fill.

        None for operations that give no tensors, whose callers have waited (`_waiting`). Nothing here may switch to another
        fibre: torch has turned this mode off for the whole thread, and a fibre that never comes back would leave it so.
        """
        runtime = self._world.current_runtime()
        assert runtime is not None
        if func.name().startswith(("aten::set_", "aten::resize_")):
            return None
        if func._schema.is_mutable:
            changed = self._world.written_by(func, args, kwargs)
            runtime.torch_operation(func, args, kwargs, None)
            return changed[0] if changed else None
        if not _gives_tensors(func):
            return None
        on_meta = tree_map(lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v, (args, kwargs))
        try:
            shapes = func(*on_meta[0], **on_meta[1])
        except (RuntimeError, NotImplementedError):
            return None
        if not all(isinstance(shape, torch.Tensor) for shape in tree_leaves(shapes)):
            return None

        def place(shape: torch.Tensor) -> torch.Tensor:
            tensor, buffer = self._world.memory.allocate(runtime.rank, shape.shape, shape.dtype, stride=shape.stride())
            buffer.name = f"result of {func.name().removeprefix('aten::')}"
            return tensor

        results = tree_map(place, shapes)
        runtime.torch_operation(func, args, kwargs, results)
        return results


def _properties(world: World) -> SimpleNamespace:
    return SimpleNamespace(
        name="simulated GPU", multi_processor_count=world.sms, major=9, minor=0, total_memory=1 << 36, warp_size=32,
        shared_memory_per_block_optin=232448, max_threads_per_multi_processor=2048, L2_cache_size=50 << 20,
    )  # fmt: skip


class _Driver:
    """The parts of a Triton driver that host code asks for."""

    def __init__(self, world: World) -> None:
        properties = {
            "multiprocessor_count": world.sms, "max_shared_mem": 232448, "max_num_regs": 65536, "warpSize": 32,
            "sm_clock_rate": 1_000_000, "mem_clock_rate": 1_000_000, "mem_bus_width": 5120,
        }  # fmt: skip
        self.utils = SimpleNamespace(get_device_properties=lambda device: dict(properties))

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_device_interface(self) -> Any:
        return torch.cuda


@contextlib.contextmanager
def simulated_device(world: World) -> Iterator[None]:
    """Host code inside sees the simulated device."""

    def synchronize(device: Any = None) -> None:
        runtime = world.current_runtime()
        if runtime is not None:
            runtime.synchronize()

    replaced = {
        "current_device": lambda: 0,
        "device_count": lambda: world.size,
        "get_device_properties": lambda device=None: _properties(world),
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "simulated GPU",
        "is_available": lambda: True,
        "synchronize": synchronize,
        "set_device": lambda device: None,
    }
    before = driver._active
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        driver.set_active(_Driver(world))  # type: ignore[arg-type]
        stack.callback(setattr, driver, "_active", before)
        for name in _FACTORIES:
            stack.enter_context(mock.patch.object(torch, name, _on_cpu(getattr(torch, name))))
        stack.enter_context(mock.patch.object(torch.Tensor, "to", _on_cpu(torch.Tensor.to)))
        for name in _READS:
            stack.enter_context(mock.patch.object(torch.Tensor, name, _waiting(getattr(torch.Tensor, name), world)))
        for name in ("equal", "allclose"):
            stack.enter_context(mock.patch.object(torch, name, _waiting(getattr(torch, name), world)))
        stack.enter_context(mock.patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor))
        stack.enter_context(_Poisoned(world))
        yield
