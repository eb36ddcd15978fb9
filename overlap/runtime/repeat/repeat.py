"""A launch made ready for every later call that is like it but for where its tensors lie.

    first call   arguments checked, bound, scheduled, compiled | ready | enqueued
    later calls                                                         enqueued, with other addresses
    from the n-th of them on, n the setting ``call_graphs``             a graph of it all is launched, with other addresses

Whoever asks (`Repeat`) says which tensors a call brings; each argument of the launch is then found in one of them
(`places`), or belongs to the instance. Where an argument is neither, as a copy that was made on the way, nothing is made
ready and every call goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from overlap import settings

from ..instance import Instance
from ..instances import called_last
from ..launch.acts import Act, ByLibrary, Ends, InFlight, OnLane, Recorded, carry_out
from ..launch.prepared import Enqueue
from ..protocol import IN_FLIGHT
from .places import Carried, Place, place_of


class KernelLaunch(NamedTuple):
    """A launch of a kernel: ``arguments`` by name with its options, ``kept``: those that are the instance's own."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    kept: frozenset[str]


class Repeat:
    """Asks that a launch be made ready for repetition.

    Args:
        tensors: what a call brings, operands and results alike, in an order that later calls keep.
        further: launches that read the gathered buffer behind the user's kernel.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], further: Callable[[Instance], Sequence[KernelLaunch]] | None = None
    ) -> None:
        self.carried = Carried(tensors)
        self.further = further
        self.ready: ReadyLaunch | None = None
        """What was made, if anything could be."""

    def prepare(
        self, instance: Instance, ends: Ends, acts: Callable[[Ends], Sequence[Act]], kernel: KernelLaunch | None
    ) -> ReadyLaunch | None:
        """Makes a launch of ``instance`` ready, which is compiled; None where an argument lies in no tensor of the call.

        Args:
            ends: what the launch gives and gets.
            acts: makes the steps of a launch with these ends.
            kernel: the user's, None where it has nothing to do.
        """
        given_at, results_at = self._places(ends.given), self._places(ends.results)
        kernels = [*([kernel] if kernel is not None else ()), *(self.further(instance) if self.further else ())]
        arguments = [self._arguments(each) for each in kernels]
        if given_at is None or results_at is None or None in arguments:
            return None
        enqueues = [
            instance.runtime.warm(each.kernel, each.grid, each.arguments, later=places)
            for each, places in zip(kernels, arguments, strict=True)
            if places is not None
        ]
        steps = acts(Ends(ends.given, given_at, ends.results, results_at))
        first = enqueues.pop(0) if kernel is not None else None
        self.ready = ReadyLaunch(instance, steps, first, enqueues)
        return self.ready

    def _places(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Place] | None:
        found = {name: self._place(tensor) for name, tensor in tensors.items()}
        return None if None in found.values() else found  # type: ignore[return-value]

    def _place(self, tensor: torch.Tensor) -> Place | None:
        tensors = self.carried.tensors
        if not tensor.numel():
            return Place(0, 0, tuple(tensor.shape), tuple(tensor.stride()))  # nothing reads it
        return place_of(tensor, tensors) if tensor.device == tensors[0].device else None

    def _arguments(self, kernel: KernelLaunch) -> dict[str, Place] | None:
        """Places of the tensors that a kernel takes, under descriptors too, but for those of the instance."""
        found: dict[str, Place] = {}
        for name, value in kernel.arguments.items():
            base = getattr(value, "base", value)
            if name in kernel.kept or not isinstance(base, torch.Tensor):
                continue
            place = self._place(base)
            if place is None:
                return None
            found[name] = place
        return found


class ReadyLaunch:
    """One launch with everything bound but addresses, for the memory that its instance has now."""

    def __init__(
        self, instance: Instance, acts: Sequence[Act], kernel: Enqueue | None, further: Sequence[Enqueue]
    ) -> None:
        self.instance = instance
        self.runtime = instance.runtime
        self.workspace = instance.workspace
        self._further = further
        self.memory = instance.memory
        self._acts = acts
        # Of what a traced kernel's launches enqueue, copies are timed one by one (`recording`).
        traced = bool(instance.operator.parameter("log"))
        self.settled = traced
        self._kernel = kernel
        self.graph: Any = None
        """What enqueues all of it as one, once it is repeated often enough and can be."""
        never = traced or any(isinstance(act, ByLibrary) for act in acts)
        self._until_graph: int = 0 if never else settings.get("call_graphs")
        # It lives as long as what else is ready for this memory does; whoever uses it holds it weakly.
        instance.prepared[self] = self

    def drop(self) -> None:
        """Takes it out of what is ready for its instance's memory, unless graphs of callers may read what it holds."""
        if not self.memory.captured:
            self.instance.prepared.pop(self, None)

    def __call__(self, carried: Carried) -> bool:
        """One call. False, and nothing was enqueued: the instance's memory is another by now.

        Raises:
            DeadlineError, RuntimeContractError: what an earlier launch left behind (`Workspace.check`).
        """
        workspace, memory = self.workspace, self.memory
        if workspace.memory is not memory:
            return False
        if workspace.error is not None or workspace.kept or memory.fault() is not None:
            workspace.check()
        called_last(self.instance)
        if not self.settled:
            self._settle()
        if self._until_graph > 0:
            self._towards_graph(carried)
        if self.graph is None or not self._as_graph(carried):
            self._carry_out(carried)
        return True

    def _towards_graph(self, carried: Carried) -> None:
        """At the repetitions ahead of the one that makes a graph, and at that; those that somebody captures do not count."""
        runtime = self.runtime
        if not runtime.capturing():
            self._until_graph -= 1
            if not self._until_graph:
                self.graph = runtime.recorded(IN_FLIGHT, partial(self._record, carried))

    def _as_graph(self, carried: Carried) -> bool:
        """Whether the call could be enqueued as a graph, and was."""
        try:
            return bool(self.graph(self.runtime.main_stream(), carried))
        except BaseException as error:
            self.workspace.poison(error)
            raise

    def _settle(self) -> None:
        """At the first repetition that can, and before it enqueues anything: what is made may take the device's memory."""
        runtime = self.instance.runtime
        self.settled = all([act.settle(runtime) for act in self._acts if isinstance(act, OnLane)])

    def enqueue(self, carried: Carried) -> None:
        """The launch of a call that has looked its instance up."""
        self._carry_out(carried)

    def _carry_out(self, carried: Carried) -> None:
        runtime = self.runtime
        now = InFlight(runtime, runtime.main_stream(), self._kernel, carried)
        if self._further:
            now.behind = partial(self._launch_further, now)
        carry_out(self.instance, self._acts, now)

    def _launch_further(self, now: InFlight) -> None:
        for enqueue in self._further:
            now.launch(enqueue)

    def _record(self, carried: Carried, recording: Any) -> None:
        now = Recorded(recording, recording.main, self._kernel, carried)
        # Lanes by calls of the driver, which the recording takes in.
        now.captured = True
        if self._further:
            now.behind = partial(self._launch_further, now)
        for act in self._acts:
            act(now)
        now.read_buffers()
