"""Carries out a launch: the protocol's steps (`overlap.schedule.steps`) through a `Runtime`.

Copies are enqueued ahead of the kernel that waits for them. The other way round (`launch_steps(kernel_first=True)`) anything
that makes the host wait for the device in between, such as memory that the garbage collector frees, waits for ever;
and it was no faster (2 H100s, 26 us and 144 us a launch in a graph either way).

Everything that depends on the shape alone (views, copy descriptors, arguments of the small kernels) is made once an
instance; a call binds what its arguments bring and enqueues. Nothing here knows whether ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from overlap.schedule import steps as st
from overlap.schedule.moves import Move

from .bound_plan import BoundPlan
from .entry import move_kernel
from .instance import Instance, LaunchTable
from .moves import Grid, Reserved, reserved
from .opening import Opening, layout_key
from .operator import Operator
from .prepared import lane_step, sum_step
from .ranges import range_arguments
from .resolve import Bound
from .variant import variant_of

from .slots import store_arguments
STEP_FILTER: Callable[[int, tuple[st.Step, ...]], tuple[st.Step, ...]] | None = None
"""Tests put a function here that drops a step; the simulator must then find the race."""

IN_FLIGHT = "overlap"
"""One launch is in flight on a device at a time: two that spin side by side could each hold what the other needs."""

MOVE_WARPS = 8
Nothing: Mapping[str, torch.Tensor] = {}


@dataclass
class _Launch:
    """What one call brings, and the lanes it has forked."""

    main: Any
    kernel: Callable[[], None] | None
    given: Mapping[str, torch.Tensor]
    results: Mapping[str, torch.Tensor]
    behind: Callable[[], None] | None = None
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
        UnsupportedError: a wait kernel of the plan would not fit beside the grid, more programs are to move chunks than can be
            resident, or a reduction that is not carried out.
    """
    runtime = instance.runtime
    table = instance.table(bound)
    ours = {operator.ours[0]: table.words, operator.ours[1]: instance.state, **range_arguments(instance, bound)}
    if operator.stores:
        ours[operator.stores] = table.slots
    kernel, options, place = bound.kernel, bound.options, operator.moves
    if operator.moves:
        # What is moved is known once the kernel is compiled; until then a table like any other stands for it.
        ours[place] = instance.state
    arguments = {**bound.arguments, **ours, **options}
    if operator.moves and not table.tiles:
        # The user's kernel has nothing to do, and no descriptors of what is empty are made for it.
        kernel, options, place, grid = move_kernel, {"num_warps": MOVE_WARPS}, "moves", (0, 1, 1)
        arguments = {"moves": instance.state, "state": instance.state, **options}
    steps, opening = _opened(instance, given)
    variant = variant_of(kernel, arguments)
    moves = next((step.moves for step in steps if isinstance(step, st.Kernel)), ())
    key = (variant.key, kernel, grid)

    def warm() -> None:
        _warm(instance, opening, results)
        if operator.moves:
            _reserved(instance, key, moves, arguments)
        elif table.tiles:
            _ready_kernel(instance, key, arguments, arguments.keys() - options.keys())

    _meet(instance, (table, variant.key, *_layouts(results)), warm)
    if operator.moves:
        beside = _reserved(instance, key, moves, arguments)
        arguments[place], grid = beside.words, beside.grid
        key = (variant.key, kernel, grid)
    main = runtime.main_stream()
    if variant.exact and (table.tiles or moves):
        passed = {name: value for name, value in arguments.items() if name not in options}
        enqueue = partial(_ready_kernel(instance, key, arguments, passed), main, **passed)
    else:
        enqueue = partial(runtime.launch, kernel, grid, (), arguments, main)
    _carry_out(instance, table, opening, steps, _Launch(main, enqueue, given, results, behind))


Key = tuple[Any, Any, Grid]
"""Of a launch of the user's kernel: its variant, the kernel, the grid."""


def _reserved(instance: Instance, key: Key, moves: Sequence[Move], arguments: dict[str, Any]) -> Reserved:
    """The launch beside programs that make ``moves``, made once for what it is without them."""
    place = ("reserved", key, moves if STEP_FILTER is not None else None)
    made: Reserved | None = instance.prepared.get(place)
    if made is None:
        _, kernel, grid = key
        made = instance.prepared[place] = reserved(instance, moves, kernel, grid, arguments)
    return made


def _ready_kernel(
    instance: Instance, key: Key, arguments: dict[str, Any], parameters: Iterable[str]
) -> Callable[..., None]:
    """The user's kernel compiled for a variant of a launch; called with the stream and, by name, every parameter's value.

    Triton looks at each argument of each launch to find the compiled kernel; the variant says the same for less.
    """
    found: Callable[..., None] | None = instance.prepared.get(key)
    if found is None:
        _, kernel, grid = key
        awaits = any(isinstance(step, st.Await) for step in instance.steps)
        found = instance.runtime.warm(kernel, grid, arguments, leave_room=awaits, later=tuple(parameters))
        instance.prepared[key] = found
    return found


def launch_transfer(
    instance: BoundPlan, given: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor]
) -> None:
    """Enqueues one launch of a plan without a kernel on this rank: entry, copies, flags, sums, join, credits.

    Args:
        given: what is staged, by the names that the instance's parts know it by.
        results: by tensor, what this rank ends with, to be written.
    """
    steps, opening = _opened(instance, given)
    _meet(instance, (opening, *_layouts(results)), partial(_warm, instance, opening, results))
    _carry_out(instance, None, opening, steps, _Launch(instance.runtime.main_stream(), None, given, results))


def _opened(instance: BoundPlan, given: Mapping[str, torch.Tensor]) -> tuple[tuple[st.Step, ...], Opening]:
    """The steps of a launch, and its entry."""
    steps = instance.steps if STEP_FILTER is None else STEP_FILTER(instance.runtime.rank, instance.steps)
    return steps, _opening(instance, given, next((s for s in steps if isinstance(s, st.Entry)), instance.entry))


def _meet(instance: BoundPlan, variant: Any, warm: Callable[[], None]) -> None:
    """Compiles what this variant of a launch runs, once; with the other ranks where it is the first of all."""
    if variant not in instance.warmed:
        instance.warmed.add(variant)
        if instance.met:
            warm()
    instance.meet(warm)


def _carry_out(
    instance: BoundPlan, table: LaunchTable | None, opening: Opening, steps: Sequence[st.Step], now: _Launch
) -> None:
    runtime = instance.runtime
    with runtime.in_order(IN_FLIGHT) as capturing:
        if capturing:
            instance.memory.captured = True
        acts = _acts(instance, table, opening, steps)
        try:
            for act in acts:
                act(now)
            now.read_buffers()
        except BaseException as error:
            instance.workspace.poison(error)
            for lane in sorted(now.open_lanes):
                runtime.join(now.lanes[lane])
            raise


def _acts(instance: BoundPlan, table: LaunchTable | None, opening: Opening, steps: Sequence[st.Step]) -> list[Act]:
    """The steps as functions of a call, made once for a table and a layout of what is given."""
    key = ("acts", table, opening)
    found: list[Act] | None = instance.prepared.get(key) if STEP_FILTER is None else None
    if found is None:
        found = [act for step in steps if (act := _act(instance, table, opening, step)) is not None]
        if STEP_FILTER is None:
            instance.prepared[key] = found
    return found


def _act(instance: BoundPlan, table: LaunchTable | None, opening: Opening, step: st.Step) -> Act | None:
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
            return _kernel if table is not None and (table.tiles or step.moves) else None
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


def _kernel(now: _Launch) -> None:
    assert now.kernel is not None
    now.kernel()


def _sum(instance: BoundPlan, step: st.Sum, now: _Launch) -> None:
    # A sum that a later operation sends on writes no result, but the kernel takes an address.
    out = now.results[step.tensor] if any(p.out for p in step.pieces) else instance.parts[step.tensor].data
    enqueue = sum_step(instance, step, out)
    if enqueue is not None:
        enqueue(now.main, out=out)


def _layouts(results: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    return tuple((name, out.dtype, out.stride(), out.data_ptr() % 16) for name, out in results.items())


def _warm(instance: BoundPlan, opening: Opening, results: Mapping[str, torch.Tensor]) -> None:
    """Compiles and loads every small kernel of a launch: nothing may be loaded while a kernel spins."""
    opening.warm()
    for step in instance.steps:
        if isinstance(step, st.Await):
            lane_step(instance, None, step)
        elif isinstance(step, st.Sum):
            out = results[step.tensor] if any(p.out for p in step.pieces) else instance.parts[step.tensor].data
            sum_step(instance, step, out)


def _opening(instance: BoundPlan, given: Mapping[str, torch.Tensor], step: st.Entry) -> Opening:
    """The entry for what is given, of this layout."""
    key = (step, layout_key(given))
    made: Opening | None = instance.prepared.get(key)
    if made is None:
        made = instance.prepared[key] = Opening(instance, step, given)
    return made
