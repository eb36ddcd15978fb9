"""A loop nest whose loops and buffers are spread over a mesh: Mercury's CommIR, as data.

    nest = LoopNest(
        parse_mesh("4"),
        loops=(Loop("I", 4), Loop("J", 4, reduce=True)),
        buffers=(
            Buffer("q", (4096, 128), (("I",), ())),                  # dimension 0 in pieces of loop I, dimension 1 whole
            Buffer("kv", (4096, 256), (("J",), ())),
            Buffer("o", (4096, 128), (("I",), ()), write=True),
        ),
    )
    ring = nest.parallelize("I", 0).shift("J", "I")                  # ring attention

The body is ``writes (op)= f(reads)``, once for each value of all loops, the first loop outermost. A dimension of a buffer
that several loops index is cut by the first, its pieces by the next, by the rule of ``torch.chunk``. The primitives
return a new nest and only note what is wanted; `overlap.chunkplan.importers.loop_ir.lower_loop_ir` infers the transfers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from overlap.errors import PlanError

from ..document import nearest
from ..mesh import Mesh
from .placement import check_shape


@dataclass(frozen=True)
class Loop:
    """A loop of ``length`` steps. ``reduce``: its steps are summed up, not told apart, by what is written.

    ``axis`` is the mesh axis that it is spread over, ``by`` the parallel loop that it is shifted by.
    """

    name: str
    length: int
    reduce: bool = False
    axis: int | None = None
    by: str | None = None


@dataclass(frozen=True)
class Buffer:
    """A tensor of the body: global shape in elements, and for each dimension the loops that index it.

    ``stored`` says where the buffer lies, as ``(parallel loop, dimension)``, or None for the dimension where every rank
    of the loop's axis has all of it. What it does not mention lies where it is used.
    """

    name: str
    shape: tuple[int, ...]
    index: tuple[tuple[str, ...], ...]
    write: bool = False
    stored: tuple[tuple[str, int | None], ...] = ()

    def dim_of(self, loop: str) -> int | None:
        """The dimension that a loop indexes."""
        return next((dim for dim, loops in enumerate(self.index) if loop in loops), None)


@dataclass(frozen=True)
class LoopNest:
    """Loops from the outermost in, the buffers of the body, and the mesh they are spread over.

    Raises:
        PlanError: two loops or buffers of one name, a length below 1, a negative size, an index that is not one entry a
            dimension, or that names a loop that does not exist or names one twice.
    """

    mesh: Mesh
    loops: tuple[Loop, ...]
    buffers: tuple[Buffer, ...]

    def __post_init__(self) -> None:
        _distinct("loop", (loop.name for loop in self.loops))
        _distinct("buffer", (buffer.name for buffer in self.buffers))
        names = [loop.name for loop in self.loops]
        for loop in self.loops:
            if loop.length < 1:
                raise PlanError(f"loop {loop.name} has {loop.length} steps", help="a loop has 1 step or more")
        for buffer in self.buffers:
            check_shape(f"buffer {buffer.name}", buffer.shape)
            if len(buffer.index) != len(buffer.shape):
                raise PlanError(
                    f"buffer {buffer.name} has {len(buffer.shape)} dimensions and {len(buffer.index)} indices",
                    help="give each dimension a tuple of loops, () where all of it is used at once",
                )
            used = [name for loops in buffer.index for name in loops]
            for name in used:
                if name not in names:
                    raise PlanError(
                        f"buffer {buffer.name} is indexed by `{name}`, which is no loop", help=nearest(name, names)
                    )
            if len(set(used)) != len(used):
                raise PlanError(
                    f"buffer {buffer.name} is indexed twice by one loop",
                    help="a diagonal is a buffer of its own: let each loop index one dimension",
                )

    def loop(self, name: str) -> Loop:
        """The loop of that name.

        Raises:
            PlanError: there is none.
        """
        for loop in self.loops:
            if loop.name == name:
                return loop
        raise PlanError(f"there is no loop `{name}`", help=nearest(name, [loop.name for loop in self.loops]))

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name.

        Raises:
            PlanError: there is none.
        """
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise PlanError(f"there is no buffer `{name}`", help=nearest(name, [buffer.name for buffer in self.buffers]))

    def on_axis(self, axis: int) -> Loop | None:
        """The loop that is spread over a mesh axis."""
        return next((loop for loop in self.loops if loop.axis == axis), None)

    # The four primitives

    def parallelize(self, loop: str, axis: int | str) -> LoopNest:
        """Spreads a loop over a mesh axis, one step a rank. What it indexes is cut with it.

        Raises:
            PlanError: no such axis, either of the two is taken, or the loop is not as long as the axis.
        """
        found = self.loop(loop)
        place = self.mesh.axis(axis) if isinstance(axis, str) else axis
        if not 0 <= place < len(self.mesh.sizes):
            raise PlanError(
                f"mesh {self.mesh} has no axis {axis}", help=f"its axes are 0 to {len(self.mesh.sizes) - 1}"
            )
        other = self.on_axis(place)
        if other is not None or found.axis is not None or found.by is not None:
            taken = other.name if other is not None else loop
            raise PlanError(
                f"loop {loop} cannot be spread over axis {place}: {taken} is spread or shifted already",
                help="an axis takes one loop, a loop one axis: join two loops into one, or add an axis to the mesh",
            )
        size = self.mesh.sizes[place]
        if found.length != size:
            raise PlanError(
                f"loop {loop} has {found.length} steps, axis {place} of mesh {self.mesh} has {size} ranks",
                help=f"tile it: an outer loop of {size} steps and an inner one, both in the index, outer first",
            )
        return self._with_loop(replace(found, axis=place))

    def shift(self, loop: str, by: str) -> LoopNest:
        """Lets each rank start a local loop at another step: the rank's step of ``by`` further on, wrapped around.

        What the loop indexes and ``by`` does not is cut along it and passed from rank to rank; what is summed up over
        ``by`` is cut along it too, and the sums are passed.

        Raises:
            PlanError: ``by`` is not parallel, ``loop`` is, or the two are not equally long.
        """
        found, over = self.loop(loop), self.loop(by)
        if over.axis is None:
            raise PlanError(
                f"loop {loop} is shifted by {by}, which is not parallel", help=f'first .parallelize("{by}", AXIS)'
            )
        if found.axis is not None or found.by is not None:
            raise PlanError(
                f"loop {loop} cannot be shifted: it is {'parallel' if found.by is None else 'shifted'} already",
                help="shift a loop that each rank runs through by itself",
            )
        if found.length != over.length:
            raise PlanError(
                f"loop {loop} of {found.length} steps is shifted by {by} of {over.length}",
                help=f"tile {loop} so that the shifted loop has {over.length} steps",
            )
        return self._with_loop(replace(found, by=by))

    def shard(self, buffer: str, loop: str, dim: int | None = None) -> LoopNest:
        """Stores a buffer cut over the ranks of a parallel loop, whether or not that loop indexes it.

        Args:
            dim: the dimension that is cut. Without it the one that the loop, or a loop shifted by it, indexes, and else
                the first.

        Raises:
            PlanError: the loop is not parallel, or there is no such dimension.
        """
        found = self.buffer(buffer)
        self._parallel(loop, f"buffer {buffer} is cut over")
        if dim is None:
            shifted = (other.name for other in self.loops if other.by == loop)
            dims = (found.dim_of(name) for name in (loop, *shifted))
            dim = next((known for known in dims if known is not None), 0)
        if not 0 <= dim < len(found.shape):
            raise PlanError(
                f"buffer {buffer} has no dimension {dim}",
                help=f"its dimensions are 0 to {len(found.shape) - 1}" if found.shape else "replicate a scalar",
            )
        return self._with_buffer(found, loop, dim)

    def replicate(self, buffer: str, loop: str) -> LoopNest:
        """Stores all of a buffer on every rank of a parallel loop.

        Raises:
            PlanError: the loop is not parallel.
        """
        self._parallel(loop, f"buffer {buffer} is replicated over")
        return self._with_buffer(self.buffer(buffer), loop, None)

    def _parallel(self, loop: str, what: str) -> None:
        if self.loop(loop).axis is None:
            raise PlanError(f"{what} {loop}, which is not parallel", help=f'first .parallelize("{loop}", AXIS)')

    def _with_loop(self, loop: Loop) -> LoopNest:
        return replace(self, loops=tuple(loop if old.name == loop.name else old for old in self.loops))

    def _with_buffer(self, buffer: Buffer, loop: str, dim: int | None) -> LoopNest:
        stored = (*(entry for entry in buffer.stored if entry[0] != loop), (loop, dim))
        new = replace(buffer, stored=stored)
        return replace(self, buffers=tuple(new if old.name == buffer.name else old for old in self.buffers))


def _distinct(what: str, names: Iterable[str]) -> None:
    found = list(names)
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise PlanError(f"two {what}s are called {twice}", help=f"give each {what} its own name")
