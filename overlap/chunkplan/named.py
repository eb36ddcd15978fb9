"""Which backends the operations of a plan file ask for, before the file is applied to a world and a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from .reader import read_template
from .template import Item, OpItem


@lru_cache(maxsize=256)
def named_backends(text: str, path: str = "plan.yaml") -> frozenset[str | None]:
    """The backends that copies of a plan name; None is among them where one names none, or there is no operation at all.

    Collectives, which a library carries out, do not count.

    Args:
        path: shown in errors.

    Raises:
        PlanError: the text is no plan.
    """
    if "backend" not in text and "collective" not in text:
        return frozenset({None})
    template = read_template(text, path)
    items = [*template.ops, *(item for section in template.ranks.values() for item in section.ops)]
    found = list(_operations(items))
    return frozenset(op.backend for op in found if op.verb != "collective") if found else frozenset({None})


def _operations(items: Iterable[Item]) -> Iterator[OpItem]:
    for item in items:
        for part in item.body:
            if isinstance(part, OpItem):
                yield part
            elif isinstance(part, Item):
                yield from _operations([part])
