"""Timers of devices on one clock: bounds that hold whoever comes last."""

from __future__ import annotations

import random

import pytest

from overlap.runtime.tracing.clocks import ROUNDS, Clock, aligned


def rounds(offsets, seed, step=1, hop=800, rounds=ROUNDS):
    """Clocks of ranks whose timers are ahead of time by ``offsets``: each raises, then sees the last of all a hop later."""
    chance = random.Random(seed)
    raised, met = [[] for _ in offsets], [[] for _ in offsets]
    now = [0.0] * len(offsets)
    for _ in range(rounds):
        starts = [moment + chance.uniform(10, 3000) for moment in now]
        for rank, offset in enumerate(offsets):
            others = [start + chance.uniform(hop / 2, hop) for other, start in enumerate(starts) if other != rank]
            now[rank] = max([starts[rank], *others])
            for times, moment in ((raised, starts[rank]), (met, now[rank])):
                times[rank].append(int((moment + offset) // step * step))
    return [Clock(tuple(r), tuple(m), step) for r, m in zip(raised, met, strict=True)], now


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("step", [1, 32, 1024])
def test_the_true_difference_lies_within_what_is_said(seed, step):
    offsets = (0, 1_000_000_007, -12_345, 77)
    clocks, ends = rounds(offsets, seed, step)
    found = aligned(clocks)
    first = min(ends)
    for offset, rank in zip(offsets, found, strict=True):
        assert abs(rank.zero - (first + offset)) <= rank.exactly + found[0].exactly + 800 + 2 * step
        # About a hop, and two steps of the timer of each of two.
        assert rank.exactly <= 800 + 3 * step
    for one, offset in zip(found[1:], offsets[1:], strict=True):
        assert abs((one.zero - found[0].zero) - offset) <= one.exactly
    assert found[0].exactly == 0


def test_one_rank_is_its_own_clock():
    clocks, _ = rounds((5000,), seed=1)
    (alone,) = aligned(clocks)
    assert (alone.zero, alone.exactly) == (clocks[0].met[-1], 0)


def test_two_ranks_that_are_a_hop_apart_are_known_to_within_it():
    """s and t of the worked example in the docstring: whoever is last is seen a hop later."""
    one, other = Clock((0, 100), (60, 150), 0), Clock((1050, 1100), (1055, 1155), 0)
    found = aligned([one, other])
    # At least 1050 - 60 and 1100 - 150, at most 1055 - 0 and 1155 - 100.
    assert (found[1].zero - found[0].zero, found[1].exactly) == ((990 + 1055) / 2, (1055 - 990) / 2)
    # Times count from when the first of them was through: the second, at 1155 of its own.
    assert found[0].zero == 1155 - (990 + 1055) / 2
