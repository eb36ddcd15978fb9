"""What every pass is given, and the fresh names they share."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from overlap.annotate.model import Access, Axis, DispatchRegion, ProgramModel, RangeLoop
from overlap.annotate.on import OnSpec
from overlap.annotate.ranged import ranged_loops
from overlap.backends import backend
from overlap.backends.base import Backend, Realization
from overlap.backends.carriers import Carriers
from overlap.errors import CodegenError, UnsupportedError


@dataclass(frozen=True)
class Names:
    """Names the generated module adds: ``ol`` and everything that starts with ``ol_`` or ``OL_``.

    Where the user's file has such a name already, another prefix is taken.
    """

    prefix: str = "ol"

    @staticmethod
    def avoiding(text: str) -> Names:
        """The first prefix that no identifier of ``text`` is, or starts with."""
        words = {
            t.string
            for t in tokenize.generate_tokens(io.StringIO(text).readline)
            if t.type == tokenize.NAME and not keyword.iskeyword(t.string)
        }
        for number in range(100):
            prefix = "ol" if number == 0 else f"ol{number}"
            if not any(w == prefix or w.startswith((f"{prefix}_", f"{prefix.upper()}_")) for w in words):
                return Names(prefix)
        raise CodegenError("no free prefix for generated names")

    @property
    def language(self) -> str:
        return self.prefix

    @property
    def runtime(self) -> str:
        return f"{self.prefix}_rt"

    @property
    def operator(self) -> str:
        return f"{self.prefix.upper()}_OPERATOR"

    def plan(self, number: int = 0) -> str:
        """The constant that holds a plan's text; the first has no number."""
        return f"{self.prefix.upper()}_PLAN" + (f"_{number}" if number else "")

    def local(self, name: str, region: int = 0) -> str:
        """The fresh twin of a user's name; later dispatch regions get their own."""
        return f"{self.prefix}_{name}" + (f"_{region}" if region else "")


@dataclass(frozen=True)
class PlanText:
    """A plan as given: by the name the user wrote, as YAML, and the path shown in errors."""

    name: str
    text: str
    path: str = "plan.yaml"


@dataclass(frozen=True)
class Context:
    """The frozen inputs of a compilation, as passes see them.

    ``ons`` are the communicated tensors and ``plans`` their plans, one each. ``source_path`` and ``host_line`` (first
    line of the host function, its decorators included) say where the original is. ``layouts`` is given for kernels that
    are launched directly: by communicated tensor, the stride of every dimension as text over kernel parameters.
    ``flatten``: a tile loop that asks for it may be flattened. ``in_place``: the rank's own part of the communicated tensor
    may be accessed where its caller has it (`passes.in_place`).
    """

    program: ProgramModel
    ons: tuple[OnSpec, ...]
    plans: tuple[PlanText, ...]
    names: Names
    realization: Realization
    world: int | None
    source_path: str
    host_line: int
    layouts: Mapping[str, tuple[str | None, ...]] | None = None
    flatten: bool = True
    in_place: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Tile axes, in table order."""
        mapped = {axis for axis, _ in self.program.kernel.regions[0].pid_map}
        return tuple(a for a in self.program.kernel.axes if a.block is not None and a.name in mapped)

    def axis_index(self, name: str) -> int:
        return [a.name for a in self.axes].index(name)

    def count_local(self, axis: Axis, region: int = 0) -> str:
        """Fresh name of the run's tile count along an axis."""
        return self.names.local(axis.count_name or f"count_{axis.name.lower()}", region)

    @property
    def consumed(self) -> tuple[OnSpec, ...]:
        """Communicated inputs."""
        return tuple(on for on in self.ons if not on.produced)

    @property
    def ranged(self) -> tuple[OnSpec, ...]:
        """Communicated inputs that an in-tile loop waits for."""
        return tuple(on for on in self.ons if on.ranged)

    @property
    def awaited(self) -> tuple[OnSpec, ...]:
        """Communicated inputs that a tile waits for before it begins."""
        return tuple(on for on in self.consumed if not on.ranged)

    def loops_of(self, on: OnSpec) -> tuple[RangeLoop, ...]:
        """The in-tile loops that wait for the chunks of a ranged input."""
        return ranged_loops(self.program.kernel, on.param, on.dim)

    @property
    def ranged_loops(self) -> tuple[RangeLoop, ...]:
        """All in-tile loops that wait, in source order."""
        waiting = {loop.number for on in self.ranged for loop in self.loops_of(on)}
        return tuple(loop for loop in self.program.kernel.loops if loop.number in waiting)

    @property
    def ours(self) -> tuple[str, ...]:
        """The parameters that the kernel is given."""
        wanted = {
            "table": True,
            "state": True,
            "parts": self.ranged,
            "anywhere": self.described,
            "ways": self.pushing_async,
            "log": self.realization.trace,
            "slots": self.pushing,
            **dict.fromkeys(("words", "made", "out", "unit", "lanes", "sum"), self.sending),
            "moves": self.moving,
            "own": self.in_place,
            "origin": self.in_place,
            **dict.fromkeys(("result", "sums", "summands"), self.finishing),
        }
        return tuple(self.names.local(name) for name, there in wanted.items() if there)

    @cached_property
    def carriers(self) -> Carriers:
        """Who carries out which operations of the plans."""
        pairs = zip(self.ons, self.plans, strict=True)
        how = self.realization
        return Carriers.of(how.backend, [(plan.text, on.produced) for on, plan in pairs], how.strided)

    @property
    def pushing(self) -> bool:
        """Whether programs store tiles of a communicated result where they go."""
        return self.carriers.storing is not None

    @property
    def sending(self) -> bool:
        """Whether they send them in words that carry their own flag, and add up what comes."""
        return self.carriers.words

    @property
    def finishing(self) -> bool:
        """Whether the tiles of the rank's own part of a result add what other ranks have sent of it."""
        return self.realization.tile_sums == 1

    @property
    def pushing_async(self) -> bool:
        """Whether they do so by TMA."""
        return self.pushing and self.storer.writer == "tma store"

    @property
    def described(self) -> bool:
        """Whether the descriptor that does so is made by the host, as the user's."""
        stored = {on.param for on in self.produced}
        kinds = {a.kind for a in self.program.kernel.accesses if a.tensor in stored and a.mode != "read"}
        return self.pushing_async and kinds == {"host_descriptor"}

    @property
    def moving(self) -> bool:
        """Whether programs of the kernel's own launch move chunks."""
        return self.carriers.moving is not None

    @property
    def interleaving(self) -> bool:
        """Whether the programs that compute are those that move chunks, between their tiles."""
        return self.moving and self.mover.inline

    @property
    def mover(self) -> Backend:
        """The backend whose moves the kernel makes, where it makes any."""
        return backend(self.carriers.moving or self.realization.backend)

    @property
    def storer(self) -> Backend:
        """The backend whose stores the kernel makes, where it makes any."""
        return backend(self.carriers.storing or self.realization.backend)

    @property
    def persistent(self) -> bool:
        """Whether programs walk over tiles, so that fewer of them do as well."""
        return self.program.kernel.style == "persistent"

    @property
    def produced(self) -> tuple[OnSpec, ...]:
        """Communicated results."""
        return tuple(on for on in self.ons if on.produced)

    @property
    def plan_names(self) -> tuple[str, ...]:
        """The constant that holds each plan's text; equal texts share one."""
        names: list[str] = []
        for index, plan in enumerate(self.plans):
            first = next(i for i, p in enumerate(self.plans) if p.text == plan.text)
            names.append(names[first] if first < index else self.names.plan(len(set(names))))
        return tuple(names)

    def guarded(self, on: OnSpec) -> tuple[Access, ...]:
        """Reads of a communicated input.

        Raises:
            UnsupportedError: a read outside every dispatch region, or a write to the tensor.
        """
        accesses = [a for a in self.program.kernel.accesses if a.tensor == on.param]
        for access in accesses:
            if access.mode != "read":
                raise UnsupportedError(
                    f"`{on.param}` is communicated and also written",
                    where=access.span,
                    help="write the result to another tensor",
                )
            if access.region is None:
                raise UnsupportedError(
                    f"this load of `{on.param}` does not use the coordinates of a dispatch region, "
                    "so nothing can make it wait",
                    where=access.span,
                    help="load it at an address computed from the pid_map's variables",
                )
        if not accesses:
            raise UnsupportedError(
                f"no load of `{on.param}` was found in `{self.program.kernel.name}`",
                where=self.program.kernel.span,
                help=f"say how it is read: # @overlap.tensor {on.param}[...] read",
            )
        return tuple(accesses)

    def waits_in(self, region: DispatchRegion) -> tuple[tuple[OnSpec, tuple[Access, ...]], ...]:
        """Communicated inputs that are read with this region's coordinates before a tile begins, and those reads."""
        found = ((on, tuple(a for a in self.guarded(on) if a.region == region.index)) for on in self.awaited)
        return tuple((on, reads) for on, reads in found if reads)

    @property
    def waits(self) -> bool:
        """Whether the kernel waits for anything."""
        return bool(self.consumed)

    def writes(self, on: OnSpec) -> tuple[tuple[str | None, ...], ...]:
        """Distinct ways a communicated result is stored: the tile axis that spans each dimension, or None."""
        names = {a.name for a in self.axes}
        found: list[tuple[str | None, ...]] = []
        for access in self.program.kernel.accesses:
            if access.tensor == on.param and access.mode != "read":
                axes = tuple(a if a in names else None for a in access.axes)
                if axes not in found:
                    found.append(axes)
        return tuple(found)

    def adds(self, on: OnSpec) -> bool:
        """Whether tiles add to a communicated result."""
        return any(a.tensor == on.param and a.mode == "reduce" for a in self.program.kernel.accesses)
