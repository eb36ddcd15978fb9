"""Programs that move chunks by TMA, in machine code: boxes several at a time, and what must stand around them."""

import importlib
import re

import pytest
import torch

import overlap.language.moves as words_that_move
from overlap.build.artifact import compile_kernel, facts
from overlap.build.findings import check
from overlap.build.target import parse_target
from overlap.schedule.moves import BETWEEN_BYTES, BOX_ROWS, BOX_WORDS, SHARED_BYTES, STAGES

from .support import VERSION

KERNEL = """
import triton
import overlap.language as ol
from {words} import move_chunks_async


@triton.jit
def moving_kernel(moves, state):
    move_chunks_async(moves, state, ol.now(state))
"""
BETWEEN_TILES = """
import triton
import triton.language as tl
import overlap.language as ol
from {words} import _SMALL_TMA, _make_part


@triton.jit
def moving_kernel(moves, state):
    boxes = ol.box_memory()
    _make_part(moves, moves + tl.load(moves), tl.program_id(0), 132, state, ol.now(state), _SMALL_TMA, True, boxes)
"""


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """``moving(edit, text)``: a kernel that only moves, for sm_90; ``edit``, an old and a new text, of the words that move."""
    folder = tmp_path_factory.mktemp("moving")
    made = {}

    def make(edit=None, kernel_text=KERNEL):
        key = edit, kernel_text
        if key not in made:
            with open(words_that_move.__file__, encoding="utf-8") as file:
                text = file.read().replace("from .", "from overlap.language.")
            if edit is not None:
                assert text.count(edit[0]) == 1, edit[0]
                text = text.replace(*edit)
            words, kernel = f"boxes_words_{len(made)}", f"boxes_kernel_{len(made)}"
            (folder / f"{words}.py").write_text(text)
            (folder / f"{kernel}.py").write_text(kernel_text.format(words=words))
            table = torch.empty(64, dtype=torch.int64, device="meta")
            arguments = {"moves": table, "state": table}
            kernel = importlib.import_module(kernel).moving_kernel
            made[key] = compile_kernel(kernel, arguments, parse_target("sm_90"), {"num_warps": 8})
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield make


def rules(artifact):
    return {f.rule for f in check(artifact, guarded=(), flags="state", moves="moves", writer="tma store")}


def test_boxes_are_on_the_way_several_at_a_time(moving):
    made = facts(moving())
    boxes = [buffer for buffer in made.buffers if buffer.shape == (BOX_ROWS, BOX_WORDS)]
    # One of the stages is a box's on its way out.
    assert max(buffer.depth for buffer in boxes) == STAGES - 1
    assert made.shared_bytes <= SHARED_BYTES["tma store"] + 256 and made.spill_bytes == 0


def test_the_count_stands_behind_stores_that_have_landed(moving):
    made = moving()
    assert rules(made) == set()
    text = made.assembly
    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared(::\w+)*\.global\S*\.mbarrier", text)
    assert "cp.async.bulk.tensor.2d.global.shared" in text
    landed = re.search(r"cp\.async\.bulk\.wait_group 0;\s*bar\.sync 0;(.*?)atom\.\S*acq_rel\S*", text, re.S)
    assert landed is not None and ".sys." in landed[0] and "$L__BB" not in landed[1]


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("edit", "rule", "repaired"),
    [
        (("turn = after_async(number, seen)", "turn = after(number, seen)"), "proxy-fence", None),
        (("turn = after_async(number, seen)", "turn = number + 0"), "wait-feeds-load", None),
        (("at = landed(at)", "tl.debug_barrier()"), "store-drained", (3, 8)),
    ],
)
def test_broken_words_are_found(moving, edit, rule, repaired):
    """Later Triton versions wait for the store themselves."""
    assert (rule in rules(moving(edit))) == (repaired is None or VERSION < repaired)


def test_small_boxes_are_counted_behind_stores_that_have_landed(moving):
    """Nothing but the assembly waits for its stores: their sources are read when it ends, and they land ahead of the count."""
    made = moving(None, BETWEEN_TILES)
    assert rules(made) == set() and made.static_bytes == BETWEEN_BYTES and facts(made).spill_bytes == 0
    order = [
        r"mbarrier\.try_wait\.parity",
        r"cp\.async\.bulk\.global\.shared::cta\.bulk_group",
        r"cp\.async\.bulk\.commit_group",
        r"cp\.async\.bulk\.wait_group\.read 0;",
        r"cp\.async\.bulk\.wait_group 0;\s*bar\.sync 0;",
        r"atom\.global\.sys\.acq_rel\.add\.u64",
        r"atom\.global\.sys\.release\.exch",
    ]
    places = [[found.start() for found in re.finditer(what, made.assembly)] for what in order]
    assert [len(found) for found in places] == [1] * len(order) and sum(places, []) == sorted(sum(places, []))


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (("turn = after_async(number, seen)", "turn = after(number, seen)"), "proxy-fence"),
        (("turn = after_async(number, seen)", "turn = number + 0"), "wait-feeds-load"),
        (("at = landed(at)", "tl.debug_barrier()"), "store-drained"),
    ],
)
def test_broken_words_between_tiles_are_found(moving, edit, rule):
    assert rule in rules(moving(edit, BETWEEN_TILES))


def test_what_calibration_times_is_what_moving_programs_do(moving):
    """Its kernels compile, and that by TMA has as many boxes on the way."""
    from overlap.autotune.calibrate import copy_kernel

    words, bytes_ = (torch.empty(8192, dtype=dtype, device="meta") for dtype in (torch.int64, torch.int32))
    target, launch = parse_target("sm_90"), {"num_warps": 8}
    boxes = compile_kernel(copy_kernel.copy_piece, {"piece_ptr": words}, target, launch)
    assert facts(boxes).buffers and set(facts(boxes).buffers) < set(facts(moving()).buffers)
    for kernel, arguments in (
        (copy_kernel.copy_words, {"dst_ptr": bytes_, "src_ptr": bytes_, "count": 8192, "WORDS": copy_kernel.WORDS}),
        (copy_kernel.nothing, {"word_ptr": bytes_}),
    ):
        assert compile_kernel(kernel, arguments, target, launch).binary
