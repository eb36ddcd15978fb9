"""The sim tier runs in a process of its own: Triton decides at import whether it interprets."""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
# Simulated shards are small: most are pushed out of the caller's tensor, the smallest are staged first.
os.environ.setdefault("OVERLAP_GIVEN_BYTES", "256")
sys.path.insert(0, os.path.dirname(__file__))  # test kernels are modules beside the tests

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def on_ranks() -> Callable[..., list[Any]]:
    """``on_ranks(world, body, **options)`` runs ``body(runtime)`` as every rank's host code and returns the results."""
    from overlap.sim import World

    def run(world: int, body: Callable[[Any], Any], **options: Any) -> list[Any]:
        return World(world, **options).run(lambda group: body(group.overlap_runtime))

    return run


@pytest.fixture
def compiled(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``compiled(kernel, edit)`` compiles a template kernel, edits the text of the result and returns its path."""
    from overlap.annotate.source import SourceUnit
    from overlap.pipeline import Request, compile_source

    monkeypatch.chdir(repo)

    def compile_to(
        name: str = "grouped_gemm",
        *,
        plan: str = "all_gather_1d",
        on: str = "a[M]",
        edits: tuple[tuple[str, str], ...] = (),
    ) -> Path:
        path = repo / "templates" / "kernels" / f"{name}.py"
        request = Request(SourceUnit.from_file(path), plan, on)
        text = compile_source(request).module.text
        for old, new in edits:
            assert text.count(old) == 1, f"{text.count(old)} times in the generated module: {old}"
            text = text.replace(old, new)
        out = tmp_path / f"{name}_out.py"
        out.write_text(text)
        return out

    return compile_to


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache folder for all tests of a file: operators keep their modules while the process lives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
