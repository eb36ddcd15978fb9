"""`build_module`: a generated file, its kernel compiled and checked without a GPU, the original beside it.

OUT.py -> operator -> launch of its host body on meta tensors -> specialised kernel -> machine code -> findings
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from overlap.codegen.module_io import Header, find_operator, find_source, load_module, read_header, read_module
from overlap.codegen.original import load_original
from overlap.errors import OverlapError, SourceSpan, UnsupportedError, UsageError
from overlap.language.words import WORDS
from overlap.runtime.dtypes import dtype_of, dtypes_of
from overlap.runtime.nvshmem.device_code import joined, link_options

from .artifact import Artifact, Facts, compile_kernel, facts
from .device import planned_device
from .findings import check
from .report import build_report
from .rules import Finding
from .target import Target, parse_target

KINDS = ("fp16", "bf16", "fp32")
"""Dtypes that tensors are built for, but for single inputs."""
DEFAULT_EXTENT = 4096


@dataclass(frozen=True)
class BuildResult:
    """A built module: its artifact, what it uses, the original's where it could be compiled, and the findings."""

    artifact: Artifact
    facts: Facts
    original: Facts | None
    findings: tuple[Finding, ...]
    written: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """No rule is broken; warnings and notes do not count."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def text(self) -> str:
        return build_report(self.facts, self.findings, self.original)


def build_module(
    path: str,
    *,
    target: str,
    shape: Mapping[str, int] | None = None,
    dtype: str = "fp16",
    dtypes: Mapping[str, str] | None = None,
    world: int = 4,
    folder: str | None = None,
) -> BuildResult:
    """Compiles a generated module's kernel as its host function would launch it, and checks the result.

    Args:
        path: the generated file.
        target: ``sm_90``, ``gfx942``, ...
        shape: axis to global extent; axes left out are 4096.
        dtype: of every tensor: ``fp16``, ``bf16`` or ``fp32``.
        dtypes: inputs of another dtype than that, by host name; fp8 and integers too.
        world: ranks to imagine.
        folder: where every stage is written, if given.

    Raises:
        UsageError: unknown target, dtype, axis or input.
        SourceError: the file is not a generated module.
        UnsupportedError: the kernel uses words that the target has no instruction for.
        CodegenError: Triton does not compile the kernel.
    """
    chosen = parse_target(target)
    if dtype not in KINDS:
        raise UsageError(f"no dtype {dtype!r}", help="dtypes: " + ", ".join(KINDS))
    header = _header(path)
    source, missing = _source(header, path)
    folders = (os.path.dirname(os.path.abspath(source)),) if source else ()
    operator = find_operator(load_module(path, search=folders))
    sizes = _sizes(operator, shape or {})
    others = {
        name: torch.empty([sizes[axis] for axis in operator.inputs[name]], dtype=kind, device="meta")
        for name, kind in dtypes_of(operator, dtypes or {}).items()
    }
    with planned_device(chosen):
        bound, _ = operator.capture(sizes, dtype_of(dtype), world=world, device="meta", **others)
    _refuse_foreign_words(bound.kernel, chosen, path)
    linked = link_options() if operator.moves and operator.mover.far else {}
    made = compile_kernel(bound.kernel, bound.arguments, chosen, joined(bound.options, linked))
    theirs = None
    if source is not None:
        arguments = {name: value for name, value in bound.arguments.items() if name not in operator.ours}
        theirs = compile_kernel(_original_kernel(header, path), arguments, chosen, bound.options)
    guarded = {comm.param for comm in operator.comms if not comm.produced}
    produced = {comm.param for comm in operator.comms if comm.produced}
    sent: set[str] = set()
    if operator.carriers.words:
        sent, produced = produced, sent
    if anywhere := operator.parameter("anywhere"):
        produced = {anywhere}  # its tiles are stored through this descriptor
    nested = len(operator.ranges)
    found = check(
        made,
        guarded=guarded,
        produced=produced,
        sent=sent,
        original=theirs,
        flags=operator.ours[1],
        moves=operator.ours[-1] if operator.moves else "",
        writer=operator.mover.writer,
        reserved=operator.mover.reserved,
        nested=nested,
    )
    if theirs is None:
        found.append(Finding("same-stages", "note", 0, f"not compared with the original: {missing}"))
    written = made.save(Path(folder)) if folder is not None else []
    return BuildResult(made, facts(made), facts(theirs) if theirs else None, tuple(found), tuple(written))


def _header(path: str) -> Header:
    if not os.path.isfile(path):
        raise UsageError(f"no such file: `{path}`")
    return read_header(read_module(path), path)


def _source(header: Header, path: str) -> tuple[str | None, str]:
    """Path of the original, or None and why it cannot be used."""
    try:
        return find_source(header, path), ""
    except OverlapError as error:
        return None, error.message


def _sizes(operator: Any, shape: Mapping[str, int]) -> dict[str, int]:
    axes = list(dict.fromkeys(d for dims in (*operator.inputs.values(), *operator.outputs.values()) for d in dims))
    for axis in shape:
        if axis not in axes:
            raise UsageError(f"no axis {axis!r} in `{operator.name}`", help="axes: " + ", ".join(axes))
    return {axis: shape.get(axis, DEFAULT_EXTENT) for axis in axes}


def _original_kernel(header: Header, path: str) -> Any:
    """The original's innermost jitted function, below autotune, heuristics and other decorators."""
    host = inspect.unwrap(load_original(header, path))
    value: Any = host.__globals__[header.kernel.split(".")[-1]]
    while not isinstance(value.fn, FunctionType):
        value = value.fn
    return value


def _refuse_foreign_words(kernel: Any, target: Target, path: str) -> None:
    """Words written in NVIDIA assembly are about the asynchronous proxy, which came with sm_90."""
    if target.has_tma:
        return
    lines, first = inspect.getsourcelines(kernel.fn)
    for number, line in enumerate(lines, first):
        for word in WORDS.values():
            if word.nvidia and f"ol.{word.name}(" in line:
                col = line.index(f"ol.{word.name}(") + 1
                raise UnsupportedError(
                    f"`ol.{word.name}` is assembly for sm_90 and later; {target.name} has no such instruction",
                    where=SourceSpan(path, number, col, line.rstrip("\n"), len(word.name) + 3),
                    help="build for sm_90, or use a kernel that loads by pointers",
                )
