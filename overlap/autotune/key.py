"""`Key`: what a tuned result is for.

Sizes are rounded up to two binary digits (4096, 6144, 8192, 12288, ...), so that what was tuned for one serves its neighbours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlap.errors import SourceSpan, UsageError

TEXTS = ("operator", "on", "plan", "dtype", "mesh", "device", "source")


def bucket(size: int) -> int:
    """The size that stands for ``size`` and its neighbours: the next that has two binary digits and then noughts."""
    if size <= 4:
        return size
    step = 1 << (size.bit_length() - 2)
    return -(-size // step) * step


@dataclass(frozen=True)
class Key:
    """A problem on a machine.

    Args:
        operator: the prebuilt operator's name, or the kernel's.
        sizes: extents by name, global.
        dtype: of what is communicated (``bf16``); a text for each where they differ.
        world, mesh: ranks, and how they stand in a mesh (empty: in none).
        device: as torch names it.
        on: what is communicated (``a[M]``), of a kernel; of an operator empty, it says so itself.
        plan: that the kernel was compiled with; empty where the tuner chose it among all that do the same.
        source: hash of the kernel's text with its helpers.
        versions: of torch, triton and overlap.
    """

    operator: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str
    world: int
    device: str
    mesh: str = ""
    on: str = ""
    plan: str = ""
    source: str = ""
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def buckets(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, bucket(size)) for name, size in self.sizes)

    @property
    def problem(self) -> tuple[Any, ...]:
        """What stays the same over versions of everything: pins are for these."""
        return self.operator, self.on, self.plan, self.buckets, self.dtype, self.world, self.mesh, self.device

    @property
    def digest(self) -> str:
        """Of all but the sizes within their buckets."""
        facts = (self.problem, self.source, self.versions)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:20]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(self, name) for name in TEXTS if getattr(self, name)}
        return {**found, "world": self.world, "sizes": dict(self.sizes), "versions": dict(self.versions)}

    @classmethod
    def from_json(cls, value: Any, where: SourceSpan | None = None) -> Key:
        """The key that a file holds.

        Raises:
            UsageError: it is none; names what is missing or wrong.
        """
        if not isinstance(value, Mapping):
            raise UsageError("a key is an object", where=where, help="`overlap tune` writes them")
        unknown = sorted(set(map(str, value)) - {*TEXTS, "world", "sizes", "versions"})
        if unknown:
            raise UsageError(f"a key has no {unknown[0]!r}", where=where, help="`overlap tune` writes them")
        sizes, versions, world = value.get("sizes"), value.get("versions", {}), value.get("world")
        if not isinstance(sizes, Mapping) or not all(type(n) is int and n >= 0 for n in sizes.values()):
            raise UsageError('the "sizes" of a key are numbers by name', where=where, help='write {"M": 8192}')
        if type(world) is not int or world < 1:
            raise UsageError(f'the "world" of a key is {world!r}', where=where, help="a number of ranks, 1 or more")
        if not isinstance(versions, Mapping) or not all(isinstance(v, str) for v in versions.values()):
            raise UsageError('the "versions" of a key are texts by name', where=where, help='write {"triton": "3.6.0"}')
        texts = {name: value.get(name, "") for name in TEXTS}
        for name, text in texts.items():
            if not isinstance(text, str) or name in ("operator", "dtype", "device") and not text:
                raise UsageError(f"the {name!r} of a key is {text!r}", where=where, help="a text")
        return cls(sizes=tuple(sizes.items()), world=world, versions=tuple(sorted(versions.items())), **texts)

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={size}" for name, size in self.sizes)
        on = f" {self.on}" if self.on else ""
        ranks = self.mesh or f"{self.world} ranks"
        return f"{self.operator}{on} {sizes} {self.dtype}, {ranks}, {self.device}"


def text_hash(*texts: str) -> str:
    """Short hash of texts in their order."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
