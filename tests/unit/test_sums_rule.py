"""When operators leave multiprocessors to sums: what was measured, and that nothing depends on a device's size."""

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.ops.gemm_exchange import PLAN as EXCHANGE
from overlap.ops.gemm_exchange import default_split as exchange_split
from overlap.ops.reduce_gemm import ONE_SHOT, TWO_SHOT, default_split
from overlap.ops.sums import in_whole_tiles, offered_sums, tiles_in_time
from overlap.schedule.carried import Way
from overlap.schedule.machine import load_machine
from overlap.schedule.predict import predict

GEMM = {"itemsize": 2, "moved": 2, "units": 132}


@pytest.mark.parametrize(
    ("shape", "world", "again", "split", "wanted"),
    [
        # Faster with 4 of 132 on two H200s (bench/results/sums).
        ((8192, 4096, 3584), 2, True, 4, 4),
        ((8192, 8192, 7168), 2, True, 4, 4),
        ((16384, 16384, 4096), 2, False, 4, 4),
        # Faster with 4 of 132 on four H200s, where half is added up early (the same).
        ((8192, 8192, 2048), 4, False, 2, 4),
        ((8192, 4096, 3584), 4, False, 2, 4),
        ((16384, 16384, 4096), 4, False, 2, 4),
        ((8192, 8192, 7168), 4, False, 2, 4),
        # Slower: the sums take longer than the product.
        ((8192, 8192, 2048), 2, False, 4, 0),
        # 63 waves of tiles become 64, and less than that is added up.
        ((16384, 16384, 16384), 2, False, 4, 0),
        # Nothing to add up early.
        ((8192, 8192, 7168), 2, True, 1, 0),
        ((8192, 8192, 7168), 1, True, 4, 0),
        # Too short to wait for anybody.
        ((512, 4096, 7168), 4, False, 2, 0),
        # The last part is what is left to the whole device.
        ((8192, 4096, 3072), 2, True, (1, 7), 4),
        ((8192, 4096, 3072), 2, True, (7, 1), 0),
        ((8192, 4096, 3584), 2, True, ((1,), (1, 1), (3, 1)), 4),
    ],
)
def test_what_is_left_free(shape, world, again, split, wanted):
    assert offered_sums(*shape, world=world, again=again, split=split, **GEMM) == wanted


def test_small_devices_leave_nothing():
    assert offered_sums(1 << 14, 1 << 14, 1 << 14, world=4, again=True, split=4, itemsize=2, moved=2, units=31) == 0


@pytest.mark.parametrize(
    ("plan", "mebibytes", "world", "wanted"),
    [
        (TWO_SHOT, 128, 4, 4),
        (TWO_SHOT, 127, 4, 2),
        (TWO_SHOT, 64, 4, 2),
        (TWO_SHOT, 63, 4, 1),
        (TWO_SHOT, 64, 2, 4),
        (ONE_SHOT, 128, 4, 1),
        (TWO_SHOT, 128, 8, 2),
        (TWO_SHOT, 127, 8, 1),
    ],
)
def test_parts_of_an_all_reduce(plan, mebibytes, world, wanted):
    assert default_split(plan, mebibytes << 20, world) == wanted
    assert default_split(plan, mebibytes << 20, world, "copy_engine") == wanted
    assert default_split(plan, mebibytes << 20, world, "ldst_inline") == 1


@pytest.mark.parametrize(
    ("mebibytes", "world", "backend", "wanted"),
    [(128, 4, None, 2), (128, 4, "copy_engine", 2), (127, 4, None, 1), (128, 8, None, 1), (128, 4, "ldst_inline", 1)],
)
def test_pieces_that_are_exchanged(mebibytes, world, backend, wanted):
    assert exchange_split(EXCHANGE, mebibytes << 20, world, backend) == wanted


@pytest.mark.parametrize(
    ("shape", "split", "wanted"),
    [
        # Faster with 4 of 132 on four H200s (bench/results/sums/gemm_a2a_h200x4.json).
        ((16384, 4096, 4096), 2, 4),
        ((8192, 8192, 8192), 2, 4),
        ((16384, 4096, 4096), 1, 0),
        # Moving half of it takes longer than the product.
        ((16384, 4096, 1024), 2, 0),
    ],
)
def test_what_is_left_free_for_pieces_that_are_exchanged(shape, split, wanted):
    assert offered_sums(*shape, world=4, again=False, split=split, exchanged=True, **GEMM) == wanted


@pytest.mark.parametrize(
    ("rows", "world", "split", "wanted"),
    [
        (8192, 4, 2, True),
        (8192, 4, 1, True),
        (8192, 3, 1, False),
        (768, 3, 2, True),
        (768, 3, (3, 1), True),
        (768, 3, (7, 1), False),
        (1024, 2, (3, 1), True),
        (511, 4, 1, True),
        (510, 4, 2, False),
        (500, 4, 1, False),
        (130, 4, 1, False),
        (100, 1, 3, True),
        (0, 4, 2, True),
        (64, 4, 1, False),
        (1024, 2, ((1,), (1,), (3, 1)), True),
        (768, 2, ((1,), (1,), (3, 1)), False),
    ],
)
def test_chunks_are_whole_tiles_where_no_tile_makes_parts_of_two(rows, world, split, wanted):
    """Against the plan itself: every chunk begins at a multiple of the block."""
    block = 64 if rows in (510, 768) else 128
    assert in_whole_tiles(rows, world, split, block) == wanted
    path, text = find_template("reduce_scatter_1d")
    spec = TensorSpec("c", (rows, 8))
    plan = build_plan(text, world=world, tensor=spec, dim=0, split=split, direction="push", path=path)
    begins = {op.src.box.lo[0] for _, op in plan.items() if not op.src.box.empty}
    assert all(begin % block == 0 for begin in begins) == wanted


@pytest.mark.parametrize(
    ("tiles", "world", "split", "wanted"),
    [
        # 8192, 8192 and 8192, 4096 in tiles of 128 x 256: faster on two H200s (bench/results/sums), in two pieces and four.
        (2048, 2, 2, True),
        (1024, 2, 4, True),
        (2048, 2, (1, 2, 1), True),
        # A third slower there in one piece, and a fifth in 3:1.
        (2048, 2, 1, False),
        (2048, 2, (3, 1), False),
        # Own parts of less than a wave and a half: own tiles would wait for the first that are sent. 512, 8192 has 128 tiles.
        (128, 2, 2, False),
        (395, 2, 2, False),
        (396, 2, 2, True),
        # On more than two ranks it has not been measured.
        (8192, 3, 2, False),
        (8192, 4, 2, False),
        # Nothing comes.
        (1, 1, 1, True),
    ],
)
def test_where_tiles_add_if_nobody_says(tiles, world, split, wanted):
    assert tiles_in_time(tiles, world, split, 132) == wanted


@pytest.mark.parametrize(
    ("rows", "split"), [(512, 2), (1024, 2), (2048, 2), (8192, 1), (8192, 2), (8192, 4), (8192, (3, 1))]
)
def test_what_is_predicted_adds_where_calls_do(rows, split, monkeypatch):
    """The model cuts that product as calls do, and its tiles wait where theirs would; it agrees that others lose."""
    monkeypatch.delenv("OVERLAP_TILE_SUMS", raising=False)
    how = {"world": 2, "sizes": {"M": rows, "N": 8192, "K": 8192}, "split": split, "break_even": False}
    found = {
        asked: predict("gemm_rs", machine=H200, way=Way("copy_engine", "lanes", tile_sums=asked), **how)
        for asked in WAYS
    }
    assert found[None].in_tiles == tiles_in_time(rows // 128 * 32, 2, split, H200.units)
    assert found[None].fused == found[found[None].in_tiles].fused
    assert found[None].fused <= 1.01 * min(each.fused for each in found.values())


WAYS = (None, False, True)
H200 = load_machine("h200-nvlink")
