"""Hand-written signalling kernels with one switch for each thing that can be left out."""

import triton
import triton.language as tl

WORD = 4
"""int64 words between two flags: one aligned sector each."""


@triton.jit
def exchange(
    src,
    boxes,
    flags,
    done,
    box_table,
    flag_table,
    done_table,
    out,
    epoch,
    rank,
    world,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    WAIT: tl.constexpr,
    EQUAL: tl.constexpr,
    BARRIER: tl.constexpr,
    CREDIT: tl.constexpr,
    RAISE_SEM: tl.constexpr,
    RAISE_SCOPE: tl.constexpr,
    POLL_SEM: tl.constexpr,
    POLL_SCOPE: tl.constexpr,
):
    """Pushes this rank's numbers to every peer, raises a flag there, waits for all peers and adds up what came."""
    i = tl.arange(0, BLOCK)
    mine = tl.load(src + i)
    if CREDIT:
        for p in range(world):
            if p != rank:
                while tl.atomic_add(done + p * STRIDE, 0, sem="acquire", scope="sys") < epoch - 1:
                    pass
    for p in range(world):
        if p != rank:
            box = tl.load(box_table + p).to(tl.pointer_type(tl.float32))
            tl.store(box + rank * BLOCK + i, mine)
    if BARRIER:
        tl.debug_barrier()
    for p in range(world):
        if p != rank:
            flag = tl.load(flag_table + p).to(tl.pointer_type(tl.int64))
            tl.atomic_xchg(flag + rank * STRIDE, 1 if EQUAL else epoch, sem=RAISE_SEM, scope=RAISE_SCOPE)
    total = mine
    for p in range(world):
        if p != rank:
            if WAIT:
                if EQUAL:
                    while tl.atomic_add(flags + p * STRIDE, 0, sem=POLL_SEM, scope=POLL_SCOPE) != 1:
                        pass
                else:
                    while tl.atomic_add(flags + p * STRIDE, 0, sem=POLL_SEM, scope=POLL_SCOPE) < epoch:
                        pass
            total += tl.load(boxes + p * BLOCK + i)
    tl.store(out + i, total)
    if CREDIT:
        tl.debug_barrier()
        for p in range(world):
            if p != rank:
                credit = tl.load(done_table + p).to(tl.pointer_type(tl.int64))
                tl.atomic_xchg(credit + rank * STRIDE, epoch, sem="release", scope="sys")


@triton.jit
def cycle(flags, flag_table, rank, world, STRIDE: tl.constexpr):
    """Waits for the previous rank before it raises the next one's flag: nobody begins."""
    while tl.atomic_add(flags, 0, sem="acquire", scope="sys") < 1:
        pass
    following = tl.load(flag_table + (rank + 1) % world).to(tl.pointer_type(tl.int64))
    tl.atomic_xchg(following, 1, sem="release", scope="sys")


@triton.jit
def pairs(values, flags, out, half, BLOCK: tl.constexpr, STRIDE: tl.constexpr, CONSUMERS_FIRST: tl.constexpr):
    """Half of the programs wait for a flag that the other half raises, on one rank."""
    pid = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    first_half = pid < half
    consumes = first_half if CONSUMERS_FIRST else pid >= half
    slot = pid % half
    if consumes:
        while tl.atomic_add(flags + slot * STRIDE, 0, sem="acquire", scope="gpu") < 1:
            pass
        tl.store(out + slot * BLOCK + i, tl.load(values + slot * BLOCK + i) + 1)
    else:
        tl.store(values + slot * BLOCK + i, i + slot)
        tl.debug_barrier()
        tl.atomic_xchg(flags + slot * STRIDE, 1, sem="release", scope="gpu")


@triton.jit
def ping(flags, flag_table, out, rank, tiles, STRIDE: tl.constexpr, FLATTEN: tl.constexpr):
    """Two ranks, persistent: tile t waits for the peer's tile t - 1, stores, and raises its own flag t there."""
    other = tl.load(flag_table + 1 - rank).to(tl.pointer_type(tl.int64))
    for tile in tl.range(0, tiles, flatten=FLATTEN):
        while tl.atomic_add(flags, 0, sem="acquire", scope="sys") < tile:
            pass
        tl.store(out + tile, tile)
        tl.debug_barrier()
        tl.atomic_xchg(other, tile + 1, sem="release", scope="sys")


@triton.jit
def tma_reader(ready, boxes, flags, out, epoch, SIDE: tl.constexpr, FENCE: tl.constexpr):
    """Waits for a flag, then reads the data behind it through a descriptor."""
    seen = tl.atomic_add(flags, 0, sem="acquire", scope="sys")
    while seen < epoch:
        seen = tl.atomic_add(flags, 0, sem="acquire", scope="sys")
    row = 0
    if FENCE:
        row = tl.inline_asm_elementwise(
            "fence.proxy.async.global; mov.b32 $0, $1;", "=r,r,l", [row, seen], dtype=tl.int32, is_pure=False, pack=1
        )
    desc = tl.make_tensor_descriptor(boxes, [SIDE, SIDE], [SIDE, 1], [SIDE, SIDE])
    i = tl.arange(0, SIDE)
    tl.store(out + i[:, None] * SIDE + i[None, :], desc.load([row, 0]))


@triton.jit
def tma_writer(src, box_table, flag_table, peer, epoch, SIDE: tl.constexpr, LANDED: tl.constexpr):
    """Writes a peer's memory through a descriptor, then raises a flag there."""
    i = tl.arange(0, SIDE)
    tile = tl.load(src + i[:, None] * SIDE + i[None, :])
    box = tl.load(box_table + peer).to(tl.pointer_type(tl.float32))
    desc = tl.make_tensor_descriptor(box, [SIDE, SIDE], [SIDE, 1], [SIDE, SIDE])
    desc.store([0, 0], tile)
    if LANDED:
        tl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [peer], dtype=tl.int32, is_pure=False, pack=1
        )
    tl.debug_barrier()
    flag = tl.load(flag_table + peer).to(tl.pointer_type(tl.int64))
    tl.atomic_xchg(flag, epoch, sem="release", scope="sys")
