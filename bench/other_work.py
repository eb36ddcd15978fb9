"""What else a host does between two calls of an operator: it leaves little of them in the caches of its processor."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections import Counter

BYTES = 64 << 20
_SOURCE = "def f(a, b):\n    return [x + b for x in a if x]\n\n\n" * 20


class OtherWork:
    """Called, copies `BYTES` and runs Python of other kinds, which calls nothing of torch."""

    def __init__(self) -> None:
        self._from, self._to = bytearray(BYTES), bytearray(BYTES)

    def __call__(self) -> None:
        memoryview(self._to)[:] = memoryview(self._from)
        text = json.dumps({str(i): [i, {"twice": 2 * i}] for i in range(300)})
        json.loads(text)
        ast.dump(ast.parse(_SOURCE))
        list(tokenize.generate_tokens(io.StringIO(_SOURCE).readline))
        Counter(text)
