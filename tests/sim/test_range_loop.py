"""A gather along K, consumed inside the in-tile loop: agrees with the original kernel, and what is taken away is found.

Parts add in another order than the original does, so results are equal within the rounding of K terms.
"""

# ruff: noqa: E501  (a table, one case a line)
from __future__ import annotations

import itertools
import os
import re

import pytest
import triton

from overlap.annotate.source import SourceUnit
from overlap.errors import RuntimeContractError
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module

from .test_proof_matrix import pairwise, thinned

KERNELS = ("grouped_gemm", "persistent_gemm", "gemm_2d")
PLANS = ("all_gather_1d", "all_gather_1d_push", "all_gather_ring")
WORLDS = (1, 2, 3, 4, 5)
DEPTHS = (1, 48, 130, 1000, 3)
DTYPES = ("fp16", "bf16", "fp32")
ON = ("a[K]", "b[K]", "a[K] b[K]")
FACTORS = (KERNELS, PLANS, WORLDS, DEPTHS, DTYPES, ON)
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
CASES = list(itertools.product(*FACTORS)) if SWEEP else pairwise(FACTORS)


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """Compiles a kernel once a plan and tensors; with edits, another file."""
    folder = tmp_path_factory.mktemp("ranges")
    made = {}

    def make(path: str, on: str, plan: str = "all_gather_1d", edits: tuple[tuple[str, str], ...] = ()) -> str:
        key = (path, on, plan, edits)
        if key not in made:
            ons = on.split()
            request = Request(SourceUnit.from_file(repo / path), plan=[plan] * len(ons), on=ons)
            text = compile_source(request).module.text
            for old, new in edits:
                assert text.count(old) == 1, f"{text.count(old)} times in the generated module: {old}"
                text = text.replace(old, new)
            out = folder / f"{len(made)}_out.py"
            out.write_text(text)
            made[key] = str(out)
        return made[key]

    return make


def template(name: str) -> str:
    return f"templates/kernels/{name}.py"


@pytest.mark.parametrize("kernel,plan,world,depth,dtype,on", thinned(CASES))
def test_agrees_with_the_original(generated, kernel, plan, world, depth, dtype, on):
    if kernel == "persistent_gemm":
        depth = -(-depth // 8) * 8  # rows that TMA can take
    report = check_module(
        generated(template(kernel), on, plan),
        world=world,
        shape={"M": 66, "N": 40, "K": depth},
        dtype=dtype,
        seeds=range(20) if SWEEP else [0],
        launches=2,
    )
    assert report.ok, str(report)


OTHERS = {
    # kernel: gathered tensors, sizes
    "host_descriptors": ("a[K]", {"M": 66, "N": 40, "K": 136}),
    "listing1": ("a[K] b[K]", {"M": 66, "N": 40, "K": 136}),
    "nested_alias": ("x[K]", {"M": 66, "N": 40, "K": 100}),
    "persistent_epilogue_tile": ("a[K]", {"M": 130, "N": 72, "K": 97}),
    "range_counters": ("a[K] v[K]", {"M": 66, "N": 40, "K": 97}),
    "range_twice": ("a[K]", {"M": 66, "N": 40, "K": 97}),
    "wrapped_rows": ("a[K]", {"M": 66, "N": 72, "K": 64}),
}
if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 9):  # later ones have no block pointers
    OTHERS["range_block_pointers"] = ("a[K]", {"M": 66, "N": 40, "K": 100})


@pytest.mark.parametrize("name", OTHERS)
def test_kernels_of_other_styles(generated, name):
    on, shape = OTHERS[name]
    path = generated(f"tests/kernels/{name}.py", on)
    report = check_module(path, world=3, shape=shape, dtype="fp16", seeds=[0], launches=2)
    assert report.ok, str(report)


def test_rows_are_gathered_for_tiles_and_depth_for_the_loop(generated):
    """One tensor is waited for before a tile begins, the other inside its loop."""
    path = generated(template("grouped_gemm"), "a[M] b[K]")
    text = open(path).read()
    assert text.count("ol.wait_run(ol_table") == 1 and text.count("ol.wait_run(ol_parts") == 1
    report = check_module(path, world=3, shape={"M": 130, "N": 40, "K": 100}, dtype="fp16", seeds=[0, 1], launches=2)
    assert report.ok, str(report)


@pytest.mark.parametrize("on,plans", [("c[M]", "reduce_scatter_1d"), ("c[]", "all_reduce_two_shot")])
def test_gathered_in_the_loop_and_summed_behind_it(repo, tmp_path, on, plans):
    unit = SourceUnit.from_file(repo / template("grouped_gemm"))
    path = tmp_path / "out.py"
    path.write_text(compile_source(Request(unit, plan=["all_gather_1d", plans], on=["a[K]", on])).module.text)
    report = check_module(str(path), world=3, shape={"M": 66, "N": 40, "K": 100}, dtype="fp16", seeds=[0], launches=2)
    assert report.ok, str(report)


@pytest.mark.parametrize("world", [1, 3])
def test_an_axis_of_no_elements(generated, world):
    for axis in ("M", "N", "K"):
        shape = {"M": 66, "N": 40, "K": 48} | {axis: 0}
        report = check_module(generated(template("grouped_gemm"), "a[K]"), world=world, shape=shape, launches=2)
        assert report.ok, str(report)


def test_a_flattened_tile_loop(generated):
    path = generated(template("persistent_gemm"), "a[K]")
    for flattened in (True, False):
        report = check_module(
            path, world=3, shape={"M": 130, "N": 40, "K": 40}, seeds=[0], sms=2, flattened=flattened, launches=2
        )
        assert report.ok, str(report)


def test_a_launch_on_another_extent_is_refused(generated):
    path = generated(
        template("grouped_gemm"),
        "a[K]",
        edits=(("        N,\n        K,\n        a.stride(0),", "        N,\n        K - 1,\n        a.stride(0),"),),
    )
    with pytest.raises(RuntimeContractError, match="the launch passes K=47; `a` has 48 along K"):
        check_module(path, world=2, shape={"M": 66, "N": 40, "K": 48}, launches=1)


# What is taken away is found. The reference run of each mutation is `test_the_module_as_compiled_passes`.

SHAPE = {"M": 66, "N": 40, "K": 130}
SEEDS = range(2)
WAIT = "        ol_part_seen = ol.wait_run(ol_parts, ol_piece, ol_state, ol_epoch)\n"
FIRST = "        ol_first = ol.after(ol.origin(ol_parts, ol_piece, 0), ol_part_seen)\n"
FREE = "        ol_first = ol.origin(ol_parts, ol_piece, 0)\n"
INNER = "        for k in range(ol_first, ol_first + ol.count(ol_parts, ol_piece, 0)):\n"
RESET_B = "        b_ptrs = ol.advanced(ol_b_ptrs_start, ol_first, BLOCK_K * stride_bk)\n"
RESET = "        a_ptrs = ol.advanced(ol_a_ptrs_start, ol_first, BLOCK_K * stride_ak)\n"
LOAD_B = "            b = tl.load(b_ptrs"
PARTS = "    for ol_part in range(ol.runs(ol_parts)):\n"
STORE = "    c_ptrs = c_ptr"

MUTATIONS = {
    "the wait removed": (((WAIT, "        ol_part_seen = ol_epoch\n"),), "race"),
    "the wait behind the loop that loads": (((WAIT + "        # Blocks of the part; the loads below depend on the wait through the first.\n" + FIRST, FREE), (STORE, "        ol.wait_run(ol_parts, ol_piece, ol_state, ol_epoch)\n" + STORE)), "race"),
    "the wait inside the loop, behind its load": (((WAIT + "        # Blocks of the part; the loads below depend on the wait through the first.\n" + FIRST, FREE), (LOAD_B, "    " + WAIT + LOAD_B)), "race"),
    "the wait for another part": (((WAIT, WAIT.replace("ol_piece,", "ol.run_at(ol_parts, 0),")),), "race"),
    "a pointer that is not reset": (((RESET, ""),), "race"),
    "a pointer into the rank's own data that is not reset": (((RESET_B, ""),), "stray access"),
    "a pointer into the rank's own data that every part starts anew": (((RESET_B, RESET_B.replace("ol_first,", "ol_first * 0,")),), "mismatch"),
    "a pointer that is reset one block off": (((RESET, RESET.replace("ol_first,", "ol_first + 1,")),), None),
    "the last part left out": (((PARTS, PARTS.replace("ol.runs(ol_parts)", "ol.runs(ol_parts) - 1")),), "mismatch"),
    "a block left out": (((INNER, INNER.replace("ol.count(ol_parts, ol_piece, 0)", "ol.count(ol_parts, ol_piece, 0) - 1")),), "mismatch"),
    "a part taken twice": (((PARTS, PARTS + "        ol_part = ol_part // 2 * 2\n"),), "mismatch"),
}  # fmt: skip


@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push", "all_gather_ring"])
def test_the_module_as_compiled_passes(generated, plan):
    report = check_module(
        generated(template("grouped_gemm"), "a[K]", plan), world=3, shape=SHAPE, dtype="fp16", seeds=SEEDS
    )
    assert report.ok, str(report)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_found(generated, name):
    edits, kind = MUTATIONS[name]
    path = generated(template("grouped_gemm"), "a[K]", edits=edits)
    for seed in SEEDS:
        report = check_module(path, world=3, shape=SHAPE, dtype="fp16", seeds=[seed])
        assert not report.ok and kind in (None, report.faults[0].kind), str(report)


@pytest.mark.parametrize("kernel", ["persistent_gemm", "gemm_2d"])
def test_every_template_without_its_wait_races(generated, kernel, tmp_path):
    text = open(generated(template(kernel), "a[K]")).read()
    text, count = re.subn(r"ol\.wait_run\(ol_parts[^()]*\)", "ol_epoch", text)
    assert count == 1
    path = tmp_path / "out.py"
    path.write_text(text)
    for seed in range(3):
        report = check_module(str(path), world=3, shape={"M": 66, "N": 40, "K": 136}, dtype="fp16", seeds=[seed])
        assert report.faults[0].kind == "race", str(report)


def test_a_straddling_block_that_waits_for_the_earlier_chunk_only(generated, monkeypatch):
    """130 elements on 3 ranks in blocks of 32: blocks 1 and 2 hold elements of two ranks."""
    import dataclasses

    from overlap.runtime.tables import ranges

    whole = ranges.to_words

    def fewer(schedule, flags, **more):
        *others, last = schedule.runs
        return whole(dataclasses.replace(schedule, runs=(*others, dataclasses.replace(last, waits=()))), flags, **more)

    monkeypatch.setattr(ranges, "to_words", fewer)
    report = check_module(generated(template("grouped_gemm"), "a[K]"), world=3, shape=SHAPE, dtype="fp16", seeds=[0])
    assert report.faults[0].kind == "race", str(report)
