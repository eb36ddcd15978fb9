"""The compile tier runs on every supported Triton, never interpreted, and compiles anew each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cached artifact would hide what this Triton emits."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    yield
    patch.undo()
