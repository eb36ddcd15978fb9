"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.collectives.lower import Path as PlanPath
from overlap.chunkplan.countfile import read_counts_text
from overlap.chunkplan.counts import CountArray
from overlap.chunkplan.cuts import Split, split_of
from overlap.chunkplan.library import read_text
from overlap.chunkplan.mesh import Mesh, parse_mesh
from overlap.errors import MissingDependencyError, PlanError, SourceError, UsageError
from overlap.pipeline import Request

F = TypeVar("F", bound=Callable[..., Any])
DTYPES = ("fp16", "bf16", "fp32")


class _Pairs(click.ParamType):
    """``M=1000,N=64`` as an ordered dict of integers."""

    name = "AXIS=SIZE,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        sizes: dict[str, int] = {}
        for part in value.split(","):
            match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*", part)
            if not match:
                self.fail(f"{part!r} is not AXIS=SIZE with a size of 0 or more; write M=1000,N=64,K=64")
            if match[1] in sizes:
                self.fail(f"axis {match[1]} is given twice")
            sizes[match[1]] = int(match[2])
        return sizes


SHAPE = _Pairs()


class _SplitText(click.ParamType):
    """``4``, ``1:2:1`` or ``1/1/3:1`` as a split."""

    name = "4|1:2:1"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Split:
        try:
            return split_of(value)
        except PlanError as error:
            self.fail(f"{error.message}; {error.help}")


SPLIT = _SplitText()


class _Microseconds(click.FloatRange):
    """A time of more than 0 that ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no time; write 12.5", param, ctx)
        return found


MICROSECONDS = _Microseconds(min=0, min_open=True)


class _MeshText(click.ParamType):
    """``2x4`` or ``node=2,gpu=4`` as a mesh."""

    name = "2x4"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mesh:
        if isinstance(value, Mesh):
            return value
        try:
            return parse_mesh(value)
        except PlanError as error:
            self.fail(f"{error.message}; {error.help}")


MESH = _MeshText()


def world_options(function: F) -> F:
    """``--world`` and ``--mesh``; `ranks_of` reads the two."""
    for option in (
        click.option("--mesh", type=MESH, help="Ranks in a grid, such as 2x4: 2 nodes of 4; in place of --world."),
        click.option("--world", type=click.IntRange(min=1), help="Number of ranks."),
    ):
        function = option(function)
    return function


def ranks_of(world: int | None, mesh: Mesh | None) -> int:
    """The number of ranks that ``--world`` and ``--mesh`` say.

    Raises:
        UsageError: neither is given, or they differ.
    """
    if mesh is not None and world not in (None, mesh.world):
        raise UsageError(
            f"--world {world}: --mesh {mesh} has {mesh.world} ranks", help="leave one of the two out, or let them agree"
        )
    if mesh is None and world is None:
        raise UsageError("no number of ranks", help="--world 8, or --mesh 2x4")
    return mesh.world if mesh is not None else world or 1


def read_counts_options(options: Sequence[str]) -> dict[str, CountArray]:
    """The counts that ``--counts NAME=FILE`` or ``--counts NAME=[[...]]`` give.

    Raises:
        UsageError: no NAME=..., or a name given twice.
        PlanError: the file cannot be read, or holds no counts, with line and column.
    """
    found: dict[str, CountArray] = {}
    for option in options:
        name, equals, value = option.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise UsageError(f"--counts {option}: not NAME=FILE", help="--counts 'sent=[[0, 3], [2, 1]]'")
        if name in found:
            raise UsageError(f"--counts {name} is given twice", help="leave one of them out")
        if value.startswith("["):
            found[name] = read_counts_text(value, f"--counts {name}")
        else:
            found[name] = read_counts_text(read_text(Path(value), value, "counts"), value)
    return found


PATH_OPTIONS = (
    click.option(
        "--path",
        type=click.Choice(get_args(PlanPath)),
        help="Make the plan of a collective such as all_gather: handed to a library, by a template, or made for the links.",
    ),
    click.option("--links", metavar="FILE.yaml", help="Which ranks are joined, and by what (default: as --machine)."),
    click.option(
        "--machine",
        metavar="NAME|FILE.yaml",
        help="Whose links and times count: h100-nvlink, h100-nvlink-ib400, h200-nvlink, h800, pcie, or a file of your own "
        "(default: the setting `machine`, else h100-nvlink, over 8 ranks or nodes h100-nvlink-ib400).",
    ),
)
"""How a collective becomes a plan, and for which links."""


def path_options(function: F) -> F:
    """``--path``, ``--links`` and ``--machine``."""
    for option in reversed(PATH_OPTIONS):
        function = option(function)
    return function


def compile_options(function: F) -> F:
    """Options of `overlap compile` (and of the commands that compile first)."""
    for option in reversed(
        [
            click.argument("file", metavar="FILE.py[:kernel]"),
            click.option(
                "--plan",
                multiple=True,
                metavar="NAME|FILE.yaml",
                help="Plan template or YAML file; one for each --on. With --path: the collective, or nothing.",
            ),
            click.option(
                "--on",
                required=True,
                multiple=True,
                metavar="TENSOR[AXIS]",
                help="What is communicated: 'a[M]' gathers, 'c[M]' reduce-scatters, 'c[]' all-reduces, 'a[K:M]' exchanges. "
                "Repeat it for several tensors.",
            ),
            click.option("--world", type=click.IntRange(min=1), help="Number of ranks; compile: pins the file to it."),
            click.option("--mesh", type=MESH, help="Ranks in a grid, such as 2x4, in place of --world; pins the plan."),
            *PATH_OPTIONS,
            click.option("--backend", metavar="NAME", help="How chunks move (default: copy_engine)."),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="KEY=VALUE",
                help="A Realization key, e.g. split=2 or split=1:2:1.",
            ),
        ]
    ):
        function = option(function)
    return function


class _NamedDtype(click.ParamType):
    """``ids=int64`` as a pair."""

    name = "TENSOR=DTYPE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\w+)\s*", value)
        if not match:
            self.fail(f"{value!r} is not TENSOR=DTYPE; write ids=int64")
        return match[1], match[2]


def dtype_of_option(function: F) -> F:
    """``--dtype-of``, once an input that is not of ``--dtype``."""
    return click.option(
        "--dtype-of",
        "dtypes",
        type=_NamedDtype(),
        multiple=True,
        help="An input of another type: ids=int64, scales=fp32.",
    )(function)


def run_options(function: F) -> F:
    """Options of `overlap simulate` besides the file and the world."""
    for option in reversed(
        [
            click.option("--shape", type=SHAPE, required=True, help="Global sizes as the host function sees them."),
            click.option("--dtype", type=click.Choice(DTYPES), default="fp16", show_default=True),
            dtype_of_option,
            click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Seeds 0..S-1."),
            click.option("--seed", type=click.IntRange(min=0), help="Run this seed alone, to replay a fault."),
        ]
    ):
        function = option(function)
    return function


def request_of(
    file: str,
    *,
    plan: tuple[str, ...],
    on: tuple[str, ...],
    world: int | None,
    mesh: Mesh | None = None,
    backend: str | None,
    settings: tuple[str, ...],
    output: str | None = None,
    path: str | None = None,
    links: str | None = None,
    machine: str | None = None,
    sizes: dict[str, int] | None = None,
) -> Request:
    """The compile request that the shared options spell.

    Raises:
        SourceError: no such file.
        UsageError: a ``--set`` that is not KEY=VALUE, or a mesh of another number of ranks than the world.
    """
    source, kernel = file, None
    if not os.path.exists(source) and ":" in source:
        source, kernel = source.rsplit(":", 1)
        kernel = kernel or None
    if os.path.exists(source) and not os.path.isfile(source):
        kind = "a folder" if os.path.isdir(source) else "no file of text that stays"
        raise SourceError(f"`{source}` is {kind}", help="overlap compile FILE.py[:kernel] ...")
    if not os.path.isfile(source):
        raise SourceError(f"no such file: `{source}`", help="overlap compile FILE.py[:kernel] ...")
    values: dict[str, str] = {}
    for pair in settings:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {pair}: not KEY=VALUE", help="--set split=2")
        values[key.strip()] = value.strip()
    if machine is not None:
        values["machine"] = machine
    if not plan and path is None:
        raise UsageError("no plan", help="--plan all_gather_1d, or --path synth to have one made for the links")
    if links is not None and path is None:
        raise UsageError(
            "--links without --path", help="--path synth makes a plan for links, --path template chooses one"
        )
    return Request(
        unit=SourceUnit.from_file(source),
        plan=plan,
        on=on,
        kernel=kernel,
        world=None if world is None and mesh is None else ranks_of(world, mesh),
        mesh=mesh,
        backend=backend,
        settings=values,
        output=output or "OUT.py",
        path=path,
        links=links,
        sizes=sizes,
    )


def need(command: str, *packages: str) -> None:
    """Raises MissingDependencyError unless the packages can be imported."""
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        raise MissingDependencyError(
            f"`overlap {command}` needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            help=f"pip install {' '.join(missing)}; compile, check and explain work without",
        )
