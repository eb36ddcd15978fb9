"""What a call takes where its caller names neither backend nor split: a lookup, once a problem and alike on all ranks.

    keyword > overlap.lock > cache > shipped defaults > built-in

Rank 0 looks it up and the others take its answer, so that a cache that differs on one rank never makes ranks launch different
kernels. Later calls of the same problem find it in a dictionary; calls that repeat an earlier one do not even come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch

from overlap import settings
from overlap.autotune.config import Config
from overlap.autotune.key import Key
from overlap.autotune.lookup import Found, find
from overlap.backends import backends
from overlap.backends.capabilities import SERIAL, Need
from overlap.chunkplan.library import find_template
from overlap.errors import OverlapError
from overlap.runtime.of_group import runtime_of
from overlap.version import __version__

from .auto import machine_world
from .fallback import Choice, impossible
from .report import logger

KEYWORD, BUILT_IN, TRIAL = "keyword", "built-in", "trial"

_FORCED: ContextVar[Config | None] = ContextVar("overlap_forced", default=None)


@contextmanager
def forced(config: Config) -> Iterator[None]:
    """Calls within take this config, as if their callers had named it: the trials of a tuning."""
    token = _FORCED.set(config)
    try:
        yield
    finally:
        _FORCED.reset(token)


trial: Callable[[], Config | None] = _FORCED.get
"""Gives the config that calls take here and now, if they are trials."""


@cache
def versions() -> tuple[tuple[str, str], ...]:
    """What a tuned result depends on besides the kernel: sorted by name."""
    import triton

    return ("overlap", __version__), ("torch", torch.__version__), ("triton", triton.__version__)


def device_name(device: torch.device) -> str:
    """The device as keys have it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def choice_of(config: Config, source: str) -> Choice:
    """The choice that a config stands for."""
    serial = config.serial
    why = "asked for by a trial" if source == TRIAL else f"the fastest measured, says the {source}"
    return Choice(
        config.realization.backend,
        why if serial else "",
        programs=config.realization.comm_sms,
        config=config,
        source=source,
    )


def look_up(
    group: Any,
    tensor: torch.Tensor,
    problem: Any,
    key: Callable[[], Key],
    refuse: Callable[[Config], str],
) -> Choice | None:
    """What is known of a problem, or None where nothing is; the first call of a problem asks, collectively.

    Args:
        group: as `resolve_group` returns it.
        tensor: this rank's shard.
        problem: hashable, the same on every rank.
        key: of the problem, made when it is needed.
        refuse: why a config cannot serve this call, the same on every rank; it is then told of and left.

    Raises:
        OverlapError: on every rank, what rank 0's lock file has wrong.
    """
    trial = _FORCED.get()
    if trial is not None:
        return choice_of(trial, TRIAL)
    if group is None or hasattr(group, "overlap_runtime") or not settings.get("tuned"):
        return None
    if impossible(group, tensor) or machine_world(group) == 1:
        return None
    runtime = runtime_of(group)
    known = _known(runtime)
    if problem not in known:
        if torch.cuda.is_current_stream_capturing():
            return None  # ranks cannot meet now, and all of them capture
        known[problem] = _agreed(runtime, key, refuse)
    found = known[problem]
    if found is not None and found.config is not None and refuse(found.config):
        # Calls of one problem may differ in layout: this one cannot take what an earlier one could.
        return None
    return found


def _known(runtime: Any) -> dict[Any, Choice | None]:
    """What was looked up on a runtime, by problem."""
    found: dict[Any, Choice | None] | None = getattr(runtime, "overlap_tuned", None)
    if found is None:
        found = runtime.overlap_tuned = {}
    return found


def _agreed(runtime: Any, key: Callable[[], Key], refuse: Callable[[Config], str]) -> Choice | None:
    what = "what is tuned for a call"
    try:
        found: Found | None = find(key()) if runtime.rank == 0 else None
    except OverlapError as error:
        runtime.agree(what, error)
        raise
    told: Found | None = runtime.agree(what, found)[0]
    if told is None:
        return None
    why = refuse(told.entry.config)
    if why:
        if runtime.rank == 0:
            logger().warning("%s is not used (%s): %s: %s", told.entry.config, told.source, told.entry.key, why)
        return None
    return choice_of(told.entry.config, told.source)


def refusal(config: Config, need: Need, lacking: Callable[[str], str]) -> str:
    """Why a config cannot serve a call; empty where it can.

    Args:
        lacking: why a backend, by its name, cannot.
    """
    name = config.realization.backend
    if config.plan:
        try:
            find_template(config.plan)
        except OverlapError as error:
            return error.message
    if name == SERIAL or name not in backends:
        return ""
    if config.realization.comm_sms and not backends[name].comm_sms:
        return f"{name} takes no programs"
    return need.lacking(backends[name]) or lacking(name)


def sizes_of(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Sizes as keys have them."""
    return tuple((name, int(size)) for name, size in sizes.items())


def forget(group: Any) -> None:
    """Lets calls of a group look up again what is tuned: something has been since."""
    runtime = runtime_of(group)
    _known(runtime).clear()
    getattr(runtime, "overlap_calls", {}).clear()
