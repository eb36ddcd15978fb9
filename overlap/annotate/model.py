"""The nouns of the source: what `overlap` knows of a user's kernel and host function.

Everything is frozen and plain: text, numbers, tuples. Passes in `codegen` find their anchors
again by the pragma comments, which stay in the file; the model says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overlap.errors import SourceSpan

from .index import Atom, IndexExpr, size_expr


@dataclass(frozen=True)
class Param:
    """A kernel or host parameter, as written."""

    name: str
    annotation: str = ""
    default: str | None = None

    @property
    def is_constexpr(self) -> bool:
        return self.annotation.replace('"', "").replace("'", "").split(".")[-1] == "constexpr"


@dataclass(frozen=True)
class Axis:
    """``axis_count``: a tile axis, or (``block`` None) a range axis, an in-tile loop.

    ``extent`` is a parameter name, ``block`` one or a number (a module's constant too). ``count_name`` is the variable
    that holds the number of tiles, if the statement under the pragma assigns it.
    """

    name: str
    extent: str
    block: str | None
    count_name: str | None
    span: SourceSpan

    @property
    def block_expr(self) -> IndexExpr:
        """The block size as a number."""
        return size_expr(self.block or "")


@dataclass(frozen=True)
class TileId:
    """``tile_id``: the variable that numbers tiles.

    ``form``: ``assign`` (a 1-D grid: one tile a program), ``persistent_for`` (target of the tile loop) or
    ``persistent_assign`` (assigned once, advanced with ``+=`` in the loop). ``left``: the parameter that says how many of the
    last tiles the loop leaves to another launch, empty where it makes them all.
    """

    name: str
    form: Literal["assign", "persistent_for", "persistent_assign"]
    span: SourceSpan
    left: str = ""


@dataclass(frozen=True)
class SliceStatement:
    """One statement of the backward slice that feeds a pid map. ``text`` is dedented source without comments.

    ``inside`` says whether it stands between ``dispatch begin`` and ``dispatch end``. ``reads`` are variables and
    parameters, ``globals`` the other names it uses: helpers, modules, builtins.
    """

    text: str
    targets: tuple[str, ...]
    reads: tuple[str, ...]
    line: int
    inside: bool
    globals: tuple[str, ...] = ()


@dataclass(frozen=True)
class DispatchRegion:
    """Statements that map a tile id (or program ids) to tile coordinates.

    ``pid_map`` maps axis name to the coordinate variable, in the pragma's order. ``tile_id`` is the tile
    id variable this region reads, None on an n-D grid. ``slice`` is every statement, outside then inside,
    in source order, that feeds the pid map, from the axis counts, the tile id, grid sizes and
    parameters. ``grid_axes[d]`` is the axis that ``program_id(d)`` enumerates on an n-D grid (empty otherwise).
    ``begin_line``/``end_line`` are the lines of the two pragma comments. ``index`` numbers regions from 0.
    """

    index: int
    pid_map: tuple[tuple[str, str], ...]
    tile_id: str | None
    slice: tuple[SliceStatement, ...]
    grid_axes: tuple[str, ...]
    begin_line: int
    end_line: int
    span: SourceSpan


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be compiled, kept until somebody asks for it."""

    message: str
    span: SourceSpan
    help: str


@dataclass(frozen=True)
class Advance:
    """A variable that an in-tile loop moves on by the same amount each iteration.

    ``a_ptrs += step``; or, with a ``function``, ``x = tl.advance(x, steps)`` (``.advance`` where it is called as a method).
    """

    name: str
    steps: tuple[str, ...]
    function: str = ""


@dataclass(frozen=True)
class RangeLoop:
    """An in-tile loop over all blocks of a range axis: ``range(0, tl.cdiv(K, BLOCK_K))`` or ``range(0, K, BLOCK_K)``.

    ``block`` is the parameter that holds the block size; ``number`` says which ``for`` of the kernel it is, in source
    order; ``elements``: the loop's variable counts elements, not blocks. ``bounds`` are the names its bounds use,
    ``end_line`` is the last line of its body. ``refusal`` is what keeps its blocks from being taken in another order
    (None: nothing does).
    """

    axis: str
    block: str
    number: int
    elements: bool
    advances: tuple[Advance, ...]
    span: SourceSpan
    bounds: tuple[str, ...] = ()
    end_line: int = 0
    refusal: Refusal | None = None


@dataclass(frozen=True)
class LoopBlock:
    """A dimension of an access that takes the block of a `RangeLoop`'s iteration: elements from iteration * block."""

    loop: int
    block: str


@dataclass(frozen=True)
class Access:
    """One load or store of a tensor parameter.

    ``offsets`` has one symbolic index expression a dimension (its first element's index); ``axes[d]`` is the
    axis, tile or range, that spans dimension d (None: the whole dimension or unknown). ``wraps[d]``: the index
    is taken modulo the extent. ``region`` is the dispatch region whose coordinates it uses (None: none).
    ``strides[d]`` is the dimension's stride as text over kernel parameters (``stride_am``, ``1``; None: unknown), ``by[d]`` the
    stride (None: nothing multiplies).
    ``operation`` is the function or method that accesses (``load``, ``atomic_add``), or the helper that is handed the
    pointer where ``helper`` is set. ``guard`` is a condition read from memory that decides whether, or which elements,
    it accesses (empty: none). ``loops[d]``: the in-tile loop that dimension d is taken block by block in. ``understood``:
    the address was taken apart into an index a dimension. ``picks``: conditions that leave elements of tiles out.
    """

    tensor: str
    mode: Literal["read", "write", "reduce"]
    kind: Literal["pointer", "block_pointer", "device_descriptor", "host_descriptor"]
    axes: tuple[str | None, ...]
    offsets: tuple[IndexExpr, ...]
    wraps: tuple[bool, ...]
    region: int | None
    span: SourceSpan
    strides: tuple[str | None, ...] = ()
    by: tuple[IndexExpr | None, ...] = ()
    operation: str = ""
    helper: bool = False
    guard: str = ""
    loops: tuple[LoopBlock | None, ...] = ()
    understood: bool = True
    picks: tuple[Atom, ...] = ()


@dataclass(frozen=True)
class TensorDecl:
    """A tensor parameter with its named dimensions (``a_ptr[M,K] read``), declared or inferred."""

    param: str
    dims: tuple[str, ...]
    mode: Literal["read", "write", "reduce"]
    span: SourceSpan


@dataclass(frozen=True)
class KernelModel:
    """A single-GPU Triton kernel, understood.

    ``qualname`` is the dotted path of enclosing functions and the kernel's name (``make.kernel``).
    ``decorators`` are the decorators' source texts, outermost first. ``style``: ``grid_1d``, ``grid_nd`` or
    ``persistent``. ``loops`` are its in-tile loops over range axes.
    """

    name: str
    qualname: str
    params: tuple[Param, ...]
    decorators: tuple[str, ...]
    style: Literal["grid_1d", "grid_nd", "persistent"]
    axes: tuple[Axis, ...]
    tile_ids: tuple[TileId, ...]
    regions: tuple[DispatchRegion, ...]
    tensors: tuple[TensorDecl, ...]
    accesses: tuple[Access, ...]
    span: SourceSpan
    loops: tuple[RangeLoop, ...] = ()

    def axis(self, name: str) -> Axis:
        return next(a for a in self.axes if a.name == name)

    def tensor(self, param: str) -> TensorDecl:
        return next(t for t in self.tensors if t.param == param)


@dataclass(frozen=True)
class HostTensor:
    """A tensor of the ``host_entry`` pragma: its name in the host function and its named dimensions."""

    name: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class HostEntry:
    """The host function that allocates and launches.

    ``kernel_args`` maps kernel parameter to the host expression passed for it at the launch, as text;
    ``tensor_params`` maps a host tensor's name to the kernel parameter it is passed as (by name through views,
    ``TensorDescriptor(a, ...)`` and simple assignments); ``param_dims`` gives the dimensions as that parameter sees
    them (``b.t()`` is passed with reversed ones), where that can be told. ``aliased`` are (result, input) pairs that the
    function may pass as one tensor.
    """

    name: str
    params: tuple[Param, ...]
    inputs: tuple[HostTensor, ...]
    outputs: tuple[HostTensor, ...]
    kernel_args: tuple[tuple[str, str], ...]
    tensor_params: tuple[tuple[str, str], ...]
    launch_line: int
    span: SourceSpan
    param_dims: tuple[tuple[str, tuple[str, ...]], ...] = ()
    aliased: tuple[tuple[str, str], ...] = ()

    def tensor(self, name: str) -> HostTensor:
        return next(t for t in (*self.inputs, *self.outputs) if t.name == name)


@dataclass(frozen=True)
class ProgramModel:
    """One annotated kernel with its host function (None when the pragma is absent)."""

    path: str
    sha256: str
    kernel: KernelModel
    host: HostEntry | None
