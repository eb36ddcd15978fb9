"""Kernels that call NVSHMEM's device functions: linked from a library by stock Triton, and the order that its rules ask for.

NVSHMEM's own bitcode is not here; a library of the same names and types has a mark in the place of each function.
"""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

import overlap.language.far as words_that_move
from overlap.annotate.source import SourceUnit
from overlap.build import build_module, compile_kernel, parse_target
from overlap.build.artifact import Artifact
from overlap.codegen.module_io import load_module
from overlap.errors import CodegenError, RuntimeContractError
from overlap.pipeline import Request, compile_source
from overlap.runtime.kernels.entry import carry_kernel, credit_kernel, far_move_kernel
from overlap.runtime.nvshmem.device_code import link_options, stand_in_options

from .support import HERE, state

TARGET = parse_target("sm_90")
MARKS = {
    r"nvshmem: (\w+)": lambda found: found[1],
    r"call\.uni (?:\(\w+\), )?nvshmemx_(put|get)mem_nbi_block": lambda found: found[1],
    r"atom\S*\.sys\.acq_rel\.\S*add|atom\.acq_rel\.sys\S*add": lambda found: "count",
    r"\bbar\.sync|barrier\.sync|barrier\.cta\.sync": lambda found: "bar",
}


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvshmem")
    (folder / "lib").mkdir()
    shutil.copy(HERE / "broken" / "nvshmem.ll", folder / "lib" / "libnvshmem_device.bc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVSHMEM_HOME", str(folder))
        yield folder


def events(made: Artifact) -> list[str]:
    """What the kernel itself does, in the order of its machine code: calls of NVSHMEM, barriers, counts."""
    body = re.search(rf"\.entry {re.escape(made.name)}\b.*?\n}}", made.assembly, re.DOTALL)
    assert body is not None
    found = []
    for line in body[0].splitlines():
        if not line.lstrip().startswith(".loc"):
            found += [name(m) for mark, name in MARKS.items() if (m := re.search(mark, line))]
    return found


def moved(kernel=far_move_kernel, linked=link_options) -> Artifact:
    options = {"num_warps": 8, **linked()}
    return compile_kernel(kernel, {kernel.arg_names[0]: state(), "state": state()}, TARGET, options)


RULE = re.compile(r"\bput\b.*\bquiet(?: bar)+ count\b.*\bput_signal\b.*\bquiet( bar)*$")
"""Puts, their quiet, a barrier, the count; the signal; and nothing is left under way at the end."""


@pytest.mark.parametrize("kernel", [far_move_kernel, carry_kernel], ids=["moves", "lanes"])
def test_the_rule_of_puts_in_machine_code(kernel):
    made = moved(kernel)
    found = " ".join(events(made))
    assert RULE.search(found), found
    assert ".extern .func" not in made.assembly, "a function of NVSHMEM is not linked"
    assert made.binary


COUNT = """\
    quiet()
    tl.debug_barrier()
    counted = tl.atomic_add(state + tl.load(move + _COUNTER), 1, sem="acq_rel", scope="sys")
"""


@pytest.mark.parametrize(
    "edit",
    [
        ("    quiet()\n    tl.debug_barrier()\n", "    tl.debug_barrier()\n"),
        (COUNT, "".join([*COUNT.splitlines(keepends=True)[1:], "    quiet()\n"])),
        ("        move += _MOVE_WORDS\n    quiet()\n", "        move += _MOVE_WORDS\n"),
    ],
    ids=["no quiet", "a quiet behind the count", "no quiet at the end"],
)
@pytest.mark.one_triton
def test_a_kernel_that_breaks_the_rule_is_found(tmp_path, edit):
    text = Path(words_that_move.__file__).read_text().replace("from .", "from overlap.language.")
    assert text.index(edit[0]) < text.index("def carry_chunk(")
    text = (
        text.replace(*edit, 1)
        + "\n\n@triton.jit\ndef kernel(moves, state):\n    move_chunks_far(moves, state, tl.load(state))\n"
    )
    (tmp_path / "words.py").write_text(text)
    found = " ".join(events(moved(load_module(str(tmp_path / "words.py")).kernel)))
    assert not RULE.search(found), found


def test_a_credit_is_one_signal():
    options = {"num_warps": 1, **link_options()}
    found = events(compile_kernel(credit_kernel, {"state": state(), "words": state()}, TARGET, options))
    assert [name for name in found if name != "bar"] == ["put_signal", "quiet"]


@pytest.mark.one_triton
def test_a_module_keeps_its_pipeline(repo, tmp_path):
    unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / "persistent_gemm.py"))
    path = tmp_path / "module.py"
    path.write_text(compile_source(Request(unit, plan="all_gather_1d", on="a[M]", backend="nvshmem")).module.text)
    result = build_module(str(path), target="sm_90", dtype="fp16")
    assert [str(f) for f in result.findings if f.severity != "note"] == []
    assert set(result.original.buffers) <= set(result.facts.buffers) and result.facts.spill_bytes == 0
    assert {"put", "put_signal", "quiet"} <= set(events(result.artifact))


@pytest.mark.one_triton
def test_without_peers(monkeypatch, tmp_path):
    """Nothing of the library is in a kernel that is linked with the stand-in; what would reach a peer stops it."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    made = moved(linked=stand_in_options)
    assert ".extern .func" not in made.assembly and made.binary
    assert "nvshmem: " not in made.assembly and "trap;" in made.assembly


@pytest.mark.one_triton
def test_without_the_library(library, monkeypatch, tmp_path):
    """Nothing that links it is compiled, and Triton's own message for what is not linked is passed on."""
    monkeypatch.setenv("NVSHMEM_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeContractError, match=r"no libnvshmem_device.bc"):
        link_options()
    with pytest.raises(CodegenError, match="credit_kernel"):
        compile_kernel(credit_kernel, {"state": state(), "words": state()}, TARGET, {"num_warps": 1})
