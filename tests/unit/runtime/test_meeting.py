"""Meetings over a store: who came, who did not, who failed, and what differs."""

import threading
import time

import pytest
from torch.distributed import HashStore, PrefixStore

from overlap.errors import DeadlineError, OverlapError, RuntimeContractError
from overlap.runtime.group.meeting import Meetings, first_difference


def together(world, body, store=None):
    """Runs ``body(meetings, rank)`` on a thread a rank; what each returned or raised, in rank order."""
    store = store if store is not None else HashStore()
    results = [None] * world

    def run(rank):
        try:
            results[rank] = body(Meetings(store, rank, world), rank)
        except OverlapError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_everyone_gets_every_value_in_rank_order(world):
    def body(meetings, rank):
        return [meetings.meet(f"number {n}", (rank, n), seconds=10) for n in range(20)]

    for result in together(world, body):
        assert result == [[(rank, n) for rank in range(world)] for n in range(20)]


def test_old_keys_are_deleted():
    store = HashStore()
    together(3, lambda m, rank: [m.meet("again", None, seconds=10) for _ in range(10)], store)
    lives = 3
    assert store.num_keys() <= 3 + 3 + lives


def test_a_group_that_is_made_anew_does_not_find_what_the_last_one_left():
    """Rank 0 is late to each meeting of the second life, so that all that rank 1 could find of it is from the first."""
    store = HashStore()

    def body(life):
        def meet(meetings, rank):
            found = []
            for n in range(3):
                time.sleep(0.05 * (1 - rank))
                found.append(meetings.meet(f"number {n}", (life, n, rank), seconds=5))
            return found

        return meet

    for life in range(2):
        assert together(2, body(life), store) == [[[(life, n, rank) for rank in range(2)] for n in range(3)]] * 2


def test_two_groups_on_one_store_do_not_meet_each_other():
    store = HashStore()
    stores = [PrefixStore("left", store), PrefixStore("right", store)]
    both = {}

    def group(name, prefixed):
        both[name] = together(2, lambda m, rank: m.meet("same words", (name, rank), seconds=10), prefixed)

    threads = [threading.Thread(target=group, args=(n, s)) for n, s in zip("ab", stores, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    for name, results in both.items():
        assert results == [[(name, 0), (name, 1)]] * 2


def test_those_who_do_not_come_are_named_within_the_deadline():
    start = time.monotonic()
    results = together(4, lambda m, rank: m.meet("first call of `matmul`", rank, seconds=1) if rank % 2 == 0 else None)
    assert time.monotonic() - start < 3
    for rank in (0, 2):
        assert isinstance(results[rank], DeadlineError)
        assert "rank 1, 3 to come to first call of `matmul`" in str(results[rank])


def test_after_a_missed_meeting_the_group_refuses_instead_of_hanging():
    def body(meetings, rank):
        if rank:
            return None
        with pytest.raises(DeadlineError):
            meetings.meet("first", None, seconds=0.2)
        start = time.monotonic()
        with pytest.raises(RuntimeContractError, match="out of step.*rank 1 to come to first"):
            meetings.meet("second", None, seconds=60)
        return time.monotonic() - start

    assert together(2, body)[0] < 1


def test_a_late_rank_is_waited_for():
    def body(meetings, rank):
        time.sleep(rank * 1.2)
        return meetings.meet("late", rank, seconds=20)

    assert together(2, body) == [[0, 1]] * 2


def test_a_deadline_of_zero_waits():
    def body(meetings, rank):
        time.sleep(rank * 1.2)
        return meetings.meet("late", rank, seconds=0)

    assert together(2, body) == [[0, 1]] * 2


def test_a_rank_that_failed_is_quoted_at_once_and_all_stay_in_step():
    """The third rank comes later than the others leave, and must count the same meetings."""

    def body(meetings, rank):
        start = time.monotonic()
        if rank == 1:
            assert meetings.meet("kernels compiled", ValueError("no such block"), seconds=60) == []
        else:
            time.sleep(0.7 * (rank == 2))
            with pytest.raises(RuntimeContractError, match="rank 1 raised instead.*ValueError: no such block"):
                meetings.meet("kernels compiled", None, seconds=60)
            assert time.monotonic() - start < 5
        return meetings.meet("again", rank, seconds=10)

    assert together(3, body) == [[0, 1, 2]] * 3


def test_different_meetings_are_told_on_all_ranks():
    results = together(2, lambda m, rank: m.meet("left" if rank else "right", None, seconds=10))
    assert "rank 0 calls right where rank 1 calls left" in str(results[0])
    assert "rank 1 calls left where rank 0 calls right" in str(results[1])


def test_first_difference():
    mine = {"shape": (8, 4), "plan": "a\n  b: 1\nc"}
    assert first_difference(mine, dict(mine)) == ""
    assert first_difference(mine, {**mine, "shape": (8, 5)}) == "shape (8, 4) against (8, 5)"
    assert first_difference(mine, {**mine, "plan": "a\n  b: 2\nc"}) == "plan, line 2: 'b: 1' against 'b: 2'"
    assert first_difference(mine, {**mine, "plan": "a\n  b: 1"}) == "plan, line 3: 'c' against '(ends)'"
