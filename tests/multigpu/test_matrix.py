"""Operator x realization x sizes on real ranks, against fp32: each operator by everything that the capability table has.

    python -m tests.multigpu.each --ranks 4 --ahead --seconds 120 matrix

Every operator makes pieces of y = x @ w out of pieces of x and w, of which ranks hold different ones (`OPERATORS`); each of them
knows y in fp32. What reaches peers of other nodes runs with all ranks on one node, with ranks in a row, each a node, and with
halves as nodes; no pointer to another node's memory is then made. What the table refuses is refused on every rank.
"""

import itertools

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.backends.capabilities import AUTO, COLLECTIVE, SERIAL, names
from overlap.backends.registry import backends
from overlap.errors import OverlapError
from overlap.ops.partials import out_by_tma, storing_reason
from overlap.runtime.group.reach import far
from overlap.runtime.of_group import runtime_of
from overlap.runtime.workspace import release
from tests.support.operands import COLUMNS, OPERATORS, ROWS, nothing, piece, poisoned, random, rehearsed
from tests.support.ranks import delay
from tests.support.realizations import lacking, no_nvshmem
from tests.support.rehearsal import of_tests

from .conftest import WORLD, meet

pytestmark = pytest.mark.usefixtures("one_folder")
CALLS = 3
"""Of one size: the first binds it, the second keeps its launches, the third repeats them."""
SIZES = {
    "divisible": (160 * WORLD, 48 * WORLD, 32 * WORLD, torch.float16),
    "ragged": (515, 264, 200, torch.bfloat16),
    "odd": (131, 67, 37, torch.float32),
    "a rank without rows": (max(1, (WORLD - 1) ** 2), 64, 72, torch.bfloat16),
    "fewer rows than ranks": (max(1, WORLD // 2), 8, 8, torch.float16),
}
"""M, N, K and dtype. Rows of the last but one fill all ranks but one."""
EVERY = [name for name in names() if name != AUTO]


def refused(operator: str, backend: str) -> str:
    """Why the capability table has no such realization of an operator here; empty where it has."""
    return lacking(operator, "c[M]" if operator.startswith("gemm") else "a[M]", backend)


def nodes_of(backend: str) -> list[int]:
    """Ranks of a node; 0: hosts are nodes."""
    reaches = backend in backends and backends[backend].far
    return sorted({1, max(1, WORLD // 2), WORLD}) if reaches else [0]


CASES = [
    pytest.param(
        operator,
        backend,
        node,
        id=f"{operator}-{backend}" + (f"-nodes of {node}" if node else ""),
        marks=[pytest.mark.skipif(bool(node and no_nvshmem()), reason=no_nvshmem())],
    )
    for backend in EVERY
    for operator in OPERATORS
    for node in nodes_of(backend)
    if not refused(operator, backend)
]
REFUSED = [
    (operator, backend) for operator, backend in itertools.product(OPERATORS, EVERY) if refused(operator, backend)
]


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    yield from of_tests(test_every_size, when=lambda given: given["backend"] != SERIAL)


class Whole:
    """x [M, K], w [K, N] and y = x @ w, the same on every rank."""

    def __init__(self, operator, group, m, n, k, dtype, seed):
        self.operator, self.group, self.rank = operator, group, group.rank()
        self.x, self.w = random((m, k), 2 * seed, dtype), random((k, n), 2 * seed + 1, dtype)
        self.of_x, self.of_w, self.of_y = OPERATORS[operator]
        self.out = poisoned(self.mine(poisoned((m, n), dtype), self.of_y).shape, dtype)

    def mine(self, whole, dim):
        """This rank's piece, as memory of its own."""
        return whole if dim is None else piece(whole, dim, self.group.size(), self.rank).clone()

    def call(self, backend):
        """Calls the operator on a poisoned result."""
        size = {"gather_size": len(self.x)} if self.of_x == ROWS else {}
        x, w = self.mine(self.x, self.of_x), self.mine(self.w, self.of_w)
        y = getattr(overlap.ops, self.operator)(x, w, group=self.group, backend=backend, out=self.out, **size)
        assert y is self.out

    def wrong(self, backend):
        """Whether the result misses y by more than its rounding, that of the ranks' summands, and fp32 sums; on the device."""
        if rehearsed():
            return nothing()
        x, w, eps = self.x.float(), self.w.float(), torch.finfo(self.x.dtype).eps
        y, allowed = x @ w, torch.zeros((), device="cuda")
        if (self.of_x, self.of_w) == (COLUMNS, ROWS):
            world = self.group.size()
            parts = [(piece(x, COLUMNS, world, rank), piece(w, ROWS, world, rank)) for rank in range(world)]
            rounds = world if backend in (COLLECTIVE, SERIAL) else 1  # a library rounds its sums at every hop
            allowed = rounds * sum((part @ other).abs() for part, other in parts)
        allowed = eps * (y.abs() + allowed) + 2**-20 * x.shape[1]
        return ~((self.out.float() - self.mine(y, self.of_y)).abs() <= self.mine(allowed, self.of_y)).all()


def sizes_of(group, operator, backend):
    """Calls an operator with all sizes; those that missed. Raises AssertionError where another realization ran."""
    missed = {}
    for size, (m, n, k, dtype) in SIZES.items():
        if operator.startswith("gemm") and storing_reason(backend, out_by_tma(dtype, dtype, 1, m, n)):
            with pytest.raises(OverlapError, match="TMA stores 16-bit products"):
                Whole(operator, group, m, n, k, dtype, 0).call(backend)
            continue
        for seed in range(CALLS):
            whole = Whole(operator, group, m, n, k, dtype, seed)
            delay(seed, whole.rank)
            whole.call(backend)
            missed[size, seed] = whole.wrong(backend)
            said = overlap.ops.last_plan(operator)
            assert said.backend == backend, said
    overlap.check(group)
    return [f"{size}, call {seed}" for (size, seed), wrong in missed.items() if wrong]


class Groups:
    """Groups of all ranks, by how many of them are on a node; tests share one until it fails."""

    def __init__(self, patch):
        self.patch, self.made = patch, {}

    def __call__(self, node):
        if node:
            self.patch.setenv("OVERLAP_NODE_RANKS", str(node))
            self.patch.setenv("OVERLAP_PROVIDER", "nvshmem")
        if node not in self.made:
            self.made[node] = dist.new_group(list(range(WORLD)), backend="cpu:gloo,cuda:nccl")
        return self.made[node]


@pytest.fixture(scope="module")
def groups(process_group):
    with pytest.MonkeyPatch.context() as patch:
        found = Groups(patch)
        yield found
        patch.setenv("OVERLAP_DEADLINE_S", "3")
        for group in found.made.values():
            release(group)


@pytest.fixture
def nodes(groups):
    yield groups
    groups.patch.undo()


@pytest.mark.parametrize(("operator", "backend", "node"), CASES)
def test_every_size(nodes, operator, backend, node):
    group, said = nodes(node), ""
    try:
        if missed := sizes_of(group, operator, backend):
            said = f"wrong: {'; '.join(missed)}"
    except (OverlapError, AssertionError) as error:
        said = f"{type(error).__name__}: {error}"
    if rehearsed():
        assert not said, said
        return
    told = meet(f"{operator} by {backend} on nodes of {node}", said)
    if any(told):
        nodes.made.pop(node)
    assert not any(told), "\n".join(f"rank {rank}: {each}" for rank, each in enumerate(told) if each)
    if node:
        no_pointers_between_nodes(runtime_of(group))


def no_pointers_between_nodes(runtime):
    """Of all symmetric memory there are pointers to that of the ranks of the same node alone."""
    assert runtime.provider.name == "nvshmem" and runtime._allocations
    near = [rank for rank in range(WORLD) if rank != runtime.rank and not far(runtime, rank)]
    for _, others in runtime._allocations.values():
        assert [rank for rank, other in enumerate(others) if other is not None] == near, runtime.nodes


@pytest.mark.parametrize(("operator", "backend"), REFUSED)
def test_what_the_table_has_not_is_refused(nodes, operator, backend):
    """By every rank, before anything runs: a realization that the table has is right behind it."""
    group, (m, n, k, dtype) = nodes(0), SIZES["ragged"]
    whole = Whole(operator, group, m, n, k, dtype, 0)
    why = refused(operator, backend)
    with pytest.raises(OverlapError) as raised:
        whole.call(backend)
    told = str(raised.value)
    assert why in told and "copy_engine" in told, (why, told)
    whole.call("copy_engine")
    assert not whole.wrong("copy_engine")
    overlap.check(group)
