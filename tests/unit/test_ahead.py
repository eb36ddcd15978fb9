"""Which rehearsals are picked, and what is told of kernels that were not compiled ahead; what rehearsals compile is tested where
Triton compiles (`tests/compile/test_driver.py`)."""

import importlib
from pathlib import Path

import pytest

from tests.support.ahead import rehearsals
from tests.support.compilations import compared

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
