"""Each rule of the compile tier, seen to fail on a kernel that breaks it, and silent on one that does not."""

from dataclasses import replace

import pytest

from overlap.build import RULES, Finding, check, findings

from .support import HERE, VERSION, compiled

FLAT = (("FLAT", True),)
GUARDED = {"waits": ("a_ptr",), "persistent": ("a_ptr",), "raises": (), "produces": ()}
PRODUCED = {"produces": ("c_ptr",)}

BROKEN = [
    # rule, file, kernel, options
    ("wait-feeds-load", "waits", "no_wait", ()),
    ("wait-feeds-load", "waits", "value_not_used", ()),
    ("wait-feeds-load", "waits", "feeds_the_wrong_operand", ()),
    ("wait-feeds-load", "waits", "waits_behind_a_condition", ()),
    ("wait-feeds-load", "persistent", "value_not_used", ()),
    ("wait-feeds-load", "persistent", "value_of_the_tile_before", ()),
    ("wait-used", "waits", "value_not_used", ()),
    ("wait-used", "waits", "feeds_the_wrong_operand", ()),
    ("load-after-wait", "waits", "waits_at_chunk_edges", ()),
    ("system-scope", "waits", "device_scope", ()),
    ("system-scope", "raises", "device_scope", ()),
    ("acquire-release", "waits", "relaxed_poll", ()),
    ("acquire-release", "waits", "plain_load_poll", ()),
    ("acquire-release", "raises", "relaxed", ()),
    ("acquire-release", "raises", "plain_store", ()),
    ("count-after-store", "produces", "never_counted", ()),
    ("count-after-store", "produces", "counted_before_the_store", ()),
    ("count-after-store", "produces", "counted_before_the_store_in_a_loop", ()),
    ("count-after-store", "produces", "counted_on_one_path", ()),
    ("acquire-release", "produces", "relaxed", ()),
    ("system-scope", "produces", "device_scope", ()),
    ("wait-kept", "waits", "device_scope", ()),
    ("proxy-fence", "persistent", "no_proxy_fence", ()),
    ("proxy-fence", "persistent", "fence_before_the_wait", ()),
    ("one-cta", "waits", "correct", (("num_ctas", 2),)),
    ("no-warp-specialised-wait", "persistent", "warp_specialised", ()),
    ("tail-reads-carried", "persistent", "counts_the_tile_before", FLAT),
    ("static-shared-memory", "persistent", "declares_memory", ()),
    ("same-engines", "waits", "full_precision", ()),
    ("same-stages", "persistent", "waits_in_the_inner_loop", ()),
    ("same-stages", "persistent", "barrier_in_a_fused_loop", FLAT),
    ("same-shared-memory", "waits", "full_precision", ()),
    ("same-flattening", "persistent", "several_flags_by_a_for_loop", FLAT),
    ("no-spills", "waits", "full_precision", ()),
]

# Triton 3.9 puts the barrier and the wait for the store there itself; until 3.8, or 3.7, the kernel must.
BROKEN_UNTIL = [
    ((3, 9), "callee-shared-memory", "persistent", "calls_a_function"),
    ((3, 9), "barrier-before-release", "raises", "no_barrier"),
    ((3, 9), "barrier-before-release", "raises", "barrier_before_the_store"),
    ((3, 9), "barrier-before-release", "raises", "barrier_on_one_path"),
    ((3, 9), "barrier-before-release", "produces", "no_barrier"),
    ((3, 9), "barrier-before-release", "produces", "no_barrier_behind_atomics"),
    ((3, 8), "store-drained", "raises", "undrained_tma_store"),
    ((3, 8), "store-drained", "produces", "undrained"),
    ((3, 8), "store-drained", "produces", "drained_for_some"),
    ((3, 8), "store-drained", "produces", "drained_for_fewer"),
]

CORRECT = [
    ("waits", "correct", ()),
    ("persistent", "correct", ()),
    ("persistent", "correct", FLAT),
    ("persistent", "counts_the_tile_before", ()),
    ("raises", "correct", ()),
    ("raises", "correct_in_a_loop", ()),
    ("produces", "correct", ()),
    ("produces", "correct_in_a_loop", ()),
    ("produces", "correct_by_tma", ()),
    ("produces", "correct_once_a_run", ()),
    ("produces", "correct_by_atomics", ()),
]


def look(file: str, kernel: str, options: tuple = ()) -> list[Finding]:
    made = compiled(file, kernel, options=options)
    shared = tuple((key, value) for key, value in options if key != "num_ctas")
    original = None if file in ("raises", "produces") else compiled(file, "original", options=shared)
    return check(made, guarded=GUARDED[file], produced=PRODUCED.get(file, ()), original=original)


@pytest.mark.parametrize(("rule", "file", "kernel", "options"), BROKEN)
def test_a_broken_kernel_is_found(rule, file, kernel, options):
    found = look(file, kernel, options)
    assert rule in {finding.rule for finding in found}, found
    assert all(finding.text for finding in found)


@pytest.mark.parametrize(("fixed_in", "rule", "file", "kernel"), BROKEN_UNTIL)
def test_what_a_newer_triton_repairs_is_found_on_the_older(fixed_in, rule, file, kernel):
    found = {finding.rule for finding in look(file, kernel)}
    assert (rule in found) == (VERSION < fixed_in), found


@pytest.mark.parametrize(("file", "kernel", "options"), CORRECT)
def test_a_correct_kernel_breaks_no_rule(file, kernel, options):
    assert [finding for finding in look(file, kernel, options) if finding.severity != "note"] == []


BROKEN_WORDS = {"sent-behind-store", "whole-words"}
"""Seen to fail in test_words_inline.py."""


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_been_seen_to_fail(rule):
    assert rule in {row[0] for row in BROKEN} | {row[1] for row in BROKEN_UNTIL} | BROKEN_WORDS


def test_a_finding_names_the_line_of_the_load():
    (finding,) = [f for f in look("persistent", "no_proxy_fence") if f.rule == "proxy-fence"]
    line = (HERE / "broken/persistent.py").read_text().splitlines()[finding.line - 1]
    assert "a_desc.load" in line


def test_a_guarded_tensor_that_is_never_loaded_is_an_error():
    """Nothing to check is not the same as nothing wrong."""
    found = check(compiled("waits", "correct"), guarded=["a_ptr", "z_ptr"])
    assert [f.text for f in found if f.severity == "error"] == ["no load of `z_ptr` found, so nothing was checked"]


def test_a_poll_that_the_back_end_dropped_is_found():
    made = compiled("waits", "correct")
    without = made.stages["ptx"].replace("sys.acquire", "sys.relaxed")
    assert without != made.stages["ptx"]
    found = check(replace(made, stages={**made.stages, "ptx": without}), guarded=["a_ptr"])
    assert {f.rule for f in found} == {"wait-kept"}


def test_a_barrier_that_the_back_end_dropped_is_found():
    made = compiled("raises", "correct")
    without = made.stages["ptx"].replace("bar.sync", "// bar.sync")
    found = check(replace(made, stages={**made.stages, "ptx": without}), guarded=[])
    assert {f.rule for f in found} == {"barrier-before-release"}


def test_memory_that_assembly_declares_must_fit_beside_the_tiles():
    made = compiled("persistent", "declares_memory")
    aligned = replace(made, stages={**made.stages, "ptx": made.assembly.replace("ol_extra[48]", "ol_extra[1024]")})
    assert aligned.static_bytes == 1024 and 0 < aligned.shared_bytes <= 226 * 1024
    for most, broken in ((226 * 1024, set()), (226 * 1024 + 1, {"static-shared-memory"})):
        found = check(replace(aligned, shared_bytes=most), guarded=["a_ptr"])
        assert {f.rule for f in found} == broken, found


@pytest.mark.parametrize(
    ("declared", "size"),
    [
        (".b8 ol_extra[48];", 48),
        (".align 8 .b64 ol_extra[4];", 32),
        (".align 16 .u16 ol_extra[8][3];", 48),
        (".f32 ol_extra;", 4),
    ],
)
def test_declared_memory_is_counted_in_bytes(declared, size):
    made = compiled("persistent", "declares_memory")
    text = f"\t{{ .shared {declared}\n.extern .shared .align 16 .b8 global_smem[];\n"
    assert replace(made, stages={**made.stages, "ptx": text}).static_bytes == size


def test_the_local_words_of_the_state_may_be_used_at_device_scope():
    """A poll reads its spin limit and takes the fault word at gpu scope: only the same rank touches them."""
    made = compiled("waits", "correct")
    assert "relaxed, gpu" in made.stages["ttir"]
    assert check(made, guarded=["a_ptr"]) == []
    assert findings.LOCAL_WORDS == 16


def test_errors_come_first():
    order = [f.severity for f in look("waits", "full_precision")]
    assert order == sorted(order, key=["error", "warning", "note"].index) and len(set(order)) > 1
