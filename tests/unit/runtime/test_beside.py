"""How many programs a kernel gets beside its sums."""

from types import SimpleNamespace

import pytest

from overlap.runtime.calls.resolve import Bound
from overlap.runtime.launch.beside import beside_sums


def instance(programs, *, early=True, free=4, units=132):
    return SimpleNamespace(
        operator=SimpleNamespace(programs=programs), runtime=SimpleNamespace(sm_count=units), early=early, sum_sms=free
    )


@pytest.mark.parametrize(
    ("grid", "wanted"),
    [((132, 1, 1), 128), ((264, 1, 1), 256), ((200, 1, 1), 200), ((128, 1, 1), 128), ((100, 1, 1), 100)],
)
def test_programs_of_a_kernel_that_walks_over_tiles(grid, wanted):
    """As many fewer as fit on what is left free; fewer than that are left alone."""
    bound = Bound("kernel", {"M": 64, "NUM_SMS": grid[0]}, {"num_warps": 8})
    made, (programs, *rest) = beside_sums(instance(("NUM_SMS",)), bound, grid)
    assert (programs, rest) == (wanted, [1, 1])
    assert made.arguments == {"M": 64, "NUM_SMS": wanted} and made.options == bound.options


@pytest.mark.parametrize(
    ("how", "grid", "arguments"),
    [
        ({"programs": None}, (132, 1, 1), {}),
        ({"programs": (), "early": False}, (132, 1, 1), {}),
        ({"programs": ()}, (132, 2, 1), {}),
        # Its step is not the number of its programs, so nobody knows what fewer would do.
        ({"programs": ("NUM_SMS",)}, (132, 1, 1), {"NUM_SMS": 264}),
    ],
)
def test_other_grids_stay_as_they_are(how, grid, arguments):
    bound = Bound("kernel", arguments, {})
    assert beside_sums(instance(how.pop("programs"), **how), bound, grid) == (bound, grid)


def test_a_kernel_that_asks_for_its_number_gets_a_smaller_grid():
    bound = Bound("kernel", {"M": 64}, {})
    assert beside_sums(instance((), free=200), bound, (132, 1, 1)) == (bound, (1, 1, 1))
