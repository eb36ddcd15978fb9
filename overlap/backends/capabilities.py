"""What each backend can do, as one table, and the refusal of what none of its cells promises.

The table is made of `Backend`s; docs/backends.md and `overlap doctor` show it. Whoever is asked for something (the command
line, `overlap.compile`, operators, plans) asks `require`, which says why not and names the nearest that can.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from overlap.errors import SourceSpan, UnsupportedError, UsageError

from .base import Backend
from .registry import backends

SERIAL = "serial"
"""Not a backend of kernels: a collective of torch.distributed, then the kernel as it was."""

COLLECTIVE = "collective"
"""Not one either: a library's collective ahead of the generated kernel, or behind it; what else there is goes by copy engine."""

AUTO = "auto"
"""Not a backend either: the one of those that can which is predicted to take least."""

HEADINGS = ("backend", "moves", "push", "pull", "reduce", "strided", "far", "multiprocessors", "Triton", "device")


def names(*moves: str) -> tuple[str, ...]:
    """What may be asked for to move all of ``moves`` (``input``, ``result``): backends that can, a library, and auto."""
    return (*(b.name for b in backends.values() if set(moves) <= set(b.moves)), COLLECTIVE, SERIAL, AUTO)


def rows() -> list[tuple[str, ...]]:
    """The table's rows under `HEADINGS`."""
    found = [_row(backend) for backend in backends.values()]
    collective = (COLLECTIVE, "inputs, results", *("yes",) * 4, "no", "as the library", "3.6 and later", "NVIDIA")
    return [*found, collective, (SERIAL, "inputs, results", *("yes",) * 5, "as the library", "any", "as the library")]


def table() -> str:
    """The table in Markdown."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows()]
    return (
        "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---").replace("---|\n", "---|\n")
    )


def _row(backend: Backend) -> tuple[str, ...]:
    oldest = backend.compute_capability
    device = "NVIDIA" + (f" sm_{oldest[0]}{oldest[1]} and later" if oldest else "")
    sms = "some reserved" if backend.comm_sms else "those that compute" if backend.inline else "none"
    return (
        backend.name,
        ", ".join(f"{kind}s" for kind in backend.moves),
        _yes("push" in backend.directions),
        _yes("pull" in backend.directions),
        _yes(backend.reduce),
        _yes(backend.strided),
        _yes(backend.far),
        sms,
        f"{_dotted(backend.triton)} and later",
        device,
    )


def _yes(can: bool) -> str:
    return "yes" if can else "no"


@dataclass(frozen=True)
class Need:
    """What a request needs of a backend; what is left out is not needed.

    ``what`` names it in messages (``c[M]``); ``tensor`` is its name and ``moves`` whether a kernel reads it (``input``) or
    makes it (``result``); ``triton`` and ``capability`` are those that are there.
    """

    what: str
    tensor: str = ""
    moves: str = ""
    directions: Collection[str] = ()
    reduce: bool = False
    strided: bool = False
    far: bool = False
    triton: tuple[int, int] | None = None
    capability: tuple[int, int] | None = None

    def lacking(self, backend: Backend) -> str:
        """Why a backend cannot do it; empty where it can."""
        name, tensor = backend.name, f"`{self.tensor}`" if self.tensor else "what is communicated here"
        if self.moves == "input" and "input" not in backend.moves:
            return f"{name} stores what a kernel makes, and {tensor} is an input"
        if self.moves == "result" and "result" not in backend.moves:
            return f"{name} moves what a kernel reads, and {tensor} is a result"
        for direction in self.directions:
            if direction not in backend.directions:
                return f"{name} can only {' and '.join(backend.directions)}, and this is a {direction}"
        if self.reduce and not backend.reduce:
            return f"{name} does not add where chunks arrive"
        if self.strided and not backend.strided:
            return f"{name} moves whole rows alone, and this is a part of each"
        if self.far and not backend.far:
            return f"{name} reaches peers by pointer, and no pointer reaches this one"
        if self.triton is not None and self.triton < backend.triton:
            return f"{name} needs Triton {_dotted(backend.triton)}, here is {_dotted(self.triton)}"
        oldest = backend.compute_capability
        if oldest is not None and self.capability is not None and self.capability < oldest:
            return f"{name} needs sm_{oldest[0]}{oldest[1]}, here is sm_{self.capability[0]}{self.capability[1]}"
        return ""


def unasked(backend: Backend) -> str:
    """Why nobody chooses a backend for a kernel whose author did not name it; nothing where one may."""
    if not backend.words:
        return ""
    return f"{backend.name} has all programs of a launch resident at once: name it, or tune a prebuilt operator"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def require(backend: Backend, need: Need, *, where: SourceSpan | None = None) -> None:
    """Refuses what a backend cannot do.

    Raises:
        UnsupportedError: says why, and which backends can.
    """
    why = need.lacking(backend)
    if why:
        able = [other.name for other in backends.values() if not need.lacking(other)]
        listed = " or ".join((", ".join(able[:-1]), able[-1]) if len(able) > 1 else able)
        raise UnsupportedError(
            f"{need.what}: {why}",
            where=where,
            help=f"{listed} can" if able else 'no backend can; backend="serial" does',
        )


def check_named(name: str | None, known: Iterable[str], need: Need) -> str | None:
    """A backend that a caller names, or None.

    Args:
        known: what may be named.
        need: what for, should it be another.

    Raises:
        UsageError: it is none of them; says why, or names the nearest.
    """
    allowed = tuple(known)
    if name is None or name in allowed:
        return name
    listed = f"backends: {', '.join(allowed)}"
    if not isinstance(name, str):
        raise UsageError(f"backend is a {type(name).__name__}", help=listed)
    if name in backends:
        why = need.lacking(backends[name]) or f"{name} does not serve {need.what}"
        raise UsageError(why, help=listed)
    near = difflib.get_close_matches(name, allowed, 1)
    raise UsageError(f"unknown backend {name!r}", help=(f"did you mean {near[0]!r}? " if near else "") + listed)
