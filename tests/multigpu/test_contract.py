"""The runtime contract on GPUs: the suite of the simulator, word for word."""

import os
import pickle

import pytest
import torch
import torch.distributed as dist

from overlap.errors import RuntimeContractError
from overlap.runtime.cuda.runtime import runtime_for_group
from tests.support.contract import *  # noqa: F403

from .conftest import WORLD, meet

pytestmark = pytest.mark.ranks(2)


@pytest.fixture(params=sorted({1, 2, 3, WORLD} & set(range(1, WORLD + 1))))
def world(request):
    return request.param


@pytest.fixture
def several():
    return WORLD


@pytest.fixture
def group_of_ranks(process_group):
    """Runs bodies on a new group of the first ranks; the rest look on."""

    def run(world, body):
        group = dist.new_group(list(range(world)), backend="cpu:gloo,cuda:nccl")
        told = (None, None)
        if dist.get_rank() < world:
            try:
                told = ("returned", body(runtime_for_group(group)))
            except AssertionError:
                raise
            except Exception as error:
                told = ("raised", str(error))
        torch.cuda.synchronize()
        results = [pickle.loads(t) for t in meet(os.environ["PYTEST_CURRENT_TEST"], pickle.dumps(told))][:world]
        for rank, (how, what) in enumerate(results):
            if how == "raised":
                raise RuntimeContractError(f"rank {rank}: {what}")
        return [what for _, what in results]

    return run


@pytest.fixture
def another_stream():
    return lambda runtime: torch.cuda.stream(torch.cuda.Stream())
