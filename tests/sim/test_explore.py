"""Orders: a seed replays exactly, and exploration finds what needs one particular order."""

import pytest
import torch
import triton
import triton.language as tl

from overlap.errors import DeadlockFault, SimFault
from overlap.sim import RandomChooser, ScriptedChooser, World, explore

pytestmark = pytest.mark.one_triton


@triton.jit
def two_locks(locks, out, SAME_ORDER: tl.constexpr):
    """Two programs take two locks; in opposite orders each may hold one and wait for the other."""
    pid = tl.program_id(0)
    first = 0 if SAME_ORDER else pid
    while tl.atomic_cas(locks + first * 4, 0, 1, sem="acquire", scope="gpu") == 1:
        pass
    while tl.atomic_cas(locks + (1 - first) * 4, 0, 1, sem="acquire", scope="gpu") == 1:
        pass
    tl.store(out, tl.load(out) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(locks + (1 - first) * 4, 0, sem="release", scope="gpu")
    tl.atomic_xchg(locks + first * 4, 0, sem="release", scope="gpu")


def simulate(chooser, same_order):
    def body(group):
        runtime = group.overlap_runtime
        locks = runtime.symmetric([8], torch.int64, zero=True)
        out = torch.zeros(1, dtype=torch.int32)
        runtime.launch(two_locks, (2,), (locks, out), {"SAME_ORDER": same_order}, runtime.main_stream())
        runtime.synchronize()
        return out.item()

    try:
        assert World(1, chooser=chooser).run(body) == [2]
    except SimFault as fault:
        return fault
    return None


def test_the_default_order_alone_finds_nothing():
    assert simulate(ScriptedChooser(), same_order=False) is None


def test_one_preemption_finds_the_deadlock_and_its_script_replays():
    found = explore(lambda chooser: simulate(chooser, False), preemptions=1)
    assert isinstance(found.fault, DeadlockFault)
    assert found.runs > 1
    again = simulate(ScriptedChooser(found.script), False)
    assert again is not None and again.render() == found.fault.render()


def test_without_preemptions_every_order_passes():
    found = explore(lambda chooser: simulate(chooser, False), preemptions=0)
    assert found.fault is None and found.complete


def test_locks_in_one_order_pass_in_every_order_of_one_preemption():
    found = explore(lambda chooser: simulate(chooser, True), preemptions=1, limit=400)
    assert found.fault is None and found.complete and found.runs > 10


def test_a_limit_stops_and_says_so():
    found = explore(lambda chooser: simulate(chooser, True), preemptions=2, limit=5)
    assert found.runs == 5 and not found.complete


class Recorder(RandomChooser):
    """A random chooser that remembers its answers."""

    def __init__(self, seed):
        super().__init__(seed)
        self.answers = []

    def fibre(self, ready, current):
        self.answers.append((super().fibre(ready, current), [fibre.agent.name for fibre in ready]))
        return self.answers[-1][0]


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_replays_exactly(seed):
    runs = [Recorder(seed), Recorder(seed)]
    faults = [simulate(chooser, False) for chooser in runs]
    assert runs[0].answers == runs[1].answers and runs[0].answers
    assert str(faults[0]) == str(faults[1])


def test_seeds_give_different_orders():
    answers = set()
    for seed in range(6):
        chooser = Recorder(seed)
        simulate(chooser, True)
        answers.add(str(chooser.answers))
    assert len(answers) > 3
