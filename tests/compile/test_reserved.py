"""Kernels some of whose programs move chunks: nothing of the original is lost, copies are wide and on the way several at a
time, and the rules of the memory model hold and are looked for."""

import re

import pytest

import overlap.language.moves as words_that_move
from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.errors import UnsupportedError
from overlap.pipeline import Request, compile_source
from overlap.schedule.moves import SHARED_BYTES


@pytest.fixture(scope="module")
def built(repo, tmp_path_factory):
    """``built(kernel, dtype, words)``: the kernel, compiled to gather by reserved programs and built for sm_90; ``words``
    edits the text of the words that move."""
    folder = tmp_path_factory.mktemp("reserved")
    made = {}

    def make(kernel: str, dtype: str = "fp16", plan: str = "all_gather_1d", words=()):
        key = (kernel, dtype, plan, tuple(words))
        if key not in made:
            path = folder / f"{kernel}_{len(made)}.py"
            unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / f"{kernel}.py"))
            request = Request(unit, plan=plan, on="a[M]", backend="ldst_reserved", output=str(path))
            text = compile_source(request).module.text
            if words:
                other = folder / f"words_{len(made)}.py"
                with open(words_that_move.__file__, encoding="utf-8") as file:
                    changed = file.read().replace("from .", "from overlap.language.")
                for old, new in words:
                    assert changed.count(old) == 1, old
                    changed = changed.replace(old, new)
                other.write_text(changed)
                text = text.replace("ol.move_chunks(", f"{other.stem}.move_chunks(")
                text = text.replace(
                    "import overlap.language as ol\n", f"import overlap.language as ol\nimport {other.stem}\n"
                )
            path.write_text(text)
            made[key] = build_module(str(path), target="sm_90", dtype=dtype)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield make


@pytest.mark.parametrize(("kernel", "dtype"), [("persistent_gemm", "fp16"), ("grouped_gemm", "fp32")])
def test_nothing_of_the_original_is_lost(built, kernel, dtype):
    result = built(kernel, dtype)
    assert [str(f) for f in result.findings if f.severity != "note"] == []
    assert set(result.original.buffers) <= set(result.facts.buffers) and result.facts.stages >= result.original.stages
    assert result.facts.spill_bytes == 0
    assert result.facts.shared_bytes <= max(result.original.shared_bytes, SHARED_BYTES["load/store"]) + 256


def test_copies_are_wide_and_several_on_the_way(built):
    result = built("persistent_gemm", "fp16")
    ptx = result.artifact.assembly
    assert re.search(r"cp\.async\.cg\.shared\.global \[ %r\d+ \+ 0 \], \[ %rd\d+ \+ 0 \], 0x10", ptx)
    assert re.search(r"st\.global\.v2\.b64|st\.global\.v4\.b32", ptx)
    assert any(buffer.shape == (512, 2) and buffer.depth >= 3 for buffer in result.facts.buffers)


@pytest.mark.one_triton
@pytest.mark.parametrize("target", ["gfx942", "sm_80"])
def test_targets_without_tma_are_refused_with_the_line(repo, tmp_path, target):
    path = tmp_path / "boxes.py"
    unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / "grouped_gemm.py"))
    request = Request(unit, plan="all_gather_1d", on="a[M]", backend="tma_reserved", output=str(path))
    path.write_text(compile_source(request).module.text)
    with pytest.raises(UnsupportedError, match=f"`ol.move_chunks_async` is assembly for sm_90.*{target}") as caught:
        build_module(str(path), target=target)
    assert "ol.move_chunks_async(ol_moves" in caught.value.where.text


@pytest.mark.parametrize(
    ("rule", "edit"),
    [
        ("wait-feeds-load", ("turn = after(number, seen)", "turn = number + 0")),
        ("system-scope", ('sem="release", scope="sys"', 'sem="release", scope="gpu"')),
    ],
)
def test_broken_words_are_found(built, rule, edit):
    found = {f.rule for f in built("grouped_gemm", "fp32", words=(edit,)).findings if f.severity == "error"}
    assert rule in found
