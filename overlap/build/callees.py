"""Functions of their own in machine code (``noinline``), and the shared memory that Triton gives them.

Triton lays their shared memory beside what is alive in the caller where they are called. Until 3.8 it does not tell them where
that is, so they use the beginning of the program's, which is somebody else's:

    as laid out    | b, three stages | c | a, three stages | the function's |
    as it runs     | the function's, over b                                 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import compat
from .rules import Finding

_FUNCTION = re.compile(r"^\.func\b[^;{]*\{.*?^\}", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"([\w$]+)\(")
_SHARED = re.compile(r"\bglobal_smem\b")


def borrowed_memory(assembly: str) -> Iterator[Finding]:
    """A finding for each function of a PTX module that takes its shared memory from the beginning of the kernel's."""
    if compat.tells_functions_their_memory():
        return
    for function in _FUNCTION.findall(assembly):
        if _SHARED.search(function):
            name = _NAME.search(function)
            called = name[1].replace("_$_", ".") if name else "a function"
            yield Finding(
                "callee-shared-memory",
                "error",
                0,
                f"`{called}` is called, not inlined, and keeps what it shares between threads where the kernel's own buffers "
                "are: this Triton does not tell it where its memory is, 3.9 does",
            )
