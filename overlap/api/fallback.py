"""When a call goes through a plain collective instead, and why.

Whatever decides is the same on every rank: facts about devices are exchanged once a group, sizes are global.

Small tensors: a copy costs about 10 us however small it is, and a flag another 5, for every peer in turn, where a
collective of a few hundred kilobytes takes 20 to 30 us in all. On four H100s the fused kernel loses at 8 MB gathered (bf16,
512 x 8192) and wins by a tenth at 16 MB (2048 x 4096), bench/results; the setting ``serial_below_bytes`` draws the line.
"""

from __future__ import annotations

import socket
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from overlap import settings
from overlap.autotune.config import Config
from overlap.backends.capabilities import Need, check_named, names
from overlap.backends.registry import backends
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.library import find_template
from overlap.errors import UsageError

BACKENDS = names("input", "result")
"""What an operator may be asked to take where it is said no other way."""
STORING = names("result")
"""Where what is communicated is a result."""
MOVING = names("input")
"""Where it is an input that a kernel gathers."""
KNOWN = names()
"""All that an operator may be compiled with."""
NARROW_INPUT, NARROW_RESULT = "ldst_reserved", "ldst_inline"
"""What moves pieces with rows of fewer bytes than the setting ``strided_row_bytes``."""
_FOUND: set[str] = set()
"""Plans that were looked for."""
ASKED = "asked for"
"""Why a call is serial that says so itself."""


@dataclass(frozen=True)
class Choice:
    """The backend of a call. ``forced``: nothing else would have been possible here.

    Of one that ``auto`` made also ``programs``, that move chunks (0: the backend's own number), and what was ``considered``,
    the fastest first and then why others cannot. Of one that was looked up also the ``config``, and in any case the ``source``
    of the decision: ``keyword``, ``lock PATH``, ``cache``, ``shipped defaults``, ``built-in``.
    """

    backend: str
    why_serial: str = ""
    forced: bool = False
    programs: int = 0
    considered: tuple[str, ...] = ()
    config: Config | None = None
    source: str = ""

    def of(self, plan: str, split: Split) -> tuple[str, Split]:
        """Plan and split of the call, where a config does not say otherwise."""
        if self.config is None:
            return plan, split
        return self.config.plan or plan, self.config.realization.split


def check_backend(name: str | None, known: tuple[str, ...] = BACKENDS) -> str | None:
    """A backend that a caller may ask for, or None.

    Args:
        known: those there are.

    Raises:
        UsageError: it is none of them; says why, or names the nearest.
    """
    return check_named(name, known, Need("this operator", moves="input" if known == MOVING else "result"))


def check_plan(plan: str | None) -> None:
    """Raises for a plan that there is not, which a call that goes by a collective would not look for.

    Raises:
        UsageError: it is no name.
        PlanError: there is no plan of that name, or no such file.
    """
    if plan is None:
        return
    if not isinstance(plan, str):
        raise UsageError(
            f"plan is a {type(plan).__name__}", help="the name of a plan template, or the path of a .yaml file"
        )
    if plan not in _FOUND:
        find_template(plan)
        _FOUND.add(plan)


def choose(group: Any, tensor: torch.Tensor, gathered_bytes: int, asked: str | None, narrow: str = "") -> Choice:
    """The backend for a call.

    Args:
        group: as `resolve_group` returns it; None in a program without process groups.
        tensor: this rank's shard.
        gathered_bytes: bytes of the gathered tensor.
        asked: what the caller asked for, None to choose.
        narrow: what is fused instead of the copy engine, for pieces with rows that are too short for that; on GPUs.
    """
    if hasattr(group, "overlap_runtime"):
        if asked == "serial":
            raise UsageError("a simulated group has no collectives to run serially", help='backend="copy_engine"')
        return Choice(asked or "copy_engine")
    if asked == "serial":
        return Choice("serial", ASKED)
    if group is None:
        return Choice("serial", "no process group, so one rank")
    why = impossible(group, tensor, far=asked in backends and backends[asked].far)
    if why:
        if asked is not None:
            raise UsageError(f"{asked} is impossible here: {why}", help='leave backend out, or backend="serial"')
        return Choice("serial", why, forced=True)
    if asked is not None:
        return Choice(asked)
    import torch.distributed as dist

    if dist.get_world_size(group) == 1:
        return Choice("serial", "one rank has nothing to communicate")
    limit = settings.get("serial_below_bytes")
    if gathered_bytes < limit:
        return Choice("serial", f"{gathered_bytes} bytes are below serial_below_bytes={limit}")
    return Choice(narrow or "copy_engine")


_FACTS: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()


def impossible(group: Any, tensor: torch.Tensor, *, far: bool = False) -> str:
    """Why peers' memory cannot be reached, or nothing. ``far``: by a backend that reaches other hosts."""
    if tensor.device.type != "cuda":
        return f"no peer copies for tensors on {tensor.device.type}"
    if group not in _FACTS:
        _FACTS[group] = _exchange(group, tensor.device)
    return _FACTS[group][far]


def _exchange(group: Any, device: torch.device) -> tuple[str, str]:
    """Compares hosts and devices of all ranks, for pointers and for what reaches other hosts; collective, once a group."""
    from overlap.runtime.of_group import runtime_of

    runtime = runtime_of(group)
    mine = (_machine(), str(getattr(torch.cuda.get_device_properties(device), "uuid", device)))
    facts = (mine, socket.gethostname(), _unreachable(device))
    elsewhere = "" if device == runtime.device else f"are on {device}, and its work is on {runtime.device}"
    told = runtime.agree("where the ranks of a group are", (facts, elsewhere))
    for rank, (_, theirs) in enumerate(told):
        if theirs:
            said = f"tensors of rank {rank} {theirs}: each rank calls torch.cuda.set_device before its first call here"
            return said, said
    found = [each for each, _ in told]
    return compare(found), compare(found, far=True)


def compare(told: list[tuple[tuple[str, str], str, list[str]]], *, far: bool = False) -> str:
    """Why ranks with these facts cannot reach each other's memory, or nothing.

    Args:
        told: in rank order, (machine, device's UUID), the host's name, and the UUIDs of devices without peer access.
        far: ranks of other hosts are reached all the same.
    """
    places = [place for place, _, _ in told]
    machines = {machine: name for (machine, _), name, _ in told}
    if len(machines) > 1 and not far:
        names = ", ".join(sorted(machines.values()))
        return f"the group spans {len(machines)} hosts ({names}), and copies reach peers on one host only"
    for rank, place in enumerate(places):
        if place in places[:rank]:
            return f"ranks {places.index(place)} and {rank} share one device"
    devices = {uuid: rank for rank, (_, uuid) in enumerate(places)}
    for rank, (_, _, closed) in enumerate(told):
        blocked = [devices[uuid] for uuid in closed if uuid in devices]
        if blocked:
            return f"rank {rank} has no peer access to rank {blocked[0]}"
    return ""


def _machine() -> str:
    """Tells machines apart also where all have one name: the kernel's boot id."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _unreachable(device: torch.device) -> list[str]:
    """UUIDs of visible devices that ``device`` cannot read and write."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    others = [i for i in range(torch.cuda.device_count()) if i != index]
    return [
        str(getattr(torch.cuda.get_device_properties(i), "uuid", i))
        for i in others
        if not torch.cuda.can_device_access_peer(index, i)
    ]
