"""NVSHMEM's functions on simulated ranks, called by kernels of the test's own: what orders puts, gets and signals, and what a
pointer reaches. `test_far.py` has generated kernels."""

import os

import pytest
import torch
import triton
import triton.language as tl

from overlap.errors import RaceFault, RuntimeContractError, StrayAccessFault
from overlap.language.nvshmem import fence, get_nbi, my_pe, put_nbi, put_signal, quiet
from overlap.sim import World

pytestmark = pytest.mark.one_triton

SEEDS = range(10) if os.environ.get("OVERLAP_SWEEP") == "1" else range(1)


@triton.jit
def ring_kernel(
    mine,
    there,
    got,
    words,
    right,
    left,
    size: tl.constexpr,
    FENCE: tl.constexpr,
    QUIET: tl.constexpr,
    CALLS: tl.constexpr,
):
    at, to, back = mine.to(tl.int64), there.to(tl.int64), got.to(tl.int64)
    tl.store(words + 4, my_pe().to(tl.int64))
    half = tl.full((), size // 2, tl.int64)
    first, rest = tl.full((), 0, tl.int64), half * 2
    if CALLS == 2:
        put_nbi(to, at, half, right)
        first, rest = half, half
    if FENCE:
        fence()
    put_signal(
        to + first, at + first, rest, words.to(tl.int64), tl.full((), 1, tl.int64), tl.full((), 9, tl.int32), right
    )
    while tl.atomic_add(words, 0, sem="acquire", scope="sys") < 1:
        pass
    here = tl.load(there + tl.arange(0, size // 4))
    get_nbi(back, at, half * 2, left)
    if QUIET:
        quiet()
        tl.debug_barrier()
    one = tl.load(got + tl.arange(0, size // 4))
    tl.store(got + tl.arange(0, size // 4), one + 1 + here * 0)


def ring_of(world, *, fenced=True, quieted=True, calls=2, seed=0):
    """Every rank puts its numbers to the right, and gets those of the left: what came to each."""

    def body(group):
        runtime = group.overlap_runtime
        mine, there, got = (runtime.symmetric([16], torch.int32) for _ in range(3))
        words = runtime.symmetric([8], torch.int64, zero=True)
        runtime.fill(mine, torch.arange(16, dtype=torch.int32) + 100 * runtime.rank)
        runtime.synchronize()
        runtime.agree("filled", None)
        right, left = (runtime.pes[(runtime.rank + step) % world] for step in (1, -1))
        options = {"size": 64, "FENCE": fenced, "QUIET": quieted, "CALLS": calls}
        runtime.launch(ring_kernel, (1,), (mine, there, got, words, right, left), options, runtime.main_stream())
        runtime.synchronize()
        return there.tolist(), got.tolist(), words.tolist()[4] == runtime.pes[runtime.rank]

    return World(world, seed=seed, node_ranks=1).run(body)


@pytest.mark.parametrize("options", [{}, {"calls": 1, "fenced": False}])
def test_puts_and_signals(options):
    for world, seed in ((2, 0), (2, 1)):
        found = ring_of(world, seed=seed, **options)
        for rank, (there, got, numbered) in enumerate(found):
            wanted = [100 * ((rank - 1) % world) + i for i in range(16)]
            assert (there, got, numbered) == (wanted, [n + 1 for n in wanted], True)


@pytest.mark.parametrize(
    "options", [{"fenced": False}, {"quieted": False}], ids=["signal without fence", "get without quiet"]
)
def test_puts_that_nothing_orders(options):
    for seed in SEEDS:
        with pytest.raises(RaceFault, match="get from|put to|signals"):
            ring_of(2, seed=seed, **options)


@triton.jit
def pointer_kernel(there):
    tl.store(there.to(tl.pointer_type(tl.int32)) + tl.arange(0, 16), tl.arange(0, 16))


def test_a_pointer_to_another_node_is_a_fault():
    def body(group):
        runtime = group.overlap_runtime
        box = runtime.symmetric([16], torch.int32)
        with pytest.raises(
            RuntimeContractError, match=r"rank 0 \(node 0\) reaches no memory|rank 1 \(node 1\) reaches no memory"
        ):
            runtime.peer(box, 1 - runtime.rank)
        address = world.memory.of(box).copies[1 - runtime.rank].start
        runtime.launch(pointer_kernel, (1,), (address,), {}, runtime.main_stream())
        runtime.synchronize()

    world = World(2, node_ranks=1)
    with pytest.raises(StrayAccessFault, match="by pointer, and no pointer of rank"):
        world.run(body)


@triton.jit
def peer_address_kernel(there, mine, pe):
    put_nbi(there, mine.to(tl.int64), tl.full((), 64, tl.int64), pe)


@pytest.mark.parametrize(
    ("peer", "pe", "said"), [(True, 0, "takes addresses of rank"), (False, 7, "numbers of the ranks are 0, 1")]
)
def test_what_nvshmem_does_not_take(peer, pe, said):
    def body(group):
        runtime = group.overlap_runtime
        box, mine = runtime.symmetric([16], torch.int32), runtime.symmetric([16], torch.int32, zero=True)
        address = world.memory.of(box).copies[1 - runtime.rank if peer else runtime.rank].start
        runtime.launch(peer_address_kernel, (1,), (address, mine, pe), {}, runtime.main_stream())
        runtime.synchronize()

    world = World(2, node_ranks=1)
    with pytest.raises(StrayAccessFault, match=said):
        world.run(body)
