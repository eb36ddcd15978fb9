"""What several files of this folder need."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def bench(repo, monkeypatch):
    """The benchmarks' modules, as their scripts import them."""
    monkeypatch.syspath_prepend(str(repo / "bench"))
    for path in (repo / "bench").glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return __import__
