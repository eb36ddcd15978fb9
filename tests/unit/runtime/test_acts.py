"""How one call goes through its steps."""

import contextlib
import gc
from types import SimpleNamespace

import pytest

from overlap.runtime.launch.acts import InFlight, carry_out
from overlap.runtime.repeat.places import NOTHING


class Cycle:
    """What only the garbage collector ends, such as memory of an instance that nobody calls any more."""

    def __init__(self, ended):
        self.self = self
        self.ended = ended

    def __del__(self):
        self.ended.append(self)


def bound(poisoned):
    runtime = SimpleNamespace(in_order=lambda key, main: contextlib.nullcontext(False))
    workspace = SimpleNamespace(poison=poisoned.append)
    return SimpleNamespace(runtime=runtime, memory=None, workspace=workspace)


def carried_out(acts, poisoned=None):
    carry_out(bound([] if poisoned is None else poisoned), acts, InFlight(None, None, None, NOTHING))


def test_nothing_is_collected_while_a_launch_is_enqueued():
    """What is freed may wait for the device, and the device for a step that comes later."""
    ended, seen = [], []

    def leave(now):
        Cycle(ended)
        return [[] for _ in range(100_000)]

    carried_out([leave, lambda now: seen.append(len(ended)), leave, lambda now: seen.append(len(ended))])
    assert seen == [0, 0] and gc.isenabled()
    gc.collect()
    assert len(ended) == 2


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_left_as_it_was(collects):
    def fail(now):
        raise ValueError("half-way")

    poisoned = []
    if not collects:
        gc.disable()
    try:
        carried_out([])
        assert gc.isenabled() is collects
        with pytest.raises(ValueError, match="half-way"):
            carried_out([fail], poisoned)
        assert gc.isenabled() is collects and len(poisoned) == 1
    finally:
        gc.enable()
