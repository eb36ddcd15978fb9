"""What every pass is given, and the fresh names they share."""

from __future__ import annotations

import io
import keyword
import tokenize
from dataclasses import dataclass

from overlap.annotate.model import Access, Axis, DispatchRegion, ProgramModel
from overlap.annotate.on import OnSpec
from overlap.backends.base import Realization
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

    @property
    def plan(self) -> str:
        return f"{self.prefix.upper()}_PLAN"

    def local(self, name: str, region: int = 0) -> str:
        """The fresh twin of a user's name; later dispatch regions get their own."""
        return f"{self.prefix}_{name}" + (f"_{region}" if region else "")


@dataclass(frozen=True)
class Context:
    """The frozen inputs of a compilation, as passes see them.

    ``plan_text`` is embedded in the module under ``plan_name``; ``source_path`` and ``host_line`` (first line of
    the host function, its decorators included) say where the original is. ``layout`` is given for kernels that are
    launched directly: the stride of every dimension of the communicated tensor, as text over kernel parameters.
    """

    program: ProgramModel
    on: OnSpec
    names: Names
    realization: Realization
    plan_name: str
    plan_text: str
    world: int | None
    source_path: str
    host_line: int
    layout: tuple[str | None, ...] | None = None

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
    def guarded(self) -> tuple[Access, ...]:
        """Reads of the communicated tensor.

        Raises:
            UnsupportedError: a read outside every dispatch region, or a write to the tensor.
        """
        param = dict(self.program.host.tensor_params)[self.on.tensor] if self.program.host else self.on.tensor
        accesses = [a for a in self.program.kernel.accesses if a.tensor == param]
        for access in accesses:
            if access.mode != "read":
                raise UnsupportedError(
                    f"`{param}` is gathered and also written",
                    where=access.span,
                    help="write the result to another tensor",
                )
            if access.region is None:
                raise UnsupportedError(
                    f"this load of `{param}` does not use the coordinates of a dispatch region, so nothing can make it wait",
                    where=access.span,
                    help="load it at an address computed from the pid_map's variables",
                )
        if not accesses:
            raise UnsupportedError(
                f"no load of `{param}` was found in `{self.program.kernel.name}`",
                where=self.program.kernel.span,
                help=f"say how it is read: # @overlap.tensor {param}[...] read",
            )
        return tuple(accesses)

    def waits_in(self, region: DispatchRegion) -> tuple[Access, ...]:
        """Guarded reads that use this region's coordinates."""
        return tuple(a for a in self.guarded if a.region == region.index)
