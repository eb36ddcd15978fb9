"""The compile tier runs on every supported Triton, never interpreted, and compiles anew each time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cached artifact would hide what this Triton emits. Workers of one run share theirs: many compile one original."""
    patch, own = pytest.MonkeyPatch(), tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "triton"
    patch.setenv("TRITON_CACHE_DIR", str(folder))
    yield
    patch.undo()
