"""`Operator`: a generated module's description of itself, and the call it serves.

The generated host function hands its arguments here; the user's own body runs with stand-ins for
the sharded tensor, its one launch is intercepted, and `launch/launch.py` carries out the protocol around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from overlap.backends import backend
from overlap.backends.base import Backend, Realization
from overlap.backends.carriers import Carriers
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.errors import SourceSpan

Kind = Literal["gather", "reduce_scatter", "all_reduce", "all_to_all"]
"""What happens to a communicated tensor (`overlap.annotate.on.Kind`)."""

OURS = ("ol_table", "ol_state")


@dataclass(frozen=True)
class Source:
    """Where the module came from: the original's path, and the first line of its host function and its kernel."""

    path: str
    host_line: int
    kernel_line: int


@dataclass(frozen=True)
class TileAxis:
    """A tile axis: its name and the kernel parameters that hold its extent and block size, which may be a number."""

    name: str
    extent: str
    block: str

    def sizes(self, arguments: Mapping[str, Any]) -> tuple[int, int]:
        """Extent and block of a launch."""
        block = int(self.block) if self.block.isdecimal() else int(arguments[self.block])
        return int(arguments[self.extent]), block


@dataclass(frozen=True)
class RangeAxis(TileAxis):
    """An axis that tiles loop over themselves, waiting for chunks: its name, and the kernel parameters that hold its extent
    and the block that one iteration takes, which may be a number."""


@dataclass(frozen=True)
class Read:
    """How tiles read a communicated tensor, one entry a dimension: the axis that spans it (None: all of it), and whether the
    index wraps around the extent."""

    tensor: str
    axes: tuple[str | None, ...]
    wraps: tuple[bool, ...]


@dataclass(frozen=True)
class Write:
    """How tiles write a communicated tensor, one entry a dimension: the axis that spans it (None: all of it).

    ``adds``: by atomic additions. A tile axis that spans no dimension then makes several tiles add to the same elements
    (split-K), and the tensor starts from what the caller's holds.
    """

    tensor: str
    axes: tuple[str | None, ...]
    adds: bool = False


@dataclass(frozen=True)
class Comm:
    """One communicated tensor: what ``on`` says of it, and its plan.

    ``axis``/``dim``: the axis it is sharded along (an all-reduce: none, and dimension 0 for plans that cut it);
    ``to``/``to_dim``: of an all-to-all, the axis it is sharded along afterwards. ``produced``: the kernel makes it.
    ``dims``: names of its dimensions; ``layout``: as in `Operator`; ``adds``: tiles add to what it holds; ``by``: of a gather
    whose tiles read all of ``axis``, the axis along which they wait for parts.
    """

    tensor: str
    param: str
    kind: Kind
    produced: bool
    dims: tuple[str, ...]
    axis: str | None
    dim: int
    to: str | None
    to_dim: int | None
    plan: str
    layout: tuple[str | None, ...] = ()
    adds: bool = False
    by: str | None = None

    def __str__(self) -> str:
        return f"{self.tensor}[{self.axis or ''}{':' + self.to if self.to else ''}{'/' + self.by if self.by else ''}]"

    @property
    def cut_dim(self) -> int | None:
        """The dimension other than ``dim`` in which parts of it are useful one by one, if there is one (`cut_along`)."""
        return self.dims.index(self.by) if self.by else self.to_dim

    @property
    def held(self) -> int | None:
        """The dimension that is sharded in the hands of the caller, of an argument or a result; None where none is."""
        if self.kind == "all_reduce":
            return None
        return self.to_dim if self.kind == "all_to_all" and self.produced else self.dim

    @property
    def seen(self) -> int | None:
        """The dimension of which the kernel sees or makes its rank's piece alone; None where it sees all."""
        if self.kind != "all_to_all":
            return None
        return self.dim if self.produced else self.to_dim

    @property
    def reduces(self) -> bool:
        """Whether the ranks' tensors are summands."""
        return self.kind in ("reduce_scatter", "all_reduce")


@dataclass(eq=False)
class Operator:
    """One fused operator of a generated module.

    Args:
        name: the host function's name.
        kernel: the rewritten kernel, under the user's decorators.
        body: the user's host function with a first parameter for the call; None where the kernel is launched directly.
        tile_map: position and counts to coordinates, evaluated on the host; keyword-only parameters are kernel arguments.
        source: the original.
        plan: the plan as YAML text; one for each entry of ``on`` where that is several.
        on: the communicated tensor and axis, ``a[M]`` or ``a[K/M]``, or several.
        realization: how it is carried out.
        inputs, outputs: host tensors and their named dimensions.
        params: host tensor to kernel parameter.
        axes: tile axes in table order.
        reads: reads of the communicated inputs.
        writes: of the communicated outputs.
        descriptors: kernel parameters read through TMA descriptors, with the original's line.
        world: the world the module is pinned to, or None.
        ranges: the axis whose loop waits for chunks, if one does.
        ours: names of the parameters added to the kernel: table, state, parts of the loop (``ranges``), slots (`stores`),
            moves (`moves`).
        extents: axis to the kernel parameter that holds its extent (kernels launched directly).
        layout: stride of every dimension of the (first) communicated tensor, as text over kernel parameters (None: unknown).
        layouts: the same of further ones, by tensor.
        strides: of communicated tensors, the strides that the launch gives otherwise than as ``x.stride(d)``, an access each, as
            text over kernel parameters (None: nothing to compare).
        starts: of communicated tensors, (dimension, text) of where an access begins in a row beside what tiles add.
        alike: of communicated inputs, further parameters that are passed the tensor and read no other rows of it.
        logged: of a traced kernel, how many loops of a tile walk over the parts of ``ranges`` and record them.
        tile_a_program: every program makes one tile and none leaves early, so a launch has as many programs as tiles.
        taken_by: where every tile takes all of the dimension that ranks hold parts of, block by block: the loop that does, if the
            kernel can read the rank's own part where its caller has it (``own`` and ``origin`` in ``ours``).
        persistent: programs walk over tiles; said where it matters (`moves`).
        programs: of a kernel that makes results by programs that walk over tiles, the parameters that stand for their number
            (none: it asks for it itself); None where a grid is as it is.
    """

    name: str
    kernel: Any
    body: Any
    tile_map: Callable[..., Any]
    source: Source
    plan: str | tuple[str, ...]
    on: str | tuple[str, ...]
    realization: Realization
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]
    params: dict[str, str]
    axes: tuple[TileAxis, ...]
    reads: tuple[Read, ...]
    descriptors: dict[str, int] = field(default_factory=dict)
    world: int | None = None
    ours: tuple[str, ...] = OURS
    extents: dict[str, str] = field(default_factory=dict)
    layout: tuple[str | None, ...] = ()
    writes: tuple[Write, ...] = ()
    layouts: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    strides: dict[str, tuple[tuple[str | None, ...], ...]] = field(default_factory=dict)
    starts: dict[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    alike: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ranges: tuple[RangeAxis, ...] = ()
    persistent: bool = False
    tile_a_program: bool = False
    logged: int = 1
    programs: tuple[str, ...] | None = None
    taken_by: RangeAxis | None = None

    @cached_property
    def comms(self) -> tuple[Comm, ...]:
        """The communicated tensors, in the order of ``on``."""
        texts = (self.on,) if isinstance(self.on, str) else tuple(self.on)
        plans = (self.plan,) if isinstance(self.plan, str) else tuple(self.plan)
        return tuple(self._comm(i, text, plan) for i, (text, plan) in enumerate(zip(texts, plans, strict=True)))

    def _comm(self, number: int, text: str, plan: str) -> Comm:
        tensor, _, rest = text.partition("[")
        moved, _, by = rest.rstrip("]").partition("/")
        axis, _, to = moved.partition(":")
        produced = tensor in self.outputs
        dims = (self.outputs if produced else self.inputs)[tensor]
        kind: Kind = "all_to_all" if to else "gather" if not produced else "reduce_scatter" if axis else "all_reduce"
        writes = [write for write in self.writes if write.tensor == tensor]
        written = {a for write in writes for a in write.axes}
        return Comm(
            tensor,
            self.params[tensor],
            kind,
            produced,
            dims,
            axis or None,
            dims.index(axis) if axis else 0,
            to or None,
            dims.index(to) if to else None,
            plan,
            self.layouts.get(tensor, () if number else self.layout),
            produced and any(w.adds for w in writes) and any(a.name not in written for a in self.axes),
            by or None,
        )

    @property
    def tensor(self) -> str:
        """Name of the (first) communicated tensor."""
        return self.comms[0].tensor

    @property
    def axis(self) -> str:
        """Name of the axis it is sharded along; empty for an all-reduce."""
        return self.comms[0].axis or ""

    @property
    def dim(self) -> int:
        """Dimension of that tensor that is sharded."""
        return self.comms[0].dim

    @cached_property
    def carriers(self) -> Carriers:
        """Who carries out which operations of its plans."""
        how = self.realization
        return Carriers.of(how.backend, [(comm.plan, comm.produced) for comm in self.comms], how.strided)

    def carried(self, plan: CommPlan) -> tuple[frozenset[OpId], frozenset[OpId]]:
        """The operations of all ranks that kernels store, as far as tiles make what they send, and those that they move."""
        produced = [comm.tensor for comm in self.comms if comm.produced]
        return self.carriers.stored(plan, produced), self.carriers.moved(plan, produced)

    @cached_property
    def stores(self) -> str:
        """The parameter that says where tiles of a result go, if programs store them there; else empty."""
        return self.ours[-2 if self.moves else -1] if self.carriers.storing else ""

    @cached_property
    def moves(self) -> str:
        """The parameter that says what programs of the launch move of what the kernel reads, if they do; else empty."""
        return self.ours[-1] if self.carriers.moving else ""

    def parameter(self, what: str) -> str:
        """The one of `ours` that is for ``what`` (``table``), whatever they begin with; empty where there is none."""
        return next((name for name in self.ours if name.endswith(f"_{what}")), "")

    @property
    def mover(self) -> Backend:
        """The backend whose moves the kernel makes, where it makes any (`moves`)."""
        return backend(self.carriers.moving or self.realization.backend)

    def call(self, arguments: dict[str, Any], *, group: Any, sizes: dict[str, int] | None, out: Any) -> Any:
        """Runs the operator on this rank's arguments.

        Args:
            arguments: the host function's parameters by name; the communicated tensor is this rank's shard.
            group: process group (or simulated group).
            sizes: axis to global extent; needed where shards are uneven.
            out: where to put the result, of the result's shape, strides and dtype.

        Returns:
            what the user's host function returns.

        Raises:
            RuntimeContractError: shapes, sizes or plans that do not fit together.
            HostEntryError: the host body reads sharded data or does not launch exactly once.
        """
        from .repeat.call import call

        return call(self, arguments, group=group, sizes=sizes, out=out)

    def capture(
        self, sizes: dict[str, int], dtype: Any, *, world: int = 4, device: str = "meta", **arguments: Any
    ) -> Any:
        """Runs the host body alone and returns its launch (`resolve.Bound`, grid), for building without a GPU.

        Args:
            sizes: axis to global extent, for every axis of the host entry.
            dtype: of every tensor.
            world: ranks to imagine.
            device: where the stand-ins live.
            arguments: further parameters of the host function.
        """
        from .calls.capture import capture

        return capture(self, sizes, dtype, world=world, device=device, **arguments)

    def locate(self, generated_line: int, path: str) -> SourceSpan:
        """The original's place of a line of the generated host body."""
        import inspect

        body = inspect.unwrap(self.body)
        first = body.__code__.co_firstlineno
        return self.span(self.source.host_line + generated_line - first)

    def span(self, line: int) -> SourceSpan:
        """A line of the original as a span, with its text when the file is there."""
        text = _line_of(self.source.path, line)
        stripped = text.strip()
        col = len(text) - len(text.lstrip()) + 1 if text else 1
        return SourceSpan(self.source.path, line, col, text, max(1, len(stripped)))


def _line_of(path: str, line: int) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().splitlines()[line - 1]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
