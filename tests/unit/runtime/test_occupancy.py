"""Room for one warp beside a grid, on H100's numbers."""

import pytest

from overlap.runtime.cuda.occupancy import Block, Multiprocessor, room_beside

H100 = Multiprocessor(threads=2048, registers=65536, shared=233472, reserved=1024, blocks=32)
WARP = Block(threads=32, registers=64, shared=0)


@pytest.mark.parametrize(
    ("block", "resident", "taken"),
    [
        (Block(128, 64, 32 * 1024), 6, ""),
        (Block(256, 160, 180 * 1024), 1, ""),
        (Block(256, 160, 232448), 1, "shared memory"),
        (Block(256, 160, 232448 - 1023), 1, "shared memory"),
        (Block(256, 160, 232448 - 1024), 1, ""),
        (Block(1024, 32, 0), 2, "threads"),
        (Block(256, 255, 0), 1, "registers"),
        (Block(512, 128, 0), 1, "registers"),
        (Block(32, 32, 0), 32, "block slot"),
    ],
)
def test_room_for_a_wait_kernel(block, resident, taken):
    why = room_beside(H100, block, resident, WARP)
    assert taken in why and bool(why) == bool(taken)


def test_registers_are_given_in_units_of_256_a_warp():
    assert Block(33, 33, 0).allocated() == 2 * (5 * 256)
