"""Whole generated modules, byte for byte. Accept changes with ``make golden``; a golden without a test fails.

What else is true of them is looked up in the goldens, which the first test keeps equal to what is generated.
``hand/grouped_gemm.py`` was written before the compiler, as its target.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from overlap.annotate.source import SourceUnit
from overlap.pipeline import Request, compile_source
from tests.support.sweep import SWEEP

GOLDENS = Path(__file__).parent / "__snapshots__" / "test_generated"

CASES = {
    "grouped_rows_pull": ("templates/kernels/grouped_gemm.py", "all_gather_1d_pull", "a[M]", {"split": "2"}, 4),
    "gemm_2d_columns_push": ("templates/kernels/gemm_2d.py", "all_gather_1d_push", "b[N]", {}, None),
    "persistent_descriptor_ring": ("templates/kernels/persistent_gemm.py", "all_gather_ring", "a[M]", {}, None),
    "listing1": ("tests/kernels/listing1.py", "all_gather_1d", "a[M]", {}, None),
    "wrapped_rows": ("tests/kernels/wrapped_rows.py", "all_gather_1d", "a[M]", {"BM": "64"}, None),
    "two_regions": ("tests/kernels/persistent_epilogue_tile.py", "all_gather_1d", "a[M]", {}, None),
    "host_descriptors": ("tests/kernels/host_descriptors.py", "all_gather_1d", "a[M]", {}, None),
    "exchange_host_descriptors": ("tests/kernels/host_descriptors.py", "all_to_all_1d", "c[M:N]", {}, None),
    "nested_alias": ("tests/kernels/nested_alias.py", "all_gather_1d", "x[M]", {}, None),
    "range_pointers": ("templates/kernels/grouped_gemm.py", "all_gather_1d", "a[K]", {}, None),
    "range_descriptors": ("templates/kernels/persistent_gemm.py", "all_gather_1d", "a[K]", {}, None),
    "range_twice": ("tests/kernels/range_twice.py", "all_gather_ring", "a[K]", {}, None),
    "range_block_pointers": ("tests/kernels/range_block_pointers.py", "all_gather_1d_push", "b[K]", {}, None),
    "scatter_grouped": ("templates/kernels/grouped_gemm.py", "reduce_scatter_1d", "c[M]", {"split": "2"}, None),
    "scatter_persistent_descriptors": ("templates/kernels/persistent_gemm.py", "reduce_scatter_1d", "c[M]", {}, None),
    "scatter_gemm_2d": ("templates/kernels/gemm_2d.py", "reduce_scatter_1d", "c[M]", {}, 3),
    "scatter_two_regions": ("tests/kernels/persistent_epilogue_tile.py", "reduce_scatter_1d", "c[M]", {}, None),
    "scatter_tile_sums": ("tests/kernels/host_descriptors.py", "reduce_scatter_1d", "c[M]", {"tile_sums": "1"}, None),
    "scatter_split_k": ("tests/kernels/split_k.py", "reduce_scatter_1d", "c[M]", {}, None),
    "scatter_stored": (
        "templates/kernels/grouped_gemm.py",
        "reduce_scatter_1d",
        "c[M]",
        {"backend": "ldst_inline"},
        None,
    ),
    "scatter_stored_async": (
        "templates/kernels/persistent_gemm.py",
        "reduce_scatter_1d",
        "c[M]",
        {"backend": "tma_inline"},
        None,
    ),
    "scatter_words": (
        "templates/kernels/grouped_gemm.py",
        "reduce_scatter_1d",
        "c[M]",
        {"backend": "words_inline"},
        None,
    ),
    "reduce_words_persistent": (
        "templates/kernels/persistent_gemm.py",
        "all_reduce_one_shot",
        "c[]",
        {"backend": "words_inline"},
        None,
    ),
    "gather_reserved": (
        "templates/kernels/persistent_gemm.py",
        "all_gather_1d",
        "a[M]",
        {"backend": "ldst_reserved", "comm_sms": "16"},
        None,
    ),
    "gather_interleaved": (
        "templates/kernels/persistent_gemm.py",
        "all_gather_1d",
        "a[M]",
        {"backend": "ldst_inline"},
        None,
    ),
    "gather_boxes": (
        "templates/kernels/grouped_gemm.py",
        "all_gather_1d",
        "a[M]",
        {"backend": "tma_inline"},
        None,
    ),
    "gather_traced": ("templates/kernels/persistent_gemm.py", "all_gather_1d", "a[M]", {"trace": "1"}, None),
    "range_traced": ("tests/kernels/range_twice.py", "all_gather_ring", "a[K]", {"trace": "1"}, None),
    "interleaved_traced": (
        "templates/kernels/grouped_gemm.py",
        "all_gather_1d",
        "a[M]",
        {"backend": "ldst_inline", "trace": "1"},
        None,
    ),
    "all_reduce": ("templates/kernels/grouped_gemm.py", "all_reduce_two_shot", "c[]", {}, None),
    "exchange_result": ("templates/kernels/grouped_gemm.py", "all_to_all_1d", "c[M:N]", {}, None),
    "exchange_input": ("templates/kernels/grouped_gemm.py", "all_to_all_1d", "a[K:M]", {}, None),
    "gather_and_scatter": (
        "templates/kernels/grouped_gemm.py",
        ("all_gather_1d", "reduce_scatter_1d"),
        ("a[M]", "c[M]"),
        {},
        4,
    ),
    "two_exchanges": ("templates/kernels/persistent_gemm.py", ("all_to_all_1d",) * 2, ("a[K:M]", "c[M:N]"), {}, None),
}


class PythonFile(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "py"


@pytest.fixture
def golden(snapshot):
    return snapshot.use_extension(PythonFile)


def generated(case: str) -> str:
    path, plan, on, settings, world = CASES[case]
    return compile_source(Request(SourceUnit.from_file(path), plan, on, settings=settings, world=world)).module.text


@pytest.mark.parametrize("case", CASES)
def test_generated_module(case, golden, repo, monkeypatch):
    monkeypatch.chdir(repo)
    assert generated(case) == golden


def test_the_compiler_writes_what_was_written_by_hand(repo, monkeypatch):
    monkeypatch.chdir(repo)
    target = repo / "tests" / "golden" / "hand" / "grouped_gemm.py"
    unit = SourceUnit.from_file("templates/kernels/grouped_gemm.py")
    made = compile_source(Request(unit, "all_gather_1d", "a[M]", output="tests/golden/hand/grouped_gemm.py"))
    assert made.module.text == target.read_text()


def test_same_input_same_bytes_in_another_process(repo, monkeypatch):
    monkeypatch.chdir(repo)
    path, plan, on, _, _ = CASES["two_regions"]
    command = [sys.executable, "-m", "overlap", "compile", path, "--plan", plan, "--on", on, "-o", "-"]
    texts = {
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": str(repo)},
        ).stdout
        for seed in (("0", "1", "77") if SWEEP else ("0", "77"))
    }
    assert len(texts) == 1


@pytest.mark.parametrize("case", CASES)
def test_comments_are_kept(case, repo):
    """Every comment of the source is in the result."""
    text = (GOLDENS / f"test_generated_module[{case}].py").read_text()
    for line in (repo / CASES[case][0]).read_text().splitlines():
        if line.strip().startswith("#"):
            assert line.strip() in text


def test_the_results_are_clean(tmp_path):
    """ruff finds nothing, whatever this repository's own rules are."""
    assert len(list(GOLDENS.glob("*.py"))) == len(CASES)
    rules = ["--isolated", "--select", "E4,E7,E9,F", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *rules, str(GOLDENS)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stdout
