"""The key `counts` of a plan file: sizes that are known when the plan is applied.

    counts: {sent: [world, world]}                                 sent[i, j] for every pair of ranks
    counts: {rows: {by: [world, experts], total: extent}}          a new name is bound to how many there are
    counts: {sent: {by: [world, world], each: 64}}                 64 at most of each

`countexpr` says how expressions use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from overlap.errors import PlanError

from .counts import MAX_INDICES, CountArray
from .document import Document, Node, nearest
from .environment import world_env
from .expr import Env, IntExpr
from .frame import NAME, SYMBOLS, FrameReader
from .mesh import Mesh
from .meshkey import mesh_for
from .rankkinds import GLOBAL
from .template import CountDecl, PlanTemplate

KEYS = ("by", "each", "total")


def read_counts(reader: FrameReader, node: Node | None) -> tuple[tuple[CountDecl, ...], frozenset[str]]:
    """The declarations, without their limits, and the names of sizes that they bind. Their names are known from here on.

    Raises:
        PlanError: no indices or too many, a name that means something already, an expression that cannot be read.
    """
    if node is None:
        return (), frozenset()
    document = reader.document
    rows = document.entries(node, "`counts`")
    if not rows:
        raise document.error(
            node, "`counts` names none", help="write `counts: {sent: [world, world]}`, or leave it out"
        )
    bound: frozenset[str] = frozenset()
    found = []
    for name, (key, value) in rows.items():
        reader.new_name(key, name, bound | set(document.names.axes))
        if isinstance(value, yaml.MappingNode):
            entries = document.mapping(value, f"counts `{name}`", KEYS)
            value = document.require(value, entries, "by", f"counts `{name}`", "[world, world]")
        indices = document.sequence(value, f"the indices of `{name}`")
        if not 1 <= len(indices) <= MAX_INDICES:
            raise document.error(value, f"counts `{name}` with {len(indices)} indices", help="write [world, world]")
        sizes: list[str | IntExpr] = []
        kinds: list[str | None] = []
        for index in indices:
            text = document.scalar(index, "an index").strip()
            axis = next((axis for axis in document.names.axes if text == f"axis_size({axis})"), None)
            kinds.append(GLOBAL if text == "world" else axis)
            if NAME.match(text) and text not in bound | set(SYMBOLS):
                reader.new_name(index, text, frozenset((name,)))
                bound = bound | {text}
                sizes.append(text)
            else:
                sizes.append(reader.int_of(index, "an index", bound | {"world"}))
        document.names.counts[name] = tuple(kinds)
        found.append(CountDecl(name, key, tuple(sizes)))
    return tuple(found), bound


def with_limits(
    reader: FrameReader, node: Node | None, decls: tuple[CountDecl, ...], scope: frozenset[str]
) -> tuple[CountDecl, ...]:
    """The declarations with ``each`` and ``total``, which may name whatever ``scope`` has."""
    if node is None:
        return ()
    document = reader.document
    rows = document.mapping(node, "`counts`")
    found = []
    for decl in decls:
        value = rows[decl.name]
        limits = document.mapping(value, f"counts `{decl.name}`") if isinstance(value, yaml.MappingNode) else {}
        each, total = (
            reader.int_of(limits[key], f"`{key}`", scope) if key in limits else None for key in ("each", "total")
        )
        found.append(replace(decl, each=each, total=total))
    return tuple(found)


def bind_counts(template: PlanTemplate, counts: Mapping[str, Any] | None, env: Env) -> dict[str, Any]:
    """The given counts by their names, and the sizes that their declarations bind.

    Args:
        counts: a `CountArray`, lists in lists, or an array with ``tolist()``, by name.
        env: the values of `world` and of the sizes of mesh axes.

    Raises:
        PlanError: a name that is not declared, one that is missing, or counts of another shape; at the declaration.
    """
    document, given = template.document, dict(counts or {})
    known = [decl.name for decl in template.counts]
    for name in given:
        if name not in known:
            place = document.mapping(document.root, "a plan").get("counts", document.root)
            help = nearest(name, known) or "leave them out, or take a plan such as all_to_all_v"
            raise document.error(place, f"plan {template.name} has no counts `{name}`", help=help)
    found: dict[str, Any] = {}
    for decl in template.counts:
        if decl.name not in given:
            raise document.error(
                decl.node,
                f"plan {template.name} needs the counts `{decl.name}`, which are known when it is applied only",
                help=f'counts={{"{decl.name}": ...}} gives them to overlap.transfer and build_plan, '
                f"`--counts {decl.name}=FILE` to overlap check and predict; a kernel is compiled without any",
            )
        try:
            array = CountArray.of(given[decl.name])
        except PlanError as error:
            raise document.error(decl.node, f"counts `{decl.name}`: {error.message}", help=error.help) from None
        _bind_sizes(document, decl, array, env, found)
        found[decl.name] = array
    return found


def _bind_sizes(document: Document, decl: CountDecl, array: CountArray, env: Env, found: dict[str, Any]) -> None:
    if len(array.shape) != len(decl.sizes):
        raise document.error(
            decl.node,
            f"counts `{decl.name}` have {len(decl.sizes)} indices, those given {len(array.shape)}",
            help="give one list in another for each index",
        )
    for number, (wanted, size) in enumerate(zip(decl.sizes, array.shape, strict=True)):
        if isinstance(wanted, str):
            found[wanted] = size
        elif (value := wanted({**env, **found})) != size:
            raise wanted.error(
                f"index {number} of counts `{decl.name}` has {value} values here, and {size} are given",
                f"give counts of shape {shape_text(decl, {**env, **found})}",
            )


def shape_to_try(template: PlanTemplate, decl: CountDecl, world: int, mesh: Mesh | None) -> tuple[int, ...]:
    """The shape of counts whose sizes follow from the world and the mesh.

    Raises:
        PlanError: one of them is a name that the counts themselves would bind.
    """
    env = world_env(template, world, mesh_for(template, world, mesh))
    for size in decl.sizes:
        if isinstance(size, str):
            raise template.document.error(
                decl.node,
                f"counts `{decl.name}` say how many `{size}` there are, and none are given",
                help=f"give them, as in `--counts {decl.name}=FILE`, or write a number in place of `{size}`",
            )
    return tuple(max(0, size(env)) for size in decl.sizes if not isinstance(size, str))


def shape_text(decl: CountDecl, env: Env) -> str:
    """The shape that a declaration asks for, with numbers where they are known: ``[4, 4]``."""
    sizes = []
    for size in decl.sizes:
        sizes.append(str(env.get(size, size)) if isinstance(size, str) else str(size(env)) if env else size.text)
    return f"[{', '.join(sizes)}]"


def check_limits(template: PlanTemplate, env: Env) -> None:
    """Returns if the counts in ``env`` keep to `each` and `total`.

    Raises:
        PlanError: they do not; at the limit.
    """
    for decl in template.counts:
        array: CountArray = env[decl.name]
        if decl.each is not None:
            limit = decl.each(env)
            for place, value in zip(array.places(), array.values, strict=True):
                if value > limit:
                    at = ", ".join(map(str, place))
                    raise decl.each.error(
                        f"{decl.name}[{at}] is {value}, and each is {limit} at most", "send less, or raise the limit"
                    )
        if decl.total is not None:
            limit = decl.total(env)
            if array.sum() > limit:
                raise decl.total.error(
                    f"the counts `{decl.name}` add up to {array.sum()}, and together they are {limit} at most",
                    "give the tensor more rows, or send less",
                )
