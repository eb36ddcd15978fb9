"""Which tiles of a last wave a second launch makes: by arithmetic, and where they lie."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from overlap.ops.blocks import Blocks
from overlap.ops.products import Product, product_blocks
from overlap.ops.tail import NO_TAIL, last_tiles, tail_of
from overlap.ops.views import gather_view
from overlap.schedule.model import Run


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.delenv("OVERLAP_TAIL", raising=False)


def left(
    m, n, k, *, units=132, dtype=torch.bfloat16, world=4, weight=None, backend="copy_engine", tma=True, split=None
):
    """What is left of the tiles of a product of a rank."""
    view = gather_view(torch.empty(m // world, k, dtype=dtype, device="meta"), 0, None, world, 0)
    w = torch.empty(k, n, dtype=dtype, device="meta") if weight is None else weight
    runtime = SimpleNamespace(sm_count=units, world=world)
    product = Product(w, torch.empty(1, m, n, dtype=dtype, device="meta"), None)
    return tail_of(product, view, runtime, product_blocks(product, view, runtime, tma), backend, tma=tma, split=split)


def test_a_wave_of_a_few_tiles_is_made_in_smaller_ones():
    """64 x 29 tiles of 128 x 256 on 132 multiprocessors: 14 waves and 8 tiles."""
    assert left(8192, 7392, 8192) == (8, Blocks(64, 64, 128, 4, 5))
    assert left(8192, 7392, 8192, dtype=torch.float16).left == 8


@pytest.mark.parametrize(
    ("m", "n", "k", "found"),
    [
        (8192, 1536, 4096, 0),  # 2.9 waves
        (8192, 7168, 8192, 0),  # 13.6 waves
        (8192, 13312, 16384, 28),  # 25.2 waves
        (8448, 8192, 8192, 0),  # 16 waves
        (4096, 768, 8192, 0),  # less than one
        (8192, 7392, 256, 0),  # a tile takes less than a launch
    ],
)
def test_it_must_be_worth_a_launch(m, n, k, found):
    assert left(m, n, k).left == found


@pytest.mark.parametrize(
    ("m", "n", "k", "split", "found"),
    [
        (8192, 1536, 4096, 1, 0),  # 96 tiles for 132 multiprocessors: no shorter in smaller ones
        (8192, 1536, 4096, (3, 1), 24),
        (8192, 1536, 4096, ((1,), (1,), (3, 1)), 24),
        (8192, 3584, 4096, (3, 1), 0),  # everything is here before its tiles' turn
        (8192, 7392, 8192, (3, 1), 8),  # the last wave
        (2048, 3584, 4096, (3, 1), 14),
        (6, 3584, 4096, (3, 1), 0),
    ],
)
def test_tiles_of_a_chunk_that_is_waited_for_are_made_in_smaller_ones(m, n, k, split, found):
    """Copies of 11 to 44 us one behind the other, against waves of 46 us (8192, 1536, 4096)."""
    assert left(m, n, k, split=split).left == found


def test_a_chunk_of_more_than_a_wave_of_smaller_ones_stays():
    assert left(8192, 768, 4096, world=2, split=(3, 1)).left == 24
    assert left(8192, 1536, 4096, world=2, split=1) == NO_TAIL


@pytest.mark.parametrize(("asked", "found"), [("never", 0), ("always", 120), ("part", 24), ("auto", 24)])
def test_the_setting_says_which(monkeypatch, asked, found):
    monkeypatch.setenv("OVERLAP_TAIL", asked)
    assert left(8192, 1536, 4096, split=(3, 1)).left == found


def test_the_device_says_how_many_tiles_a_wave_has():
    assert left(8192, 7392, 8192, units=116) == NO_TAIL  # 16 waves
    assert left(8192, 7392, 8192, units=154).left == 8  # 12.1 waves


def test_all_operands_go_by_tma():
    w = torch.empty(8192, 2 * 7392, dtype=torch.bfloat16, device="meta")
    assert left(8192, 7392, 8192, weight=w[:, ::2]) == NO_TAIL
    assert left(8192, 7391, 8192) == NO_TAIL
    assert left(8192, 7392, 8192, tma=False) == NO_TAIL
    assert left(8192, 7392, 8192, weight=torch.empty(7392, 8192, dtype=torch.bfloat16, device="meta").t()).left == 8


@pytest.mark.parametrize(("asked", "found"), [("never", 0), ("always", 76), ("auto", 0)])
def test_the_setting_says_when(monkeypatch, asked, found):
    monkeypatch.setenv("OVERLAP_TAIL", asked)
    assert left(8192, 7168, 8192).left == found


@pytest.mark.parametrize("backend", ["ldst_inline", "tma_reserved"])
def test_programs_that_move_chunks_are_no_whole_wave(backend):
    assert left(8192, 7392, 8192, backend=backend) == NO_TAIL


def test_calls_that_are_traced_have_all_tiles_in_one_launch(monkeypatch):
    monkeypatch.setenv("OVERLAP_TRACE", "1")
    assert left(8192, 7392, 8192) == NO_TAIL


def test_a_machine_without_a_rate_leaves_nothing(monkeypatch, tmp_path):
    import overlap.schedule.machine as machines

    text = (machines.machine_folders()[0] / "h100-nvlink.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("bf16:")]
    path = tmp_path / "slow.yaml"
    path.write_text("\n".join(lines))
    monkeypatch.setenv("OVERLAP_MACHINE", str(path))
    assert left(8192, 7392, 8192) == NO_TAIL
    assert left(8192, 7392, 8192, dtype=torch.float16).left == 8


def runs_of(*counts):
    found = []
    for tiles in counts:
        found.append(Run(sum(run.tiles for run in found), (0, 0, 0), (1, tiles, 1)))
    return found


@pytest.mark.parametrize(
    ("count", "places"),
    [
        (0, []),
        (2, [(2, 3, 2)]),
        (5, [(2, 0, 5)]),
        (6, [(1, 3, 1), (2, 0, 5)]),
        (12, [(0, 0, 3), (1, 0, 4), (2, 0, 5)]),
    ],
)
def test_the_last_tiles_are_the_ends_of_runs(count, places):
    assert list(last_tiles(runs_of(3, 4, 5), count)) == places


def test_runs_without_tiles_have_none():
    empty = replace(runs_of(3)[0], counts=(0, 3, 3))
    assert list(last_tiles([empty, *runs_of(3)], 2)) == [(1, 1, 2)]
