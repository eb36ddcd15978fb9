"""The passes in order, and what comes out: `GeneratedModule`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from overlap.annotate.model import ProgramModel
from overlap.annotate.on import OnSpec
from overlap.backends.base import Realization
from overlap.errors import CodegenError

from .context import Context, Names, PlanText
from .module_io import Header
from .passes import PASSES, in_place


@dataclass(frozen=True)
class GeneratedModule:
    """A distributed module: its header and its whole text. ``in_place``: its kernel can access what is the rank's own of the
    communicated tensor where its caller has it (`passes.in_place`)."""

    header: Header
    text: str
    in_place: bool = False


def generate(
    text: str,
    program: ProgramModel,
    ons: Sequence[OnSpec],
    *,
    plans: Sequence[PlanText],
    realization: Realization,
    world: int | None,
    source_path: str,
    sha256: str,
    regenerate: str,
    check: str,
    flatten: bool = True,
    watch: Callable[[str, str], None] | None = None,
) -> GeneratedModule:
    """Writes the distributed module of an annotated kernel.

    Args:
        text: the user's module, whole.
        program: its model.
        ons: the communicated tensors; ``plans``: one each.
        source_path: the original's path as the header shall name it; ``sha256`` of its bytes.
        regenerate, check: the commands that make and check this file.
        flatten: False where a tile loop that asks to be flattened must not be.
        watch: called with each pass's name and the text after it.

    Raises:
        CodegenError: a pass found nothing to rewrite.
        UnsupportedError: something this version does not compile, with its line.
    """
    context = Context(
        program=program,
        ons=tuple(ons),
        plans=tuple(plans),
        names=Names.avoiding(text),
        realization=realization,
        world=world,
        source_path=source_path,
        host_line=_first_line(text, program),
        flatten=flatten,
    )
    module = cst.parse_module(text.replace("\r\n", "\n"))
    context = in_place.marked(module, context, program.kernel.qualname)
    for name, run in PASSES:
        module = run(module, context)
        if watch is not None:
            watch(name, module.code)
    assert program.host is not None
    header = Header(
        source=source_path,
        kernel=program.kernel.qualname,
        host=program.host.name,
        sha256=sha256,
        plan=" ".join(plan.name for plan in plans),
        on=" ".join(map(str, ons)),
        world="any" if world is None else str(world),
        realization=repr(realization),
        regenerate=regenerate,
        check=check,
    )
    result = header.text() + "\n" + module.code.lstrip("\n")
    check_python(result)
    return GeneratedModule(header, result, context.in_place)


def check_python(text: str) -> None:
    """Raises CodegenError where a generated module is not valid Python."""
    try:
        compile(text, "<generated>", "exec")
    except SyntaxError as error:
        raise CodegenError(f"the generated module is not valid Python, line {error.lineno}: {error.msg}") from error


def _first_line(text: str, program: ProgramModel) -> int:
    """Line where the host function begins in the user's file, its decorators included."""
    host = program.host
    assert host is not None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == host.name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= host.launch_line <= (node.end_lineno or first):
                return first
    raise CodegenError(f"no host function `{host.name}` around line {host.launch_line}")
