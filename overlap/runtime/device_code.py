"""NVSHMEM's device code as kernels are linked with it: of its bitcode only what `overlap.language.nvshmem` calls.

The whole is 31 MB, and Triton would read it for every kernel, seconds each. Triton's own LLVM takes out the functions and what
they need, once for a version of both; the text is kept in the cache folder. Kernels come out the same to the byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from overlap.backends.bitcode import find_library
from overlap.errors import RuntimeContractError
from overlap.language.nvshmem import SYMBOLS
from overlap.schedule.far import BITCODE, LIBRARY

from .folders import cache_folder

SMALL = 1 << 20
"""Bytes of a library that is not worth the trouble."""


def link_options() -> dict[str, Any]:
    """Launch options of kernels that call NVSHMEM.

    Raises:
        RuntimeContractError: its bitcode is not here.
    """
    return dict(_options(os.environ.get("NVSHMEM_HOME", "")))


@cache
def _options(home: str) -> dict[str, Any]:
    path = find_library()
    if path is None:
        raise RuntimeContractError(
            f"NVSHMEM's device code is not here: no {BITCODE}",
            help=f"install nvidia-nvshmem-cu12 or -cu13, or set NVSHMEM_HOME to the folder that has lib/{BITCODE}",
        )
    return {"extern_libs": ((LIBRARY, _needed_of(str(path))),)}


@cache
def _needed_of(library: str) -> str:
    """The path of what kernels need of a library; of the library itself where it cannot be taken out or kept."""
    from filelock import FileLock
    from triton import __version__

    found = os.stat(library)
    if found.st_size < SMALL:
        return library
    facts = (library, found.st_size, found.st_mtime_ns, __version__, tuple(SYMBOLS.items()))
    folder = cache_folder() / "nvshmem"
    path = folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:20]}.ll"
    if path.is_file():
        return str(path)
    # Only time is lost by reading the whole library.
    with contextlib.suppress(OSError, RuntimeError, AttributeError, TypeError, ValueError):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(str(path) + ".lock"):
            if not path.is_file():
                scratch = path.with_suffix(f".{os.getpid()}.part")
                scratch.write_text(needed(library), encoding="utf-8")
                os.replace(scratch, path)
        return str(path)
    return library


def needed(library: str) -> str:
    """The functions of `SYMBOLS` and what they need of a library, as LLVM's text.

    Raises:
        ValueError: the library does not have one of them.
    """
    from triton._C.libtriton import ir, llvm

    llvm.init_targets()
    context = ir.context()
    ir.load_dialects(context)
    calls = (f"llvm.func @{symbol}({', '.join(kinds)})" for symbol, kinds in SYMBOLS.items())
    with tempfile.TemporaryDirectory() as folder:
        declared = Path(folder) / "calls.mlir"
        declared.write_text("module {\n" + "\n".join(calls) + "\n}\n")
        module = ir.parse_mlir_module(str(declared), context)
    linked = llvm.to_module(module, llvm.context())
    llvm.attach_datalayout(linked, "nvptx64-nvidia-cuda", "sm_90", "")
    llvm.link_extern_libs(linked, [library])
    text = str(linked)
    for symbol in SYMBOLS:
        # What is linked is made internal, and could not be linked once more.
        text, count = re.subn(rf"^define internal (.*@{symbol}\()", r"define \1", text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{library} has no {symbol}")
    return text
