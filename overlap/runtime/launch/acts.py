"""A launch's steps as functions that enqueue them, and how one call goes through them.

    steps    Entry | Fork(0) | Copy(0) Raise(0) Copy(0) Raise(0) | Kernel | Credit(0) Credit(0) | Join(0)
    acts     entry   fork      one chain on lane 0                 kernel   another               join

They are made once for what a launch depends on; a call brings its stream, its tensors and its kernel.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from overlap.schedule import steps as st

from ..bound_plan import BoundPlan
from ..group.library import Boxed
from ..instance import Instance, LaunchTable
from ..protocol import IN_FLIGHT, Runtime
from ..repeat.places import Carried, Place
from .givens import given_copy
from .opening import Opening
from .prepared import Enqueue, credits_step, lane_step, layout_of, reached, sum_step

MAIN, FORKS = -1, -2
"""Stand among lanes for the main stream, and for forks."""


class InFlight:
    """One call on its way through the acts.

    ``streams``: who forks and joins lanes, the runtime or what records the call; ``main``: the caller's stream; ``kernel``:
    enqueues the user's kernel; ``carried``: what the steps' places are places in; ``behind``: enqueues the caller's further
    work; ``captured``: whether the call goes into a graph.
    """

    __slots__ = ("behind", "captured", "carried", "kernel", "lanes", "main", "open_lanes", "streams")

    def __init__(
        self,
        streams: Any,
        main: Any,
        kernel: Enqueue | None,
        carried: Carried,
        behind: Callable[[], None] | None = None,
    ) -> None:
        self.streams = streams
        self.main = main
        self.kernel = kernel
        self.carried = carried
        self.behind = behind
        self.captured = False
        self.lanes: dict[int, Any] = {}
        self.open_lanes: set[int] = set()

    def launch(self, enqueue: Enqueue, lane: int | None = None) -> None:
        """Enqueues a kernel on the main stream, or on a lane."""
        enqueue(self.main if lane is None else self.lanes[lane], self.carried)

    def on_lane(self, enqueue: Enqueue, lane: int) -> None:
        """Enqueues copies, flags and waits on a lane."""
        enqueue(self.lanes[lane], self.carried)

    def read_buffers(self) -> None:
        """Enqueues the caller's further work, once."""
        behind, self.behind = self.behind, None
        if behind is not None:
            behind()


class Recorded(InFlight):
    """One call whose steps are recorded (`Runtime.recorded`)."""

    __slots__ = ()

    def launch(self, enqueue: Enqueue, lane: int | None = None) -> None:
        self.streams.launch(enqueue, self.carried, None if lane is None else self.lanes[lane])

    def on_lane(self, enqueue: Enqueue, lane: int) -> None:
        self.streams.on_lane(enqueue, self.carried, self.lanes[lane])


Act = Callable[[InFlight], None]


class Ends:
    """What a call gives and gets, by tensor: templates of its layouts, and their places in what a call carries."""

    def __init__(
        self,
        given: Mapping[str, torch.Tensor],
        given_at: Mapping[str, Place],
        results: Mapping[str, torch.Tensor],
        results_at: Mapping[str, Place],
    ) -> None:
        self.given = given
        self.given_at = given_at
        self.results = results
        self.results_at = results_at

    def key(self) -> tuple[Any, ...]:
        """What acts depend on of it."""
        return (
            tuple(self.given_at.items()),
            tuple((name, *layout_of(out), self.results_at[name]) for name, out in self.results.items()),
        )


def carry_out(instance: BoundPlan, acts: Iterable[Act], now: InFlight) -> None:
    """Enqueues one launch on this rank, behind the last one on its device.

    What raises in the middle poisons the workspace, and the caller's stream waits for what was enqueued on others. Nothing is
    collected meanwhile: memory that ends may wait for the device, and the device for what has not been enqueued yet.
    """
    runtime = instance.runtime
    with runtime.in_order(IN_FLIGHT, now.main) as capturing:
        if capturing:
            instance.workspace.capture(instance.memory)
            now.captured = True
        collects = gc.isenabled()
        gc.disable()
        try:
            for act in acts:
                act(now)
            if now.behind is not None:
                now.read_buffers()
        except BaseException as error:
            instance.workspace.poison(error)
            for lane in sorted(now.open_lanes):
                now.streams.join(now.lanes[lane])
            raise
        finally:
            if collects:
                gc.enable()


def make_acts(
    instance: BoundPlan, table: LaunchTable | None, opening: Opening | None, steps: Sequence[st.Step], ends: Ends
) -> list[Act]:
    """The steps as functions of a call. Neighbours on one lane are one function, as are forks.

    Credits right behind a sum of the main stream are given by its last program, to peers that pointers reach.
    """
    acts: list[Act] = []
    groups = [(lane, tuple(group)) for lane, group in groupby(steps, key=_lane)]
    given: tuple[int, ...] = ()
    for number, (lane, group) in enumerate(groups):
        if lane is None:
            following, behind = groups[number + 1] if number + 1 < len(groups) else (None, ())
            near = reached(instance, _peers(behind)) if following == MAIN else ()
            for step in group:
                if isinstance(step, st.Sum):
                    credited = near if step is group[-1] and step.lane is None else ()
                    added = _sum(instance, step, ends, credited)
                    given = credited if added is not None else ()
                    acts += [added] if added is not None else []
                else:
                    acts += _act(instance, table, opening, step, ends)
            continue
        if lane == FORKS:
            acts.append(_fork([step.lane for step in group if isinstance(step, st.Fork)]))
            continue
        if lane == MAIN:
            left = [peer for peer in _peers(group) if peer not in given]
            if left:
                acts.append(_credits_on_main(credits_step(instance, left)))
            given = ()
            continue
        made = [_lane_step(instance, table, step, ends) for step in group]
        enqueues = [enqueue for enqueue in made if enqueue is not None]
        if enqueues:
            acts.append(OnLane(lane, instance.runtime.chained(enqueues)))
    return acts


def _peers(steps: Sequence[st.Step]) -> list[int]:
    """Whom credits go to."""
    return [step.peer for step in steps if isinstance(step, st.Credit)]


def _lane_step(instance: BoundPlan, table: LaunchTable | None, step: st.Step, ends: Ends) -> Enqueue | None:
    if isinstance(step, st.Copy) and step.given:
        return given_copy(instance, step.op, ends.given, ends.given_at)
    return lane_step(instance, table, step)  # type: ignore[arg-type]


class OnLane:
    """Copies, flags and waits on one lane."""

    __slots__ = ("_enqueue", "_lane", "_often")

    def __init__(self, lane: int, enqueue: Enqueue) -> None:
        self._lane = lane
        self._enqueue = self._often = enqueue

    def __call__(self, now: InFlight) -> None:
        now.on_lane(self._enqueue if now.captured else self._often, self._lane)

    def settle(self, runtime: Runtime) -> bool:
        """Makes them ready for many launches; whether it could be told by now what is best."""
        settled = runtime.settled(self._enqueue)
        if settled is not None:
            self._often = settled
        return settled is not None


class ByLibrary:
    """A step that a communication library carries out, on streams of its own."""

    __slots__ = ("_act",)

    def __init__(self, act: Act) -> None:
        self._act = act

    def __call__(self, now: InFlight) -> None:
        self._act(now)


def _lane(step: st.Step) -> int | None:
    """The lane that a step is enqueued on, `MAIN` for credits on the main stream, `FORKS`; None for what stands by itself."""
    if isinstance(step, st.Branch | st.Sum):
        return None
    if isinstance(step, st.Fork):
        return FORKS
    if isinstance(step, st.Credit):
        return MAIN if step.lane is None else step.lane
    return None if isinstance(step, st.Join) else getattr(step, "lane", None)


def _act(
    instance: BoundPlan, table: LaunchTable | None, opening: Opening | None, step: st.Step, ends: Ends
) -> Iterable[Act]:
    match step:
        case st.Entry() | st.Stage():
            assert opening is not None
            launches = opening.entry if isinstance(step, st.Entry) else opening.stage
            for enqueue in launches(ends.given, ends.given_at):
                yield _launched(enqueue)
        case st.Kernel():
            if table is not None and (table.tiles or step.moves or table.receivers is not None):
                yield _kernel
        case st.Branch(lane, behind):
            yield _branch(lane, behind)
        case st.Library(tensor):
            yield ByLibrary(_library(instance, tensor, ends))
        case st.Join(lane):
            yield _join(lane)


def _sum(instance: BoundPlan, step: st.Sum, ends: Ends, credited: tuple[int, ...]) -> Act | None:
    """A sum, whose last program gives credits to peers ``credited``. None: there is nothing to add, so nobody gives any."""
    results = ends.results
    out = results[step.tensor] if any(p.out for p in step.pieces) else instance.parts[step.tensor].data
    summed = sum_step(instance, step, out, credited)
    if summed is None:
        return None
    enqueue = summed.bound(instance.runtime, out, ends.results_at.get(step.tensor))
    lane = step.lane
    if not credited:
        return _launched(enqueue, lane)

    def act(now: InFlight) -> None:
        now.read_buffers()
        now.launch(enqueue)

    return act


def _launched(enqueue: Enqueue, lane: int | None = None) -> Act:
    return lambda now: now.launch(enqueue, lane)


def _branch(lane: int, behind: int) -> Act:
    return lambda now: now.streams.behind(now.lanes[lane], now.lanes[behind])


def _credits_on_main(credits: Sequence[Enqueue]) -> Act:
    def act(now: InFlight) -> None:
        now.read_buffers()
        for enqueue in credits:
            now.launch(enqueue)

    return act


def _fork(lanes: Sequence[int]) -> Act:
    def act(now: InFlight) -> None:
        now.lanes.update(zip(lanes, now.streams.forks(lanes), strict=True))
        now.open_lanes.update(lanes)

    return act


def _join(lane: int) -> Act:
    def act(now: InFlight) -> None:
        now.open_lanes.discard(lane)
        now.streams.join(now.lanes[lane])

    return act


def _library(instance: BoundPlan, tensor: str, ends: Ends) -> Act:
    """The collectives of a tensor: what the kernel reads goes into its window, what it made out of there."""
    assert isinstance(instance, Instance)
    plan, part, library = instance.direct[tensor], instance.parts[tensor], instance.runtime.collectives
    window = Boxed(part.tensor, part.window)

    def gathered(now: InFlight) -> None:
        library(plan, Boxed(ends.given_at[tensor].view(now.carried), part.held), window)

    def scattered(now: InFlight) -> None:
        out = ends.results_at[tensor].view(now.carried)
        into = out if out.dtype == part.dtype else torch.empty_like(out, dtype=part.dtype)
        library(plan, window, Boxed(into, part.held))
        if into is not out:
            out.copy_(into)

    return scattered if part.made else gathered


def _kernel(now: InFlight) -> None:
    assert now.kernel is not None
    now.launch(now.kernel)
