"""`CompiledKernel`: called like the kernel it was made from, plus a group.

first call     source (as it was when decorated) -> generated module in the cache folder -> operator
every call     choose a backend -> KernelCall (protocol, fused kernel) or gather and the original kernel
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from overlap import settings
from overlap.autotune.config import Config
from overlap.autotune.session import Tuned
from overlap.backends.base import Realization
from overlap.backends.capabilities import AUTO, SERIAL
from overlap.errors import UsageError
from overlap.pipeline import Request, compile_kernel
from overlap.runtime.calls.between_graphs import untraced
from overlap.runtime.calls.kernel_call import KernelCall, parameters
from overlap.runtime.calls.resolve import parameters_of
from overlap.runtime.instance import Instance
from overlap.runtime.of_group import runtime_of
from overlap.runtime.operator import Operator
from overlap.runtime.repeat.repeat import Repeat

from .cache import helper_sources, load, module_file
from .fallback import Choice, choose
from .groups import no_group, resolve_group
from .kernel_source import KernelSource, refuse_tuning
from .made import Made, plan_facts
from .measure import exposed_ms
from .memory import reserve_operator
from .repeat_kernel import repeated_launch
from .report import LastPlan, announce, logger, predicted_ms
from .tuned import BUILT_IN, KEYWORD
from .tuned_kernel import open_to_tuning, tuned_launch
from .variants import Variants


class CompiledKernel:
    """An annotated kernel that communicates some of its tensors while it computes. Made by `overlap.compile`.

    Launched as ``kernel[grid](...)`` with the original's arguments, of which ``on``'s tensors are this rank's shards, plus
    ``group=``: None (the default group), a process group, its name, a DeviceMesh or ``(mesh, dim)``. Sizes, strides and
    grid are global (of an axis that an all-to-all shards for the kernel: the rank's piece). Gathered inputs and the results
    that a kernel makes for all ranks lie in memory of the kernel's own.

    Raises (when launched):
        OverlapError: whatever the compiler or the runtime refuses, with the user's line.
    """

    def __init__(
        self,
        source: KernelSource,
        *,
        plan: str | Sequence[str],
        on: str | Sequence[str],
        world: int | None,
        backend: str | None,
        options: dict[str, str],
        made: Made | None = None,
    ) -> None:
        self.source = source
        self.made = made
        self.fn = source.kernel
        self.plan = plan
        self.on = on
        self.world = world
        self.backend = backend
        self.options = options
        self.last_plan: LastPlan | None = None
        self.variants = Variants(self._again)
        self.arg_names = list(parameters_of(source.function()))
        self.__name__ = source.function().__name__
        self.__doc__ = source.function().__doc__
        self.__module__ = source.function().__module__

    def __repr__(self) -> str:
        return f"CompiledKernel({self.source.qualname}, plan={self.plan!r}, on={self.on!r})"

    def _again(
        self, options: Mapping[str, str], backend: str | None, plan: str | Sequence[str] | None
    ) -> CompiledKernel:
        """The same kernel with more options, by another backend and plan; None: its own plan."""
        return CompiledKernel(
            self.source,
            plan=plan or self.plan,
            on=self.on,
            world=self.world,
            backend=backend,
            options={**self.options, **options},
            made=self.made,
        )

    @cached_property
    def path(self) -> Path:
        """The generated module's file; made now if it is not in the cache."""
        source = self.source
        backend = self.backend if self.backend not in (SERIAL, AUTO) else None
        request = Request(
            source.unit, plan=self.plan, on=self.on, kernel=source.qualname, world=self.world, backend=backend,
            settings=self.options, **(self.made.request if self.made else {}),
        )  # fmt: skip
        helpers = sorted(helper_sources(source.function()))
        facts = (
            source.unit.sha256, source.unit.path, source.qualname, source.decorators, request.plans,
            plan_facts(request), request.ons, self.world, backend,
            sorted(self.options.items()), helpers,
        )  # fmt: skip
        return module_file(self.__name__, facts, lambda: compile_kernel(request, source.decorators).module.text)

    @cached_property
    def operator(self) -> Operator:
        """The generated module's operator, loaded on first use."""
        module = load(self.path, self.source.names())
        # The module's own names come last; the program's may hold operators as well.
        return next(value for value in reversed(vars(module).values()) if isinstance(value, Operator))

    @property
    def realization(self) -> Realization:
        """How the plan is carried out."""
        return self.operator.realization

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Raises UsageError: a kernel is launched on a grid."""
        raise UsageError(
            f"`{self.__name__}` was called like a function", help=f"{self.__name__}[grid](..., group=group)"
        )

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, group=None, **kwargs: self._launched(grid, args, kwargs, group)

    def run(self, *args: Any, grid: Any, warmup: bool = False, group: Any = None, **kwargs: Any) -> None:
        """`kernel[grid](...)` as Triton's launchers spell it, so that heuristics may stand above `overlap.compile`.

        Raises:
            UnsupportedError: an autotuner with several configurations calls this, which would launch as often on every
                rank as its clock likes.
        """
        refuse_tuning(self.__name__)
        if not warmup:
            self._launched(grid, args, kwargs, group)

    def _launched(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], group: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return _launched_apart(self, grid, args, kwargs, group)
        asked = repeated_launch(self, group, grid, args, kwargs)
        if isinstance(asked, list):
            return
        before = self.last_plan
        repeat = asked.repeat(asked.outs) if asked is not None else None
        said = self.launch(grid, args, kwargs, group=group, repeat=repeat)
        if asked is not None:
            asked.keep(asked.outs, said, forced=self._forced)
        if said is not before:
            announce(said, warn=self._forced)

    def repeated(self, said: LastPlan, forced: bool) -> None:
        """Takes what a launch did that was repeated."""
        if said is not self.last_plan:
            self._reported, self.last_plan = None, said
            announce(said, warn=forced)

    def launch(
        self,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        group: Any = None,
        backend: str | None = None,
        behind: Callable[[Instance], None] | None = None,
        transport: torch.dtype | None = None,
        repeat: Repeat | None = None,
        sum_sms: int | None = None,
    ) -> LastPlan:
        """One launch, without a log line; what it did is returned and kept as `last_plan`.

        Args:
            backend: overrides the kernel's own choice for this launch.
            behind: enqueues more work that reads the gathered buffer (`overlap.runtime.launch.launch`); fused launches only.
            transport: dtype of communicated results on their way; by default their own. Each rank's part is rounded to
                it once, what is added is added in fp32, and the sum is rounded once.
            repeat: asks that the launch be made ready for other tensors; fused launches only.
            sum_sms: multiprocessors that may be left to sums, where nobody asks; of a shape the first launch's counts.
        """
        if no_group(group):
            self._forced = False
            alone = Choice("serial", "no process group, so one rank")
            return self._serial(None, grid, args, kwargs, alone, transport)
        group = resolve_group(group)
        if (backend or self.backend) == AUTO:
            return self._automatic(group, grid, args, kwargs, behind, transport, repeat)
        if backend is None and open_to_tuning(self):
            found = tuned_launch(self, group, grid, args, kwargs, transport)
            if found is not None:
                return self._tuned(found, group, grid, args, kwargs, behind, transport, repeat)
        choice = self._choose(group, args, kwargs, backend or self.backend)
        self._forced = choice.forced
        if choice.backend == "serial":
            return self._serial(group, grid, args, kwargs, choice, transport)
        runtime = runtime_of(group)
        compiled = self.variants.recording(self.backend) if settings.get("trace") else self
        call = KernelCall(compiled.operator, runtime, grid, args, kwargs, behind, transport, repeat, sum_sms)
        call.run()
        instance = call.instance
        assert instance is not None
        if self.last_plan is None or self._reported is not instance:
            self._reported = instance
            plan, part = instance.plan, instance.part
            self.last_plan = LastPlan(
                operator=self.__name__,
                backend=choice.backend,
                plan=plan.name,
                chunks=len(plan.arriving(runtime.rank)),
                world=runtime.world,
                rank=runtime.rank,
                shape=instance.shape,
                dtype=str(part.dtype),
                predicted_ms=predicted_ms(plan, runtime.rank, instance.machine, instance.itemsize),
                kind=self._kind,
                source=KEYWORD if backend is not None or not open_to_tuning(self) else BUILT_IN,
            )
        return self.last_plan

    def _automatic(
        self,
        group: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        behind: Callable[[Instance], None] | None,
        transport: torch.dtype | None,
        repeat: Repeat | None,
    ) -> LastPlan:
        """A launch by what is predicted to take least."""
        from .auto_kernel import choose_kernel

        choice = choose_kernel(self, group, grid, args, kwargs, transport)
        self._forced = choice.forced
        if choice.backend == SERIAL:
            return self._serial(group, grid, args, kwargs, choice, transport)
        variant = self.variant(choice.backend, choice.programs)
        said = variant.launch(
            grid, args, kwargs, group=group, backend=choice.backend, behind=behind, transport=transport, repeat=repeat
        )
        if self.last_plan is None or replace(self.last_plan, considered=()) != said:
            self.last_plan = replace(said, considered=choice.considered)
        return self.last_plan

    def _tuned(
        self,
        choice: Choice,
        group: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        behind: Callable[[Instance], None] | None,
        transport: torch.dtype | None,
        repeat: Repeat | None,
    ) -> LastPlan:
        """A launch by what was looked up."""
        self._forced = False
        if choice.backend == SERIAL:
            return self._serial(group, grid, args, kwargs, choice, transport)
        assert choice.config is not None
        variant = self.variant_of(choice.config)
        said = variant.launch(
            grid, args, kwargs, group=group, backend=choice.backend, behind=behind, transport=transport, repeat=repeat
        )
        said = replace(said, source=choice.source)
        if self.last_plan != said:
            self.last_plan = said
        return self.last_plan

    def variant_of(self, config: Config) -> CompiledKernel:
        """The same kernel compiled for a config."""
        return self.variants.of_config(config)

    def tune(self, grid: Any, *args: Any, group: Any = None, **kwargs: Any) -> Tuned:
        """Measures how to carry a launch out, and keeps the fastest for later launches of its sizes; collective.

        Args:
            grid, args, kwargs: a launch, as for ``kernel[grid](...)``. It must bear being repeated, and a ``grid`` that is a
                function lets block sizes vary too. ``budget=``, ``deadline=``, ``lock=`` and ``say=`` are as for `overlap.tune`.

        Raises:
            UsageError: the kernel's author named a backend or other keys: there is nothing left to choose.
        """
        from .tune_kernel import tune_kernel

        return tune_kernel(self, grid, args, kwargs, group)

    def variant(self, backend: str, programs: int = 0) -> CompiledKernel:
        """The same kernel compiled for a backend; ``programs`` of its launches move chunks (0: the backend's own number)."""
        return self.variants.of_backend(backend, programs)

    def measure(self, grid: Any, *args: Any, group: Any = None, iterations: int = 20, **kwargs: Any) -> LastPlan:
        """Launches the kernel repeatedly and measures the communication that computation does not hide; collective.

        Args:
            grid, args, kwargs: a launch, as for ``kernel[grid](...)``. It must bear being repeated.
            iterations: launches that are timed; the median counts.

        Returns:
            `last_plan` with ``exposed_ms``: the fused launch's time less that of the original kernel on gathered data.
        """
        resolved = resolve_group(group)
        seen: dict[str, torch.Tensor] = {}

        def keep(instance: Instance) -> None:
            for name, part in instance.parts.items():
                seen.setdefault(name, part.tensor.clone(memory_format=torch.preserve_format))

        said = self.launch(grid, args, kwargs, group=resolved, behind=keep)
        if not seen:
            return said  # serial: nothing is hidden
        alone = KernelCall(self.operator, runtime_of(resolved), grid, args, kwargs)
        alone.read_launch(said.world, said.rank)
        for name, tensor in seen.items():
            alone.substitute(tensor, name)
        exposed = exposed_ms(
            lambda: self.launch(grid, args, kwargs, group=resolved),
            lambda: self.fn[grid](**alone.kwargs),
            iterations,
        )
        self.last_plan = replace(said, exposed_ms=exposed)
        logger().info("%s", self.last_plan)
        return self.last_plan

    def reserve(self, group: Any = None, *, dtype: torch.dtype | Mapping[str, torch.dtype], **max_sizes: int) -> None:
        """Makes the memory for all launches up to the given sizes; collective, and no launch makes any afterwards.

        Args:
            dtype: of the communicated tensors, or one for each by its name; of results as they travel.
            max_sizes: the largest global extent of each of their axes: ``M=8192, K=4096``.

        Raises:
            UsageError: an axis without a size.
            RuntimeContractError: ranks that ask for different sizes, or less was reserved before.
        """
        reserve_operator(self.operator, group, max_sizes, dtype)

    _reported: Instance | None = None
    _forced = False

    @property
    def _kind(self) -> str:
        return "+".join(comm.kind for comm in self.operator.comms)

    def _choose(self, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any], asked: str | None) -> Choice:
        operator = self.operator
        given = {**dict(zip(parameters(operator), args, strict=False)), **kwargs}
        total = 0
        for comm in operator.comms:
            value = given.get(comm.param)
            shard = getattr(value, "base", value)
            if not isinstance(shard, torch.Tensor):
                return Choice("copy_engine")  # which says what is wrong with it
            shape = list(shard.shape)
            if comm.held is not None:
                # The same number on every rank, also where a rank holds nothing.
                extent = given.get(operator.extents.get(comm.dims[comm.held], ""))
                if not isinstance(extent, int) or comm.held >= len(shape):
                    return Choice("copy_engine")
                shape[comm.held] = extent
            total += math.prod(shape) * shard.element_size()
        return choose(group, shard, total, asked)

    def _serial(
        self,
        group: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        choice: Choice,
        transport: torch.dtype | None,
    ) -> LastPlan:
        from .serial_kernel import SerialKernelCall

        call = SerialKernelCall(self.operator, group, choice, self.fn, grid, args, kwargs, transport)
        call.run()
        self._reported = None
        first = call.given[0]
        self.last_plan = LastPlan(
            operator=self.__name__,
            backend="serial",
            plan=" and ".join(sorted(set(call.went_by))) or "collective",
            chunks=0,
            world=call.runtime.world,
            rank=call.runtime.rank,
            shape=first.shape,
            dtype=str(first.dtype),
            why_serial=choice.why_serial,
            kind=self._kind,
            considered=choice.considered,
            source=choice.source,
        )
        return self.last_plan


_launched_apart = untraced(CompiledKernel._launched, "launches of compiled kernels are made between graphs")
