"""`check_module`: a generated module on simulated ranks against the original kernel without communication.

    original (1 rank), every rank's inputs -> partials or results -> wanted[launch][rank]   (overlap.sim.oracle)
    generated, seed 0, 1, 2, ...         -> got[launch][rank], launches in a row, same input memory overwritten

Every seed is another order of everything that may be reordered; the data stays the same, so that a seed replays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from overlap import settings
from overlap.codegen.module_io import find_operator, find_source, load_module, read_header, read_module
from overlap.codegen.original import load_original
from overlap.errors import MismatchFault, OverlapError, SimFault, UnwrittenFault, UsageError
from overlap.runtime.dtypes import dtype_of, dtypes_of
from overlap.runtime.launch import launch as launch_layer
from overlap.schedule.steps import Step

from .engine import NOWHERE
from .fibres import Chooser
from .inputs import CallInputs, check_sizes, make_inputs
from .memory import array_of
from .oracle import Wanted, wanted_results
from .payload import bits_of, differing_bits
from .report import Fault, SimReport
from .world import World

StepFilter = Callable[[int, tuple[Step, ...]], tuple[Step, ...]]


class ModuleCheck:
    """A generated module with its original, inputs and wanted results for one world, shape and dtype."""

    def __init__(
        self,
        path: str,
        *,
        world: int,
        shape: dict[str, int],
        dtype: str,
        dtypes: Mapping[str, str] | None = None,
        launches: int = 3,
        original: str | None = None,
        sms: int | None = None,
        flattened: bool | None = None,
        mutate_steps: StepFilter | None = None,
        payload: bool = False,
        blocking: bool = False,
    ) -> None:
        self.path = path
        self.world = world
        self.sizes = dict(shape)
        self.sms = settings.get("sim_sms", sms)
        self.flattened = flattened
        self.mutate_steps = mutate_steps
        self.payload = payload
        self.blocking = blocking
        header = read_header(read_module(path), path)
        self.original = original or find_source(header, path)
        self._original_host = None if original else load_original(header, path)
        module = load_module(path, search=(os.path.dirname(os.path.abspath(self.original)),))
        self.operator = find_operator(module)
        self.host = getattr(module, self.operator.name)
        if sms is None:
            # Multiprocessors that are asked for to move chunks come on top of those there are by default.
            self.sms += self.operator.realization.comm_sms
        if self.operator.world is not None and self.operator.world != world:
            raise UsageError(f"{path} was compiled for {self.operator.world} ranks, not for {world}")
        check_sizes(self.operator, self.sizes)
        kind = dtype_of(dtype)
        others = dtypes_of(self.operator, dtypes or {})
        self.inputs = make_inputs(self.operator, self.sizes, kind, world, launches, others, payload=payload)
        self.wanted = [wanted_results(self.operator, made, self.sizes) for made in self._run_original()]
        most = max((one.tolerance for ranks in self.wanted for made in ranks for one in made), default=0.0)
        self.report = SimReport(path, self.original, world, self.sizes, dtype, launches, self.sms, tolerance=most)

    def _run_original(self) -> list[list[tuple[torch.Tensor, ...]]]:
        host = self._original_host or getattr(load_module(self.original), self.operator.name)

        def body(group: Any) -> list[list[tuple[torch.Tensor, ...]]]:
            results = [[_tensors(host(**call.whole)) for call in ranks] for ranks in self.inputs]
            group.overlap_runtime.synchronize()
            return results

        try:
            return World(1, sms=self.sms).run(body)[0]
        except SimFault as fault:
            raise type(fault)(
                f"the original {self.original} itself: {fault.message}", where=fault.where, help=fault.help
            ) from fault

    def run(self, seed: int, chooser: Chooser | None = None) -> OverlapError | None:
        """One simulation; the fault it found, if any."""
        world = World(
            self.world, sms=self.sms, seed=seed, chooser=chooser, flattened=self.flattened, blocking=self.blocking
        )
        try:
            with step_filter(self.mutate_steps):
                world.run(lambda group: self._rank(world, group))
        except SimFault as fault:
            return fault
        finally:
            self.report.steps += world.scheduler.steps
        return None

    def _rank(self, world: World, group: Any) -> None:
        """One rank's host code: all launches in a row, then every result is looked at."""
        runtime = group.overlap_runtime
        memory: dict[str, torch.Tensor] = {}
        results = []
        for ranks in self.inputs:
            call: CallInputs = ranks[runtime.rank]
            arguments = dict(call.passed)
            for name in self.operator.inputs:
                value = call.passed[name]
                if name not in memory:
                    memory[name], buffer = world.memory.allocate(runtime.rank, value.shape, value.dtype)
                    buffer.describe(memory[name], name)
                runtime.fill(memory[name], value)
                arguments[name] = memory[name]
            results.append(_tensors(self.host(**arguments, group=group, sizes=self.sizes)))
        runtime.synchronize()
        runtime.agree("all launches have ended", None)
        world.shadow.check_early_reads()
        for number, (got, ranks_wanted) in enumerate(zip(results, self.wanted, strict=True)):
            for name, one, other in zip(self.operator.outputs, got, ranks_wanted[runtime.rank], strict=True):
                self._compare(world, runtime, f"{name} of rank {runtime.rank}, launch {number + 1}", one, other)

    def _compare(self, world: World, runtime: Any, name: str, got: torch.Tensor, wanted: Wanted) -> None:
        if got.shape != wanted.values.shape or got.dtype != wanted.dtype:
            raise MismatchFault(
                f"mismatch: {name} is {tuple(got.shape)} {got.dtype}, "
                f"the original's {tuple(wanted.values.shape)} {wanted.dtype}"
            )
        if not got.numel():
            return
        check_written(world, runtime, name, got)
        got = got.contiguous()
        runtime.synchronize()
        if self.payload and wanted.moved:
            self._compare_bits(name, got, wanted)
            return
        one = array_of(got).astype(np.float64)
        other = array_of(wanted.values.contiguous()).astype(np.float64)
        allowed = wanted.allowed + wanted.relative * np.abs(other)
        difference = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
        wrong = ~(difference <= allowed)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise MismatchFault(
                f"mismatch: {int(wrong.sum())} of {got.numel()} elements of {name} differ from the original's, "
                f"the first is [{', '.join(map(str, where))}]: {one[where]:g} instead of {other[where]:g} "
                f"(allowed {float(np.broadcast_to(allowed, one.shape)[where]):.3g})"
            )
        self.report.largest_difference = max(self.report.largest_difference, float(difference.max()))

    def _compare_bits(self, name: str, got: torch.Tensor, wanted: Wanted) -> None:
        found = differing_bits(got, wanted.values)
        if found is not None:
            count, where = found
            raise MismatchFault(
                f"mismatch: {count} of {got.numel()} elements of {name} differ from the original's in their bits, "
                f"the first is [{', '.join(map(str, where))}]: {bits_of(got)[where]:#x} instead of "
                f"{bits_of(wanted.values)[where]:#x}"
            )


def check_module(
    out_path: str | os.PathLike[str],
    *,
    world: int,
    shape: dict[str, int],
    dtype: str = "fp16",
    dtypes: Mapping[str, str] | None = None,
    seeds: Sequence[int] = (0,),
    launches: int = 3,
    sms: int | None = None,
    original: str | None = None,
    progress: Callable[..., None] | None = None,
    mutate_steps: StepFilter | None = None,
    flattened: bool | None = None,
    payload: bool = False,
    blocking: bool = False,
) -> SimReport:
    """Runs a generated module on ``world`` simulated ranks once a seed and compares it with its original.

    Args:
        out_path: the generated module, perhaps edited.
        world: number of ranks.
        shape: axis to the extent that the user's host function sees.
        dtype: of all tensors: fp16, bf16, fp32, ...
        dtypes: inputs of another dtype than that, by host name; integers are small numbers of either sign.
        seeds: orders to try; stops at the first that shows a fault.
        launches: calls in a row in each run, each with new data in the same memory.
        sms: programs of a rank that are resident at a time; the setting ``sim_sms`` by default.
        original: path of the original kernel; by default found through the header.
        progress: called after every seed.
        mutate_steps: changes a rank's launch steps, for tests that drop one.
        flattened: order of waits in tile loops; see `World`.
        payload: inputs are bit patterns of every kind, and results that nothing was added to must be equal in every bit;
            for kernels that move values, such as a copy.
        blocking: the host waits for every kernel, as with ``CUDA_LAUNCH_BLOCKING=1``.

    Raises:
        UsageError, SourceError: the file, its original, the world or the shape cannot be used.
    """
    check = ModuleCheck(
        os.fspath(out_path),
        world=world,
        shape=shape,
        dtype=dtype,
        dtypes=dtypes,
        launches=launches,
        original=original,
        sms=sms,
        flattened=flattened,
        mutate_steps=mutate_steps,
        payload=payload,
        blocking=blocking,
    )
    for seed in seeds:
        fault = check.run(seed)
        check.report.seeds.append(seed)
        if progress is not None:
            progress()
        if fault is not None:
            check.report.faults.append(Fault(seed, fault))
            break
    return check.report


def check_written(world: World, runtime: Any, name: str, got: torch.Tensor) -> None:
    """Reads a result as a rank's host code does once its stream is done.

    Raises:
        UnwrittenFault: some of it was never written.
        RaceFault: some of it is written by what the host code does not know to be done.
    """
    buffer = world.memory.of(got)
    if buffer is None:
        return
    places = buffer.granules(world.memory.offsets(got), got.element_size())
    missing = world.shadow.first_never_written(buffer, places)
    if missing is not None:
        position = int(np.flatnonzero(places == missing[0])[0])
        raise UnwrittenFault(
            f"unwritten: {missing[1]} of {got.numel()} elements of {name} were never written, "
            f"the first is {_index(position, got.shape)}"
        )
    world.shadow.read(buffer, places, world.shadow.access(runtime.host, "reads the result", NOWHERE))


@contextmanager
def step_filter(steps: StepFilter | None) -> Iterator[None]:
    """Launches within change their steps so."""
    before = launch_layer.STEP_FILTER
    launch_layer.STEP_FILTER = steps if steps is not None else before
    try:
        yield
    finally:
        launch_layer.STEP_FILTER = before


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _index(position: int, shape: torch.Size) -> str:
    return "[" + ", ".join(str(int(i)) for i in np.unravel_index(position, tuple(shape))) + "]"
