"""What kernels that call NVSHMEM are linked with, and when a module is made known to it."""

import sys
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from overlap.errors import RuntimeContractError
from overlap.language.nvshmem import SYMBOLS
from overlap.runtime.cuda.compiled import compiled
from overlap.runtime.cuda.runtime import CudaRuntime
from overlap.runtime.nvshmem.device_code import STAND_IN, calls_nvshmem, joined, stand_in_options

NVSHMEM = {"extern_libs": (("nvshmem", "code.bc"),)}
Status = Enum("Status", ["UNINITIALIZED", "INITIALIZED"])


@pytest.fixture
def library(monkeypatch):
    """nvshmem4py without its library: ``status`` is whether it runs, ``answer`` what it says, ``modules`` those it was given."""
    known = SimpleNamespace(status={"status": Status.UNINITIALIZED}, answer=0, modules=[])

    def cumodule_init(module):
        known.modules.append(module)
        return known.answer

    names = ("nvshmem", "nvshmem.core", "nvshmem.core._internal_tracking", "nvshmem.bindings")
    made = {name: ModuleType(name) for name in names}
    made["nvshmem"].core, made["nvshmem"].bindings = made["nvshmem.core"], made["nvshmem.bindings"]
    made["nvshmem.bindings"].cumodule_init = cumodule_init
    made[names[2]].InternalInitStatus, made[names[2]]._is_initialized = Status, known.status
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return known


class Kernel:
    """A kernel that compiles to module 7."""

    def __init__(self):
        self.made = SimpleNamespace(name="kernel", module=7, _init_handles=lambda: None)

    def warmup(self, grid, **options):
        return self.made


def test_a_module_is_made_known_once(library):
    library.status["status"] = Status.INITIALIZED
    kernel = Kernel()
    for _ in range(2):
        compiled(kernel, (1, 1, 1), NVSHMEM)
    assert library.modules == [7]


def test_nothing_is_asked_of_a_library_that_does_not_run(library):
    """It would end the process."""
    with pytest.raises(RuntimeContractError, match="`kernel` calls NVSHMEM, which is not initialised") as caught:
        compiled(Kernel(), (1, 1, 1), NVSHMEM)
    assert library.modules == [] and "OVERLAP_PROVIDER=nvshmem" in caught.value.help


def test_a_refusal_is_passed_on(library):
    library.status["status"], library.answer = Status.INITIALIZED, 3
    with pytest.raises(RuntimeContractError, match="does not take the module of `kernel`: 3"):
        compiled(Kernel(), (1, 1, 1), NVSHMEM)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvshmem", None)
    with pytest.raises(RuntimeContractError, match="host library is not here"):
        compiled(Kernel(), (1, 1, 1), NVSHMEM)


@pytest.mark.parametrize("options", [{}, {"extern_libs": {"mine": "mine.bc"}}, {"extern_libs": None}])
def test_other_kernels_are_none_of_its_business(library, options):
    compiled(Kernel(), (1, 1, 1), options)
    assert library.modules == [] and not calls_nvshmem(options)


def test_a_group_without_its_memory_links_a_stand_in(library, monkeypatch, tmp_path):
    """One rank, say: what is compiled for NVSHMEM runs without it."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    options = CudaRuntime.linked.fget(SimpleNamespace(pes=()))
    ((name, path),) = options["extern_libs"]
    text = Path(path).read_text()
    assert name == STAND_IN and all(f"@{symbol}(" in text for symbol in SYMBOLS)
    compiled(Kernel(), (1, 1, 1), options)
    assert library.modules == []


def test_no_place_for_the_stand_in(monkeypatch, tmp_path):
    from overlap.runtime.nvshmem import device_code

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path / "file"))
    device_code._stand_in.cache_clear()
    with pytest.raises(RuntimeContractError, match="no place for what kernels are linked with"):
        stand_in_options()


def test_what_users_link_stays_linked():
    mine = {"num_warps": 4, "extern_libs": {"mine": "mine.bc"}}
    assert joined(mine, NVSHMEM) == {"num_warps": 4, "extern_libs": (("mine", "mine.bc"), ("nvshmem", "code.bc"))}
    assert joined(mine, {}) == mine
    assert joined({"num_warps": 4}, NVSHMEM) == {"num_warps": 4, **NVSHMEM}
    assert joined({"num_warps": 4}, {}) == {"num_warps": 4}
