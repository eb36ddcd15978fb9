"""Triton's launchers below the work that every launch repeats: what Triton 3.6 and 3.9 have in common there.

    kernel[grid](...)          analyses every argument, looks the compiled kernel up
    made[grid](...)            asks the hooks, encodes every tensor descriptor, asks each tensor for its address
    `bare_launcher(made)`      takes addresses and encoded descriptors, asks for scratch memory
    `direct_launch(...)`       calls the driver

Both versions put a function that encodes descriptors around the one that launches, in a closure, and an object around that
which knows scratch memory and how the driver is called. The object is kept and the function in the middle left out. A Triton
that is built otherwise has no bare launcher, and `made[grid]` launches as it always does.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from triton import __version__, knobs

_NVIDIA = "triton.backends.nvidia.driver"
_HOOKS = knobs.runtime
_INNER = "launcher"
"""Name of the launching function in the closure around it."""


class At:
    """What stands for a tensor of which only the address is wanted."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def triton_here() -> tuple[int, int]:
    """Triton's major and minor version."""
    major, minor = __version__.split(".")[:2]
    return int(major), int(minor)


def watched() -> bool:
    """Whether somebody's hooks want to see launches."""
    enter, leave = _HOOKS.launch_enter_hook, _HOOKS.launch_exit_hook
    return bool(
        enter is not None and getattr(enter, "calls", True) or leave is not None and getattr(leave, "calls", True)
    )


def bare_launcher(made: Any) -> Callable[..., None] | None:
    """The launcher of a compiled kernel for arguments in the form of `encoded`, or None.

    It takes the grid's three sizes, the stream's handle, the function, Triton's packed metadata, the launch's metadata and
    the two hooks (None), then the kernel's arguments.
    """
    run = made.run
    if type(run).__module__ != _NVIDIA or not callable(getattr(run, "launch", None)):
        return None
    if any(isinstance(kind, tuple) for kind in made.src.signature.values()):
        return None
    if not descriptors_of(made):
        found: Callable[..., None] = run
        return found
    free = getattr(getattr(run.launch, "__code__", None), "co_freevars", ())
    if _INNER not in free:
        return None
    bare = copy.copy(run)
    bare.launch = run.launch.__closure__[free.index(_INNER)].cell_contents
    return bare if callable(bare.launch) else None


class Direct(NamedTuple):
    """Triton's function that calls the driver: it takes the grid's three sizes, the stream's handle, ``head``, and the kernel's
    arguments, one by one or ``packed`` in a tuple."""

    launch: Callable[..., None]
    head: tuple[Any, ...]
    packed: bool


def direct_launch(bare: Any, head: tuple[Any, ...], count: int) -> Direct | None:
    """What a bare launcher calls for a kernel that is given no scratch memory; None where it does more than pass things on.

    Args:
        head: what it takes between the stream's handle and the kernel's ``count`` arguments.
    """
    if not count or any(getattr(bare, f"{kind}_scratch_size", 1) for kind in ("global", "profile")):
        return None
    seen: list[tuple[Any, ...]] = []
    # What it passes on is found by passing marks.
    probe, place, arguments = copy.copy(bare), [object() for _ in range(4)], [object() for _ in range(count)]
    probe.launch = lambda *given: seen.append(given)
    probe(*place, *head, *arguments)
    if len(seen) != 1 or not _same(seen[0][:4], place):
        return None
    rest = seen[0][4:]
    if _same(rest[-count:], arguments):
        return Direct(bare.launch, rest[:-count], packed=False)
    if rest and type(rest[-1]) is tuple and _same(rest[-1], arguments):
        return Direct(bare.launch, rest[:-1], packed=True)
    return None


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def descriptors_of(made: Any) -> tuple[str, ...]:
    """Names of the parameters that a kernel takes as tensor descriptors made by the host."""
    return tuple(name for name, kind in made.src.signature.items() if str(kind).startswith("tensordesc"))


def encoder(made: Any, name: str) -> Callable[[Any], list[Any]]:
    """What makes of a descriptor, passed as ``name``, the arguments that the bare launcher takes for it."""
    from triton.backends.nvidia import driver

    metas: Sequence[Any] = getattr(made.metadata, "tensordesc_meta", None) or ()
    number = descriptors_of(made).index(name)
    meta = metas[number] if metas else None
    make: Any = driver.make_tensordesc_arg
    further = (None,) * (len(inspect.signature(make).parameters) - 2)
    return lambda descriptor: [_plain(value) for value in make(descriptor, meta, *further)]


def _plain(value: Any) -> Any:
    return value.data_ptr() if isinstance(value, At) else value
