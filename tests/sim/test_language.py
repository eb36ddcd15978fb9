"""The words for users' kernels and the fixture that runs them: right kernels pass, each missing edge is found."""

import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import overlap
import overlap.language as ol
from overlap.errors import KernelCrashFault, RuntimeContractError, UsageError
from overlap.sim import World, check_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import language_page
from signal_kernels import exchange, through_tma

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "overlap.testing.plugin", "-p", "no:cacheprovider")


@pytest.fixture
def inner(pytester, tmp_path, monkeypatch):
    """``inner(**files)``: what a pytest of its own says of these files, with this package's plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # Modules that are first imported inside are forgotten again, which those of torch do not take well.
    check_ranks(language_page.host_code(tmp_path, "before", language_page.example()[1]), world=2, seeds=(0,))

    def run(*options, **files):
        pytester.makepyfile(**files)
        return pytester.runpytest_inprocess(*PLUGIN, *options)

    return run


# the page


@pytest.fixture
def example(tmp_path):
    """``example(old, new)``: the page's host code with a change in its kernel."""
    _, text = language_page.example()

    def changed(old, new):
        assert text.count(old) == 1, old
        return language_page.host_code(tmp_path, "changed", text.replace(old, new))

    return changed


def test_the_pages_test_passes_as_it_stands(inner):
    name, text = language_page.example()
    inner(**{name.removesuffix(".py"): text}).assert_outcomes(passed=1)


def test_the_pages_story_is_todays(tmp_path):
    page = language_page.PAGE.read_text()
    assert language_page.with_parts(page, told=language_page.story(tmp_path)) == page, (
        "run python tests/support/language_page.py --write"
    )


WAIT, NOTIFY = "ol.wait(h, FULL, launch * programs)", '    ol.notify(h, TAKEN, left, 1, "add")\n'
PUT = '    ol.put(h, box_ptr + at, tl.load(x_ptr + at, mask=at < n), right, FULL, 1, "add", mask=at < n)\n'
OUT = "    tl.store(out_ptr + at, tl.load(ol.after(box_ptr, seen) + at, mask=at < n), mask=at < n)\n"
EARLY = (
    '    ol.notify(h, FULL, right, 1, "add")\n'
    "    tl.store(ol.symm_at(h, box_ptr, right) + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)\n"
)


@pytest.mark.parametrize(
    ("old", "new", "kind", "told"),
    [
        pytest.param(language_page.FIRST_WAIT, "", "race", "writes box_ptr", id="nobody waits for the box to be free"),
        pytest.param(NOTIFY, "", "deadlock", "signal 1 on rank 0 to reach 2, saw 0", id="notify forgotten"),
        pytest.param(OUT + NOTIFY, NOTIFY + OUT, "race", "writes box_ptr", id="taken before it is"),
        pytest.param(PUT, EARLY, "race", "reads box_ptr", id="notify before the store"),
        pytest.param(WAIT, WAIT[:-1] + " - 1)", "race", "box_ptr", id="waits for too little"),
        pytest.param(WAIT, WAIT[:-1] + " + 1)", "deadlock", "signal 0 on rank 0 to reach 3, saw 2", id="for too much"),
        pytest.param(
            'FULL, 1, "add"', 'FULL, launch, "set"', "lost signal", "add", id="programs set instead of adding"
        ),
        pytest.param("TAKEN, left", "TAKEN, right", "race", "box_ptr", id="the wrong neighbour is told"),
    ],
)
def test_each_mistake_in_the_pages_kernel_is_found(example, old, new, kind, told):
    report = check_ranks(example(old, new), world=3)
    assert [fault.kind for fault in report.faults] == [kind]
    assert told in str(report) and "changed.py:" in str(report)


# the words


@pytest.mark.parametrize(
    ("world", "n", "dtype", "pull"),
    [
        (1, 5, torch.float32, False),
        (2, 1, torch.int8, True),
        (3, 30, torch.float64, False),
        (3, 7, torch.bfloat16, True),
    ],
)
def test_put_and_get_reach_every_rank(world, n, dtype, pull):
    def body(group):
        me = group.rank()
        box = overlap.symmetric((world, n), dtype, signals=world + 1, group=group)
        assert (box.rank, box.world, box.signals) == (me, world, world + 1)
        for launch in (1, 2):
            x = torch.arange(n).add(launch + me).to(dtype)
            out = torch.empty(n, dtype=dtype)
            exchange[(1,)](x, out, box.tensor, box.handle, n, launch, BLOCK=32, PULL=pull)
            wanted = sum(torch.arange(n).add(launch + peer).to(dtype) for peer in range(world))
            assert out.tolist() == wanted.tolist()
        return out

    report = check_ranks(body, world=world, seeds=range(3))
    assert report.ok, str(report)
    assert len(report.results) == 3 and len(report.results[2]) == world


def tma_body(fenced, landed):
    def body(group):
        side = 16
        box = overlap.symmetric((side, side), torch.float32, signals=2, group=group)
        for launch in (1, 2):
            x, out = torch.full((side, side), 10.0 * launch + group.rank()), torch.empty(side, side)
            through_tma[(1,)](x, out, box.tensor, box.handle, launch, SIDE=side, FENCED=fenced, LANDED=landed)
            assert set(out.flatten().tolist()) == {10.0 * launch + (group.rank() - 1) % group.size()}
        return out

    return body


def test_words_for_descriptors_and_what_is_found_without_them():
    late = {"world": 3, "seeds": range(2), "late_tma_stores": True}
    assert check_ranks(tma_body(True, True), **late).ok
    (fault,) = check_ranks(tma_body(False, True), **late).faults
    assert fault.kind == "race" and "ol.after_async" in fault.error.help
    (fault,) = check_ranks(tma_body(True, False), **late).faults
    assert fault.kind == "race" and "TMA store" in str(fault.error)
    assert check_ranks(tma_body(True, False), **{**late, "late_tma_stores": False}).ok


@triton.jit
def arrive(h, slot, peer, value, HOW: tl.constexpr):
    ol.notify(h, slot, peer, value, HOW)


@triton.jit
def count(h, wanted, out_ptr):
    tl.store(out_ptr, ol.wait(h, 0, wanted))


def arrivals(how, wanted):
    """Every rank but the first tells it once; it waits for ``wanted``."""

    def body(group):
        box = overlap.symmetric((0,), torch.float32, group=group)
        out = torch.zeros(1, dtype=torch.int64)
        if group.rank():
            arrive[(1,)](box.handle, 0, 0, 1, HOW=how)
        else:
            count[(1,)](box.handle, wanted, out)
        return out

    return body


def test_a_value_set_over_another_one_is_a_lost_signal():
    assert check_ranks(arrivals("add", 2), world=3).ok
    # Two writers may set, if the second has learnt of the first: one rank alone, launch by launch.
    assert check_ranks(arrivals("set", 1), world=2).ok
    report = check_ranks(arrivals("set", 1), world=3)
    assert [fault.kind for fault in report.faults] == ["lost signal"]
    assert "sets signal 0 on rank 0" in str(report) and 'op="add"' in str(report)


def test_a_signal_that_nobody_waited_for_is_named():
    report = check_ranks(arrivals("add", 0), world=2, seeds=range(6))
    assert report.ok and report.unheard == ["signal 0 of rank 0, by rank 1 program 0 of arrive"]
    assert "never waited for afterwards: signal 0 of rank 0" in str(report)
    assert check_ranks(arrivals("add", 1), world=2).unheard == []


def test_small_kernels_can_be_run_in_every_order():
    report = check_ranks(arrivals("add", 0), world=1, seeds=(), explore=60, preemptions=1)
    assert report.ok and report.complete and 1 < report.explored < 60
    assert "all of them within the bound" in str(report)
    report = check_ranks(arrivals("add", 2), world=2, seeds=(), explore=20)
    assert "fault: deadlock in an explored order" in str(report)


@pytest.mark.parametrize(
    ("slot", "peer", "told"),
    [(1, 0, "no such signal"), (-1, 0, "no such signal"), (0, 2, "no such rank"), (0, -1, "no")],
)
def test_a_signal_or_rank_that_does_not_exist_is_named_with_the_line(slot, peer, told):
    def body(group):
        box = overlap.symmetric((4,), torch.float32, group=group)
        arrive[(1,)](box.handle, slot, peer, 1, HOW="set")
        torch.cuda.synchronize()

    with pytest.raises(KernelCrashFault, match=told) as caught:
        World(2).run(body)
    assert "ol.notify(h, slot, peer, value, HOW)" in caught.value.render()


# the host's half


def test_the_host_sees_peers_and_memory_that_was_given_back():
    def body(group):
        me = group.rank()
        box = overlap.symmetric((2, 3), torch.int32, group=group, zero=True)
        assert box.tensor.tolist() == [[0] * 3] * 2
        box.tensor.fill_(me)
        group.overlap_runtime.synchronize()
        group.overlap_runtime.agree("filled", None)
        assert [box.peer(rank).max().item() for rank in range(3)] == [0, 1, 2]
        with pytest.raises(UsageError, match="no rank 3 in a group of 3"):
            box.peer(3)
        overlap.check(group)
        box.release()
        again = overlap.symmetric((1,), torch.int32, group=group)
        overlap.release(group)
        for gone in (box, again):
            with pytest.raises(RuntimeContractError, match="was released"):
                _ = gone.tensor
        box.release()

    World(3).run(body)


def test_ranks_that_ask_for_different_memory_are_named():
    with pytest.raises(RuntimeContractError, match=r"symmetric\(\(3,\), torch.float32\)"):
        World(2).run(lambda group: overlap.symmetric((2 + group.rank(),), torch.float32, group=group))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"shape": (2, -1)}, "at least 0, not -1"),
        ({"shape": 4}, "a shape is a sequence of sizes, not 4"),
        ({"shape": (True,)}, "not True"),
        ({"dtype": "fp32"}, "dtype is a torch.dtype"),
        ({"dtype": torch.complex128}, "no pointers to torch.complex128"),
        ({"signals": -1}, "signals is a number"),
    ],
)
def test_memory_that_cannot_be(arguments, told):
    with pytest.raises(UsageError, match=told):
        World(1).run(
            lambda group: overlap.symmetric(**{"shape": (1,), "dtype": torch.float32, "group": group, **arguments})
        )


# the fixture

TESTS = """
import torch, triton, triton.language as tl
import overlap, overlap.language as ol

@triton.jit
def forever(h):
    ol.wait(h, 0, 1)

def rank(group):
    forever[(1,)](overlap.symmetric((1,), torch.float32, group=group).handle)

def test_nobody_looks(overlap_sim):
    overlap_sim(world=2)(rank)

def test_somebody_looks(overlap_sim):
    assert overlap_sim(world=2)(rank).faults[0].kind == "deadlock"

def test_it_is_asked_for(overlap_sim):
    assert overlap_sim(world=2)(rank).ok
"""


def test_a_fault_that_no_test_looks_at_fails_it(inner):
    result = inner(test_it=TESTS)
    result.assert_outcomes(passed=2, failed=1, errors=1)
    text = result.stdout.str()
    assert "nobody looked at this report" in text
    assert text.count("fault: deadlock with seed 0 (seeds=[0] shows it again)") >= 2


def test_without_the_packages_it_says_why_it_cannot_run(inner, monkeypatch):
    monkeypatch.setitem(sys.modules, "overlap.sim", None)
    result = inner("-rs", test_it="def test_it(overlap_sim): raise AssertionError")
    result.assert_outcomes(skipped=1)
    assert "overlap_sim needs a package that is missing here" in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"world": 0}, "world is an integer of at least 1, not 0"),
        ({"world": 2, "explore": -1}, "explore is an integer"),
    ],
)
def test_a_run_that_cannot_be(options, told):
    with pytest.raises(UsageError, match=told):
        check_ranks(lambda group: None, **options)
    with pytest.raises(UsageError, match="the body is host code"):
        check_ranks(None, world=1)
