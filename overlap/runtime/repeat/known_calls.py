"""Calls that are like an earlier one but for where their tensors lie: found by a key, enqueued by what that one made ready.

Whoever looks a call up gives all that it depends on beside its tensors; of these shapes, strides, dtypes, devices and alignment
are in the key, as are all settings. Keys stand with the group's runtime, so they end with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd import forward_ad

from overlap import settings
from overlap.errors import OverlapError, SourceSpan

from ..cuda.runtime import known_runtime
from ..instance import Instance
from ..launch import launch as launch_layer
from .front import Calls
from .making import Making
from .places import Carried
from .repeat import KernelLaunch, ReadyLaunch, Repeat

KEPT = 1024
"""Calls kept for a group; the oldest go first."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that nobody watches."""

Told = Callable[[Any, bool], None]
"""Takes what a repeated call did, and whether nothing else was possible."""
Line = Callable[[], SourceSpan | None]


class Ready(Protocol):
    """What enqueues a call with other tensors. False, and nothing was enqueued: it no longer can."""

    def __call__(self, carried: Carried) -> bool: ...


class Known:
    """A call that can be repeated.

    Args:
        launch: a weak reference to what it enqueues; ``kept``: that, where nobody else keeps it.
        operands: of the call, whose extents its results may not share.
        results: of the call, whose layouts new ones have.
        said: what it did; ``forced``: nothing else was possible.
        told: who is told so each time.
        line: the caller's line, for errors.
    """

    __slots__ = ("_extents", "_forced", "_kept", "_launch", "_line", "_makings", "_offered", "_reach", "_said", "_told")

    def __init__(
        self,
        launch: weakref.ref[Any],
        kept: Ready | None,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        said: Any,
        forced: bool,
        told: Told,
        line: Line,
    ) -> None:
        self._launch = launch
        self._kept = kept
        self._makings = tuple(map(Making, results))
        self._extents = [reach(y) for y in results]
        self._reach = [reach(tensor) for tensor in operands]
        self._said = said
        self._forced = forced
        self._told = told
        self._line = line
        self._offered = False

    def again(
        self, operands: list[torch.Tensor], outs: Sequence[torch.Tensor], addresses: list[int]
    ) -> list[torch.Tensor] | None:
        """One more call, and its results. None: it must go the long way.

        Args:
            operands, outs: tensors of the call.
            addresses: of all of them.

        Raises:
            OverlapError: what an earlier launch left behind, with the caller's line.
        """
        launch = self._launch()
        if launch is None or launch_layer.STEP_FILTER is not None:
            return None
        results = list(outs)
        if results and self._reach and self._shares(addresses[len(operands) :], addresses):
            return None
        for making in self._makings[len(results) :]:
            made = making()
            results.append(made)
            addresses.append(made.data_ptr())
        try:
            if not launch(Carried(operands + results, addresses)):
                return None
        except OverlapError as error:
            where = self._line()
            raise error.at(where) if where else error from None
        self._told(self._said, self._forced)
        return results

    def offer(
        self, calls: Calls, head: Any, tensors: Sequence[torch.Tensor | None], outs: Sequence[torch.Tensor], grads: bool
    ) -> None:
        """Once it is a graph, lets calls like it be made without a line of Python, where that can be done (`front`)."""
        launch = None if self._offered else self._launch()
        if isinstance(launch, ReadyLaunch) and launch.graph is not None:
            self._offered = True
            reaches = (*self._reach, *self._extents[: len(outs)])
            told = self._told, self._said, self._forced
            calls.take(launch, head, tensors, outs, grads, reaches, self._makings[len(outs) :], told)

    def drop(self) -> None:
        """Lets go of what was made ready, since no call will find it again."""
        launch = self._launch()
        if isinstance(launch, ReadyLaunch):
            launch.drop()

    def _shares(self, outs: Sequence[int], operands: Sequence[int]) -> bool:
        """Whether a result at one of the addresses ``outs`` lies in the memory of an operand or of another result."""
        results = tuple(zip(outs, self._extents, strict=False))
        others = tuple(zip(operands, self._reach, strict=False))
        return any(
            max(a, out) < min(a + n, out + size)
            for number, (out, size) in enumerate(results)
            for a, n in (*others, *results[:number])
        )


def reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def apart(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no two tensors lie in one memory, as of those that a kernel may write and those that copies or other tiles still
    read: what is read where a call has it, no launch ahead of the kernel has put elsewhere."""
    memories = [at for at in (tensor.untyped_storage().data_ptr() for tensor in tensors) if at]
    return len(set(memories)) == len(memories)


class Asked:
    """A call that goes the long way, and may leave what the next one like it repeats.

    Args:
        group: its process group, or what stands for its runtime.
        operands: its tensors, in the order that the operator always gives them in.
        outs: where the first results go.
        told, line: as `Known` takes them.
    """

    def __init__(
        self,
        group: Any,
        key: Any,
        operands: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        told: Told,
        line: Line,
    ) -> None:
        self.outs = outs
        self._told = told
        self._group = group
        self._key = key
        self._operands = operands
        self._line = line
        self._repeat: Repeat | None = None

    def repeat(
        self, results: Sequence[torch.Tensor], further: Callable[[Instance], Sequence[KernelLaunch]] | None = None
    ) -> Repeat:
        """Asks the launch of this call, which leaves ``results``, to be made ready.

        Args:
            results: the caller's first, then what the call made itself.
            further: as `overlap.runtime.repeat.repeat.Repeat` takes it.
        """
        self._repeat = Repeat((*self._operands, *results), further)
        return self._repeat

    def keep(self, results: Sequence[torch.Tensor], said: Any, *, forced: bool) -> None:
        """Keeps the call, if its launch was made ready; ``said`` is what it did."""
        ready = self._repeat.ready if self._repeat is not None else None
        if ready is not None:
            self._keep(ready, None, results, said, forced)

    def keep_ready(self, ready: Ready, results: Sequence[torch.Tensor], said: Any, *, forced: bool) -> None:
        """Keeps the call, and ``ready``, which enqueues others like it."""
        self._keep(ready, ready, results, said, forced)

    def _keep(self, ready: Ready, kept: Ready | None, results: Sequence[torch.Tensor], said: Any, forced: bool) -> None:
        # A group's first call makes its runtime on the way.
        runtime = _runtime(self._group)
        if runtime is None:
            return
        calls = _calls(runtime)
        before = calls.pop(self._key, None)
        if before is None and len(calls) >= KEPT:
            before = calls.pop(next(iter(calls)))
        if before is not None:
            before.drop()
        reference = weakref.ref(ready)
        calls[self._key] = Known(reference, kept, self._operands, results, said, forced, self._told, self._line)


def repeated_call(
    head: tuple[Any, ...],
    group: Any,
    tensors: Sequence[torch.Tensor | None],
    given: Sequence[torch.Tensor],
    told: Told,
    line: Line,
    *,
    grads: bool = False,
) -> list[torch.Tensor] | Asked | None:
    """Makes a call once more where one like it is known, and gives its results.

    Otherwise it must go the long way. None: it is none that could be repeated, for whatever reason.

    Args:
        head: what is called, and all that the call depends on beside its tensors.
        group: its process group, or what carries its runtime.
        tensors: operands; None where one is absent.
        given: where the first results go.
        told, line: as `Known` takes them.
        grads: tensors may require gradients, which a kernel knows nothing of.

    Raises:
        OverlapError: what an earlier launch left behind.
    """
    if forward_ad._current_level >= 0 and not grads:
        return None  # a tangent would be lost
    runtime = known_runtime(group) or getattr(group, "overlap_runtime", None)
    calls: Calls | None = getattr(runtime, "overlap_calls", None)
    if calls is not None and calls.front is not None:
        again: list[torch.Tensor] | None = calls.front.again(head, tensors, given, grads)
        if again is not None:
            return again
    key: list[Any] = [head, settings.texts(), len(given)]
    present: list[torch.Tensor] = []
    addresses: list[int] = []
    try:
        for tensor in (*tensors, *given):
            if tensor is None:
                key.append(None)
                continue
            if type(tensor) not in PLAIN or tensor.is_neg():
                return None  # a conjugated one is complex, which no kernel takes
            if tensor.requires_grad and not grads and torch.is_grad_enabled():
                return None
            address = tensor.data_ptr()
            if not address and tensor.numel():
                return None
            key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, address % 16)
            present.append(tensor)
            addresses.append(address)
        known_as = tuple(key)
        known: Known | None = None if calls is None else calls.get(known_as)
    except (TypeError, RuntimeError):  # an argument without a hash; a tensor without memory
        return None
    if given:
        del present[-len(given) :]
    if known is not None:
        found = known.again(present, given, addresses)
        if found is not None:
            assert calls is not None
            known.offer(calls, head, tensors, given, grads)
            return found
    return Asked(group, known_as, present, given, told, line)


def unwatched(group: Any) -> bool:
    """Whether a group has, or will have, a runtime, and nobody watches what is dispatched on this thread."""
    if getattr(group, "overlap_runtime", None) is not None:
        return True
    return default_group() is not None and not torch._C._len_torch_dispatch_stack()


def default_group() -> Any:
    """``torch.distributed.group.WORLD``, without what it takes to be a property of a class."""
    return dist.distributed_c10d._world.default_pg


def _runtime(group: Any) -> Any:
    """The runtime of a resolved group, if it has one by now."""
    carried = getattr(group, "overlap_runtime", None)
    return known_runtime(group) if carried is None else carried


def _calls(runtime: Any) -> Calls:
    try:
        return runtime.overlap_calls
    except AttributeError:
        runtime.overlap_calls = Calls()
        return runtime.overlap_calls
