"""The rewriting passes, one a file, each ``run(module, context) -> module``. A pass that matches nothing raises."""

from . import (
    dispatch,
    hoist,
    host_body,
    host_entry,
    imports,
    kernel_signature,
    operator,
    produce,
    push,
    range_loop,
    push_async,
    registrations,
    reserve,
    tile_map,
    unflatten,
    unused,
)

PASSES = (
    ("hoist", hoist.run),
    ("registrations", registrations.run),
    ("imports", imports.run),
    ("produce", produce.run),
    ("push", push.run),
    ("unflatten", unflatten.run),
    ("push_async", push_async.run),
    ("kernel_signature", kernel_signature.run),
    ("dispatch", dispatch.run),
    ("range_loop", range_loop.run),
    ("reserve", reserve.run),
    ("unused", unused.run),
    ("tile_map", tile_map.run),
    ("host_body", host_body.run),
    ("operator", operator.run),
    ("host_entry", host_entry.run),
)
