"""Plans of a request as text: templates and files, or a collective by a path (the paper's Listing 3)."""

from __future__ import annotations

from pathlib import Path

from overlap.annotate.model import ProgramModel
from overlap.annotate.on import OnSpec
from overlap.backends import backend as find_backend
from overlap.backends.base import Realization
from overlap.backends.capabilities import COLLECTIVE
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.collectives.text import KINDS, collective_kind, collective_text, direct_text
from overlap.chunkplan.library import find_template
from overlap.chunkplan.links import Links
from overlap.chunkplan.named import named_backends
from overlap.chunkplan.pins import pin_mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.codegen import PlanText
from overlap.errors import UsageError
from overlap.schedule.network import links_for

from .request import Request, host_axes


def plan_text(request: Request, program: ProgramModel, on: OnSpec, name: str, realization: Realization) -> PlanText:
    """The plan of one communicated tensor.

    Args:
        name: of a template or a file; with `Request.path` of a collective, or empty for the one that ``on`` asks for.

    Raises:
        PlanError: there is no such plan, no such collective or path, or the links do not join the ranks.
        UsageError: a path without what it takes: a world, and for ``synth`` sizes as well; ``direct``, by which nothing
            arrives in parts.
    """
    if realization.backend == COLLECTIVE and request.path in (None, "direct"):
        name, path, text = _handed_over(on, name)
    elif request.path is None:
        path, text = find_template(name)
    else:
        step = _step(request, program, on, name)
        if request.path == "direct":
            raise UsageError(
                f"tiles cannot wait for parts of the {step.kind} that a library carries out as a whole",
                help="--path template or --path synth, or a plan by name; --backend collective hands it over as a whole",
            )
        path, text = collective_text(
            step,
            path=request.path,
            links=_links(request, realization),
            direction="push" if on.produced else find_backend(realization.backend).default_direction,  # type: ignore[arg-type]
        )
        name = Path(path).stem
    if request.mesh is not None:
        text = pin_mesh(text, path, request.mesh)
    return PlanText(name, text, path)


def _handed_over(on: OnSpec, name: str) -> tuple[str, str, str]:
    """Name, path and text of the plan of a tensor whose collective a library carries out: the one named, if it is of such.

    Of a plan that moves chunks the collective is taken that does the same.
    """
    kind = KINDS[on.kind]
    if name and name not in KINDS.values():
        path, text = find_template(name)
        if not named_backends(text, path):
            return name, path, text
    made = f"{kind}_direct"
    return made, made, direct_text(kind)


def _step(request: Request, program: ProgramModel, on: OnSpec, name: str) -> CollectiveStep:
    kind = KINDS[on.kind]
    if name and collective_kind(name) != kind:
        raise UsageError(f"{on} is no {name}", help=f"--plan {kind}, or leave --plan out")
    if request.world is None:
        raise UsageError(
            f"a plan by --path {request.path} is for one world", help="--world 8, or --mesh 2x4; or name a template"
        )
    assert program.host is not None
    dims = program.host.tensor(on.tensor).dims
    sizes = dict(request.sizes or {})
    extra = [dim for dim in sizes if dim not in host_axes(program)]
    if extra:
        raise UsageError(f"no tensor has an axis {extra[0]}", help=f"axes: {', '.join(host_axes(program))}")
    missing = [dim for dim in dims if dim not in sizes]
    if missing and request.path == "synth":
        raise UsageError(
            f"a plan by --path synth is for one shape, and {on.tensor} has no size for axis {missing[0]}",
            help="--shape " + ",".join(f"{dim}=.." for dim in dims) + "; or --path template, for any shape",
        )
    # Sizes that are open choose between templates alone.
    shape = tuple(sizes.get(dim, 4096) for dim in dims)
    tensor = TensorSpec(on.tensor, shape)
    return CollectiveStep(kind, tensor, request.world, dim=on.dim, to_dim=on.to_dim, mesh=request.mesh)


def _links(request: Request, realization: Realization) -> Links:
    assert request.world is not None
    return links_for(request.world, request.mesh, file=request.links, machine=realization.machine)
