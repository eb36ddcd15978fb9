"""Kernels whose own tiles add what others have sent: two loops, and what is refused with its line and what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overlap.annotate.source import SourceUnit
from overlap.errors import UnsupportedError
from overlap.pipeline import Request, compile_source

ROOT = Path(__file__).parents[3]
HOST = (ROOT / "tests/kernels/host_descriptors.py").read_text()
STORE = "        c_desc.store([pid_m * BM, pid_n * BN], acc.to(DTYPE))\n"
LOOP = "    for tile in tl.range(start, rows * cols, NUM_SMS):\n"
COUNTING = """\
    # @overlap.tile_id persistent
    tile = tl.program_id(0) - NUM_SMS
    for _ in tl.range(0, tl.cdiv(rows * cols - start, NUM_SMS), 1):
        tile += NUM_SMS
"""


def compiled(text: str, *, plan: str = "reduce_scatter_1d", on: str = "c[M]", **settings: str) -> str:
    assert settings or text
    request = Request(
        SourceUnit.from_text(text, "kernel.py"), plan=plan, on=on, settings={"tile_sums": "1", **settings}
    )
    return compile_source(request).module.text


def loops(text: str) -> list[str]:
    body = text[text.index("ol_own_tiles = ") : text.index("def ol_tile_map")]
    first, second = re.split(r"^    # The tiles of the rank's own part.*\n", body, flags=re.MULTILINE)
    return [first, second]


def test_tiles_that_are_sent_and_own_ones_have_loops_of_their_own():
    sent, own = loops(compiled(HOST))
    assert "for tile in tl.range(start, min(rows * cols, ol_own_tiles), NUM_SMS):" in sent
    assert (
        "ol_next_tile = ol.next_tile(start, ol_own_tiles, NUM_SMS)\n    for tile in tl.range(ol_next_tile, rows * cols, NUM_SMS):"
        in own
    )
    assert (
        STORE in sent and "ol.produced_once(ol_table, ol_run, ol_state, tile, NUM_SMS)" in sent and "wait" not in sent
    )
    assert STORE not in own and "produced" not in own and "@overlap" not in own
    assert own.index("ol.place(") < own.index("ol.wait_summands(") < own.index("pid_m = ol.after(pid_m, ol_seen)")
    assert own.index("ol.after(") < own.index("tl.zeros") < own.index("ol.finish_tile(")


def test_without_it_there_is_one_loop():
    text = compiled(HOST, tile_sums="0")
    assert text.count("for tile in") == 1 and "own_tiles" not in text and "ol_summands" not in text


@pytest.mark.parametrize(
    "loop", [LOOP.replace("):", ", flatten=True):"), LOOP.replace("NUM_SMS)", "NUM_SMS, num_stages=2)")]
)
def test_what_else_a_loop_asks_for_both_ask_for(loop):
    sent, own = loops(compiled(HOST.replace(LOOP, loop)))
    (asked,) = re.findall(r"NUM_SMS(, .*)\):", loop)
    assert f"NUM_SMS{asked}):" in sent and f"NUM_SMS{asked}):" in own


@pytest.mark.parametrize(
    "store",
    [
        "        c_desc.store(value=acc.to(DTYPE), offsets=[pid_m * BM, pid_n * BN])\n",
        "        tl.store_tensor_descriptor(c_desc, [pid_m * BM, pid_n * BN], acc.to(DTYPE))\n",
    ],
)
def test_every_way_to_write_a_store(store):
    _, own = loops(compiled(HOST.replace(STORE, store)))
    flat = " ".join(own.split())
    assert (
        "ol.finish_tile( ol_result, acc.to(DTYPE), ol_table, ol_run, ol_sums, ol_summands, pid_m * BM, pid_n * BN, )"
        in flat
    )


@pytest.mark.parametrize(
    ("text", "how", "said"),
    [
        (
            HOST,
            {"on": "c[]", "plan": "all_reduce_two_shot"},
            r"one reduce-scattered result by copy_engine, not for c\[\]",
        ),
        (HOST, {"on": "a[M]", "plan": "all_gather_1d"}, r"not for a\[M\]"),
        (HOST, {"on": "c[M]", "backend": "tma_inline"}, r"not for c\[M\] by tma_inline"),
        (HOST.replace(STORE, STORE + STORE), {}, "stored by several statements"),
        (
            HOST.replace("tl.range(start, rows * cols, NUM_SMS)", "tl.range(start, rows * cols, step=NUM_SMS)"),
            {},
            "its start, end and step",
        ),
        (
            HOST.replace(f"    # @overlap.tile_id persistent\n{LOOP}", COUNTING),
            {},
            "no tile_id names `_`, which this one is over",
        ),
        (
            (ROOT / "templates/kernels/persistent_gemm.py").read_text(),
            {},
            "does not store through a descriptor of the host",
        ),
        (
            (ROOT / "templates/kernels/grouped_gemm.py").read_text(),
            {},
            "does not store through a descriptor of the host",
        ),
    ],
    ids=[
        "all-reduce",
        "input",
        "another backend",
        "stored twice",
        "a loop without a step",
        "a loop that counts",
        "device descriptor",
        "pointers",
    ],
)
def test_what_cannot_is_refused(text, how, said):
    with pytest.raises(UnsupportedError, match=said) as raised:
        compiled(text, **how)
    assert raised.value.where is not None and "tile_sums" in raised.value.message and raised.value.help
