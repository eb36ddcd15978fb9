"""Tests that one GPU is enough for:

    python -m pytest tests/gpu -q

Without a GPU the folder collects nothing and says why.
"""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("OVERLAP_DEADLINE_S", "20")


def why_not() -> str:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "kernels are interpreted"
    return "" if torch.cuda.is_available() else "no GPU"


def pytest_report_header() -> str:
    return "tests/gpu: " + (why_not() or torch.cuda.get_device_name())


def pytest_ignore_collect(collection_path: object) -> bool | None:
    return True if why_not() else None


@pytest.fixture(scope="session")
def process_group(tmp_path_factory):
    """The default group, of this rank alone."""
    import torch.distributed as dist
    import triton

    torch.backends.cuda.matmul.allow_tf32 = False
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="session", autouse=True)
def modules(tmp_path_factory):
    """One folder of modules for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAP_CACHE_DIR", str(tmp_path_factory.mktemp("modules")))
        yield
