"""Chunk expressions of plan files: which box of which tensor.

    whole                        all of the tensor
    shard(i)                     rank i's shard along the plan's dimension (torch.chunk's rule)
    shard(i, part)               its part-th of `split` parts, by their weights;  shard(i, part, parts) of `parts`
    across(j)                    rank j's shard along the second dimension of an exchange, such as M of a[K:M]
    piece(i, j)                  what shard(i) and across(j) have in common
    slice(i, n)                  the i-th of n shards of the whole, as where n ranks of a mesh axis share it
    span(lo, hi)                 elements lo ... hi-1 along the plan's dimension, whole in the others
    x[0:4, 2*rank:2*rank+2]      a box of tensor x; a left out bound or dimension means all of it

A tensor's name may stand before a word, as in `x.shard(i)`. Without one, and under the name `tensor`, the
tensor that the plan is applied to is meant.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from overlap.errors import PlanError

from .cuts import WHOLE, Weights
from .document import Document, Node, nearest
from .expr import Env, IntExpr, Snippet, compile_int
from .plan import Chunk, TensorSpec
from .rankkinds import need_global
from .region import Box, shard_interval

GIVEN = "tensor"
"""The name under which every plan knows the tensor it is applied to."""

WORDS = ("whole", "shard", "slice", "across", "piece", "span")
_ARGUMENTS = {"whole": (0, 0), "shard": (1, 3), "slice": (2, 2), "across": (1, 1), "piece": (2, 2), "span": (2, 2)}
_ACROSS = ("across", "piece")
_FORMS = (
    "write `whole`, `shard(rank)`, `shard(rank, part)`, `slice(i, n)`, `span(lo, hi)` or `NAME[lo:hi, ...]`; "
    "in an all-to-all also `across(rank)` and `piece(rank, peer)`"
)


@dataclass(frozen=True)
class Tensors:
    """The tensors by the names the file gives them, and the dimension along which shards are cut.

    ``to_dim`` is the second dimension of an exchange, the one that `across` cuts. ``weights`` are those of the `split` parts of
    a shard.
    """

    named: Mapping[str, TensorSpec]
    dim: int
    world: int
    to_dim: int | None = None
    weights: Weights = WHOLE

    def find(self, name: str) -> TensorSpec:
        return self.named[name]


@dataclass(frozen=True)
class ChunkExpr:
    """A chunk expression. Calling it with values for its names and the tensors gives the `Chunk`.

    ``across`` is the place in it that is cut along the second dimension, if there is one.
    """

    snippet: Snippet
    names: frozenset[str]
    run: Callable[[Env, Tensors], Chunk]
    across: ast.expr | None = None

    def __call__(self, env: Env, tensors: Tensors) -> Chunk:
        return self.run(env, tensors)


def parse_chunk(
    document: Document, node: Node, what: str, scope: frozenset[str], declared: frozenset[str]
) -> ChunkExpr:
    """The chunk expression of a scalar.

    Args:
        scope: names with an integer value.
        declared: names of tensors besides `tensor`.

    Raises:
        PlanError: it cannot be read, or names no word, tensor or symbol there is.
    """
    snippet = Snippet.parse(document, node, what, help=_FORMS)
    reader = _Reader(snippet, scope, declared | {GIVEN})
    return reader.read(snippet.tree)


def no_second_dimension(snippet: Snippet, part: ast.expr) -> PlanError:
    """The error of a plan for an all-to-all that is applied to a tensor with one dimension to cut."""
    return snippet.error(
        part,
        f"`{snippet.shown(part)}` cuts along a second dimension, and there is none here",
        "an all-to-all names two axes, such as `a[K:M]`; a gather or a reduction needs another plan",
    )


class _Reader:
    def __init__(self, snippet: Snippet, scope: frozenset[str], declared: frozenset[str]) -> None:
        self.snippet = snippet
        self.scope = scope
        self.declared = declared

    def read(self, part: ast.expr) -> ChunkExpr:
        match part:
            case ast.Subscript(value=ast.Name() as base, slice=index):
                return self._box(part, self._tensor(base), index)
            case ast.Name(id="whole") | ast.Attribute(attr="whole"):
                name = self._prefix(part)
                return self._made([], lambda env, tensors: self._whole(tensors.find(name)))
            case ast.Call(func=ast.Name(id=word) | ast.Attribute(attr=word), args=args, keywords=[]) if word in WORDS:
                return self._call(part, word, self._prefix(part.func), args)
            case ast.Call(func=ast.Name(id=word) | ast.Attribute(attr=word)):
                raise self.snippet.error(part, f"unknown word `{word}`", f"{nearest(word, WORDS)}; {_FORMS}")
            case ast.Name(id=word) if word in self.declared:
                raise self.snippet.error(
                    part, f"`{word}` is a tensor, not a chunk", f"write `{word}.whole` or `{word}[lo:hi, ...]`"
                )
            case ast.Name(id=word) | ast.Attribute(attr=word):
                known = (*WORDS, *self.declared)
                raise self.snippet.error(part, f"unknown chunk `{word}`", f"{nearest(word, known)}; {_FORMS}")
        raise self.snippet.error(part, f"`{self.snippet.shown(part)}` is not a chunk", _FORMS)

    def _tensor(self, base: ast.Name) -> str:
        if base.id not in self.declared:
            raise self.snippet.error(
                base,
                f"unknown tensor `{base.id}`",
                f"{nearest(base.id, self.declared)}; `tensors: {{{base.id}: [M, K]}}` declares one",
            )
        return base.id

    def _prefix(self, part: ast.expr) -> str:
        match part:
            case ast.Name():
                return GIVEN
            case ast.Attribute(value=ast.Name() as base):
                return self._tensor(base)
        raise self.snippet.error(part, f"`{self.snippet.shown(part)}` is not a chunk", _FORMS)

    def _int(self, part: ast.expr) -> IntExpr:
        return compile_int(self.snippet, part, self.scope)

    def _made(
        self, used: list[IntExpr], run: Callable[[Env, Tensors], Chunk], extra: tuple[str, ...] = ()
    ) -> ChunkExpr:
        return ChunkExpr(self.snippet, frozenset(extra).union(*(expr.names for expr in used)), run)

    @staticmethod
    def _whole(spec: TensorSpec) -> Chunk:
        return Chunk(spec.name, Box.whole(spec.shape))

    def _call(self, part: ast.Call, word: str, name: str, args: list[ast.expr]) -> ChunkExpr:
        wanted = _ARGUMENTS[word]
        if not wanted[0] <= len(args) <= wanted[1]:
            raise self.snippet.error(part, f"{word}() with {len(args)} arguments", _FORMS)
        values = [self._int(arg) for arg in args]
        for value in values[:1] if word == "shard" else values if word in _ACROSS else []:
            need_global(value, f"the rank of `{word}`")
        if word == "whole":
            return self._made([], lambda env, tensors: self._whole(tensors.find(name)))
        if word == "span":
            return self._made(values, lambda env, tensors: self._span(part, tensors.find(name), tensors, values, env))
        if word == "slice":
            return self._made(values, lambda env, tensors: self._slice(part, tensors.find(name), tensors, values, env))
        if word in _ACROSS:
            run = lambda env, tensors: self._exchanged(part, tensors.find(name), tensors, values, env)  # noqa: E731
            return replace(self._made(values, run), across=part)
        if len(args) == 3 and values[2].text == "split":
            values = values[:2]  # the parts by weight
        implied = ("split",) if len(values) == 2 else ()
        return self._made(
            values, lambda env, tensors: self._shard(part, tensors.find(name), tensors, values, env), implied
        )

    def _dim(self, part: ast.expr, spec: TensorSpec, dim: int) -> int:
        if dim >= len(spec.shape):
            raise self.snippet.error(
                part, f"tensor {spec} has no dimension {dim} to cut along", f"write a box, `{spec.name}[...]`"
            )
        return dim

    def _interval(self, value: IntExpr, env: Env, extent: int, world: int) -> tuple[int, int]:
        """The elements of a rank's shard."""
        rank = value(env)
        if not 0 <= rank < world:
            raise value.error(f"there is no shard {rank} in a world of {world}", f"write `({value.text}) % world`")
        return shard_interval(extent, world, rank)

    def _exchanged(self, part: ast.Call, spec: TensorSpec, tensors: Tensors, values: list[IntExpr], env: Env) -> Chunk:
        """``across(j)`` or ``piece(i, j)``."""
        if tensors.to_dim is None:
            raise no_second_dimension(self.snippet, part)
        dims = [self._dim(part, spec, dim) for dim in (tensors.dim, tensors.to_dim)[-len(values) :]]
        box = Box.whole(spec.shape)
        for dim, value in zip(dims, values, strict=True):
            box = box.with_interval(dim, *self._interval(value, env, spec.shape[dim], tensors.world))
        return Chunk(spec.name, box)

    def _span(self, part: ast.expr, spec: TensorSpec, tensors: Tensors, values: list[IntExpr], env: Env) -> Chunk:
        dim = self._dim(part, spec, tensors.dim)
        lo, hi = values[0](env), values[1](env)
        self._inside(part, spec, dim, lo, hi)
        return Chunk(spec.name, Box.whole(spec.shape).with_interval(dim, lo, hi))

    def _slice(self, part: ast.expr, spec: TensorSpec, tensors: Tensors, values: list[IntExpr], env: Env) -> Chunk:
        dim = self._dim(part, spec, tensors.dim)
        index, parts = values[0](env), values[1](env)
        if not 0 <= index < parts:
            raise values[0].error(f"there is no slice {index} of {parts}", "slices are counted from 0")
        interval = shard_interval(spec.shape[dim], parts, index)
        return Chunk(spec.name, Box.whole(spec.shape).with_interval(dim, *interval))

    def _shard(self, part: ast.expr, spec: TensorSpec, tensors: Tensors, values: list[IntExpr], env: Env) -> Chunk:
        dim = self._dim(part, spec, tensors.dim)
        interval = self._interval(values[0], env, spec.shape[dim], tensors.world)
        box = Box.whole(spec.shape).with_interval(dim, *interval)
        if len(values) > 1:
            weights = (1,) * values[2](env) if len(values) == 3 else tensors.weights
            index, parts = values[1](env), len(weights)
            if not 0 <= index < parts:
                raise values[1].error(
                    f"there is no part {index} of {parts}", "parts are counted from 0, `for: part in range(split)`"
                )
            box = box.split(dim, weights)[index]
        return Chunk(spec.name, box)

    def _box(self, part: ast.Subscript, name: str, index: ast.expr) -> ChunkExpr:
        cuts: list[tuple[ast.expr, IntExpr | None, IntExpr | None]] = []
        for cut in index.elts if isinstance(index, ast.Tuple) else [index]:
            if not isinstance(cut, ast.Slice):
                raise self.snippet.error(
                    cut, f"`{self.snippet.shown(cut)}` is no interval", "write `lo:hi`, elements lo to hi-1"
                )
            if cut.step is not None:
                raise self.snippet.error(cut.step, "a chunk's interval has no step", "write `lo:hi`")
            cuts.append((cut, self._int(cut.lower) if cut.lower else None, self._int(cut.upper) if cut.upper else None))
        used = [bound for cut in cuts for bound in cut[1:] if bound is not None]

        def run(env: Env, tensors: Tensors) -> Chunk:
            spec = tensors.find(name)
            if len(cuts) > len(spec.shape):
                raise self.snippet.error(
                    part, f"{len(cuts)} intervals for tensor {spec} of {len(spec.shape)} dimensions", "remove some"
                )
            box = Box.whole(spec.shape)
            for dim, (cut, lower, upper) in enumerate(cuts):
                lo = lower(env) if lower else 0
                hi = upper(env) if upper else spec.shape[dim]
                self._inside(cut, spec, dim, lo, hi)
                box = box.with_interval(dim, lo, hi)
            return Chunk(spec.name, box)

        return self._made(used, run)

    def _inside(self, part: ast.expr, spec: TensorSpec, dim: int, lo: int, hi: int) -> None:
        extent = spec.shape[dim]
        if not 0 <= lo <= hi <= extent:
            raise self.snippet.error(
                part,
                f"{lo}:{hi} is no interval of dimension {dim} of tensor {spec}",
                f"bounds grow and lie in 0:{extent}; `min(..., {extent})` cuts the last piece short",
            )
