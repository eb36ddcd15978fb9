"""The file of a suite while it grows: a result file that is whole after every shape, and a run that goes on where another ended.

Every rank knows the same rows, so whichever sees a failure writes the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import record
from suite import Row

ENDED = "ended the process: "
"""Begins the reasons of contenders that hung or took the device along."""
TIMES = 2
"""So often may a contender end the process before its operator is measured without it."""


class SuiteFile:
    """Rows by shape and contender.

    Args:
        common: world, dtype and device, of every row.
        fresh: forget what is there.

    Raises:
        SystemExit: the file is of another commit, device, world or dtype.
    """

    def __init__(self, path: Path, commit: str, common: dict[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self._commit = commit
        self._common = common
        self._made_by = (record.hardware(common["world"]), record.versions())
        self._command = record.command(common["world"])
        self._shape: tuple[Row, list[str]] | None = None
        self.rows: list[dict[str, Any]] = []
        self.clocks: list[dict[str, Any]] = []
        if path.is_file() and not fresh:
            self._go_on(json.loads(path.read_text(encoding="utf-8")))

    def _go_on(self, kept: dict[str, Any]) -> None:
        there = {"commit": kept["commit"], **{key: kept["rows"][0][key] for key in self._common}}
        here = {"commit": self._commit, **self._common}
        other = [f"{key} {there[key]} and not {here[key]}" for key in here if there[key] != here[key]]
        if other:
            sys.exit(f"{self.path} is of {', '.join(other)}: name another --out, or say --fresh")
        self.rows, self.clocks = kept["rows"], kept["clocks"]

    def has(self, row: Row) -> dict[str, dict[str, Any]]:
        """The rows of a shape, by contender."""
        return {had["contender"]: had for had in self.rows if _is_of(had, row)}

    def done(self, row: Row, names: list[str], *, retry: bool = False) -> bool:
        """Whether every contender of a shape has a time or a reason, or with ``retry`` a time."""
        there = self.has(row)
        return all(name in there and not (retry and "failed" in there[name]) for name in names)

    def begin(self, row: Row, names: list[str], *, retry: bool = False, clocks: bool = False) -> dict[str, str]:
        """What to leave out of a shape that is to be measured now, and why; its rows go but for those."""
        there = {} if retry else self.has(row)
        out = {name: had["failed"] for name, had in there.items() if had.get("failed", "").startswith(ENDED)}
        for name in names:
            ended = [
                had
                for had in self.rows
                if had["op"] == row.op and had["contender"] == name and had.get("failed", "").startswith(ENDED)
            ]
            if len(ended) >= TIMES and not retry:
                out.setdefault(name, f"left out: at other shapes it {ENDED}{ended[0]['failed'].removeprefix(ENDED)}")
        self._drop(row, set(self.has(row)) - set(out))
        if clocks and (self._shape is None or self._shape[0].op != row.op):
            self.clocks.append(record.clocks(f"before {row}"))
        self._shape = (row, names)
        return out

    def add(self, found: dict[str, dict[str, Any]], *, write: bool) -> None:
        """Takes what was measured of the shape that was begun.

        Args:
            found: by contender, ``ms`` and what is known beside it (`record.MORE`).
        """
        row, _ = self._begun()
        self._drop(row, set(found))
        for name, more in found.items():
            sizes = {**row._asdict(), "world": self._common["world"], "dtype": self._common["dtype"]}
            head = {**sizes, "contender": name, "ms": more["ms"], "device": self._common["device"]}
            self.rows.append({**head, **{key: more[key] for key in record.MORE if key in more}})
        if write:
            self.save()

    def ended(self, step: str, why: str) -> None:
        """Writes down, on any rank, what ends the process: a contender, or else the shape.

        Where another rank has said why already, its peers fail since it is gone.
        """
        row, names = self._begun()
        hit = [step] if step in names else names
        told = json.loads(self.path.read_text(encoding="utf-8"))["rows"] if self.path.is_file() else []
        before = {had["contender"]: had.get("failed", "") for had in told if _is_of(had, row)}
        reasons = {name: before[name] if before.get(name, "").startswith(ENDED) else f"{ENDED}{why}" for name in hit}
        self.add({name: {"ms": None, "failed": reason} for name, reason in reasons.items()}, write=True)

    def _drop(self, row: Row, names: set[str]) -> None:
        self.rows = [had for had in self.rows if not (_is_of(had, row) and had["contender"] in names)]

    def _begun(self) -> tuple[Row, list[str]]:
        if self._shape is None:
            raise RuntimeError("no shape was begun")
        return self._shape

    def save(self) -> None:
        values = (*self._made_by, self.clocks, self._commit, self._command, record.now(), self.rows)
        record.write(self.path, dict(zip(record.KEYS, values, strict=True)))


def _is_of(had: dict[str, Any], row: Row) -> bool:
    return tuple(had[key] for key in Row._fields) == tuple(row)
