"""The original of a generated module, as an importable module: the oracle of every check."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import libcst as cst

from overlap.annotate import SourceUnit, annotate

from .module_io import Header, find_source, load_module
from .passes import hoist, imports


def load_original(header: Header, path: str) -> Callable[..., Any]:
    """The original host function that the generated module at ``path`` names in its header.

    A host function defined inside another function is lifted to the top level first, as the compiler does.

    Raises:
        SourceError: the original is gone or has changed.
    """
    return _load(os.path.abspath(find_source(header, path)), header.sha256, header.kernel, header.host)


@lru_cache(maxsize=64)
def _load(source: str, sha256: str, kernel: str, host: str) -> Callable[..., Any]:
    """Once a source and process: a module that registers operators cannot be imported twice."""
    if "." not in kernel:
        return getattr(load_module(source), host)
    unit = SourceUnit.from_file(source)
    program = annotate(unit, kernel)
    module = hoist.lift(cst.parse_module(unit.text.replace("\r\n", "\n")), program)
    module = imports.absolute(module, program)
    lifted = Path(_folder()) / f"{len(os.listdir(_folder()))}_{os.path.basename(source)}"
    lifted.write_text(module.code, encoding="utf-8")
    return getattr(load_module(str(lifted), search=(os.path.dirname(source),)), host)


@lru_cache(maxsize=1)
def _folder() -> str:
    """Holds lifted originals while the process lives: Triton reads a kernel's source when it first runs."""
    folder = tempfile.TemporaryDirectory(prefix="overlap-original-")
    atexit.register(folder.cleanup)
    return folder.name
