"""NVSHMEM's device code as kernels are linked with it: of its bitcode only what `overlap.language.nvshmem` calls.

The whole is 31 MB, and Triton would read it for every kernel, seconds each. Triton's own LLVM takes out the functions and what
they need, once for a version of both; the text is kept in the cache folder. Kernels come out the same to the byte.

Where a group has no peer that NVSHMEM reaches (one rank, say), nothing of it is needed: a kernel that would call it is linked
with a stand-in whose functions trap, as none of them is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from overlap.backends.bitcode import find_library
from overlap.errors import RuntimeContractError
from overlap.language.nvshmem import SYMBOLS
from overlap.schedule.far import BITCODE, LIBRARY

from ..folders import cache_folder

SMALL = 1 << 20
"""Bytes of a library that is not worth the trouble."""
STAND_IN = "no_nvshmem"
"""Name of the stand-in, among the libraries that a kernel is linked with."""


def link_options() -> dict[str, Any]:
    """Launch options of kernels that call NVSHMEM.

    Raises:
        RuntimeContractError: its bitcode is not here.
    """
    return dict(_options(os.environ.get("NVSHMEM_HOME", "")))


def stand_in_options() -> dict[str, Any]:
    """Launch options of kernels that hold calls of NVSHMEM and make none.

    Raises:
        RuntimeContractError: there is no folder to write to.
    """
    return dict(_stand_in())


def joined(options: Mapping[str, Any], linked: Mapping[str, Any]) -> dict[str, Any]:
    """Launch options of a user's kernel with those of `link_options`; what the user links stays linked."""
    if not linked:
        return {**options}
    libraries = dict(options.get("extern_libs") or ()) | dict(linked["extern_libs"])
    return {**options, "extern_libs": tuple(libraries.items())}


def calls_nvshmem(options: Mapping[str, Any]) -> bool:
    """Whether a kernel launched with these options is linked with NVSHMEM."""
    return LIBRARY in dict(options.get("extern_libs") or ())


@cache
def _stand_in() -> dict[str, Any]:
    text = stand_in()
    try:
        folder = cache_folder() / "nvshmem"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{STAND_IN}_{hashlib.sha256(text.encode()).hexdigest()[:20]}.ll"
        if not path.is_file():
            scratch = path.with_suffix(f".{os.getpid()}.part")
            scratch.write_text(text, encoding="utf-8")
            os.replace(scratch, path)
    except OSError as error:
        raise RuntimeContractError(
            f"no place for what kernels are linked with: {error}",
            help="set OVERLAP_CACHE_DIR to a folder that can be written",
        ) from None
    return {"extern_libs": ((STAND_IN, str(path)),)}


def stand_in() -> str:
    """Functions of the names and types of `SYMBOLS`, as LLVM's text, that stop the kernel: no peer is there to be reached."""
    bodies = [
        f"define i32 @{symbol}({', '.join(f'{kind} %{i}' for i, kind in enumerate(kinds))}) noinline nounwind "
        "{\n  call void @llvm.trap()\n  ret i32 0\n}"
        for symbol, kinds in SYMBOLS.items()
    ]
    return "\n".join(["declare void @llvm.trap()", *bodies, ""])


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
