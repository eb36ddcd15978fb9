"""From a request to a generated module, stage by stage, and each stage's result as text.

    source -> model -> on -> plan -> realization -> checked -> module          (compile: no sizes needed)
                                                            -> schedule        (explain: for one shape and world)

With OVERLAP_DUMP_DIR set, each stage's text is written there as ``FILE/NN_stage.txt``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from overlap import settings
from overlap.annotate import annotate, kernel_entry, parse_ons, refuse_jumps, returns_after_dispatch
from overlap.annotate import describe as describe_model
from overlap.annotate.model import Axis, ProgramModel
from overlap.annotate.on import OnSpec
from overlap.annotate.source import SourceUnit
from overlap.backends import backend as find_backend
from overlap.backends.base import Realization
from overlap.chunkplan.describe import describe as describe_plan
from overlap.codegen import GeneratedModule, PlanText, generate, generate_kernel
from overlap.errors import HostEntryError, OnError, OverlapError, PlanError, SourceSpan, UnsupportedError, UsageError
from overlap.schedule.describe import describe as describe_schedule
from overlap.schedule.events import ItemSize

from .paths import plan_text
from .planning import Planned, check_backend, check_programs, plan_launch, probe
from .request import Request, check_command, need_sizes, realize, regenerate_command, source_path


@dataclass(frozen=True)
class Compilation:
    """Everything known after `compile_source`."""

    request: Request
    program: ProgramModel
    ons: tuple[OnSpec, ...]
    plans: tuple[PlanText, ...]
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
    realization = realize(request, program)
    dump("realization", repr(realization))
    ons, plans, flatten = _communicated(request, program, realization, program.host.span, dump)
    module = generate(
        request.unit.text,
        program,
        ons,
        plans=plans,
        realization=realization,
        world=request.world,
        source_path=source_path(request),
        sha256=request.unit.sha256,
        regenerate=regenerate_command(request, program),
        check=check_command(request, program),
        flatten=flatten,
        watch=dump.watch,
    )
    dump("module", module.text)
    return Compilation(request, program, ons, plans, realization, module)


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
    ons, plans, flatten = _communicated(request, program, realization, program.kernel.span, dump)
    module = generate_kernel(
        request.unit.text,
        program,
        ons,
        decorators=decorators,
        plans=plans,
        realization=realization,
        world=request.world,
        source_path=source_path(request),
        sha256=request.unit.sha256,
        flatten=flatten,
        watch=dump.watch,
    )
    dump("module", module.text)
    return Compilation(request, program, ons, plans, realization, module)


def _communicated(
    request: Request,
    program: ProgramModel,
    realization: Realization,
    where: SourceSpan,
    dump: Callable[[str, str], None],
) -> tuple[tuple[OnSpec, ...], tuple[PlanText, ...], bool]:
    """The communicated tensors, their plans, and whether the tile loop may be flattened; all checked against the kernel."""
    try:
        ons = parse_ons(request.ons, program)
        dump("on", "\n".join(map(repr, ons)))
        request.check()
        produced = [on.param for on in ons if on.produced]
        refuse_returns(request.unit, program, bool(produced))
        if produced:
            refuse_jumps(request.unit, program, produced)
            refuse_left(program)
        pairs = zip(request.plans, ons, strict=True)
        plans = [plan_text(request, program, on, name, realization) for name, on in pairs]
        dump("plan", "\n".join(plan.text for plan in plans))
        carriers = check_backend(ons, plans, realization)
        # A loop over the places of a tile stands behind the inner one; where stores are unrolled there is none.
        looped = carriers.storing is not None and find_backend(carriers.storing).writer != "tma store"
        safe = probe(program, ons, plans, realization, request.world) and not looped
    except OverlapError as error:
        # The host entry lists the tensors that --on may name; plans and machines it knows nothing of.
        raise error.at(
            where, about=isinstance(error, (PlanError, UsageError)) and not isinstance(error, OnError)
        ) from None
    check_programs(carriers, realization)
    return ons, tuple(plans), safe or not _flattens(request.unit, program)


def _flattens(unit: SourceUnit, program: ProgramModel) -> bool:
    """Whether the tile loop of a kernel may ask to be flattened."""
    lines = {line for r in program.kernel.regions for line in range(r.begin_line, r.end_line + 1)}
    for node in ast.walk(unit.tree):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            values = [k.value for k in node.iter.keywords if k.arg == "flatten"]
            asked = any(not (isinstance(v, ast.Constant) and not v.value) for v in values)
            if asked and lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
                return True
    return False


def refuse_returns(unit: SourceUnit, program: ProgramModel, produced: bool) -> None:
    """Refuses a ``return`` behind the dispatch region that leaves tiles undone which others count on.

    A kernel that makes what is communicated counts every tile. One that only reads it may leave its tile, as the original
    does; but out of a tile loop it would leave other tiles than the original, whose order is another.

    Raises:
        UnsupportedError: with the first such line.
    """
    kernel = program.kernel
    lines = returns_after_dispatch(unit, kernel.qualname, min(r.end_line for r in kernel.regions))
    if lines and (produced or kernel.style == "persistent"):
        when = (
            "before its tile is counted" if produced else "out of its tile loop, whose tiles come in another order here"
        )
        raise UnsupportedError(
            f"`{kernel.name}` may return {when}",
            where=unit.span(lines[0], unit.lines[lines[0] - 1].find("return") + 1, len("return")),
            help="return above `dispatch begin`, or mask the work with the condition instead of leaving",
        )


def refuse_left(program: ProgramModel) -> None:
    """Refuses a kernel that makes what is communicated and may leave tiles out: every tile is counted.

    Raises:
        UnsupportedError: with the pragma that says so.
    """
    for tile in program.kernel.tile_ids:
        if tile.left:
            raise UnsupportedError(
                f"`{program.kernel.name}` may leave out its last `{tile.left}` tiles, which others would wait for",
                where=tile.span,
                help="a kernel whose result is communicated makes all of its tiles; communicate an input",
            )


def block_size(compilation: Compilation, axis: Axis) -> int:
    """Block size of a tile axis: set, or a literal of the launch.

    Raises:
        UsageError: it is computed when the kernel is launched, and not set.
    """
    meta = dict(compilation.realization.meta)
    assert compilation.program.host is not None
    text = dict(compilation.program.host.kernel_args).get(axis.block or "", "")
    if (axis.block or "").isdecimal():
        return int(axis.block or "")
    if axis.block in meta:
        return meta[axis.block]
    if text.isdecimal():
        return int(text)
    raise UsageError(
        f"the block size {axis.block} of axis {axis.name} is computed when the kernel is launched",
        where=axis.span,
        help=f"say which to show: --set {axis.block}=64",
    )


def planned(compilation: Compilation, *, world: int, sizes: dict[str, int], itemsize: ItemSize = 2) -> Planned:
    """Plan and schedules of a compilation for one world and one set of sizes.

    Args:
        itemsize: bytes of an element of the communicated tensors.

    Raises:
        UsageError: a block size is not a literal in the host function and not set.
    """
    return plan_launch(
        compilation.program,
        compilation.ons,
        compilation.plans,
        compilation.realization,
        world,
        sizes,
        lambda axis: block_size(compilation, axis),
        itemsize,
    )


def explain(
    compilation: Compilation, *, world: int, sizes: dict[str, int], rank: int | None = None, made: Planned | None = None
) -> Iterator[tuple[str, str]]:
    """Title and text of each stage's result, for one world and one set of sizes.

    Args:
        rank: the rank whose runs are shown; None for all.
        made: what `planned` gives for them, where the caller has it already.
    """
    need_sizes(compilation.program, sizes)
    yield "kernel model", describe_model(compilation.program)
    made = made or planned(compilation, world=world, sizes=sizes)
    yield "plan", describe_plan(made.plan)
    for shown in made.schedules if rank is None else (made.schedules[rank],):
        yield f"runs of rank {shown.rank}", describe_schedule(shown, made.plan)
        for part in made.parts[shown.rank : shown.rank + 1]:
            yield f"parts of the loop over {part.axes[0].name} of rank {part.rank}", describe_schedule(part, made.plan)


class _Dump:
    """Writes each stage's text into OVERLAP_DUMP_DIR, if that is set."""

    def __init__(self, path: str) -> None:
        folder = settings.get("dump_dir")
        self.folder = Path(folder) / Path(path).stem if folder else None
        self.number = 0

    @property
    def watch(self) -> _Dump | None:
        """What passes are to tell of: themselves only where somebody looks, for a module's text takes long to make."""
        return self if self.folder is not None else None

    def __call__(self, stage: str, text: str) -> None:
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / f"{self.number:02d}_{stage}.txt").write_text(text, encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"`{self.folder}` cannot be written: {(error.strerror or 'no reason given').lower()}",
                    help="OVERLAP_DUMP_DIR is a folder that may be written; unset: no stage is written",
                ) from None
        self.number += 1
