"""Where tiles are counted, and what modules of several communicated tensors say."""

from __future__ import annotations

import libcst as cst
import pytest

from overlap.codegen.passes import dispatch, host_entry, kernel_signature, operator, produce, unflatten
from overlap.errors import CodegenError

from .test_passes import SOURCE, after, context

STORE = "    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))\n"
COUNTED = "    # Count the tile into the chunks of c that it is part of.\n    ol.produced(ol_table, ol_run, ol_state)\n"


def persistent(options: str = "", source: str = SOURCE) -> str:
    """The kernel as a loop over tiles, whose range gets further ``options``."""
    head, tail = source.split("    # @overlap.tile_id\n    pid = tl.program_id(0)\n")
    counts, rest = tail.split("    # @overlap.dispatch begin\n")
    body, host = rest.split("\n\n\n# @overlap.host_entry")
    inner = "".join(f"    {line}\n" for line in ("    # @overlap.dispatch begin\n" + body).splitlines())
    loop = "    # @overlap.tile_id persistent\n    for pid in tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), 4"
    return f"{head}{counts}{loop}{options}):\n{inner}\n\n# @overlap.host_entry{host}"


def walked(loop: str) -> str:
    """The kernel as another loop over tiles."""
    written = "tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), 4)"
    assert written in persistent()
    return persistent().replace(written, loop)


def test_behind_the_store():
    assert STORE + COUNTED in after(produce.run, on="c[M]")


def test_a_kernel_that_only_consumes_passes_through():
    assert after(produce.run, on="a[M]") == SOURCE


def test_lines_above_the_kernel_do_not_matter():
    """The store is found again by its distance to `def`, whatever earlier passes put above."""
    module = cst.parse_module("import one\nimport two\n" + SOURCE)
    assert STORE + COUNTED in produce.run(module, context(SOURCE, on="c[M]")).code


def test_behind_the_statement_that_holds_the_last_store():
    """A store in a branch or a loop: every tile is counted once, in the block of the dispatch region."""
    branch = f"    if M > BM:\n    {STORE}    else:\n    {STORE}"
    assert branch + COUNTED in after(produce.run, SOURCE.replace(STORE, branch), on="c[M]")
    loop = f"    for part in tl.static_range(2):\n    {STORE}"
    assert loop + COUNTED in after(produce.run, SOURCE.replace(STORE, loop), on="c[M]")


def test_statements_behind_the_store_stay_behind_the_count():
    text = after(produce.run, SOURCE.replace(STORE, STORE + "    # Done.\n    tl.debug_barrier()\n"), on="c[M]")
    assert STORE + COUNTED + "    # Done.\n    tl.debug_barrier()\n" in text


def test_in_a_tile_loop():
    text = persistent()
    indented = "".join(f"    {line}\n" for line in (STORE + COUNTED).splitlines())
    assert indented in after(produce.run, text, on="c[M]")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("", "produced"),
        (", flatten=False", "produced"),
        (", flatten=None", "produced"),
        (", flatten=True", "produced_once"),
        (", flatten=BK > 32, num_stages=2", "produced_once"),
    ],
)
def test_a_flattened_loop_is_counted_by_another_word(options, word):
    """Once for all of a program's tiles of a run."""
    walk = ", pid, 4" if word == "produced_once" else ""
    text = persistent(options)
    assert "for pid in" in text
    assert f"        ol.{word}(ol_table, ol_run, ol_state{walk})\n" in after(produce.run, text, on="c[M]")


@pytest.mark.parametrize(
    ("loop", "walk"),
    [
        ("tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), 4, flatten=True)", "pid, 4"),
        (
            "tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), step=tl.num_programs(0), flatten=True)",
            "pid, tl.num_programs(0)",
        ),
        ("tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), rows, flatten=True)", "pid, rows"),
    ],
)
def test_a_count_of_all_tiles_of_a_run_names_the_step(loop, walk):
    assert f"ol.produced_once(ol_table, ol_run, ol_state, {walk})\n" in after(produce.run, walked(loop), on="c[M]")


def test_where_the_step_is_another_number_by_then_every_tile_is_counted():
    text = walked("tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), rows, flatten=True)")
    assert STORE in text
    indented = "".join(f"    {each}\n" for each in STORE.splitlines())
    found = after(
        produce.run, text.replace(indented, f"{indented}        for rows in range(1):\n            pass\n"), on="c[M]"
    )
    assert "produced_once" not in found and "ol.produced_async(ol_table, ol_run, ol_state)" in found


@pytest.mark.parametrize(
    "loop",
    [
        "tl.range(tl.program_id(0), tl.minimum(tl.program_id(0) + 1, rows * tl.cdiv(N, BN)), 1, flatten=True)",
        "tl.range(tl.program_id(0), tl.minimum(last, rows * tl.cdiv(N, BN)), 1, flatten=True)",
        "tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), step=last, flatten=True)",
    ],
)
def test_where_loops_end_or_step_as_programs_do_every_tile_is_counted(loop):
    """Which tile is a program's last of a run its end says then, and not the run's."""
    ahead = "    first = tl.program_id(0)\n    last = first + 1\n    # @overlap.tile_id persistent\n"
    text = walked(loop).replace("    # @overlap.tile_id persistent\n", ahead)
    found = after(produce.run, text, on="c[M]")
    assert "produced_once" not in found and "ol.produced_async(ol_table, ol_run, ol_state)" in found


def test_what_is_stored_by_descriptor_is_counted_by_another_word():
    text = SOURCE.replace(
        STORE,
        "    out = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])\n"
        "    out.store([i * BM, j * BN], acc)\n",
    )
    assert "    out.store([i * BM, j * BN], acc)\n" + COUNTED.replace("produced", "produced_async") in after(
        produce.run, text, on="c[M]"
    )


def test_the_run_of_the_region_that_the_store_uses():
    """A second tile id for the epilogue, as kernels have it whose tile loop is flattened."""
    region = """\
        pid2 += 4
        # @overlap.dispatch begin
        # @overlap.pid_map M=i2 N=j2
        i2 = pid2 % rows
        j2 = pid2 // rows
        # @overlap.dispatch end
        m2 = i2 * BM + tl.arange(0, BM)
"""
    text = persistent(", flatten=True").replace("        # Column-major.\n", "")
    text = text.replace("        tl.store(c + m[", f"{region}        tl.store(c + m2[")
    loop = "    # @overlap.tile_id persistent\n"
    text = text.replace(loop, f"    # @overlap.tile_id\n    pid2 = tl.program_id(0) - 4\n{loop}")
    assert "        ol.produced_async(ol_table, ol_run_1, ol_state)\n" in after(produce.run, text, on="c[M]")


def test_a_store_that_went_missing_is_an_error():
    gone = SOURCE.replace(STORE, "")
    with pytest.raises(CodegenError, match="no store to `c`"):
        produce.run(cst.parse_module(gone), context(on="c[M]"))


def test_the_epoch_is_read_only_where_something_waits():
    assert "ol_epoch" not in after(kernel_signature.run, on="c[M]")
    assert "ol_epoch = ol.now(ol_state)" in after(kernel_signature.run, on=["a[M]", "c[M]"])
    assert "ol.wait_run" not in after(dispatch.run, on="c[M]")


def test_waits_for_two_inputs_pass_through_both_coordinates():
    text = after(dispatch.run, on=["a[M]", "b[N]"])
    assert (
        """\
    # Wait for the run's chunks of a and b; their loads depend on the wait through i and j.
    ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
    i = ol.after(i, ol_seen)
    j = ol.after(j, ol_seen)
"""
        in text
    )


def test_an_exchanged_input_waits_through_the_axis_the_rank_has_its_part_of():
    assert "    i = ol.after(i, ol_seen)\n    m = " in after(dispatch.run, on="a[K:M]")


def test_unflatten():
    text = persistent(", flatten=True, num_stages=2")
    made = after(unflatten.run, text, flatten=False)
    assert "rows * tl.cdiv(N, BN), 4, num_stages=2):\n" in made and unflatten.NOTE in made
    made = after(unflatten.run, persistent(", flatten=True"), flatten=False)
    assert "rows * tl.cdiv(N, BN), 4):\n" in made
    assert after(unflatten.run, text) == text
    with pytest.raises(CodegenError, match="no flattened tile loop"):
        after(unflatten.run, SOURCE, flatten=False)


def test_the_operator_of_two_tensors():
    lines = "\n".join(operator.operator_lines(context(on=["a[M]", "c[N]"])))
    assert "    plan=(OL_PLAN, OL_PLAN_1),\n" in lines
    assert '    on=("a[M]", "c[N]"),\n' in lines
    assert '    reads=(\n        ol_rt.Read("a", axes=("M", None), wraps=(False, False)),\n    ),\n' in lines
    assert '    writes=(\n        ol_rt.Write("c", axes=("M", "N")),\n    ),\n' in lines


def test_the_operator_of_a_result():
    lines = "\n".join(operator.operator_lines(context(on="c[]")))
    assert '    plan=OL_PLAN,\n    on="c[]",\n' in lines and "    reads=(),\n    writes=(\n" in lines


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("a[M]", "a is passed as its shard along M, everything else belongs to the rank."),
        ("c[N]", "c is the sum of the ranks' results, returned as its shard along N; everything\n    passed belongs"),
        ("c[]", "c is the sum of the ranks' results, returned whole; everything passed belongs"),
        ("a[K:M]", "a is passed as its shard along K (the kernel works on the rank's part of M),\n    everything else"),
        ("c[M:N]", "c is made for the rank's part of M and returned as its shard along N;"),
    ],
)
def test_the_host_function_says_what_is_passed_and_returned(on, said):
    made = context(on=on)
    assert said in host_entry._doc(made)
    assert max(map(len, host_entry._doc(made).splitlines())) <= 120
