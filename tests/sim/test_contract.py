"""The runtime contract on simulated ranks, under several seeds."""

import pytest

from overlap.runtime.of_group import runtime_of
from tests.support.contract import *  # noqa: F403


@pytest.fixture(params=[1, 2, 3, 4])
def world(request):
    return request.param


@pytest.fixture
def several():
    return 3


@pytest.fixture
def group_of_ranks():
    from overlap.sim import World

    def run(world, body):
        for seed in range(4):
            results = World(world, seed=seed).run(lambda group: body(runtime_of(group)))
        return results

    return run


@pytest.fixture
def another_stream():
    return lambda runtime: runtime.on_stream("another")
