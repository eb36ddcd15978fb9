"""How a tensor lies on a mesh: one placement an axis, as DTensor, Alpa and Domino say it.

    Shard(0)        cut along dimension 0 by the rule of ``torch.chunk``
    Replicate()     whole on every rank of the axis
    Partial()       every rank of the axis holds a part of a sum

Where several axes cut one dimension, the first axis cuts the dimension, the next its pieces, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from overlap.errors import PlanError

from ..document import nearest
from ..mesh import Mesh
from ..reduction import REDUCTIONS
from ..region import Box, shard_interval


@dataclass(frozen=True)
class Shard:
    """Cut along dimension ``dim``; a negative one counts from the last."""

    dim: int

    def __str__(self) -> str:
        return f"shard({self.dim})"


@dataclass(frozen=True)
class Replicate:
    """Whole on every rank of the axis."""

    def __str__(self) -> str:
        return "replicate"


@dataclass(frozen=True)
class Partial:
    """Every rank of the axis holds a part; ``op``, an entry of `overlap.chunkplan.reduction.REDUCTIONS`, merges them."""

    op: str = "sum"

    def __str__(self) -> str:
        return f"partial({self.op})"


Placement = Shard | Replicate | Partial

_WORD = re.compile(r"\s*([a-z]+)\s*(?:\(\s*(-?\d+|[a-z_]+)\s*\))?\s*\Z", re.IGNORECASE)
_SHORT = {"s": "shard", "r": "replicate", "p": "partial"}
_WORDS = ("shard", "replicate", "partial")
_ALPA = re.compile(r"(R|S[0-9]+)*\Z")


def parse_placement(text: str) -> Placement:
    """``shard(0)``, ``replicate``, ``partial``, ``partial(sum)``, or ``S(0)``, ``R``, ``P`` for short.

    Raises:
        PlanError: it is none of these.
    """
    match = _WORD.match(text)
    if match is None:
        raise PlanError(f"`{text}` is no placement", help="write `shard(0)`, `replicate` or `partial`")
    word, argument = match[1].lower(), match[2]
    word = _SHORT.get(word, word)
    if word not in _WORDS:
        raise PlanError(f"unknown placement `{text}`", help=nearest(word, _WORDS))
    if word == "shard":
        if argument is None or not argument.lstrip("-").isdigit():
            raise PlanError(f"`{text}` does not say along which dimension", help="write `shard(0)`")
        return Shard(int(argument))
    if word == "replicate":
        if argument is not None:
            raise PlanError(f"`{text}` takes no argument", help="write `replicate`")
        return Replicate()
    return Partial(argument.lower()) if argument else Partial()


def alpa_placements(text: str, mesh: Mesh) -> tuple[Placement, ...]:
    """Alpa's sharding of a tensor, a word a dimension, as placements: ``S0R``, ``RS1``, ``S01R``, ``RR``.

    ``S01`` cuts a dimension over mesh axes 0 and 1, ``R`` leaves it whole.

    Raises:
        PlanError: another text, an axis that the mesh does not have or that is used twice, or axes out of order.
    """
    if not _ALPA.match(text):
        raise PlanError(f"`{text}` is no sharding", help="write `R`, or `S` and mesh axes, for each dimension: `S0R`")
    found: list[Placement] = [Replicate()] * len(mesh.sizes)
    for dim, word in enumerate(re.findall(r"R|S[0-9]+", text)):
        axes = [int(digit) for digit in word[1:]]
        if axes != sorted(axes):
            raise PlanError(
                f"`{word}` of `{text}` cuts over mesh axis {axes[0]} before axis {min(axes)}",
                help=f"number the mesh's axes so that it reads `S{''.join(map(str, sorted(axes)))}`",
            )
        for axis in axes:
            if axis >= len(found):
                raise PlanError(
                    f"`{text}` names mesh axis {axis} of mesh {mesh}", help=f"its axes are 0 to {len(found) - 1}"
                )
            if found[axis] != Replicate():
                raise PlanError(f"`{text}` uses mesh axis {axis} twice", help="an axis cuts one dimension")
            found[axis] = Shard(dim)
    return tuple(found)


def checked(
    name: str, shape: Sequence[int], mesh: Mesh, placements: Sequence[Placement | str], what: str
) -> tuple[Placement, ...]:
    """The placements of tensor ``name`` as nouns, with dimensions counted from 0.

    Args:
        what: ``before`` or ``after``, for errors.

    Raises:
        PlanError: a negative size, not one placement an axis, a dimension that the tensor does not have, or a merge
            that is not known.
    """
    check_shape(f"tensor {name}", shape)
    if isinstance(placements, str) or len(placements) != len(mesh.sizes):
        count = "a text" if isinstance(placements, str) else str(len(placements))
        raise PlanError(
            f"tensor {name}: `{what}` is {count} for mesh {mesh} of {len(mesh.sizes)} axes",
            help="give a list of placements, one an axis, outermost first: `replicate` where nothing is cut",
        )
    found: list[Placement] = []
    for axis, given in zip(mesh.names, placements, strict=True):
        placement = parse_placement(given) if isinstance(given, str) else given
        if isinstance(placement, Shard):
            dim = placement.dim + len(shape) if placement.dim < 0 else placement.dim
            if not 0 <= dim < len(shape):
                raise PlanError(
                    f"tensor {name}: `{what}` is {placement} along {axis}, but it has {len(shape)} dimensions",
                    help=f"its dimensions are 0 to {len(shape) - 1}" if shape else "a scalar is replicated or partial",
                )
            placement = Shard(dim)
        elif isinstance(placement, Partial):
            _check_merge(name, placement, what)
        elif not isinstance(placement, Replicate):
            raise PlanError(
                f"tensor {name}: `{what}` is {placement!r} along {axis}, which is no placement",
                help="give Shard(dim), Replicate() or Partial()",
            )
        found.append(placement)
    return tuple(found)


def check_shape(what: str, shape: Sequence[int]) -> None:
    """Sizes are 0 or more.

    Raises:
        PlanError: one is not.
    """
    if any(size < 0 for size in shape):
        raise PlanError(f"{what} has a negative size, {min(shape)}", help="sizes are 0 or more")


def _check_merge(name: str, placement: Partial, what: str) -> None:
    if placement.op in ("avg", "mean"):
        raise PlanError(
            f"tensor {name}: `{what}` is {placement}, which no plan carries out",
            help="write `partial(sum)`, and divide by the axis' size in the kernel that makes or takes the tensor",
        )
    if placement.op not in REDUCTIONS:
        raise PlanError(
            f"tensor {name}: `{what}` is {placement}, and there is no reduction `{placement.op}`",
            help=nearest(placement.op, REDUCTIONS) or "make it known with register_reduction",
        )


def box_at(
    shape: Sequence[int],
    mesh: Mesh,
    placements: Sequence[Placement],
    coordinates: Sequence[int],
    order: Sequence[int] = (),
) -> Box:
    """What the rank at ``coordinates`` of the mesh holds of a tensor; of a part of a sum, where it lies.

    Args:
        order: the mesh's axes in the order in which they cut, where that is not theirs.
    """
    box = Box.whole(shape)
    for axis in order or range(len(mesh.sizes)):
        placement = placements[axis]
        if isinstance(placement, Shard):
            low, high = box.lo[placement.dim], box.hi[placement.dim]
            start, stop = shard_interval(high - low, mesh.sizes[axis], coordinates[axis])
            box = box.with_interval(placement.dim, low + start, low + stop)
    return box
