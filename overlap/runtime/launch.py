"""Carries out a launch: the protocol's steps (`overlap.schedule.steps`) through a `Runtime`.

Copies are enqueued ahead of the kernel that waits for them. The other way round (`launch_steps(kernel_first=True)`) anything
that makes the host wait for the device in between, such as memory that the garbage collector frees, waits for ever;
and it was no faster (2 H100s, 26 us and 144 us a launch in a graph either way).

Everything that depends on the shape alone (views, copy descriptors, arguments of the small kernels) is made once an
instance; a call binds what its arguments bring and enqueues. Nothing here knows whether ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from overlap.schedule import steps as st

from .instance import Instance, LaunchTable
from .opening import Opening, layout_key
from .operator import Operator
from .prepared import lane_step, sum_step
from .ranges import range_arguments
from .resolve import Bound

STEP_FILTER: Callable[[int, tuple[st.Step, ...]], tuple[st.Step, ...]] | None = None
"""Tests put a function here that drops a step; the simulator must then find the race."""

IN_FLIGHT = "overlap"
"""One launch is in flight on a device at a time: two that spin side by side could each hold what the other needs."""

Nothing: Mapping[str, torch.Tensor] = {}


@dataclass
class _Launch:
    """What one call brings, and the lanes it has forked."""

    main: Any
    kernel: Callable[[], None]
    given: Mapping[str, torch.Tensor]
    results: Mapping[str, torch.Tensor]
    behind: Callable[[], None] | None
    lanes: dict[int, Any] = field(default_factory=dict)
    open_lanes: set[int] = field(default_factory=set)

    def read_buffers(self) -> None:
        """Enqueues the caller's further work, once."""
        behind, self.behind = self.behind, None
        if behind is not None:
            behind()


Act = Callable[[_Launch], None]


def launch(
    operator: Operator,
    instance: Instance,
    given: Mapping[str, torch.Tensor],
    bound: Bound,
    grid: tuple[int, int, int],
    results: Mapping[str, torch.Tensor] = Nothing,
    behind: Callable[[], None] | None = None,
) -> None:
    """Enqueues one launch of ``operator`` on this rank: entry, copies, flags, kernel, sums, credits, join.

    Args:
        given: by communicated tensor, what is staged: this rank's shard of an input, what an output starts from.
        bound: the intercepted launch; its arguments already name the tensors in symmetric memory.
        grid: its grid.
        results: by communicated output, this rank's piece, to be written.
        behind: enqueues more work that reads the gathered buffer, on the main stream behind the kernel and all
            copies, and ahead of the credits that let peers overwrite it.

    Raises:
        RuntimeContractError: the grid does not enumerate the kernel's tiles.
        UnsupportedError: a wait kernel of the plan would not fit beside the grid, or a reduction that is not carried out.
    """
    runtime = instance.runtime
    table = instance.table(bound)
    ours = {operator.ours[0]: table.words, operator.ours[1]: instance.state, **range_arguments(instance, bound)}
    if operator.stores:
        ours[operator.ours[-1]] = table.slots
    arguments = {**bound.arguments, **ours, **bound.options}
    steps = instance.steps if STEP_FILTER is None else STEP_FILTER(runtime.rank, instance.steps)
    opening = _opening(instance, given, next((s for s in steps if isinstance(s, st.Entry)), instance.entry))
    warm = partial(_warm, instance, table, opening, bound.kernel if table.tiles else None, grid, arguments, results)
    variant = _variant(table, arguments, results)
    if variant not in instance.warmed:
        instance.warmed.add(variant)
        if instance.met:
            warm()
    instance.meet(warm)

    main = runtime.main_stream()
    kernel = partial(runtime.launch, bound.kernel, grid, (), arguments, main)
    with runtime.in_order(IN_FLIGHT) as capturing:
        if capturing:
            instance.memory.captured = True
        acts = _acts(instance, table, opening, steps)
        now = _Launch(main, kernel, given, results, behind)
        try:
            for act in acts:
                act(now)
            now.read_buffers()
        except BaseException as error:
            instance.workspace.poison(error)
            for lane in sorted(now.open_lanes):
                runtime.join(now.lanes[lane])
            raise


def _acts(instance: Instance, table: LaunchTable, opening: Opening, steps: Sequence[st.Step]) -> list[Act]:
    """The steps as functions of a call, made once for a table and a layout of what is given."""
    key = ("acts", table, opening)
    found: list[Act] | None = instance.prepared.get(key) if STEP_FILTER is None else None
    if found is None:
        found = [act for step in steps if (act := _act(instance, table, opening, step)) is not None]
        if STEP_FILTER is None:
            instance.prepared[key] = found
    return found


def _act(instance: Instance, table: LaunchTable, opening: Opening, step: st.Step) -> Act | None:
    runtime = instance.runtime
    match step:
        case st.Entry():
            return lambda now: opening.enqueue(now.main, now.given)
        case st.Fork(lane):

            def fork(now: _Launch) -> None:
                now.lanes[lane] = runtime.fork(lane)
                now.open_lanes.add(lane)

            return fork
        case st.Kernel():
            return (lambda now: now.kernel()) if table.tiles else None
        case st.Sum():
            return lambda now: _sum(instance, step, now)
        case st.Join(lane):

            def join(now: _Launch) -> None:
                now.open_lanes.discard(lane)
                runtime.join(now.lanes[lane])

            return join
        case st.Credit(_, None):
            credit = lane_step(instance, table, step)
            assert credit is not None

            def on_main(now: _Launch) -> None:
                now.read_buffers()
                credit(now.main)

            return on_main
        case _:
            assert step.lane is not None
            enqueue, on = lane_step(instance, table, step), step.lane
            return None if enqueue is None else lambda now: enqueue(now.lanes[on])


def _sum(instance: Instance, step: st.Sum, now: _Launch) -> None:
    # A sum that a later operation sends on writes no result, but the kernel takes an address.
    out = now.results[step.tensor] if any(p.out for p in step.pieces) else instance.parts[step.tensor].data
    enqueue = sum_step(instance, step, out)
    if enqueue is not None:
        enqueue(now.main, out=out)


def _variant(table: LaunchTable, arguments: dict[str, Any], results: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """What Triton compiles a kernel anew for, of a launch that a table belongs to."""
    seen: list[Any] = [table]
    for value in arguments.values():
        if isinstance(value, torch.Tensor):
            seen.append((value.dtype, value.data_ptr() % 16 == 0))
        elif isinstance(value, int) and not isinstance(value, bool):
            seen.append((value == 1, value % 16 == 0))
        else:
            seen.append(value if isinstance(value, (bool, str, type(None))) else type(value))
    for name, out in results.items():
        seen.append((name, out.dtype, out.stride(), out.data_ptr() % 16))
    return tuple(seen)


def _warm(
    instance: Instance,
    table: LaunchTable,
    opening: Opening,
    kernel: Any,
    grid: tuple[int, int, int],
    arguments: dict[str, Any],
    results: Mapping[str, torch.Tensor],
) -> None:
    """Compiles and loads every kernel of a launch: nothing may be loaded while a kernel spins."""
    opening.warm()
    awaits = [step for step in instance.steps if isinstance(step, st.Await)]
    for held in awaits:
        lane_step(instance, table, held)
    for step in instance.steps:
        if isinstance(step, st.Sum):
            out = results[step.tensor] if any(p.out for p in step.pieces) else instance.parts[step.tensor].data
            sum_step(instance, step, out)
    if kernel is not None:
        instance.runtime.warm(kernel, grid, arguments, leave_room=bool(awaits))


def _opening(instance: Instance, given: Mapping[str, torch.Tensor], step: st.Entry) -> Opening:
    """The entry for what is given, of this layout."""
    key = (step, layout_key(given))
    made: Opening | None = instance.prepared.get(key)
    if made is None:
        made = instance.prepared[key] = Opening(instance, step, given)
    return made
