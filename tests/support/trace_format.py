"""The trace event format as viewers read it, for the events that are written here: a JSON Schema, and what no schema can say.

Complete events (X) last, flow events (s, f) are the two ends of an arrow, metadata events (M) name processes and threads.
Times are microseconds.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema

_PLACE = {"pid": {"type": "integer", "minimum": 0}, "tid": {"type": "integer", "minimum": 0}}
_NAMED = {"name": {"type": "string", "minLength": 1}, "cat": {"type": "string", "minLength": 1}}


def _event(phase: str, more: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    properties = {"ph": {"const": phase}, **_PLACE, **more}
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _named(what: str, argument: str, kind: dict[str, Any]) -> dict[str, Any]:
    args = {"type": "object", "properties": {argument: kind}, "required": [argument], "additionalProperties": False}
    return _event("M", {"name": {"const": what}, "args": args})


_ORDER = {"type": "integer", "minimum": 0}
_FLOW = {**_NAMED, "ts": {"type": "number"}, "id": {"type": "integer"}}
SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _event(
                        "X",
                        {
                            **_NAMED,
                            "ts": {"type": "number"},
                            "dur": {"type": "number", "minimum": 0},
                            "args": {"type": "object"},
                        },
                    ),
                    _event("s", _FLOW),
                    _event("f", {**_FLOW, "bp": {"const": "e"}}),
                    *(_named(f"{what}_name", "name", _NAMED["name"]) for what in ("process", "thread")),
                    *(_named(f"{what}_sort_index", "sort_index", _ORDER) for what in ("process", "thread")),
                ]
            },
        },
    },
    "required": ["displayTimeUnit", "otherData", "traceEvents"],
    "additionalProperties": False,
}
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)

Span = tuple[int, int]


def check_format(text: str) -> dict[str, Any]:
    """The trace, which is in the format: named threads, slices beside or inside one another, arrows from slice to slice."""
    trace: dict[str, Any] = json.loads(text)
    VALIDATOR.validate(trace)
    events = trace["traceEvents"]
    named = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len(named) == len(set(named))
    spans: dict[tuple[int, int], list[Span]] = {thread: [] for thread in named}
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            spans[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for thread, found in spans.items():
        _check_nested(thread, found, marks=thread in _of_marks(events))
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
            moment = round(event["ts"] * 1000)
            assert any(start <= moment <= end for start, end in spans[event["pid"], event["tid"]])
    for ends in arrows.values():
        assert [end["ph"] for end in ends] == ["s", "f"] and ends[0]["ts"] <= ends[1]["ts"]
    return trace


def _of_marks(events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Threads of nothing but marks, which may come together."""
    return {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "chunks"}


def _check_nested(thread: tuple[int, int], spans: list[Span], marks: bool) -> None:
    around: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])) if not marks else ():
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], thread
        around.append(end)
