"""`CommPlan` to YAML: every rank's list written out, in the language that `load_plan` reads back exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from overlap.errors import PlanError

from .plan import Chunk, Collective, CommOp, CommPlan
from .reduction import Reduction

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_SPECIAL = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def dump_plan(plan: CommPlan) -> str:
    """The plan as text. ``load_plan(dump_plan(plan)) == plan``, and equal plans give equal text.

    Raises:
        PlanError: a tensor's name is no Python identifier, so the language cannot spell it.
    """
    for spec in plan.tensors:
        if not spec.name.isascii() or not spec.name.isidentifier():
            raise PlanError(
                f"plan {plan.name}: tensor `{spec.name}` cannot be written down",
                help="a tensor's name is a Python identifier",
            )
    return "".join(f"{line}\n" for line in _lines(plan))


def _lines(plan: CommPlan) -> Iterator[str]:
    yield f"plan: {_text(plan.name)}"
    yield f"world: {plan.world}"
    if plan.mesh is not None:
        yield "mesh: {" + ", ".join(f"{a}: {n}" for a, n in zip(plan.mesh.names, plan.mesh.sizes, strict=True)) + "}"
    yield "tensors:"
    for spec in plan.tensors:
        yield f"  {spec.name}: [{', '.join(map(str, spec.shape))}]"
    for key in ("groups", "parts"):
        rows = [(spec.name, getattr(spec, key)) for spec in plan.tensors if getattr(spec, key)]
        if rows:
            yield f"{key}:"
            yield from (f"  {name}: [{', '.join(map(str, row))}]" for name, row in rows)
    if plan.meta:
        yield "meta:"
        for key in sorted(plan.meta):
            yield f"  {_text(key)}: {_text(plan.meta[key])}"
    yield "ranks:"
    for rank in range(plan.world):
        yield f"  {rank}:"
        for what, chunks in (("before", plan.before[rank]), ("after", plan.after[rank])):
            yield f"    {what}:" + ("" if chunks else " []")
            yield from (f"      - {_chunk(chunk)}" for chunk in chunks)
        ops = plan.ops[rank]
        yield "    ops:" + ("" if ops else " []")
        for op in ops:
            for number, line in enumerate(_op(op)):
                yield ("      - " if number == 0 else "        ") + line


def _op(op: CommOp) -> Iterator[str]:
    if isinstance(op, Collective):
        yield f"collective: {op.kind}"
        yield f"chunk: {_chunk(op.src)}"
        yield f"ranks: [{', '.join(map(str, op.ranks))}]"
    else:
        yield f"{op.direction}: {_chunk(op.src)}"
        if op.direction == "pull":
            yield f"from: {op.src_rank}"
        elif op.direction == "push":
            yield f"to: {op.dst_rank}"
    if op.dst != op.src:
        yield f"into: {_chunk(op.dst)}"
    if op.depends:
        yield f"depends: [{', '.join(f'[{rank}, {index}]' for rank, index in op.depends)}]"
    if op.channel:
        yield f"channel: {op.channel}"
    if op.reduce is not None:
        yield f"reduce: {_reduce(op.reduce)}"
    if op.backend is not None:
        yield f"backend: {_text(op.backend)}"


def _reduce(reduction: Reduction) -> str:
    if reduction == Reduction(reduction.op):
        return _text(reduction.op)
    return f"{{op: {_text(reduction.op)}, accumulate: {_text(reduction.accumulate)}}}"


def _chunk(chunk: Chunk) -> str:
    return f"{chunk.tensor}{chunk.box}"


def _text(text: str) -> str:
    """A YAML scalar that reads back as ``text``."""
    if _PLAIN.match(text) and text.lower() not in _SPECIAL:
        return text
    return yaml.safe_dump(text, default_style='"', width=float("inf"), allow_unicode=True).rstrip("\n")
