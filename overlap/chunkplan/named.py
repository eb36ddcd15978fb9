"""Which backends the operations of a plan file ask for, before the file is applied to a world and a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from .reader import read_template
from .template import Item, OpItem


@lru_cache(maxsize=256)
def named_backends(text: str, path: str = "plan.yaml") -> frozenset[str | None]:
    """The backends that operations of a plan name; None is among them where an operation names none.

    Args:
        path: shown in errors.

    Raises:
        PlanError: the text is no plan.
    """
    if "backend" not in text:
        return frozenset({None})
    template = read_template(text, path)
    items = [*template.ops, *(item for section in template.ranks.values() for item in section.ops)]
    return frozenset(op.backend for op in _operations(items)) or frozenset({None})


def _operations(items: Iterable[Item]) -> Iterator[OpItem]:
    for item in items:
        for part in item.body:
            if isinstance(part, OpItem):
                yield part
            elif isinstance(part, Item):
                yield from _operations([part])
