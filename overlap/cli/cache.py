"""``overlap cache``: tuned results as they stand in the cache, and against `overlap.lock`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from overlap.autotune import cache
from overlap.autotune.entry import Entry
from overlap.autotune.lock import NAME, changes, lock_path, read_lock
from overlap.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def _filters(function: F) -> F:
    for option in (
        click.option("--world", type=click.IntRange(min=1), help="Only of so many ranks."),
        click.option("--device", help="Only of devices with this in their name."),
        click.option("--dtype", help="Only of this element type."),
        click.option("--op", help="Only of this operator or kernel."),
    ):
        function = option(function)
    return function


def _wanted(op: str | None, dtype: str | None, device: str | None, world: int | None) -> Callable[[Entry], bool]:
    def wanted(entry: Entry) -> bool:
        key = entry.key
        return (
            op in (None, key.operator)
            and dtype in (None, key.dtype)
            and (device is None or device.lower() in key.device.lower())
            and world in (None, key.world)
        )

    return wanted


@click.group("cache")
def command() -> None:
    """Tuned results: list, clear, compare with `overlap.lock`."""


@command.command("list")
@_filters
def list_entries(op: str | None, dtype: str | None, device: str | None, world: int | None) -> None:
    """What has been tuned on this machine's account."""
    found = [entry for _, entry in cache.entries() if _wanted(op, dtype, device, world)(entry)]
    if not found:
        click.echo(f"nothing tuned in {cache.folder()}")
        return
    _table(
        ("problem", "ranks", "device", "config", "ms", "tried", "date", "versions"),
        (
            (_problem(e), _ranks(e), e.key.device, str(e.config), _ms(e), str(e.tried), e.date, _versions(e))
            for e in found
        ),
    )
    click.echo(f"{len(found)} in {cache.folder()}")


@command.command("clear")
@_filters
def clear_entries(op: str | None, dtype: str | None, device: str | None, world: int | None) -> None:
    """Remove tuned results; those that the filters name, or all."""
    count = cache.clear(_wanted(op, dtype, device, world))
    click.echo(f"{count} removed from {cache.folder()}")


@command.command("diff")
@click.option("--lock", type=click.Path(dir_okay=False), help=f"The lock file; by default the {NAME} that counts here.")
def diff(lock: str | None) -> None:
    """What leaving the pins of a lock for what is tuned with the versions that are here would change."""
    from overlap.api.tuned import versions

    path = Path(lock) if lock else lock_path()
    if path is None:
        raise UsageError(f"no {NAME} here or above", help="`overlap tune OP --shape ... --lock` writes one")
    rows = []
    for change in changes(read_lock(path), (entry for _, entry in cache.entries()), dict(versions())):
        moved = ", ".join(change.moved) or "the same"
        now = "not tuned for these versions" if change.now is None else str(change.now.config)
        if change.now is not None and not change.differs:
            now = "the same"
        pin = change.pin
        rows.append(
            (_problem(pin), _ranks(pin), pin.key.device, str(pin.config), _ms(pin), now, _ms(change.now), moved)
        )
    if not rows:
        click.echo(f"{path} pins nothing")
        return
    _table(("problem", "ranks", "device", "pinned", "ms", "tuned now", "ms", "versions"), rows)


def _problem(entry: Entry) -> str:
    key = entry.key
    sizes = ",".join(f"{name}={size}" for name, size in key.sizes)
    return f"{key.operator}{f' {key.on}' if key.on else ''} {sizes} {key.dtype}"


def _ranks(entry: Entry) -> str:
    return entry.key.mesh or str(entry.key.world)


def _ms(entry: Entry | None) -> str:
    return "" if entry is None or entry.ms is None else f"{entry.ms:.4f}"


def _versions(entry: Entry) -> str:
    return ", ".join(f"{name} {version}" for name, version in entry.key.versions)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(*headings, box=None if not console.is_terminal else Table().box)
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        console = Console(width=400)
    console.print(table)
