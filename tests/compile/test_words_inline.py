"""Results in low-latency words, in machine code: the words are whole, behind the tile they carry, and nothing else crosses."""

import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module, ptx
from overlap.build.words import check_words
from overlap.pipeline import Request, compile_source

KERNELS = {"grouped_gemm": "templates", "persistent_gemm": "templates", "host_descriptors": "tests"}
BARRIER = "    tl.debug_barrier()\n    _send_tile("


@pytest.fixture(scope="module")
def built(repo, tmp_path_factory):
    """``built(kernel, plan, dtype, edits)``: the kernel, its result sent in words, built for sm_90."""
    folder = tmp_path_factory.mktemp("words")
    made = {}

    def make(kernel, plan="reduce_scatter_1d", dtype="bf16", edits=()):
        key = (kernel, plan, dtype, edits)
        if key not in made:
            unit = SourceUnit.from_file(str(repo / KERNELS[kernel] / "kernels" / f"{kernel}.py"))
            on = "c[M]" if plan.startswith("reduce") else "c[]"
            text = compile_source(Request(unit, plan=plan, on=on, backend="words_inline")).module.text
            for old, new in edits:
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            path = folder / f"{kernel}_{len(made)}.py"
            path.write_text(text)
            made[key] = build_module(str(path), target="sm_90", dtype=dtype)
        return made[key]

    return make


CASES = [("grouped_gemm", "bf16"), ("persistent_gemm", "fp16"), ("host_descriptors", "bf16"), ("grouped_gemm", "fp32")]


@pytest.mark.parametrize("kernel,dtype", CASES)
def test_words_are_whole_and_nothing_else_crosses(built, kernel, dtype):
    result = built(kernel, dtype=dtype)
    assert [str(f) for f in result.findings if f.severity == "error"] == []
    text = result.artifact.assembly
    assert set(re.findall(r"st\.relaxed\.sys\S*", text)) == {"st.relaxed.sys.global.v2.b64"}
    assert set(re.findall(r"ld\.relaxed\.sys\S*", text)) == {"ld.relaxed.sys.global.v2.b64"}
    # No release, no acquire, no fence at system scope: words order nothing, and nobody needs them to.
    assert not re.search(r"(acquire|release|acq_rel)\.sys|sys\.(acquire|release|acq_rel)|membar|fence\.\S*sys", text)
    assert result.facts.buffers == result.original.buffers
    # Of 96 registers a thread Triton 3.9 puts one value of 8 bytes aside, around the loop over tiles of `host_descriptors`.
    assert result.facts.spill_bytes <= (8 if kernel == "host_descriptors" else 0) and result.facts.registers < 128


@pytest.mark.parametrize("kernel", ["grouped_gemm", "persistent_gemm"])
def test_what_a_word_carries_was_stored_ahead_of_a_barrier(built, kernel):
    """A word is loaded where other threads have stored it."""
    direct = {"grouped_gemm": ("ol.send_words(", "ol.inline_words._send_tile("),
              "persistent_gemm": ("ol.send_words_async(", "ol.inline_words._send_tile(")}  # fmt: skip
    broken = built(kernel, edits=(direct[kernel],))
    assert "sent-behind-store" in {f.rule for f in broken.findings if f.severity == "error"}


@pytest.mark.parametrize("what", ["st", "ld"])
def test_a_word_that_goes_in_parts_is_found(built, what):
    """Half of one could come with the mark of another call."""
    made = built("grouped_gemm").artifact
    text = made.stages["ptx"].replace(f"{what}.relaxed.sys.global.v2.b64", f"{what}.relaxed.sys.global.v4.b32")
    assert text != made.stages["ptx"]
    program = ptx.parse(text)
    stores = {i.line for i in program.instructions if ptx.stores(i)}
    found = {finding.rule for finding in check_words("c_ptr", stores, program)}
    assert "whole-words" in found and "whole-words" not in {
        finding.rule for finding in check_words("c_ptr", stores, ptx.parse(made.stages["ptx"]))
    }


@pytest.mark.parametrize("name", ["grouped_gemm", "persistent_gemm"])
def test_looks_are_made_again_and_of_four_at_once(built, name):
    loops = re.findall(r"^again\S*:$(.*?)bra again", built(name).artifact.assembly, re.MULTILINE | re.DOTALL)
    looks = sorted(loop.count("ld.relaxed.sys.global.v2.b64") for loop in loops)
    assert looks and set(looks) == {1, 4}, "hellos one by one, summands by four"


@pytest.mark.parametrize("name", ["grouped_gemm", "persistent_gemm"])
def test_the_next_epoch_is_stored_once_every_thread_has_read_this_one(built, name):
    """A warp whose words have come is not ahead of one that has not begun."""
    text = built(name).artifact.assembly
    told = text[text.rindex("bra again") :]
    assert "bar.sync" in told and told[told.rindex("bar.sync") :].count("st.global.b64") >= 2
    assert "st.global" not in told[told.rindex("bar.sync") :].split("st.global.b64", 1)[0]
