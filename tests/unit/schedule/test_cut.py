"""Along which dimension a split cuts what feeds a kernel."""

from __future__ import annotations

import pytest

from overlap.schedule.cut import cut_along
from overlap.schedule.model import TensorRead


def read(*axes: str | None, tensor: str = "a") -> TensorRead:
    return TensorRead(tensor, axes, (False,) * len(axes))


@pytest.mark.parametrize(
    ("reads", "to_dim", "along"),
    [
        ([read("M", None)], None, 1),  # no exchange
        ([read("M", None)], 0, 0),  # every tile reads a piece of every rank
        ([read(None, "K")], 0, 1),  # tiles differ in the shards' dimension
        ([read("M", "K")], 0, 1),
        ([read(None, None)], 0, 1),  # tiles read everything
        ([read("M", None), read(None, None)], 0, 1),  # some tiles do
        ([read("M", None), read(None, "K", tensor="b")], 0, 0),
        ([], 0, 1),  # nothing is awaited
    ],
)
def test_parts_are_cut_where_tiles_differ(reads, to_dim, along):
    assert cut_along("a", 1, to_dim, reads) == along
