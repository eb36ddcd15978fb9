"""What Triton was asked to compile in a process, kernel by kernel, and how that compares with what was compiled ahead.

A record is a line of JSON: the kernel's name and key in Triton's cache, whether it was there, the seconds it took to compile, and
the facts that the key is made of.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

KERNELS = "OVERLAP_TEST_KERNELS"
"""A variable: the folder in which ranks keep their records."""
SHOWN = 6
"""Kernels that nobody foresaw, of which is told how they differ from what was compiled ahead."""
TOLD = 160
"""Characters of a fact."""


def keep_records(path: Path) -> None:
    """From now on every compilation of this process adds its record to a file, under a key that other processes find too."""
    from triton import knobs

    settle_keys()

    def listen(*, src: Any, metadata: dict[str, Any], times: Any, cache_hit: bool, **_: Any) -> None:
        took = 0.0 if cache_hit else times.total / 1e6
        record = {
            "name": src.name,
            "key": metadata["hash"],
            "found": cache_hit,
            "seconds": took,
            "facts": facts(src, metadata),
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    knobs.compilation.listener = listen


def settle_keys() -> None:
    """From now on a kernel's key no longer depends on what else the process has compiled before.

    Triton puts constants that a function uses into its callers' keys, but only where the function has a key already.
    """
    from triton.runtime.jit import DependenciesFinder

    joined = DependenciesFinder._update_hash
    if getattr(joined, "settled", False):
        return

    def update(self: Any, function: Any) -> None:
        _ = function.cache_key
        joined(self, function)

    update.settled = True  # type: ignore[attr-defined]
    DependenciesFinder._update_hash = update


def facts(src: Any, metadata: dict[str, Any]) -> dict[str, str]:
    """What a kernel's key depends on, in words: its text, types, constants and options."""
    names = src.fn.arg_names
    found = {"text": src.fn.cache_key, "attributes": str(src.attrs)}
    found |= {f"type of {name}": str(kind) for name, kind in src.signature.items()}
    found |= {f"constant {names[at[0]]}": str(value) for at, value in src.constants.items()}
    options = (
        "arch",
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "ptx_version",
        "extern_libs",
        "debug",
        "target",
    )
    return found | {name: str(metadata.get(name)) for name in options}


def records(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The records of files; a line that is being written is left out."""
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines(keepends=True))
    return [json.loads(line) for line in lines if line.endswith("\n")]


def compared(asked: list[dict[str, Any]], ahead: list[dict[str, Any]]) -> Iterator[str]:
    """Lines: how much of what a process asked for it still compiled itself, and why.

    Args:
        asked: its records.
        ahead: those of who compiled ahead of it.
    """
    foreseen = {record["key"] for record in ahead}
    own = [record for record in asked if not record["found"]]
    late = sum(record["key"] in foreseen for record in own)
    unforeseen = [record for record in own if record["key"] not in foreseen]
    yield (
        f"kernels: {len(asked) - len(own)} found, {len(own)} compiled in {sum(r['seconds'] for r in own):.1f} s, of which {late} "
        f"too early to be found and {len(unforeseen)} not foreseen; {len(foreseen)} ahead"
    )
    if unforeseen:
        yield "not foreseen: " + ", ".join(f"{name} {n}" for name, n in Counter(r["name"] for r in unforeseen).items())
    for record in unforeseen[:SHOWN]:
        alike = [other["facts"] for other in ahead if other["name"] == record["name"]]
        nearest = min(
            (_differences(record["facts"], other) for other in alike), key=len, default=["none of that name is ahead"]
        )
        yield f"  {record['name']}: " + "; ".join(nearest or ["no fact differs"])[: 4 * TOLD]


def _differences(asked: dict[str, str], ahead: dict[str, str]) -> list[str]:
    names = [name for name in asked | ahead if asked.get(name) != ahead.get(name)]
    return [f"{name} is {asked.get(name)}, ahead {ahead.get(name)}"[:TOLD] for name in names]
