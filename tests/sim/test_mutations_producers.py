"""Modules whose tiles produce chunks, with one thing taken away or put wrong: each must be caught.

The reference run of each mutation is `test_the_module_as_compiled_passes`.
"""

import dataclasses
import math

import pytest
import triton
import triton.language as tl
from test_mutations import SHAPE, changed, check, without
from test_mutations import faults as faults_of

import overlap.language as ol
from overlap.runtime.kernels import reduce
from overlap.schedule import steps as st
from overlap.schedule.table import SUMS_WORD
from overlap.sim import ModuleCheck

pytestmark = pytest.mark.one_triton

SEEDS = range(3)
PRODUCED = (
    "    # Count the tile into the chunks of c that it is part of.\n    ol.produced(ol_table, ol_run, ol_state)\n"
)
STORE = "    tl.store(c_ptrs,"
PLANS = {"c[M]": "reduce_scatter_1d", "c[]": "all_reduce_two_shot", "c[M:N]": "all_to_all_1d"}


def faults(path, **options):
    """The kind of fault under every seed."""
    return faults_of(path, seeds=SEEDS, **options)


@pytest.fixture
def made(compiled):
    """A template kernel compiled to produce chunks: ``made(on, kernel, plan=..., edits=...)``."""

    def make(on="c[M]", name="grouped_gemm", *, plan=None, edits=()):
        return compiled(name, plan=plan or PLANS[on], on=on, edits=edits)

    return make


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("on", "plan"), [*PLANS.items(), ("c[]", "all_reduce_one_shot")])
def test_the_module_as_compiled_passes(made, on, plan, world):
    report = check(made(on, plan=plan), world=world)
    assert report.ok, str(report)


# the kernel


def test_a_tile_counted_before_its_store(made):
    path = made(edits=((PRODUCED, ""), (STORE, PRODUCED + STORE)))
    assert faults(path) == ["race"] * len(SEEDS)


def test_a_tile_counted_without_barrier(made):
    path = made(edits=(("ol.produced(", "ol._count_in("),))
    assert faults(path) == ["race"] * len(SEEDS)
    assert "no barrier before release" in str(check(path))


def test_a_tile_never_counted(made):
    """The lanes hold for ever, and the report says on which chunk, for how many tiles, and how many came."""
    text = str(check(made(edits=((PRODUCED, ""),))))
    assert "deadlock" in text.splitlines()[-1]
    assert "lane 0 waits for counter" in text and "(c[" in text and "saw 0" in text


def test_a_tma_store_counted_without_waiting_for_it(made, monkeypatch):
    """Before Triton 3.8 a TMA store is waited for only until its source may be overwritten."""
    from overlap.sim import world

    monkeypatch.setattr(world, "_stores_land_late", lambda: True)
    assert check(made(name="persistent_gemm")).ok
    path = made(
        name="persistent_gemm",
        edits=(
            ("ol.produced_once(ol_table, ol_run, ol_state, tile, NUM_SMS)", "ol.produced(ol_table, ol_run, ol_state)"),
        ),
    )
    assert faults(path) == ["race"] * len(SEEDS)
    assert "TMA stores land late" in str(check(path))


# counters


def with_counters(monkeypatch, change):
    """Has every rank's schedule counters changed by ``change(counter)``."""
    from overlap.runtime import instance

    whole = instance.schedule_rank

    def schedule(*args, **options):
        made = whole(*args, **options)
        assert made.counters
        return dataclasses.replace(made, counters=tuple(change(c) for c in made.counters))

    monkeypatch.setattr(instance, "schedule_rank", schedule)


def test_a_counter_one_short(made, monkeypatch):
    with_counters(monkeypatch, lambda c: dataclasses.replace(c, target=c.target - 1))
    assert faults(made()) == ["race"] * len(SEEDS)


def test_a_counter_that_wants_one_more(made, monkeypatch):
    with_counters(monkeypatch, lambda c: dataclasses.replace(c, target=c.target + 1))
    assert faults(made()) == ["deadlock"] * len(SEEDS)


def test_a_chunk_counted_twice(made):
    path = made(edits=((PRODUCED, PRODUCED + PRODUCED.splitlines()[1] + "\n"),))
    assert faults(path) == ["race"] * len(SEEDS)


def test_counters_that_are_not_reset(made):
    assert faults(made(), mutate_steps=changed(st.Entry, counters=False)) == ["race"] * len(SEEDS)


# the launch protocol


@pytest.mark.parametrize("on", list(PLANS))
def test_a_copy_that_is_not_held(made, on):
    assert faults(made(on), mutate_steps=without(st.Hold)) == ["race"] * len(SEEDS)


@pytest.mark.parametrize("on", list(PLANS))
def test_a_flag_never_raised(made, on):
    report = check(made(on), mutate_steps=without(st.Raise))
    assert report.faults[0].kind == "deadlock"
    assert "flag 0 (c[" in str(report)


@pytest.mark.parametrize(
    ("on", "plan"), [("c[M]", "reduce_scatter_1d"), ("c[]", "all_reduce_one_shot"), ("c[M:N]", "all_to_all_1d")]
)
def test_a_rank_that_waits_for_no_credits(made, on, plan):
    """It overwrites slots whose sum is still being made."""
    assert faults(made(on, plan=plan), mutate_steps=changed(st.Entry, wait_done=False)) == ["race"] * len(SEEDS)


def test_a_two_shot_all_reduce_needs_no_credits(made):
    """Whoever sends the next launch's partial has had the owner's sum of this one, and so on for the sums themselves."""
    assert faults(made("c[]"), mutate_steps=changed(st.Entry, wait_done=False)) == ["ok"] * len(SEEDS)


def test_credits_given_before_the_sum(made):
    def mutate(rank, steps):
        credits = tuple(s for s in steps if isinstance(s, st.Credit))
        rest = [s for s in steps if not isinstance(s, st.Credit)]
        first = next(i for i, s in enumerate(rest) if isinstance(s, st.Sum))
        return (*rest[:first], *credits, *rest[first:])

    assert faults(made(), mutate_steps=mutate) == ["race"] * len(SEEDS)


def test_credits_never_given(made):
    report = check(made(), mutate_steps=without(st.Credit))
    assert report.faults[0].kind == "deadlock" and "done credit of rank" in str(report)


_ENDED: tl.constexpr = tl.constexpr(SUMS_WORD)


@triton.jit
def first_to_end(state, programs, SYSTEM: tl.constexpr = False):
    tl.debug_barrier()
    ended = tl.atomic_add(state + _ENDED, 1, sem="acq_rel", scope="gpu")
    tl.atomic_xchg(state + _ENDED, 0, mask=ended == programs - 1, sem="relaxed", scope="gpu")
    return ended == 0


@triton.jit
def not_reset(state, programs, SYSTEM: tl.constexpr = False):
    tl.debug_barrier()
    return tl.atomic_add(state + _ENDED, 1, sem="acq_rel", scope="gpu") == programs - 1


@triton.jit
def relaxed(state, programs, SYSTEM: tl.constexpr = False):
    tl.debug_barrier()
    ended = tl.atomic_add(state + _ENDED, 1, sem="relaxed", scope="gpu")
    tl.atomic_xchg(state + _ENDED, 0, mask=ended == programs - 1, sem="relaxed", scope="gpu")
    return ended == programs - 1


@triton.jit
def without_barrier(state, programs, SYSTEM: tl.constexpr = False):
    ended = tl.atomic_add(state + _ENDED, 1, sem="acq_rel", scope="gpu")
    tl.atomic_xchg(state + _ENDED, 0, mask=ended == programs - 1, sem="relaxed", scope="gpu")
    return ended == programs - 1


@triton.jit
def look_relaxed(flags, there, wanted):
    seen = tl.atomic_add(flags, tl.zeros(flags.shape, tl.int64), mask=there, sem="relaxed", scope="sys")
    tl.debug_barrier()
    return tl.min(tl.where(there, tl.minimum(seen, wanted), wanted))


@triton.jit
def look_without_barrier(flags, there, wanted):
    seen = tl.atomic_add(flags, tl.zeros(flags.shape, tl.int64), mask=there, sem="acquire", scope="sys")
    return tl.min(tl.where(there, tl.minimum(seen, wanted), wanted))


@pytest.mark.parametrize("twin", [look_relaxed, look_without_barrier], ids=lambda f: f.__name__)
def test_a_weaker_look_at_all_summands(made, monkeypatch, twin):
    """It races where all had come at the first look, as they have under some seeds."""
    monkeypatch.setattr(ol, "look", twin)
    assert "race" in faults_of(made(), seeds=range(12))


@pytest.fixture
def several_programs(monkeypatch):
    """Sums take more programs than one."""
    from overlap.runtime.launch import prepared
    from overlap.runtime.tables import sums

    counts = []
    monkeypatch.setattr(sums, "WARP_ELEMENTS", 4)
    whole = prepared.SumLaunch

    def watched(grid, arguments, results):
        counts.append(grid[0])
        return whole(grid, arguments, results)

    monkeypatch.setattr(prepared, "SumLaunch", watched)
    yield
    assert max(counts) > 2


@pytest.mark.parametrize(("on", "plan"), [*PLANS.items(), ("c[]", "all_reduce_one_shot")])
def test_sums_of_several_programs_pass(made, several_programs, on, plan):
    report = check(made(on, plan=plan), launches=3)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("counts_out", "kind"),
    [(first_to_end, "race"), (relaxed, "race"), (without_barrier, "race"), (not_reset, "deadlock")],
)
def test_credits_of_a_sum_given_too_early_or_never(made, several_programs, monkeypatch, counts_out, kind):
    """By a program that is not the last, with nothing between it and what others read, or from a count that goes on.

    Of pieces that are only moved: the sum of several has a barrier of its own, behind its loads.
    """
    monkeypatch.setattr(reduce, "last_to_end", counts_out)
    assert faults(made("c[M:N]"), launches=3) == [kind] * len(SEEDS)


def test_a_sum_before_the_kernel(made):
    def mutate(rank, steps):
        (total,) = [s for s in steps if isinstance(s, st.Sum)]
        rest = [s for s in steps if s is not total]
        kernel = next(i for i, s in enumerate(rest) if isinstance(s, st.Kernel))
        return (*rest[:kernel], total, *rest[kernel:])

    for kind in faults(made(), mutate_steps=mutate):
        assert kind in ("race", "deadlock")


def test_a_sum_dropped(made):
    found = faults(made(), mutate_steps=without(st.Sum))
    assert set(found) <= {"unwritten", "race"}


def test_a_sum_that_waits_for_no_flags(made, monkeypatch):
    """In the first launch it adds NaN, which slots hold until something lands; races show in every launch."""
    from overlap.runtime.launch import prepared

    whole = prepared.addition

    def unflagged(*args, **options):
        made = whole(*args, **options)
        return dataclasses.replace(made, summands=tuple((operand, -1) for operand, _ in made.summands))

    monkeypatch.setattr(prepared, "addition", unflagged)
    for launches in (1, 3):
        assert set(faults(made(), launches=launches)) <= {"race", "unwritten"}
    for name in ("read", "read_one", "write", "atomic", "check_early_reads", "first_never_written"):
        monkeypatch.setattr("overlap.sim.shadow.Shadow." + name, lambda *args, **options: None)
    report = check(made(), launches=1, seeds=range(8))
    assert report.faults[0].kind == "mismatch" and "nan instead of" in str(report)


def test_a_summand_left_out(made):
    """Nothing races: only the oracle can see it."""

    def mutate(rank, steps):
        def less(piece):
            return dataclasses.replace(piece, summands=piece.summands[:-1])

        return tuple(
            dataclasses.replace(s, pieces=tuple(map(less, s.pieces))) if isinstance(s, st.Sum) else s for s in steps
        )

    assert faults(made(), mutate_steps=mutate) == ["mismatch"] * len(SEEDS)


def test_a_summand_added_twice(made):
    def mutate(rank, steps):
        def more(piece):
            return dataclasses.replace(piece, summands=(*piece.summands, piece.summands[-1]))

        return tuple(
            dataclasses.replace(s, pieces=tuple(map(more, s.pieces))) if isinstance(s, st.Sum) else s for s in steps
        )

    assert faults(made(), mutate_steps=mutate) == ["mismatch"] * len(SEEDS)


def test_a_flag_raised_before_its_copy(made):
    def mutate(rank, steps):
        steps = list(steps)
        for i, (first, second) in enumerate(zip(steps, steps[1:], strict=False)):
            if isinstance(first, st.Copy) and isinstance(second, st.Raise):
                steps[i], steps[i + 1] = second, first
        return tuple(steps)

    assert faults(made(), mutate_steps=mutate) == ["race"] * len(SEEDS)


def test_a_push_into_another_ranks_slot(made, monkeypatch):
    """All partials land in the first slot."""
    from overlap.runtime.memory import plan_tensor

    whole = plan_tensor.destination_region

    def first(layout, op_id):
        if not layout.slots:
            return whole(layout, op_id)
        return next(iter(layout.slots.values()))

    monkeypatch.setattr(plan_tensor, "destination_region", first)
    found = faults(made(), shape={"M": 129, "N": 40, "K": 40})
    assert set(found) <= {"race", "unwritten"}, found


def test_a_lane_forked_before_the_sum_it_sends(made, monkeypatch):
    """Two-shot: the second step's copies leave before the own shard is whole."""
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "0")

    def mutate(rank, steps):
        forks = [i for i, s in enumerate(steps) if isinstance(s, st.Fork)]
        steps = list(steps)
        late = steps.pop(forks[-1])
        kernel = next(i for i, s in enumerate(steps) if isinstance(s, st.Kernel))
        return (*steps[:kernel], late, *steps[kernel:])

    assert faults(made("c[]"), mutate_steps=mutate) == ["race"] * len(SEEDS)


def test_names_of_slots_and_partials_in_reports(made):
    report = str(check(made(), mutate_steps=changed(st.Entry, wait_done=False)))
    assert "'s part of c[" in report
    report = str(check(made(), mutate_steps=without(st.Hold)))
    assert "partial c[" in report and " on rank " in report


@pytest.mark.parametrize("accumulator", ["fp32", "bf16"])
def test_partials_are_added_in_fp32_and_rounded_once(made, monkeypatch, accumulator):
    """Within half a unit in the last place of the exact sum of what was sent; sums in bf16 are not."""
    from overlap.runtime.tables import sums

    if accumulator == "bf16":
        monkeypatch.setitem(sums.ACCUMULATORS, "fp32", tl.bfloat16)
    for on, plan in (("c[M]", "reduce_scatter_1d"), ("c[]", "all_reduce_one_shot")):
        run = ModuleCheck(str(made(on, plan=plan)), world=5, shape=SHAPE, dtype="bf16", launches=1)
        assert run.run(0) is None
        largest = max(float(result.values.abs().max()) for ranks in run.wanted for (result,) in ranks)
        half = 2.0 ** (math.floor(math.log2(largest)) - 8)
        assert (run.report.largest_difference <= half) == (accumulator == "fp32")
