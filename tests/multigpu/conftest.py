"""One pytest process a rank:

    python -m torch.distributed.run --nproc-per-node 4 -m pytest tests/multigpu -q -o faulthandler_timeout=130

All ranks collect and run the same tests in the same order. Started in any other way, or with fewer GPUs than ranks, the
folder collects nothing and says why. A test marked ``ranks(n)`` needs at least n ranks and is deselected otherwise; so is what
cannot be on this machine, with the reason, since a skipped test counts as a failure.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.support.ahead import MODULES
from tests.support.compilations import KERNELS, keep_records

WORLD = int(os.environ.get("WORLD_SIZE", "0"))
os.environ.setdefault("OVERLAP_DEADLINE_S", "20")
# Of the shapes of tests the larger ones are pushed out of the caller's tensor, the smaller ones are staged first.
os.environ.setdefault("OVERLAP_GIVEN_BYTES", "8192")


def why_not() -> str:
    if not WORLD or "RANK" not in os.environ:
        return "not started by torch.distributed.run"
    if torch.cuda.device_count() < WORLD:
        return f"{WORLD} ranks, {torch.cuda.device_count()} GPUs"
    return ""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks, each on a GPU of its own")
    if (folder := os.environ.get(KERNELS)) and not why_not():
        keep_records(Path(folder) / f"rank_{os.environ['RANK']}.jsonl")


def pytest_report_header() -> str:
    return "tests/multigpu: " + (why_not() or f"rank {os.environ['RANK']} of {WORLD}")


def pytest_ignore_collect(collection_path: object) -> bool | None:
    return True if why_not() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def fits(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("ranks")
        return mark is None or WORLD >= mark.args[0]

    reasons = {item: lacking(item) for item in items}
    config.stash[_LACKING] = Counter(filter(None, reasons.values()))
    left_out = [item for item in items if not fits(item) or reasons[item]]
    items[:] = [item for item in items if fits(item) and not reasons[item]]
    config.hook.pytest_deselected(items=left_out)


_LACKING = pytest.StashKey[Counter[str]]()


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return [
        f"not on this machine: {count} tests, {why}" for why, count in config.stash.get(_LACKING, Counter()).items()
    ]


def lacking(item: pytest.Item) -> str:
    """Why what a test carries out cannot be on this machine: what its ``skipif`` says, or of tests by ``way``, or by ``backend``
    for an input, what the table of capabilities does."""
    from tests.support import realizations
    from tests.support.ranks import WAYS

    for mark in item.iter_markers("skipif"):
        if any(mark.args):
            return str(mark.kwargs["reason"])
    given = getattr(getattr(item, "callspec", None), "params", {})
    _, on, *named = WAYS.get(given.get("way"), ("", "a[M]"))
    name = named[0] if named else given.get("backend") if item.path.stem == "test_interleaved" else None
    return realizations.lacking(str(item.name), on, name)


@pytest.fixture(scope="session", autouse=True)
def process_group():
    """The default group: gloo for the host, NCCL made lazily for the device."""
    import torch.distributed as dist
    import triton

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("cpu:gloo,cuda:nccl")
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    outcome = yield
    item.stash.setdefault(_FAILED, []).append(outcome.get_result().failed)


_FAILED = pytest.StashKey[list]()


@pytest.fixture(autouse=True)
def in_step(request: pytest.FixtureRequest, process_group):
    """Every rank ends a test before any begins the next; a failure on one rank is a failure on all."""
    yield
    torch.cuda.synchronize()
    failed = any(request.node.stash.get(_FAILED, []))
    try:
        told = meet(request.node.nodeid, failed)
    except Exception as error:
        pytest.exit(f"ranks are out of step after {request.node.nodeid}: {error}", returncode=3)
    others = [rank for rank, bad in enumerate(told) if bad]
    assert failed or not others, f"failed on rank {others}"


_MEETINGS: list = []


def meet(what: str, value: object) -> list:
    """Every rank's value, through the default group's store."""
    import torch.distributed as dist

    from overlap.runtime.group.meeting import Meetings

    if not _MEETINGS:
        store = dist.PrefixStore("tests", dist.distributed_c10d._get_default_store())
        _MEETINGS.append(Meetings(store, dist.get_rank(), dist.get_world_size()))
    return _MEETINGS[0].meet(what, value, seconds=120)


@pytest.fixture
def group(process_group):
    """A new group of all ranks, so that no test inherits another's state; its memory is given back."""
    import torch.distributed as dist

    from overlap.errors import OverlapError
    from overlap.runtime.workspace import release

    made = dist.new_group(list(range(WORLD)), backend="cpu:gloo,cuda:nccl")
    yield made
    # A test may have broken its group on purpose, or failed: then this fails too, soon.
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(OverlapError):
        patch.setenv("OVERLAP_DEADLINE_S", "3")
        release(made)


@pytest.fixture
def one_folder(tmp_path_factory, monkeypatch):
    """The same folder of modules for every test, and for every rank where ranks were told of one (`each`)."""
    folder = os.environ.get(MODULES) or str(tmp_path_factory.getbasetemp() / "modules")
    monkeypatch.setenv("OVERLAP_CACHE_DIR", folder)


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """``generated("templates/kernels/grouped_gemm.py", "all_gather_1d", "a[M]")``: the compiled module, imported."""
    from tests.support.rehearsal import generate

    folder = tmp_path_factory.mktemp("generated")
    made: dict = {}

    def make(source: str, plan: str, on: str, backend: str | None = None):
        key = (source, plan, on, backend)
        if key not in made:
            made[key] = generate(folder / f"module_{len(made)}.py", source, plan, on, backend)
        return made[key]

    return make
