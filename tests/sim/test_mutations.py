"""A compiled module with one thing taken away: each must be caught, and the untouched module must pass.

The reference run of each mutation is `test_the_module_as_compiled_passes`.
"""

import dataclasses
import re

import pytest
import triton
import triton.language as tl

import overlap.language as ol
from overlap.runtime.kernels import entry
from overlap.runtime.launch import givens as givens_layer
from overlap.runtime.memory import part as part_layer
from overlap.runtime.memory.part import Part
from overlap.schedule import steps as st
from overlap.schedule.table import SLOT_WORDS
from overlap.sim import check_module

pytestmark = pytest.mark.one_triton

_SLOT_WORDS: tl.constexpr = tl.constexpr(SLOT_WORDS)

SHAPE = {"M": 130, "N": 40, "K": 40}
SEEDS = range(4)


def check(path, world=3, **options):
    options = {"seeds": SEEDS, "dtype": "fp16", **options}
    return check_module(str(path), world=world, shape=options.pop("shape", SHAPE), **options)


def faults(path, **options):
    """The kind of fault under every seed, one run a seed; "ok" where there was none."""
    found = []
    for seed in options.pop("seeds", SEEDS):
        report = check(path, seeds=[seed], **options)
        text = str(report)
        last = text.splitlines()[-1]
        assert last == "ok" if report.ok else f"--seed {seed}" in last, text
        found.append("ok" if report.ok else report.faults[0].kind)
    return found


def without(kind, **fields):
    """A step filter that drops all steps of a kind (whose fields are as given)."""

    def mutate(rank, steps):
        kept = tuple(
            s for s in steps if not (isinstance(s, kind) and all(getattr(s, k) == v for k, v in fields.items()))
        )
        assert kept != steps, f"no {kind.__name__} to drop"
        return kept

    return mutate


def changed(kind, **fields):
    """A step filter that changes fields of all steps of a kind."""

    def mutate(rank, steps):
        return tuple(dataclasses.replace(s, **fields) if isinstance(s, kind) else s for s in steps)

    return mutate


PLANS = ["all_gather_1d", "all_gather_1d_push"]


@pytest.mark.parametrize("plan", [*PLANS, "all_gather_ring"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_module_as_compiled_passes(compiled, plan, world):
    report = check(compiled(plan=plan), world=world)
    assert report.ok, str(report)
    assert report.largest_difference == 0.0
    assert str(report).splitlines()[-1] == "ok"


# the kernel


WAIT = "    ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)\n"
AFTER = "    pid_m = ol.after(pid_m, ol_seen)\n"
STORE = "    tl.store(c_ptrs,"


@pytest.mark.parametrize("plan", PLANS)
def test_a_wait_removed(compiled, plan):
    path = compiled(plan=plan, edits=((WAIT, "    ol_seen = 0\n"),))
    assert faults(path) == ["race"] * len(SEEDS)


@pytest.mark.parametrize("plan", PLANS)
def test_a_wait_after_its_loads(compiled, plan):
    path = compiled(plan=plan, edits=((WAIT + AFTER, ""), (STORE, WAIT + STORE)))
    assert faults(path) == ["race"] * len(SEEDS)


def test_a_wait_inside_the_loop_behind_its_load(compiled):
    load = "        b = tl.load(b_ptrs"
    path = compiled(edits=((WAIT + AFTER, ""), (load, "    " + WAIT + load)))
    assert faults(path) == ["race"] * len(SEEDS)


def test_a_stray_write(compiled):
    path = compiled(edits=(("mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))\n", "mask=(offs_n[None, :] < N))\n"),))
    report = check(path)
    assert report.faults[0].kind == "stray access"
    assert "past the end of c_ptr of rank" in str(report)


def test_elements_never_written(compiled):
    mask = "(offs_m[:, None] < M) & (offs_n[None, :] < N))\n"
    path = compiled(edits=((mask, mask.replace("< N", "< N - 1")),))
    report = check(path)
    assert report.faults[0].kind == "unwritten"
    assert f"{SHAPE['M']} of {SHAPE['M'] * SHAPE['N']} elements of c of rank" in str(report)
    assert f"the first is [0, {SHAPE['N'] - 1}]" in str(report)


def test_a_wrong_value(compiled):
    path = compiled(
        edits=(
            ("tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)", "tl.full((BLOCK_M, BLOCK_N), 1.0, dtype=tl.float32)"),
        )
    )
    report = check(path)
    assert report.faults[0].kind == "mismatch"


# the words below it


@triton.jit
def poll_gpu(flag, wanted, state):
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="gpu")
    while seen < wanted:
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="gpu")
    return seen


@triton.jit
def poll_relaxed(flag, wanted, state):
    seen = tl.atomic_add(flag, 0, sem="relaxed", scope="sys")
    while seen < wanted:
        seen = tl.atomic_add(flag, 0, sem="relaxed", scope="sys")
    return seen


@triton.jit
def raise_gpu(flags, there, value):
    tl.debug_barrier()
    tl.atomic_xchg(flags, value + tl.zeros(flags.shape, tl.int64), mask=there, sem="release", scope="gpu")


@triton.jit
def raise_relaxed(flags, there, value):
    tl.debug_barrier()
    tl.atomic_xchg(flags, value + tl.zeros(flags.shape, tl.int64), mask=there, sem="relaxed", scope="sys")


@pytest.mark.parametrize(
    ("word", "twin"),
    [("poll", poll_gpu), ("poll", poll_relaxed), ("raise_flags", raise_gpu), ("raise_flags", raise_relaxed)],
    ids=["polled at gpu scope", "polled relaxed", "raised at gpu scope", "raised relaxed"],
)
def test_weaker_words(compiled, monkeypatch, word, twin):
    monkeypatch.setattr(ol, word, twin)
    assert faults(compiled()) == ["race"] * len(SEEDS)


@triton.jit
def looked_at_relaxed(slot, wanted, rank, world, state):
    lanes = tl.arange(0, 4)
    others = (lanes < world) & (lanes != rank)
    words = state + (slot + lanes) * _SLOT_WORDS
    seen = tl.atomic_add(words, tl.zeros((4,), tl.int64), mask=others, sem="relaxed", scope="sys")
    least = tl.min(tl.where(others, seen, wanted))
    tl.debug_barrier()
    if least < wanted:
        for p in range(world):
            if p != rank:
                ol.poll(state + (slot + p) * _SLOT_WORDS, wanted, state)


@triton.jit
def known_to_one_thread(slot, wanted, rank, world, state):
    lanes = tl.arange(0, 4)
    others = (lanes < world) & (lanes != rank)
    words = state + (slot + lanes) * _SLOT_WORDS
    seen = tl.atomic_add(words, tl.zeros((4,), tl.int64), mask=others, sem="acquire", scope="sys")
    if tl.min(tl.where(others, seen, wanted)) < wanted:
        for p in range(world):
            if p != rank:
                ol.poll(state + (slot + p) * _SLOT_WORDS, wanted, state)


@triton.jit
def looked_at_too_few(slot, wanted, rank, world, state):
    for p in range(1):
        if p != rank:
            ol.poll(state + (slot + p) * _SLOT_WORDS, wanted, state)


@pytest.mark.parametrize(
    ("twin", "plan"),
    [
        (looked_at_relaxed, "all_gather_1d"),
        (looked_at_relaxed, "all_gather_1d_push"),
        (looked_at_too_few, "all_gather_1d"),
        (looked_at_too_few, "all_gather_1d_push"),
        (known_to_one_thread, "all_gather_1d"),
    ],
)
def test_a_weaker_look_at_all_peers(compiled, monkeypatch, twin, plan):
    """It races where all were there at the first look, as some are under some seeds."""
    monkeypatch.setattr(entry, "await_peers", twin)
    assert "race" in faults(compiled(plan=plan), seeds=range(12))


# the launch protocol: found in the second and third launch


def staged_behind_the_kernel(rank, steps):
    stage, kernel = (next(i for i, s in enumerate(steps) if isinstance(s, kind)) for kind in (st.Stage, st.Kernel))
    return (*steps[:stage], *steps[stage + 1 : kernel + 1], steps[stage], *steps[kernel + 1 :])


@pytest.mark.parametrize(
    ("plan", "mutate"),
    [
        pytest.param("all_gather_1d", changed(st.Entry, ready=False), id="pull without ready"),
        pytest.param("all_gather_1d", changed(st.Entry, wait_done=False), id="pull: nobody waits for credits"),
        pytest.param("all_gather_1d_push", changed(st.Entry, wait_done=False), id="push: nobody waits for credits"),
        pytest.param("all_gather_1d", without(st.Join), id="pull without join"),
        pytest.param("all_gather_1d_push", changed(st.Copy, given=False), id="given: copies of what is being staged"),
        pytest.param("all_gather_1d_push", staged_behind_the_kernel, id="given: staged behind the kernel"),
    ],
)
def test_a_step_of_the_protocol_removed(compiled, plan, mutate):
    found = faults(compiled(plan=plan), mutate_steps=mutate)
    assert found == ["race"] * len(SEEDS)


@pytest.mark.parametrize("first", [True, False], ids=["staged first", "pushed as it is"])
@pytest.mark.parametrize("box", ["sent", "read by tiles", None])
def test_a_box_of_an_exchange_that_is_not_staged(compiled, monkeypatch, first, box):
    """Who reads it then: a lane, of what is sent when it is staged first; the rank's own tiles, of what it keeps."""
    monkeypatch.setattr(givens_layer, "WIDE", 1)
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(1 << 30) if first else "0")
    whole, counts = Part.staged, set()

    def less(part, *more):
        *sent, kept = whole(part, *more)
        counts.add(len(sent))
        return sent if box == "read by tiles" else [kept]

    if box is not None:
        monkeypatch.setattr(Part, "staged", less)
    found = faults(compiled(plan="all_to_all_1d_push", on="a[K:M]"))
    needed = box == "read by tiles" or (box == "sent" and first)
    assert found == (["unwritten"] if needed else ["ok"]) * len(SEEDS)
    assert box is None or counts == {int(first)}


@pytest.mark.parametrize("left_out", [None, "before", "behind", "kept"])
def test_a_box_of_a_pulled_exchange_that_is_not_staged(compiled, monkeypatch, left_out):
    """What stands before and behind the piece that a rank keeps is staged by itself; the peers that pull it find it missing."""
    monkeypatch.setattr(part_layer, "WORTH_A_LAUNCH", 1)
    whole, counts = Part.staged, {}

    def less(part, *more):
        *sent, kept = whole(part, *more)
        counts[part._runtime.rank] = len(sent)
        if left_out == "kept":
            return sent
        return [kept, *(one for one in sent if (one.part[0].start == 0) != (left_out == "before"))]

    if left_out is not None:
        monkeypatch.setattr(Part, "staged", less)
    found = faults(compiled(on="a[K:M]", plan="all_to_all_1d"))
    assert found == (["unwritten"] if left_out else ["ok"]) * len(SEEDS)
    assert not left_out or counts == {0: 1, 1: 2, 2: 1}


def test_copies_of_an_exchange_are_no_longer_the_callers_behind_a_staging_that_left_them_out(compiled, monkeypatch):
    monkeypatch.setattr(givens_layer, "WIDE", 1)
    path = compiled(plan="all_to_all_1d_push", on="a[K:M]")
    assert faults(path, mutate_steps=changed(st.Copy, given=False)) == ["race"] * len(SEEDS)


def test_a_caller_that_reuses_its_tensor_beside_lanes_that_read_it(compiled):
    """Lanes that are not joined still copy out of it when the next launch's values are put there."""
    for seed in SEEDS:
        report = check(compiled(plan="all_gather_1d_push"), mutate_steps=without(st.Join), seeds=[seed])
        assert report.faults[0].kind == "race"
        assert re.search(r"main stream fills a\[.* behind: rank \d lane 0 copies \(to rank \d\)", str(report)), str(
            report
        )


@pytest.mark.parametrize("plan", PLANS)
def test_credits_never_given(compiled, plan):
    """The next launch's entry waits for them for ever, and the report names the word."""
    report = check(compiled(plan=plan), mutate_steps=without(st.Credit))
    assert report.faults[0].kind == "deadlock"
    assert "done credit of rank" in str(report)


def test_a_flag_never_raised(compiled):
    report = check(compiled(), mutate_steps=without(st.Raise))
    assert report.faults[0].kind == "deadlock"
    text = str(report)
    assert "flag 0" in text and "_out.py:" in text and "saw 0" in text


def test_a_flag_raised_before_its_copy(compiled):
    def mutate(rank, steps):
        steps = list(steps)
        for i, (first, second) in enumerate(zip(steps, steps[1:], strict=False)):
            if isinstance(first, st.Copy) and isinstance(second, st.Raise):
                steps[i], steps[i + 1] = second, first
        return tuple(steps)

    assert faults(compiled(), mutate_steps=mutate) == ["race"] * len(SEEDS)


def test_a_side_stream_that_does_not_wait_for_the_entry(compiled, monkeypatch):
    from overlap.sim.runtime import SimRuntime

    monkeypatch.setattr(SimRuntime, "forks", lambda self, lanes: [self._stream(f"lane {lane}") for lane in lanes])
    assert faults(compiled()) == ["race"] * len(SEEDS)


def test_a_cycle_between_the_ranks_lanes(compiled):
    """Every rank's first copy waits for another rank's copy to have landed."""

    def mutate(rank, steps):
        first = next(i for i, step in enumerate(steps) if isinstance(step, st.Copy))
        other = (rank + 1) % 3
        return (*steps[:first], st.Await(steps[first].lane, (other, 0), other), *steps[first:])

    report = check(compiled(), mutate_steps=mutate)
    assert report.faults[0].kind == "deadlock"
    assert sum("of wait_kernel waits for" in line for line in str(report).splitlines()) >= 3


def test_a_chunk_that_ends_one_row_early(compiled, monkeypatch):
    for end in ("source", "destination"):
        whole = getattr(Part, end)
        monkeypatch.setattr(Part, end, lambda part, op, whole=whole: whole(part, op)[:-1])
    for kind in faults(compiled()):
        assert kind in ("unwritten", "race")


def test_a_chunk_edge_rounded_down_to_a_block(compiled, monkeypatch):
    """The tile rows behind the last edge wait for the chunk before it only."""
    from overlap.runtime import instance

    whole = instance.to_words

    def fewer(schedule, *room):
        *others, last = schedule.runs
        assert last.waits != others[0].waits
        return whole(
            dataclasses.replace(schedule, runs=(*others, dataclasses.replace(last, waits=others[0].waits))), *room
        )

    monkeypatch.setattr(instance, "to_words", fewer)
    assert faults(compiled()) == ["race"] * len(SEEDS)
