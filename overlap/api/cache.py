"""Modules made by `overlap.compile`, in a folder that all processes share.

A module's file is named by a digest of everything it depends on, written under a lock by the first process that needs
it and put in place by a rename, so that ranks which start together neither clash nor read half a file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from overlap.errors import SourceError, SourceSpan
from overlap.runtime.folders import cache_folder
from overlap.version import __version__


def module_file(name: str, facts: tuple[Any, ...], make: Callable[[], str]) -> Path:
    """The file of the module that ``facts`` determine, made with ``make`` if it is not there.

    Raises:
        SourceError: the folder cannot be written.
    """
    digest = hashlib.sha256(repr((_versions(), facts)).encode()).hexdigest()[:20]
    folder = cache_folder() / "modules"
    path = folder / f"{name}_{digest}.py"
    if path.is_file():
        return path
    from filelock import FileLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(str(path) + ".lock"):
            if not path.is_file():
                text = make()
                scratch = path.with_suffix(f".{os.getpid()}.part")
                scratch.write_text(text, encoding="utf-8")
                os.replace(scratch, path)
    except OSError as error:
        raise SourceError(
            f"cannot write the cache folder {folder}: {error.strerror or error}",
            help="set OVERLAP_CACHE_DIR to a folder that can be written",
        ) from None
    return path


@cache
def _versions() -> tuple[str, ...]:
    """What decides the generated text besides the user's code: this package byte by byte, Python, torch, Triton."""
    import torch
    import triton

    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\\0" + path.read_bytes())
    return __version__, digest.hexdigest(), sys.version, torch.__version__, triton.__version__


def load(path: Path, names: Mapping[str, Any]) -> types.ModuleType:
    """Runs a generated file as a module of its own in which ``names`` are defined.

    Raises:
        SourceError: it uses a name that is not among them.
    """
    module_name = f"overlap_kernel_{path.stem}_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    own = {key: value for key, value in vars(module).items() if key.startswith("__")}
    vars(module).update(names)
    vars(module).update(own)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except NameError as error:
        del sys.modules[module_name]
        raise SourceError(
            f"the kernel's decorators or annotations use `{error.name}`, which is not known where it was decorated",
            where=SourceSpan(str(path), 1),
            help="define it at the top level of the kernel's file",
        ) from None
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def helper_sources(function: types.FunctionType) -> Iterator[str]:
    """Source text of every jitted function that ``function`` calls, through any depth."""
    seen: set[int] = set()
    pending = [function]
    while pending:
        current = pending.pop()
        for name in current.__code__.co_names:
            value = current.__globals__.get(name)
            inner = value
            while inner is not None and not isinstance(inner, types.FunctionType):
                inner = getattr(inner, "fn", None)
            if inner is None or inner is value or id(inner) in seen:
                continue
            seen.add(id(inner))
            source = getattr(value, "src", None)
            yield source if isinstance(source, str) else repr(inner.__code__.co_code)
            pending.append(inner)
