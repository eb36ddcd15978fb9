"""Kernels whose computing programs move chunks: what stands ahead of waits, where programs end, and in which form."""

import textwrap

import libcst as cst
import pytest

from overlap.backends.base import Realization
from overlap.codegen.passes import dispatch, interleave, kernel_signature, reserve
from overlap.errors import CodegenError

from .test_passes import SOURCE, context
from .test_reserve import persistent

BETWEEN = Realization("ldst_inline")
LEFT = "# What is left of them.\n"


def interleaved(text: str) -> str:
    given = context(text, realization=BETWEEN)
    module = cst.parse_module(text)
    for run in (kernel_signature.run, dispatch.run, reserve.run, interleave.run):
        module = run(module, given)
    return module.code


def block(text: str, indent: int) -> str:
    return textwrap.indent(textwrap.dedent(text).lstrip("\n"), " " * indent)


def test_one_tile_a_program():
    text = interleaved(SOURCE)
    assert "ol_table, ol_state, ol_moves):" in text
    assert block("ol_epoch = ol.now(ol_state)\nol_step = 0\n", 4) in text
    ahead = """
        # This program's parts of moves: what is due, and all that must have begun before it waits.
        ol_step = ol.move_some(ol_moves, ol_state, ol_epoch, ol_step, ol_table, ol_run)
        # Wait for the run's chunks of a; its loads depend on the wait through i.
        ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
    """
    assert block(ahead, 4).rstrip() in text
    end = text[: text.index("# @overlap.host_entry")].rstrip()
    assert end.endswith(block(f"{LEFT}ol.move_rest(ol_moves, ol_state, ol_epoch, ol_step)", 4))
    assert "pid = tl.program_id(0)" in text and text.count("move_some") == 1 and "computing" not in text


def test_flattened_loops_have_the_other_barrier():
    text = interleaved(persistent("range"))
    assert "    ol_step = ol.move_some_async(" in text and "    ol.move_rest_async(" in text
    assert "for tile in tl.range(start, total, PROGRAMS, flatten=True):" in text
    assert "ol.move_some(" in interleaved(persistent("by the grid"))


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("if pid > 9: return", "if pid > 9:\n    {}return"),
        ("if pid > 9:\n    return  # none left", "if pid > 9:\n    {}return  # none left"),
        ("if pid > 9:\n    x = 0; return", "if pid > 9:\n    x = 0\n    {}return"),
    ],
)
def test_parts_are_made_ahead_of_every_return(line, made):
    head = "    pid = tl.program_id(0)\n"
    assert SOURCE.count(head) == 1
    text = interleaved(SOURCE.replace(head, head + block(line + "\n", 4)))
    rest = f"{LEFT}    ol.move_rest(ol_moves, ol_state, ol_epoch, ol_step)\n    "
    assert block(made.format(rest) + "\n", 4) in text
    assert text.count(LEFT) == 2


def test_a_return_at_the_end_is_the_end():
    store = next(line for line in SOURCE.splitlines() if line.lstrip().startswith("tl.store"))
    text = interleaved(SOURCE.replace(store, f"{store}\n    return"))
    assert (
        text.count(LEFT) == 1
        and block(f"{LEFT}ol.move_rest(ol_moves, ol_state, ol_epoch, ol_step)\nreturn\n", 4) in text
    )


def test_other_backends_pass_through():
    module = cst.parse_module(SOURCE)
    for name in ("copy_engine", "ldst_reserved"):
        assert interleave.run(module, context(realization=Realization(name))) is module


def test_a_kernel_without_a_wait_is_no_kernel_to_move_in():
    with pytest.raises(CodegenError, match="no wait that moves could stand ahead of"):
        interleave.run(cst.parse_module(SOURCE), context(realization=BETWEEN))
