"""Carries out a launch: the protocol's steps (`overlap.schedule.steps`) through a `Runtime`.

Copies are enqueued ahead of the kernel that waits for them. The other way round (`launch_steps(kernel_first=True)`) anything
that makes the host wait for the device in between, such as memory that the garbage collector frees, waits for ever;
and it was no faster (2 H100s, 26 us and 144 us a launch in a graph either way).

Everything that depends on the shape alone (views, copy descriptors, arguments of the small kernels) is made once an
instance; a call binds what its arguments bring and enqueues. Nothing here knows whether ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from overlap.errors import RuntimeContractError
from overlap.schedule import steps as st
from overlap.schedule.moves import Move

from ..bound_plan import BoundPlan
from ..calls.resolve import Bound
from ..instance import Instance, LaunchTable
from ..kernels.entry import MOVE_KERNELS, word_sums_kernel
from ..nvshmem.device_code import joined
from ..operator import Operator
from ..repeat.places import Carried, numbered
from ..repeat.repeat import KernelLaunch, Repeat
from ..tables.inline_words import ALONE, alone, given_words
from ..tables.moves import Grid, Reserved, reserved
from ..tables.ranges import range_arguments
from ..tables.slots import store_arguments
from ..tracing.recording import log_arguments
from .acts import Act, Ends, InFlight, carry_out, make_acts
from .beside import beside_sums
from .finish import finish_table
from .givens import steps_for
from .in_place import own_arguments, read_by
from .opening import Opening, layout_key
from .prepared import layout_of
from .residents import all_resident, alone_grid
from .variant import variant_of

STEP_FILTER: Callable[[int, tuple[st.Step, ...]], tuple[st.Step, ...]] | None = None
"""Tests put a function here that drops a step; the simulator must then find the race."""

MOVE_WARPS = 8
Nothing: Mapping[str, torch.Tensor] = {}


def launch(
    operator: Operator,
    instance: Instance,
    given: Mapping[str, torch.Tensor],
    bound: Bound,
    grid: tuple[int, int, int],
    results: Mapping[str, torch.Tensor] = Nothing,
    behind: Callable[[], None] | None = None,
    repeat: Repeat | None = None,
    left: int | None = None,
) -> None:
    """Enqueues one launch of ``operator`` on this rank: entry, copies, flags, kernel, sums, credits, join.

    Args:
        given: by communicated tensor, what is staged or read where it is: this rank's shard of an input, what an output starts
            from.
        bound: the intercepted launch; its arguments already name the tensors in symmetric memory.
        grid: its grid.
        results: by communicated output, this rank's piece, to be written.
        behind: enqueues more work that reads the gathered buffer, on the main stream behind the kernel and all
            copies, and ahead of the credits that let peers overwrite it.
        repeat: asks that the launch be made ready for other tensors, where it can be.
        left: how many of the last tiles ``behind`` makes, if that is all it reads the buffer for.

    Raises:
        RuntimeContractError: the grid has fewer programs than there are tiles, or more of them in several dimensions.
        UnsupportedError: a wait kernel of the plan would not fit beside the grid, more programs are to move chunks than can be
            resident, or a reduction that is not carried out.
    """
    runtime = instance.runtime
    bound, grid = beside_sums(instance, bound, grid)
    table, finish = finish_table(instance, bound, grid, results)
    grid = tiles_only(operator, grid, table.tiles)
    ours = {operator.ours[0]: table.words, operator.ours[1]: instance.state, **range_arguments(instance, bound)}
    ours |= log_arguments(instance, bound, table)
    if table.slots is not None:
        ours |= store_arguments(operator, table.slots, bound.arguments, table.tiles)
    # What lies in memory that the kernel may write is staged ahead of it.
    shared = any(read_by(tensor, bound) for name, tensor in given.items() if not instance.parts[name].made)
    own = own_arguments(instance, table, bound, given, results, None if shared else 0 if behind is None else left)
    ours |= own.arguments | finish.arguments
    words = given_words(instance, table, results, bound.options) if table.receivers is not None else {}
    ours |= {operator.parameter(name): value for name, value in words.items()}
    linked = runtime.linked if operator.moves and operator.mover.far else {}
    kernel, options, place = bound.kernel, joined(bound.options, linked), operator.moves
    if operator.moves:
        # What is moved is known once the kernel is compiled; until then a table like any other stands for it.
        ours[place] = instance.state
    arguments = {**bound.arguments, **ours, **options}
    if operator.moves and not table.tiles:
        # The user's kernel has nothing to do, and no descriptors of what is empty are made for it.
        kernel = MOVE_KERNELS[operator.mover.writer]
        options, place, grid = {"num_warps": MOVE_WARPS, **linked}, "moves", (0, 1, 1)
        arguments = {"moves": instance.state, "state": instance.state, **options}
    if words and not table.tiles:
        kernel, options, place = word_sums_kernel, ALONE, "out"
        arguments, grid = {**alone(words), "state": instance.state, **options}, alone_grid(instance)
    elif words:
        place = operator.parameter("out")
        counted, grid = all_resident(instance, kernel, bound, arguments, grid)
        arguments |= counted
    carried, ends = _brought(given, results)
    steps = instance.steps if shared else steps_for(instance, given, own.taken, finish.pieces)
    steps = _filtered(instance, steps)
    acts = partial(_acts, instance, table, steps)
    variant = variant_of(kernel, arguments)
    moves = next((step.moves for step in steps if isinstance(step, st.Kernel)), ())
    key = (variant.key, kernel, grid)

    def warm() -> None:
        acts(ends)
        if operator.moves:
            _reserved(instance, key, moves, arguments, table.tiles)
        elif table.tiles or words:
            _ready_kernel(instance, key, arguments, arguments.keys() - options.keys())

    _meet(instance, (table, variant.key, own.taken, *_layouts(results)), warm)
    if operator.moves:
        beside = _reserved(instance, key, moves, arguments, table.tiles)
        arguments[place], grid = beside.words, beside.grid
        key = (variant.key, kernel, grid)
    passed = {name: value for name, value in arguments.items() if name not in options}
    runs = bool(table.tiles or moves or words)
    repeatable = repeat is not None and (behind is None or repeat.further is not None) and STEP_FILTER is None
    if repeat is not None and repeatable and (variant.exact or not runs):
        kept = (
            frozenset(ours) | {comm.param for comm in operator.comms} if kernel is bound.kernel else frozenset(passed)
        )
        if words:
            # A result is the caller's.
            kept -= {place}
        kept -= own.callers | finish.callers
        ready = repeat.prepare(instance, ends, acts, KernelLaunch(kernel, grid, arguments, kept) if runs else None)
        if ready is not None:
            ready.enqueue(repeat.carried)
            return

    def by_triton(stream: Any, _: Carried) -> None:
        runtime.launch(kernel, grid, (), arguments, stream)

    bound_by_name = variant.exact and runs
    if runs and variant.guessed:
        # Loading a module waits for the device, and so for a lane held by what this kernel is to count up.
        runtime.warm(kernel, grid, arguments)
    enqueue = partial(_ready_kernel(instance, key, arguments, passed), **passed) if bound_by_name else by_triton
    carry_out(instance, acts(ends), InFlight(runtime, runtime.main_stream(), enqueue, carried, behind))


def tiles_only(operator: Operator, grid: Grid, tiles: int) -> Grid:
    """The grid without programs that have no tile.

    The kernel as it was masks what lies outside, or its grid would be wrong. Positions of the table end with the tiles: a
    program behind the last one would make some tile once more.

    Raises:
        RuntimeContractError: there are tiles that no program makes, or what is too much lies in several dimensions.
    """
    programs = grid[0] * grid[1] * grid[2]
    if not operator.tile_a_program or not tiles or programs == tiles:
        return grid
    if programs > tiles and grid[1] == grid[2] == 1:
        return tiles, 1, 1
    blocks = ", ".join(axis.block for axis in operator.axes if axis.block)
    raise RuntimeContractError(
        f"`{operator.name}` is launched with {programs} program{'s' * (programs != 1)}, and has {tiles} tiles of {blocks}",
        where=None if operator.body is None else operator.span(operator.source.host_line),
        help="make the grid from the block sizes that the kernel gets: a function of `meta`",
    )


Key = tuple[Any, Any, Grid]
"""Of a launch of the user's kernel: its variant, the kernel, the grid."""


def _reserved(instance: Instance, key: Key, moves: Sequence[Move], arguments: dict[str, Any], tiles: int) -> Reserved:
    """The launch beside programs that make ``moves``, made once for what it is without them."""
    place = ("reserved", key, tiles, moves if STEP_FILTER is not None else None)
    made: Reserved | None = instance.prepared.get(place)
    if made is None:
        _, kernel, grid = key
        made = instance.prepared[place] = reserved(instance, moves, kernel, grid, arguments, tiles)
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
        found = instance.runtime.warm(kernel, grid, arguments, leave_room=awaits, later=dict.fromkeys(parameters))
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
    carried, ends = _brought(given, results)
    acts = partial(_acts, instance, None, _filtered(instance, instance.steps), ends)
    _meet(instance, (layout_key(given), *_layouts(results)), acts)
    carry_out(instance, acts(), InFlight(instance.runtime, instance.runtime.main_stream(), None, carried))


def _brought(given: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor]) -> tuple[Carried, Ends]:
    """What a call carries: what it gives, then its results, as they are."""
    tensors = (*given.values(), *results.values())
    places = numbered(tensors)
    ends = Ends(
        given, dict(zip(given, places, strict=False)), results, dict(zip(results, places[len(given) :], strict=True))
    )
    return Carried(tensors), ends


def _filtered(instance: BoundPlan, steps: tuple[st.Step, ...]) -> tuple[st.Step, ...]:
    """The steps of a launch as tests want them."""
    return steps if STEP_FILTER is None else STEP_FILTER(instance.runtime.rank, steps)


def _meet(instance: BoundPlan, variant: Any, warm: Callable[[], Any]) -> None:
    """Compiles what this variant of a launch runs, once; with the other ranks where it is the first of all.

    Nothing may be compiled or loaded while a kernel spins.
    """
    if variant not in instance.warmed:
        instance.warmed.add(variant)
        if instance.met:
            warm()
    instance.meet(warm)


def _acts(instance: BoundPlan, table: LaunchTable | None, steps: Sequence[st.Step], ends: Ends) -> Sequence[Act]:
    """The steps as functions of a call, made once for a table and what acts depend on of a call's ends."""
    entry = next((s for s in steps if isinstance(s, st.Entry)), instance.entry)
    opening = _opening(instance, ends.given, entry, steps) if entry is not None else None
    key = ("acts", table, opening, id(steps), ends.key())
    found: Sequence[Act] | None = instance.prepared.get(key) if STEP_FILTER is None else None
    if found is None:
        found = make_acts(instance, table, opening, steps, ends)
        if STEP_FILTER is None:
            instance.prepared[key] = found
    return found


def _layouts(results: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    return tuple((name, *layout_of(out)) for name, out in results.items())


def _opening(
    instance: BoundPlan, given: Mapping[str, torch.Tensor], step: st.Entry, steps: Sequence[st.Step]
) -> Opening:
    """The entry, and the staging among the steps, for what is given, of this layout."""
    apart = any(isinstance(s, st.Stage) for s in steps)
    from_caller = frozenset(s.op for s in steps if isinstance(s, st.Copy) and s.given)
    read = (chunk for s in steps if isinstance(s, st.Kernel) for chunk in s.given)
    unstaged = frozenset(chunk.tensor for chunk in read)
    key = (step, apart, from_caller, unstaged, layout_key(given))
    made: Opening | None = instance.prepared.get(key)
    if made is None:
        made = instance.prepared[key] = Opening(
            instance, step, given, apart=apart, from_caller=from_caller, unstaged=unstaged
        )
    return made
