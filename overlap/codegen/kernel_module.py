"""The module of a kernel that is launched directly: the rewritten kernel and its operator, no host function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from overlap.annotate import read_strides
from overlap.annotate.model import ProgramModel
from overlap.annotate.on import OnSpec
from overlap.backends.base import Realization

from .context import Context, Names, PlanText
from .emit import GeneratedModule, check_python
from .module_io import Header
from .passes import (
    add_words,
    delay,
    dispatch,
    finish,
    imports,
    in_place,
    interleave,
    kernel_signature,
    operator,
    produce,
    push,
    push_async,
    range_loop,
    record,
    reserve,
    tile_map,
    unflatten,
    unused,
)
from .passes.extract import extract

PASSES = (
    ("imports", imports.run),
    ("produce", produce.run),
    ("push", push.run),
    ("push_async", push_async.run),
    ("delay", delay.run),
    ("unflatten", unflatten.run),
    ("kernel_signature", kernel_signature.run),
    ("dispatch", dispatch.run),
    ("in_place", in_place.run),
    ("range_loop", range_loop.run),
    ("reserve", reserve.run),
    ("interleave", interleave.run),
    ("add_words", add_words.run),
    ("record", record.run),
    ("finish", finish.run),
    ("unused", unused.run),
    ("tile_map", tile_map.run),
    ("operator", operator.run),
)


def generate_kernel(
    text: str,
    program: ProgramModel,
    ons: Sequence[OnSpec],
    *,
    decorators: int,
    plans: Sequence[PlanText],
    realization: Realization,
    world: int | None,
    source_path: str,
    sha256: str,
    flatten: bool = True,
    watch: Callable[[str, str], None] | None = None,
) -> GeneratedModule:
    """Writes the distributed module of an annotated kernel that its callers launch themselves.

    Args:
        text: the user's module, whole.
        program: its model, the kernel being its own host entry (`overlap.annotate.kernel_entry`).
        decorators: how many of the kernel's innermost decorators the new kernel keeps.
        ons, plans, realization, world, source_path, sha256, flatten, watch: as for `generate`.

    Raises:
        CodegenError: a pass found nothing to rewrite.
        UnsupportedError: something this version does not compile, with its line.
    """
    kernel = program.kernel
    context = Context(
        program=program,
        ons=tuple(ons),
        plans=tuple(plans),
        names=Names.avoiding(text),
        realization=realization,
        world=world,
        source_path=source_path,
        host_line=kernel.span.line,
        layouts={on.tensor: read_strides(program, on.param) for on in ons},
        flatten=flatten,
    )
    module = extract(cst.parse_module(text.replace("\r\n", "\n")), kernel.qualname, decorators)
    context = in_place.marked(module, context, kernel.name)
    for name, run in PASSES:
        module = run(module, context)
        if watch is not None:
            watch(name, module.code)
    header = Header(
        source=source_path,
        kernel=kernel.qualname,
        host="none: the kernel is launched directly; names this file does not define come from where it was decorated",
        sha256=sha256,
        plan=" ".join(plan.name for plan in plans),
        on=" ".join(map(str, ons)),
        world="any" if world is None else str(world),
        realization=repr(realization),
        regenerate="call the decorated kernel",
        check="call the decorated kernel with a simulated group (overlap.sim.World)",
    )
    result = header.text() + "\n" + module.code.lstrip("\n")
    check_python(result)
    return GeneratedModule(header, result, context.in_place)
