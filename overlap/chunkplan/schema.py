"""The plan language as a JSON Schema (draft 7), made from the reader's own tables of keys.

Editors check and complete plan files with it; it ships as ``templates/schema/plan.schema.json``, and `overlap check
--schema` prints it. It knows where which key may stand and what form its value has. Names, arithmetic and what a plan does
are the reader's and the verifier's business: what the schema refuses the reader refuses too, and not the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .counts import MAX_INDICES
from .countskey import KEYS as COUNT_KEYS
from .depends import KEYS as DEPENDS_KEYS
from .frame import FRAME_KEYS, NAME
from .mesh import MAX_AXES
from .reader import ENDS, KINDS, OP_KEYS, OPTIONAL_ENDS, PLAN_KEYS, RANK_KEYS, REDUCE_KEYS
from .template import VERBS

Schema = dict[str, Any]

_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_TEXT = _SCALAR
_NAMES: Schema = {"pattern": "^" + NAME.pattern.replace(r"\Z", "$")}


def plan_schema() -> Schema:
    """The schema, as JSON would read it."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A communication plan of overlap",
        "description": "Which chunks of which tensors move between ranks, and in which order.",
        **_mapping(PLAN_KEYS, _PLAN, required=("plan",)),
        "anyOf": [{"required": ["before", "after"]}, {"required": ["ranks"]}],
        "definitions": {
            "scalar": _SCALAR,
            "chunk": _said(
                _SCALAR, "A chunk: whole, shard(i), slice(i, n), span(lo, hi), NAME[lo:hi, ...]; NAME.shard(i)"
            ),
            "chunks": _one_or_many({"anyOf": [_ref("chunk"), _ref("held")]}),
            "held": _mapping(("chunk", *FRAME_KEYS), {"chunk": _ref("chunk"), **_FRAME}, required=("chunk",)),
            "depends": _one_or_many({"anyOf": [_ref("scalar"), _ref("pair"), _ref("dependency")]}),
            "pair": {"type": "array", "items": _ref("scalar"), "minItems": 2, "maxItems": 2},
            "dependency": _dependency(),
            "operation": _operation(),
        },
    }


def schema_text() -> str:
    """The schema as the file that ships has it."""
    return json.dumps(plan_schema(), indent=2) + "\n"


# Building blocks


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _said(schema: Schema, description: str) -> Schema:
    return {"description": description, **schema}


def _many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_or_many(item: Schema) -> Schema:
    return {"anyOf": [_many(item), item]}


def _named(value: Schema) -> Schema:
    """A mapping from names."""
    return {"type": "object", "propertyNames": _NAMES, "additionalProperties": value}


def _mapping(keys: Iterable[str], values: dict[str, Schema], required: Iterable[str] = ()) -> Schema:
    """A mapping with exactly these keys; every one of them must have a schema."""
    return {
        "type": "object",
        "properties": {key: values[key] for key in keys},
        "required": list(required),
        "additionalProperties": False,
    }


_FRAME: dict[str, Schema] = {
    "for": _said(
        _TEXT, "Loops as in a Python comprehension: step in range(1, world) if step != rank for part in range(split)"
    ),
    "let": _said(_named(_SCALAR), "Names for integers: {peer: (rank + step) % world}"),
    "when": _said(_SCALAR, "A condition; where it is 0 or false the entry is left out"),
}

_COUNTED: dict[str, Schema] = {
    "by": _said(
        {**_many(_SCALAR), "minItems": 1, "maxItems": MAX_INDICES}, "How many values each index has: [world, world]"
    ),
    "each": _said(_SCALAR, "What one of them is at most"),
    "total": _said(_SCALAR, "What all of them are together at most"),
}

_INDICES: Schema = {**_many(_SCALAR), "minItems": 1, "maxItems": MAX_INDICES}
_COUNT: Schema = {"anyOf": [_INDICES, _mapping(COUNT_KEYS, _COUNTED, required=("by",))]}
_SIZES = _named({"type": "integer", "minimum": 1})
_WEIGHTS: Schema = {**_many(_SCALAR), "minItems": 1}
_RANK_NUMBERS: Schema = _named({"anyOf": [_SCALAR, _many(_SCALAR)]})

_HELD: dict[str, Schema] = {
    "before": _said(_ref("chunks"), "The chunks a rank holds before the first operation"),
    "after": _said(_ref("chunks"), "The chunks a rank holds after the last operation"),
    "ops": _said(_many(_ref("operation")), "Operations, in order, as one rank sees them"),
}

_PLAN: dict[str, Schema] = {
    **_HELD,
    "plan": _said(_TEXT, "The plan's name"),
    "world": _said({"type": "integer", "minimum": 1}, "The number of ranks, where the plan is for no other"),
    "mesh": _said(
        {
            "anyOf": [
                {"type": ["string", "integer"]},
                {**_many({"type": "string", **_NAMES}), "minItems": 1, "maxItems": MAX_AXES},
                {**_SIZES, "minProperties": 1, "maxProperties": MAX_AXES},
            ]
        },
        "Names for the axes of a mesh, [node, gpu]; with sizes, {node: 2, gpu: 4} or 2x4, for that mesh only",
    ),
    "dim": _said({"type": "integer", "minimum": 0}, "The dimension that is cut, where the plan is for no other"),
    "counts": _said(
        {**_named(_COUNT), "minProperties": 1}, "Sizes known when the plan is applied: {sent: [world, world]}"
    ),
    "tensors": _said(
        {**_named({"anyOf": [{"const": "tensor"}, _many(_SCALAR)]}), "minProperties": 1},
        "Tensors and their sizes: {x: [M, 64]}, or {k: tensor} for those of the tensor the plan is applied to",
    ),
    "ranks": _said(
        {
            "type": "object",
            "patternProperties": {"^[0-9]+$": _mapping(RANK_KEYS, _HELD)},
            "additionalProperties": False,
        },
        "What single ranks have or do besides",
    ),
    "meta": _said({"type": "object", "additionalProperties": _SCALAR}, "Text that goes along"),
    "groups": _said(
        _RANK_NUMBERS, "Ranks with different numbers hold different tensors under one name: {tensor: node}"
    ),
    "parts": _said(_RANK_NUMBERS, "The part of a sum that each rank holds: {x: [0, 1, 0, 1]}"),
    "split": _said(
        {"anyOf": [_SCALAR, _WEIGHTS, {**_many(_WEIGHTS), "minItems": 3, "maxItems": 3}]},
        "Parts of every transfer, where the caller does not say: 4, by weight [1, 2, 1], or by weight for a rank's first "
        "transfer, those between and its last, [[1], [1], [3, 1]]",
    ),
}

_REDUCE = _said(_TEXT, "How what arrives is added to what is there: sum")

_OPERATION: dict[str, Schema] = {
    **_FRAME,
    "move": _said(_ref("chunk"), "What moves; the backend decides whether it is a pull or a push"),
    "pull": _said(_ref("chunk"), "What this rank takes from another one"),
    "push": _said(_ref("chunk"), "What this rank sends to another one"),
    "local": _said(_ref("chunk"), "What this rank copies inside its own memory"),
    "collective": _said({"enum": list(KINDS)}, "A collective that a library carries out"),
    "from": _said(_SCALAR, "The global rank that has the chunk"),
    "to": _said(_SCALAR, "The global rank that gets it"),
    "into": _said(_ref("chunk"), "Where it goes, if that is another chunk"),
    "chunk": _said(_ref("chunk"), "What this rank gives to the collective"),
    "ranks": _said(_many(_SCALAR), "The global ranks of the collective; left out, all ranks"),
    "depends": _said(
        _ref("depends"), "What must be complete before: labels, [rank, index], {on: LABEL, rank: r, step: s}"
    ),
    "label": _said(_TEXT, "A name that `depends` uses"),
    "channel": _said(_SCALAR, "Operations of one channel run in order; channels do not wait for each other"),
    "reduce": {"anyOf": [_REDUCE, _mapping(REDUCE_KEYS, {"op": _REDUCE, "accumulate": _TEXT}, required=("op",))]},
    "backend": _said(_TEXT, "Who carries it out"),
    "split": _said(
        {"anyOf": [_SCALAR, _WEIGHTS]}, "Parts of this transfer, where the caller does not say: 4, or [1, 2, 1]"
    ),
    "do": _said(_many(_ref("operation")), "Operations that share `for`, `let` and `when`"),
}


def _operation() -> Schema:
    """One verb with the ends it has, or `do` with nothing but a frame."""
    ends = {key for keys in (*ENDS.values(), *OPTIONAL_ENDS.values()) for key in keys}
    ways = []
    for verb in VERBS:
        others = [
            *(other for other in (*VERBS, "do") if other != verb),
            *sorted(ends - {*ENDS[verb], *OPTIONAL_ENDS.get(verb, ())}),
        ]
        ways.append({"required": [verb, *ENDS[verb]], "properties": dict.fromkeys(others, False)})
    ways.append({"required": ["do"], "properties": {key: False for key in OP_KEYS if key != "do"}})
    return {**_mapping((*OP_KEYS, *FRAME_KEYS), _OPERATION), "oneOf": ways}


def _dependency() -> Schema:
    """``{rank, index}``, or ``{on: LABEL}`` with values for the label's loop variables."""
    fixed = {
        "on": _said(_TEXT, "The label"),
        "rank": _said(_SCALAR, "The global rank whose operation it is; this one's otherwise"),
        "index": _said(_SCALAR, "The place in that rank's list, counted from 0"),
        "when": _FRAME["when"],
        "for": _said(_TEXT, "Loops, which make it several dependencies"),
    }
    by_index = [key for key in DEPENDS_KEYS if key != "on"]
    return {
        "type": "object",
        "properties": {key: fixed[key] for key in DEPENDS_KEYS},
        "additionalProperties": _SCALAR,
        "oneOf": [
            {"required": ["on"], "properties": {"index": False}},
            {"required": ["rank", "index"], "propertyNames": {"enum": by_index}},
        ],
    }
