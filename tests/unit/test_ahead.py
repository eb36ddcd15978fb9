"""Which rehearsals are picked, and what is told of kernels that were not compiled ahead; what rehearsals compile is tested where
Triton compiles (`tests/compile/test_driver.py`)."""

import importlib
import os
from pathlib import Path

import pytest

from tests.support.ahead import rehearsals
from tests.support.compilations import compared
from tests.support.operands import rehearsed
from tests.support.rehearsal import of_tests

FILES = [
    path.stem
    for path in sorted((Path(__file__).parent.parent / "multigpu").glob("test_*.py"))
    if "def ahead(" in path.read_text()
]


@pytest.fixture(autouse=True, scope="module")
def marked(request):
    """What tests/multigpu/conftest.py adds for its own tests, and is not left to others."""
    request.config.addinivalue_line("markers", "ranks(n)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAP_DEADLINE_S", "20")
        yield


@pytest.mark.parametrize("file", FILES)
def test_rehearsals_are_of_tests_that_are_there(file):
    tests = vars(importlib.import_module(f"tests.multigpu.{file}"))
    named = {one.test.partition("[")[0] for one in rehearsals(file.removeprefix("test_"))}
    assert named and named <= tests.keys()


def test_an_expression_picks_rehearsals_as_it_picks_tests():
    picked = rehearsals("launches:strided and not (gemm_2d or grouped)")
    assert {one.test for one in picked} == {
        f"test_columns_are_strided_chunks[persistent_gemm-{backend}]"
        for backend in ("copy_engine", "ldst_reserved", "ldst_inline", "tma_reserved")
    }
    assert len(rehearsals("launches")) > len(picked) and rehearsals("launches:launches_of_nothing") == []


def test_a_test_is_rehearsed_once_for_each_set_of_its_parameters(monkeypatch):
    @pytest.mark.parametrize("node", [0, pytest.param(2, id="halves")])
    @pytest.mark.parametrize(("operator", "backend"), [("gemm_ar", "nvshmem"), ("ag_gemm", "collective")])
    def test_calls(group, nodes, monkeypatch, operator, backend, node):
        assert rehearsed() and nodes(node) == group
        monkeypatch.setenv("OVERLAP_NODE_RANKS", "7")
        played.append((group, operator, backend, node))

    played = []
    found = list(of_tests(test_calls, parts=3, when=lambda given: given["node"] or given["operator"] == "gemm_ar"))
    assert [(one.test, one.node, one.parts) for one in found] == [
        ("test_calls[gemm_ar-nvshmem-0]", 0, 3),
        ("test_calls[gemm_ar-nvshmem-2]", 2, 3),
        ("test_calls[ag_gemm-collective-2]", 2, 3),
    ]
    monkeypatch.delenv("OVERLAP_NODE_RANKS", raising=False)
    found[-1].play("a group", *found[-1].arguments)
    assert played == [("a group", "ag_gemm", "collective", 2)]
    assert not rehearsed() and "OVERLAP_NODE_RANKS" not in os.environ


def record(key, found=False, **facts):
    return {"name": "gemm", "key": key, "found": found, "seconds": 0.0 if found else 1.5, "facts": facts}


def test_kernels_that_were_not_foreseen_say_what_differs():
    asked = [record("a", found=True, warps="4"), record("b", warps="8"), record("c", warps="4", stages="2")]
    ahead = [record("a", warps="4", stages="3"), record("b", warps="8"), record("d", warps="1", stages="1")]
    assert list(compared(asked, ahead)) == [
        "kernels: 1 found, 2 compiled in 3.0 s, of which 1 too early to be found and 1 not foreseen; 3 ahead",
        "not foreseen: gemm 1",
        "  gemm: stages is 2, ahead 3",
    ]
