"""`Request`: what the user asked for, and the commands that make and check the result again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overlap.annotate.model import ProgramModel
from overlap.annotate.source import SourceUnit
from overlap.backends import backend as find_backend
from overlap.backends.base import Realization
from overlap.chunkplan.mesh import Mesh
from overlap.errors import UsageError


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    ``kernel``: name of the annotated kernel, None for the file's only one. ``plan``: a template's name or a YAML path.
    ``on``: ``a[M]``; several communicated tensors are a sequence, with a sequence of as many plans in ``plan``.
    ``world``: pins the module, None for any; ``mesh``: the grid of as many ranks that plans see. ``settings``:
    Realization keys. ``output``: where the module will be written, for its header.

    With ``path`` (``template`` or ``synth``) each plan is made for a collective: ``plan`` names it, or is empty
    for the one that ``on`` asks for. ``links`` is a link file, otherwise links are those of the realization's machine;
    ``sizes`` are axis to extent, of which a plan by ``synth`` is made.
    """

    unit: SourceUnit
    plan: str | Sequence[str]
    on: str | Sequence[str]
    kernel: str | None = None
    world: int | None = None
    backend: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    output: str = "OUT.py"
    mesh: Mesh | None = None
    path: str | None = None
    links: str | None = None
    sizes: Mapping[str, int] | None = None

    @property
    def plans(self) -> tuple[str, ...]:
        """Plans in the order given."""
        if self.path is not None and not self.plan:
            return ("",) * len(self.ons)
        return (self.plan,) if isinstance(self.plan, str) else tuple(self.plan)

    @property
    def ons(self) -> tuple[str, ...]:
        """Communicated tensors in the order given."""
        return (self.on,) if isinstance(self.on, str) else tuple(self.on)

    def check(self) -> None:
        """Every communicated tensor has its plan.

        Raises:
            UsageError: more plans than tensors, or fewer.
        """
        if self.path is None and self.links is not None:
            raise UsageError(
                "--links without --path", help="--path synth makes a plan for links, --path template chooses one"
            )
        plans, ons = self.plans, self.ons
        if len(plans) != len(ons):
            raise UsageError(
                f"{len(plans)} plan{'s' * (len(plans) != 1)} for {len(ons)} communicated "
                f"tensor{'s' * (len(ons) != 1)} ({', '.join(ons) or 'none'})",
                help="give one --plan for each --on, in the same order",
            )


def realize(request: Request, program: ProgramModel) -> Realization:
    """The realization a request asks for.

    Raises:
        UsageError: unknown backend or setting.
    """
    constexprs = tuple(p.name for p in program.kernel.params if p.is_constexpr)
    named = "copy_engine" if request.backend is None else request.backend
    realization = Realization(backend=named).with_settings(dict(request.settings), constexprs)
    blocks = {axis.block for axis in program.kernel.axes}
    for name, value in realization.meta:
        if name in blocks and value < 1:
            raise UsageError(
                f"{name} is the size of a block, and must be at least 1, not '{value}'", help=f"--set {name}=64"
            )
    if request.backend and realization.backend != request.backend:
        raise UsageError(f"--backend says {request.backend}, --set says {realization.backend}")
    find_backend(realization.backend)
    return realization


def need_sizes(program: ProgramModel, sizes: dict[str, int]) -> None:
    """Checks ``--shape`` against the host entry's axes.

    Raises:
        UsageError: an axis without a size, or a size for no axis.
    """
    assert program.host is not None
    named = host_axes(program)
    missing = [d for d in named if d not in sizes]
    extra = [d for d in sizes if d not in named]
    if missing or extra:
        wrong = f"no size for axis {missing[0]}" if missing else f"no tensor has an axis {extra[0]}"
        raise UsageError(
            f"--shape: {wrong}", where=program.host.span, help="--shape " + ",".join(f"{d}=.." for d in named)
        )


def host_axes(program: ProgramModel) -> list[str]:
    """Axes of the host entry's tensors, in the order they are named."""
    assert program.host is not None
    return list(dict.fromkeys(d for t in (*program.host.inputs, *program.host.outputs) for d in t.dims))


def default_sizes(program: ProgramModel) -> dict[str, int]:
    """Small ragged sizes for every axis of the host entry: examples in headers, and `overlap explain` without ``--shape``."""
    return {d: 200 + 56 * i for i, d in enumerate(host_axes(program))}


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
    words = ["overlap", "compile", f"{shown_path(request.unit.path)}:{program.kernel.name}"]
    for plan, on in zip(request.plans, request.ons, strict=True):
        words += [*(["--plan", plan] if plan else []), "--on", on]
    if request.path is not None:
        words += ["--path", request.path]
    if request.links is not None:
        words += ["--links", shown_path(request.links)]
    if request.sizes is not None and request.path is not None:
        words += ["--shape", ",".join(f"{axis}={size}" for axis, size in request.sizes.items())]
    if request.mesh is not None:
        words += ["--mesh", str(request.mesh)]
    elif request.world is not None:
        words += ["--world", str(request.world)]
    if request.backend:
        words += ["--backend", request.backend]
    for key, value in request.settings.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join([*words, "-o", shown_path(request.output)])


def check_command(request: Request, program: ProgramModel) -> str:
    """A command that simulates the module on an uneven shape."""
    # Sizes by which a backend was chosen are no part of the module.
    made_for = request.sizes if request.path is not None else None
    sizes = {**default_sizes(program), **(made_for or {})}
    shape = ",".join(f"{d}={n}" for d, n in sizes.items())
    world = request.world or 4
    return shlex.join(["overlap", "simulate", shown_path(request.output), "--world", str(world), "--shape", shape])
