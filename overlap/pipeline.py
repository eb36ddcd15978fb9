"""The compiler, top to bottom: one flat list of stages, each with a result that prints itself.

    source -> model -> on -> plan -> realization -> checked -> module          (compile: no sizes needed)
                                                             -> schedule       (explain: for one shape and world)

With OVERLAP_DUMP_DIR set, each stage's text is written there as ``NN_stage.txt``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from overlap import settings
from overlap.annotate import annotate, kernel_entry, parse_on, returns_after_dispatch
from overlap.annotate import describe as describe_model
from overlap.annotate.model import Axis, ProgramModel
from overlap.annotate.on import OnSpec
from overlap.annotate.source import SourceUnit
from overlap.backends import backend as find_backend
from overlap.backends.base import Realization
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.describe import describe as describe_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.pins import pins_of
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.verify import verify_plan
from overlap.codegen import GeneratedModule, generate, generate_kernel
from overlap.errors import HostEntryError, OverlapError, UnsupportedError, UsageError
from overlap.schedule.depgraph import check_covered
from overlap.schedule.describe import describe as describe_schedule
from overlap.schedule.model import AxisTiles, RankSchedule, TensorRead
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import launch_steps
from overlap.schedule.verify import verify_schedule
from overlap.schedule.verify_steps import verify_steps


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    ``kernel``: name of the annotated kernel, None for the file's only one. ``plan``: a template's name or a YAML path.
    ``on``: ``a[M]``. ``world``: pins the module, None for any. ``settings``: Realization keys.
    ``output``: where the module will be written, for its header.
    """

    unit: SourceUnit
    plan: str
    on: str
    kernel: str | None = None
    world: int | None = None
    backend: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    output: str = "OUT.py"


@dataclass(frozen=True)
class Compilation:
    """Everything known after `compile_source`."""

    request: Request
    program: ProgramModel
    on: OnSpec
    plan_path: str
    plan_text: str
    realization: Realization
    module: GeneratedModule


def compile_source(request: Request) -> Compilation:
    """Runs the stages up to the generated module.

    Raises:
        OverlapError: any stage refuses; the message names the user's file and line.
    """
    dump = _Dump(request.unit.path)
    dump("source", request.unit.text)
    program = annotate(request.unit, request.kernel)
    dump("model", describe_model(program))
    if program.host is None:
        raise HostEntryError(
            f"`{program.kernel.name}` has no host entry, so nobody knows what its tensors are",
            where=program.kernel.span,
            help="put above the function that launches it: # @overlap.host_entry a[M,K] b[K,N] -> c[M,N]",
        )
    refuse_returns(request.unit, program)
    realization = realize(request, program)
    dump("realization", repr(realization))
    try:
        on = parse_on(request.on, program)
        dump("on", repr(on))
        plan_path, plan_text = find_template(request.plan)
        dump("plan", plan_text)
        probe(request, program, on, plan_path, plan_text, realization)
    except OverlapError as error:
        raise error.at(program.host.span) from None
    module = generate(
        request.unit.text,
        program,
        on,
        plan_name=request.plan,
        plan_text=plan_text,
        realization=realization,
        world=request.world,
        source_path=source_path(request),
        sha256=request.unit.sha256,
        regenerate=regenerate_command(request, program),
        check=check_command(request, program),
        watch=dump,
    )
    dump("module", module.text)
    return Compilation(request, program, on, plan_path, plan_text, realization, module)


def compile_kernel(request: Request, decorators: int) -> Compilation:
    """`compile_source` for a kernel that its callers launch directly: names in ``on`` are kernel parameters.

    Args:
        decorators: how many of the kernel's innermost decorators the new kernel keeps.

    Raises:
        OverlapError: any stage refuses; the message names the user's file and line.
    """
    dump = _Dump(request.unit.path)
    dump("source", request.unit.text)
    program = kernel_entry(annotate(request.unit, request.kernel))
    dump("model", describe_model(program))
    realization = realize(request, program)
    dump("realization", repr(realization))
    try:
        on = parse_on(request.on, program)
        dump("on", repr(on))
        plan_path, plan_text = find_template(request.plan)
        dump("plan", plan_text)
        probe(request, program, on, plan_path, plan_text, realization)
    except OverlapError as error:
        raise error.at(program.kernel.span) from None
    module = generate_kernel(
        request.unit.text,
        program,
        on,
        decorators=decorators,
        plan_name=request.plan,
        plan_text=plan_text,
        realization=realization,
        world=request.world,
        source_path=source_path(request),
        sha256=request.unit.sha256,
        watch=dump,
    )
    dump("module", module.text)
    return Compilation(request, program, on, plan_path, plan_text, realization, module)


def refuse_returns(unit: SourceUnit, program: ProgramModel) -> None:
    """Refuses a ``return`` behind the dispatch region: a program that waits there must reach what it owes to others.

    Raises:
        UnsupportedError: with the first such line.
    """
    kernel = program.kernel
    lines = returns_after_dispatch(unit, kernel.qualname, min(r.end_line for r in kernel.regions))
    if lines:
        raise UnsupportedError(
            f"`{kernel.name}` may return between its wait and what follows the tile (a raise, in kernels that produce)",
            where=unit.span(lines[0], unit.lines[lines[0] - 1].find("return") + 1, len("return")),
            help="return above `dispatch begin`, or mask the work with the condition instead of leaving",
        )


def realize(request: Request, program: ProgramModel) -> Realization:
    """The realization a request asks for.

    Raises:
        UsageError: unknown backend or setting.
    """
    constexprs = tuple(p.name for p in program.kernel.params if p.is_constexpr)
    realization = Realization(backend=request.backend or "copy_engine").with_settings(
        dict(request.settings), constexprs
    )
    if request.backend and realization.backend != request.backend:
        raise UsageError(f"--backend says {request.backend}, --set says {realization.backend}")
    chosen = find_backend(realization.backend)
    if realization.comm_sms and not chosen.comm_sms:
        raise UsageError(f"{chosen.name} takes no multiprocessors: comm_sms must be 0")
    return realization


def probe(
    request: Request, program: ProgramModel, on: OnSpec, plan_path: str, plan_text: str, realization: Realization
) -> None:
    """Builds and verifies the plan for small sizes, so that a plan that cannot serve the kernel is refused at compile time.

    The sizes make ragged shards; the same checks run again for the real sizes at the first call.
    """
    host = program.host
    assert host is not None
    pins = pins_of(plan_text, plan_path, on.tensor)
    dims = host.tensor(on.tensor).dims
    worlds = [request.world] if request.world is not None else [pins.world] if pins.world is not None else [1, 2, 3, 4]
    for world in worlds:
        sizes = {d: 3 * world + 2 + 5 * i for i, d in enumerate(sorted(_axes(program)))}
        if pins.shape is not None and len(pins.shape) == len(dims):
            sizes.update({d: n for d, n in zip(dims, pins.shape, strict=True) if n is not None})
        plan = plan_for(on, program, plan_path, plan_text, realization, world, sizes)
        axes = tuple(AxisTiles(a.name, sizes[a.name], 2) for a in tile_axes(program))
        for rank in range(world):
            check_covered(plan, tensor_reads(program, on), axes, rank)
        verify_steps([launch_steps(plan, rank) for rank in range(world)], plan)


def _axes(program: ProgramModel) -> set[str]:
    assert program.host is not None
    named = {d for t in (*program.host.inputs, *program.host.outputs) for d in t.dims}
    return named | {a.name for a in program.kernel.axes}


def tile_axes(program: ProgramModel) -> tuple[Axis, ...]:
    """Tile axes in table order: declared axes that a pid map names."""
    mapped = {axis for axis, _ in program.kernel.regions[0].pid_map}
    return tuple(a for a in program.kernel.axes if a.block is not None and a.name in mapped)


def tensor_reads(program: ProgramModel, on: OnSpec) -> tuple[TensorRead, ...]:
    """How tiles read the communicated tensor."""
    assert program.host is not None
    param = dict(program.host.tensor_params)[on.tensor]
    names = {a.name for a in tile_axes(program)}
    reads = []
    for access in program.kernel.accesses:
        if access.tensor == param and access.mode == "read":
            wraps = access.wraps or (False,) * len(access.axes)
            read = TensorRead(on.tensor, tuple(a if a in names else None for a in access.axes), wraps)
            if read not in reads:
                reads.append(read)
    return tuple(reads)


def plan_for(
    on: OnSpec,
    program: ProgramModel,
    plan_path: str,
    plan_text: str,
    realization: Realization,
    world: int,
    sizes: dict[str, int],
) -> CommPlan:
    """The verified plan for one world and one set of sizes (axis to global extent)."""
    assert program.host is not None
    shape = tuple(sizes[d] for d in program.host.tensor(on.tensor).dims)
    plan = build_plan(
        plan_text,
        world=world,
        tensor=TensorSpec(on.tensor, shape),
        dim=on.dim,
        split=realization.split,
        direction=find_backend(realization.backend).default_direction,
        path=plan_path,
    )
    verify_plan(plan)
    return plan


def schedules_for(compilation: Compilation, plan: CommPlan, sizes: dict[str, int]) -> tuple[RankSchedule, ...]:
    """Every rank's schedule, verified over the whole world.

    Raises:
        UsageError: a block size is not a literal in the host function and not set.
    """
    axes = tuple(AxisTiles(a.name, sizes[a.name], block_size(compilation, a)) for a in tile_axes(compilation.program))
    reads = tensor_reads(compilation.program, compilation.on)
    ordered = find_backend(compilation.realization.backend).ordered
    schedules = schedule_all(plan, reads, axes, ordered=ordered)
    for flattened in (False, True):
        verify_schedule(schedules, plan, reads, axes, flattened=flattened, ordered=ordered)
    verify_steps([launch_steps(plan, rank) for rank in range(plan.world)], plan)
    return schedules


def block_size(compilation: Compilation, axis: Axis) -> int:
    """Block size of a tile axis: set, or a literal of the launch."""
    meta = dict(compilation.realization.meta)
    assert compilation.program.host is not None
    text = dict(compilation.program.host.kernel_args).get(axis.block or "", "")
    if axis.block in meta:
        return meta[axis.block]
    if text.isdecimal():
        return int(text)
    raise UsageError(
        f"the block size {axis.block} of axis {axis.name} is computed when the kernel is launched",
        where=axis.span,
        help=f"say which to show: --set {axis.block}=64",
    )


def explain(
    compilation: Compilation, *, world: int, sizes: dict[str, int], rank: int | None = None
) -> Iterator[tuple[str, str]]:
    """Title and text of each stage's result, for one world and one set of sizes.

    Args:
        rank: the rank whose runs are shown; None for all.
    """
    need_sizes(compilation.program, sizes)
    yield "kernel model", describe_model(compilation.program)
    plan = plan_for(
        compilation.on,
        compilation.program,
        compilation.plan_path,
        compilation.plan_text,
        compilation.realization,
        world,
        sizes,
    )
    yield "plan", describe_plan(plan)
    schedules = schedules_for(compilation, plan, sizes)
    for shown in schedules if rank is None else (schedules[rank],):
        yield f"runs of rank {shown.rank}", describe_schedule(shown, plan)


def need_sizes(program: ProgramModel, sizes: dict[str, int]) -> None:
    """Checks ``--shape`` against the host entry's axes.

    Raises:
        UsageError: an axis without a size, or a size for no axis.
    """
    assert program.host is not None
    named = []
    for tensor in (*program.host.inputs, *program.host.outputs):
        named += [d for d in tensor.dims if d not in named]
    missing = [d for d in named if d not in sizes]
    extra = [d for d in sizes if d not in named]
    if missing or extra:
        wrong = f"no size for axis {missing[0]}" if missing else f"no tensor has an axis {extra[0]}"
        raise UsageError(
            f"--shape: {wrong}", where=program.host.span, help="--shape " + ",".join(f"{d}=.." for d in named)
        )


def shown_path(path: str) -> str:
    """A path as headers and messages show it: relative to the working folder if it is inside."""
    absolute = os.path.abspath(path)
    here = os.getcwd() + os.sep
    return absolute[len(here) :].replace(os.sep, "/") if absolute.startswith(here) else absolute


def source_path(request: Request) -> str:
    """The source's path as the header names it: relative while the output stays under the working folder, else absolute."""
    inside = request.output == "-" or not os.path.isabs(shown_path(request.output))
    return shown_path(request.unit.path) if inside else os.path.abspath(request.unit.path)


def regenerate_command(request: Request, program: ProgramModel) -> str:
    """The command that makes the module again."""
    words = [
        "overlap",
        "compile",
        f"{shown_path(request.unit.path)}:{program.kernel.name}",
        "--plan",
        request.plan,
        "--on",
        request.on,
    ]
    if request.world is not None:
        words += ["--world", str(request.world)]
    if request.backend:
        words += ["--backend", request.backend]
    for key, value in request.settings.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join([*words, "-o", shown_path(request.output)])


def default_sizes(program: ProgramModel) -> dict[str, int]:
    """Small ragged sizes for every axis of the host entry: examples in headers, and `overlap explain` without ``--shape``."""
    assert program.host is not None
    dims: list[str] = []
    for tensor in (*program.host.inputs, *program.host.outputs):
        dims += [d for d in tensor.dims if d not in dims]
    return {d: 200 + 56 * i for i, d in enumerate(dims)}


def check_command(request: Request, program: ProgramModel) -> str:
    """A command that simulates the module on an uneven shape."""
    shape = ",".join(f"{d}={n}" for d, n in default_sizes(program).items())
    world = request.world or 4
    return shlex.join(["overlap", "simulate", shown_path(request.output), "--world", str(world), "--shape", shape])


class _Dump:
    """Writes each stage's text into OVERLAP_DUMP_DIR, if that is set."""

    def __init__(self, path: str) -> None:
        folder = settings.get("dump_dir")
        self.folder = Path(folder) / Path(path).stem if folder else None
        self.number = 0

    def __call__(self, stage: str, text: str) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{self.number:02d}_{stage}.txt").write_text(text, encoding="utf-8")
        self.number += 1
