"""`Config`: one point of the tuner's space, a plan and a `Realization`, and how it stands in files.

{"plan": "all_gather_1d_push", "backend": "copy_engine", "split": 2, "num_warps": 8, "meta": {"BLOCK_M": 128}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from overlap.backends.base import Realization
from overlap.backends.capabilities import AUTO, SERIAL, names
from overlap.chunkplan.cuts import split_of, split_text
from overlap.errors import PlanError, SourceSpan, UsageError

NUMBERS = {"comm_sms": 0, "sum_sms": 0, "tile_sums": 0, "num_warps": 1, "num_stages": 1}
"""Keys of a realization that are numbers, and the least each may be."""
SWITCHES = ("tile_sums",)
"""Those that are 0 or 1."""
KEYS = ("plan", "backend", "split", *NUMBERS, "meta")


@dataclass(frozen=True)
class Config:
    """How a problem is carried out.

    Args:
        realization: with the backend ``serial`` nothing else of it counts.
        plan: the template; empty: the operator's or the kernel's own.
    """

    realization: Realization
    plan: str = ""

    @property
    def serial(self) -> bool:
        return self.realization.backend == SERIAL

    def to_json(self) -> dict[str, Any]:
        """Without what is at its default."""
        found: dict[str, Any] = {"plan": self.plan} if self.plan else {}
        found["backend"] = self.realization.backend
        if (split := self.realization.split) != 1:
            found["split"] = split if isinstance(split, int) else split_text(split)
        for field in fields(Realization):
            value = getattr(self.realization, field.name)
            if field.name in NUMBERS and value != field.default:
                found[field.name] = value
        if self.realization.meta:
            found["meta"] = dict(self.realization.meta)
        return found

    @classmethod
    def from_json(cls, value: Any, where: SourceSpan | None = None) -> Config:
        """The config that a file holds.

        Raises:
            UsageError: it is none; names the key.
        """
        if not isinstance(value, Mapping):
            raise UsageError("a config is an object", where=where, help='write {"backend": "copy_engine", "split": 2}')
        unknown = sorted(set(map(str, value)) - set(KEYS))
        if unknown:
            raise UsageError(f"a config has no key {unknown[0]!r}", where=where, help=f"keys: {', '.join(KEYS)}")
        known = [name for name in names() if name != AUTO]
        if value.get("backend") not in known:
            raise UsageError(
                f"no backend {value.get('backend')!r} in a config", where=where, help=f"backends: {', '.join(known)}"
            )
        plan, meta = value.get("plan", ""), value.get("meta", {})
        if not isinstance(plan, str):
            raise UsageError("the plan of a config is a name", where=where, help='write "plan": "all_gather_1d"')
        if not isinstance(meta, Mapping) or not all(_number(v) for v in meta.values()):
            raise UsageError("the meta of a config has numbers", where=where, help='write "meta": {"BLOCK_M": 128}')
        for key, least in NUMBERS.items():
            if key in value and not (_number(value[key]) and value[key] >= least):
                raise UsageError(f"{key}={value[key]!r} in a config", where=where, help=f"a number, {least} or more")
            if key in SWITCHES and value.get(key, 0) > 1:
                raise UsageError(f"{key}={value[key]!r} in a config", where=where, help="0 or 1")
        try:
            split = split_of(value.get("split", 1))
            if isinstance(value.get("split"), str) and isinstance(split, int):
                raise PlanError("a number of parts is no text")
        except PlanError as error:
            help = 'write "split": 2, or weights as "1:2:1"'
            raise UsageError(f"split={value['split']!r} in a config: {error.message}", where=where, help=help) from None
        numbers = {key: value[key] for key in NUMBERS if key in value}
        return cls(Realization(value["backend"], split, **numbers, meta=tuple(sorted(meta.items()))), plan)

    def __str__(self) -> str:
        told = self.to_json()
        meta = told.pop("meta", {})
        backend = told.pop("backend")
        plan = told.pop("plan", "")
        rest = ", ".join(f"{key}={value}" for key, value in {**told, **meta}.items())
        return " ".join(filter(None, (backend, plan, rest)))


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
