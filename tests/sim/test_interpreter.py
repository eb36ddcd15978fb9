"""What kernels may write: number formats, control flow, wrappers. Values are compared with torch or numpy."""

import helpers_elsewhere
import numpy as np
import pytest
import torch
import triton
import triton.language as L
import triton.language as tl
from helpers_elsewhere import shifted
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.errors import (
    AlignmentError,
    DeadlockFault,
    KernelCrashFault,
    RaceFault,
    StrayAccessFault,
    UnsupportedError,
)
from overlap.sim import World, fibres

N = 64


def run(kernel, *args, grid=(1,), world=None, **options):
    """Launches on one simulated rank; tensors among ``args`` are written in place."""

    def body(group):
        runtime = group.overlap_runtime
        runtime.launch(kernel, grid, args, options, runtime.main_stream())
        runtime.synchronize()

    (world or World(1)).run(body)


def awkward(dtype, seed=0):
    """Values of many magnitudes, with ties, subnormals, infinities and NaN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N * 16, generator=generator) * torch.logspace(-7, 4, N * 16)
    x[:8] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1.0 + 2**-9, 1.0 + 3 * 2**-9, 2.0**-130, -1.5])
    return x.to(dtype)


@triton.jit
def convert(dst, src, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dst + i, tl.load(src + i).to(dst.dtype.element_ty))


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_conversions_round_to_nearest_even(source, to):
    x = awkward(source)
    out = torch.zeros(N * 16, dtype=to)
    run(convert, out, x, N=N * 16)
    assert torch.equal(out.view(torch.uint8), x.to(to).view(torch.uint8))


@pytest.mark.parametrize("to", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_rounds_to_nearest_even_and_saturates(to):
    x = awkward(torch.float32)[8:]
    x = torch.cat([x, torch.zeros(8)])
    out = torch.zeros(N * 16, dtype=to)
    run(convert, out, x, N=N * 16)
    limit = torch.finfo(to).max
    assert torch.equal(out.float(), x.clamp(-limit, limit).to(to).float())
    back = torch.zeros(N * 16)
    run(convert, back, out, N=N * 16)
    assert torch.equal(back, out.float())


@triton.jit
def arithmetic(dst, a, b, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(dst + i, x * y + x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_arithmetic_rounds_every_operation(dtype):
    a, b = awkward(dtype)[8:72].contiguous(), awkward(dtype, 1)[8:72].contiguous()
    out = torch.zeros(N, dtype=dtype)
    run(arithmetic, out, a, b, N=N)
    assert torch.equal(out, a * b + a)


@triton.jit
def product(c, a, b, N: tl.constexpr, ACC: tl.constexpr):
    i = tl.arange(0, N)
    square = i[:, None] * N + i[None, :]
    acc = tl.zeros((N, N), dtype=ACC)
    acc = tl.dot(tl.load(a + square), tl.load(b + square), acc, out_dtype=ACC)
    tl.store(c + square, acc)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_products_accumulate_in_float32(dtype):
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(32, 32, generator=generator).to(dtype), torch.randn(32, 32, generator=generator).to(dtype)
    out = torch.zeros(32, 32)
    run(product, out, a, b, N=32, ACC=tl.float32)
    expected = (a.double() @ b.double()).float()
    assert torch.allclose(out, expected, rtol=1e-5, atol=1e-4)


def test_products_of_int8_accumulate_in_int32():
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-128, 128, (64, 64), generator=generator, dtype=torch.int8) for _ in range(2))
    out = torch.zeros(64, 64, dtype=torch.int32)
    run(product, out, a, b, N=64, ACC=tl.int32)
    assert torch.equal(out, a.int() @ b.int())


@triton.jit
def aliased(dst, n, SIZE: L.constexpr, wide=False):
    """A constexpr under another alias, early use of loop indices as tensors, ``and`` on blocks, chained comparisons."""
    i = L.arange(0, SIZE)
    total = L.zeros((SIZE,), dtype=L.int64)
    for k in range(0, n):
        total += k.to(L.int64) * 2
    for k in L.static_range(2):
        total += k
    inside = (i > 3) and not (i >= 12)
    between = 5 <= i < 9
    low = min(n, 4)
    value = total + low + max(1, 2) + shifted(i, BY=2) + helpers_elsewhere.shifted(i) + helpers_elsewhere.line(SIZE)
    L.static_assert(SIZE > 1)
    L.assume(n > 0)
    L.store(dst + i, L.where(inside, value, 0) + L.where(between, 1000, 0))


def test_control_flow_and_names():
    out = torch.zeros(16, dtype=torch.int64)
    run(aliased, out, 5, SIZE=16, num_warps=4, num_stages=2)
    i = np.arange(16)
    value = 20 + 1 + 4 + 2 + (i + 5) + (i + 4) + i
    assert out.tolist() == (np.where((i > 3) & (i < 12), value, 0) + np.where((5 <= i) & (i < 9), 1000, 0)).tolist()


def make_kernel(step):
    @triton.jit
    def inner(dst, N: tl.constexpr):
        tl.store(dst + tl.arange(0, N), tl.arange(0, N) * step)

    return inner


def test_a_kernel_defined_inside_a_function_sees_what_it_closes_over():
    for step in (2, 3):
        out = torch.zeros(N, dtype=torch.int32)
        run(make_kernel(step), out, N=N)
        assert out.tolist() == [i * step for i in range(N)]


@triton.autotune(configs=[triton.Config({"SIZE": 16}, num_warps=2), triton.Config({"SIZE": 32})], key=["n"])
@triton.heuristics({"TWICE": lambda args: args["SIZE"] * 2})
@triton.jit
def tuned(dst, n, SIZE: tl.constexpr, TWICE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(dst + i, TWICE, mask=i < n)


@pytest.mark.parametrize(("choice", "value"), [(0, 32), (1, 64)])
def test_autotune_and_heuristics_without_timing(choice, value):
    out = torch.zeros(50, dtype=torch.int32)
    run(tuned, out, 50, grid=lambda meta: (triton.cdiv(50, meta["SIZE"]),), world=World(1, autotune_choice=choice))
    assert out.eq(value).all()

    def host(group):
        made = torch.empty(50, dtype=torch.int32)
        tuned[lambda meta: (triton.cdiv(50, meta["SIZE"]),)](made, 50)
        group.overlap_runtime.synchronize()
        return made

    assert World(1, autotune_choice=choice).run(host)[0].eq(value).all()


@triton.jit
def descriptors(dst, desc, src, M, N, BM: tl.constexpr, BN: tl.constexpr):
    made = tl.make_tensor_descriptor(dst, [M, N], [N, 1], [BM, BN])
    for m in range(0, tl.cdiv(M, BM)):
        made.store([m * BM, 0], desc.load([m * BM, 0]) + 1)


@triton.jit
def stored_at(dst, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    made = tl.make_tensor_descriptor(dst, [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    made.store([row, 0], tl.full((ROWS, COLUMNS), 1.0, tl.float32))


@pytest.mark.parametrize("row", [-16, -15, 0, 15, 16, 1 << 30])
def test_a_box_wholly_below_zero_is_illegal_and_one_past_the_end_is_nothing(row):
    dst = torch.zeros(16, 16)
    if row == -16:
        with pytest.raises(StrayAccessFault, match="ends at 0 in dimension 0, wholly below zero"):
            run(stored_at, dst, row, ROWS=16, COLUMNS=16)
        return
    run(stored_at, dst, row, ROWS=16, COLUMNS=16)
    assert dst.sum() == 16 * max(0, 16 - abs(row))


def test_descriptors_of_host_and_device():
    src, dst = torch.arange(24 * 16, dtype=torch.float32).view(24, 16), torch.zeros(24, 16)
    run(descriptors, dst, TensorDescriptor(src, [24, 16], [16, 1], [16, 16]), src, 24, 16, BM=16, BN=16)
    assert torch.equal(dst, src + 1)


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_tensor_that_tma_cannot_take_is_refused_at_its_line(where):
    """Rows of 15 floats are 60 bytes."""

    def body(group):
        runtime = group.overlap_runtime
        good, bad = torch.zeros(24, 16), torch.zeros(24, 15)
        src = TensorDescriptor(
            bad if where == "host" else good, [24, 15], [15, 1] if where == "host" else [16, 1], [16, 16]
        )
        runtime.launch(descriptors, (1,), (bad, src, good, 24, 15), {"BM": 16, "BN": 16}, runtime.main_stream())

    with pytest.raises(AlignmentError, match="a TMA descriptor cannot take this tensor") as caught:
        World(1).run(body)
    assert caught.value.where.path == __file__
    assert ("make_tensor_descriptor(dst" if where == "device" else "TensorDescriptor(") in caught.value.where.text


@triton.jit
def pointers_in_a_tuple(sources, dst, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.load(sources[0] + i)
    total += tl.load(sources[1] + i)
    tl.store(dst + i, total)


def test_tuples_of_pointers():
    a, b, out = torch.arange(N), torch.arange(N) * 3, torch.zeros(N, dtype=torch.int64)
    run(pointers_in_a_tuple, (a, b), out, N=N)
    assert torch.equal(out, a + b)


@triton.jit
def transcendental(dst, src, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(src + i)
    tl.store(dst + i, libdevice.tanh(x) + libdevice.pow(x, 2.0) + tl.sum(x) + tl.max(x, axis=0) + tl.exp(x))


def test_libdevice_and_reductions():
    x, out = torch.linspace(-2, 2, N), torch.zeros(N)
    run(transcendental, out, x, N=N)
    assert torch.allclose(out, x.tanh() + x.pow(2) + x.sum() + x.max() + x.exp(), atol=1e-4)


@triton.jit
def block_pointers(dst, src, M, N, B: tl.constexpr):
    source = tl.make_block_ptr(src, (M, N), (N, 1), (0, 0), (B, B), (1, 0))
    target = tl.make_block_ptr(dst, (M, N), (N, 1), (0, 0), (B, B), (1, 0))
    for _ in range(0, tl.cdiv(M, B)):
        tl.store(target, tl.load(source, boundary_check=(0, 1)) * 2, boundary_check=(0, 1))
        source = tl.advance(source, (B, 0))
        target = tl.advance(target, (B, 0))


HAS_BLOCK_POINTERS = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 9)


def test_block_pointers_where_triton_has_them():
    src, dst = torch.arange(20 * 10, dtype=torch.float32).view(20, 10), torch.zeros(20, 10)
    if HAS_BLOCK_POINTERS:
        run(block_pointers, dst, src, 20, 10, B=16)
        assert torch.equal(dst, src * 2)
    else:
        with pytest.raises(KernelCrashFault, match="make_block_ptr"):
            run(block_pointers, dst, src, 20, 10, B=16)


# memory


@triton.jit
def write_at(dst, offset, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dst + offset + i, i)


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (1, "1 element past the end of dst"),
        (40, "9 elements past the end of dst"),
        (-1, "1 element before the start of dst"),
        (1 << 40, "far from every tensor"),
    ],
)
def test_an_address_outside_every_tensor_is_a_fault_and_not_a_crash(offset, said):
    def body(group):
        runtime = group.overlap_runtime
        dst = torch.empty(32, dtype=torch.int32)
        runtime.launch(write_at, (1,), (dst, offset), {"N": 32}, runtime.main_stream())

    with pytest.raises(StrayAccessFault, match=said) as caught:
        World(1).run(body)
    assert caught.value.where.path == __file__
    assert "tl.store(dst + offset + i, i)" in caught.value.render()


@triton.jit
def misaligned(dst):
    wide = (dst + 1).to(tl.pointer_type(tl.int64), bitcast=True)
    tl.store(wide, 1)


def test_a_misaligned_address_is_a_fault():
    with pytest.raises(StrayAccessFault, match="no multiple of 8 bytes"):
        run(misaligned, torch.zeros(8, dtype=torch.int32))


@triton.jit
def everybody_writes(dst):
    tl.store(dst, tl.program_id(0))


@triton.jit
def everybody_adds(dst):
    tl.atomic_add(dst, 1)


def test_programs_of_one_launch_race_unless_they_use_atomics():
    with pytest.raises(RaceFault, match=r"rank 0 program \d of everybody_writes"):
        run(everybody_writes, torch.zeros(1, dtype=torch.int32), grid=(3,))
    out = torch.zeros(1, dtype=torch.int32)
    run(everybody_adds, out, grid=(2, 3, 4))
    assert out.item() == 24


@triton.jit
def spins_on_a_load(flag, dst):
    if tl.program_id(0) == 0:
        while tl.load(flag) != 1:
            pass
    else:
        tl.store(flag, 1)


def test_a_loop_around_a_plain_load_is_a_race_and_not_a_hang():
    for seed in range(5):
        with pytest.raises(RaceFault, match="spins_on_a_load"):
            run(spins_on_a_load, torch.zeros(1), torch.zeros(1), grid=(2,), world=World(1, seed=seed))


def test_a_load_that_nobody_answers_is_a_deadlock():
    with pytest.raises(DeadlockFault, match=r"program 0 of spins_on_a_load waits for flag\[0\] of rank 0, saw 0.0"):
        run(spins_on_a_load, torch.zeros(1), torch.zeros(1), grid=(1,))


@triton.jit
def restless(flag, dst):
    while tl.atomic_add(flag, 0) != 1:
        tl.store(dst, 1.0)


def test_a_program_that_gets_nowhere_is_a_deadlock(monkeypatch):
    monkeypatch.setattr(fibres, "LIVELOCK_STEPS", 2000)
    with pytest.raises(DeadlockFault, match="program 0 of restless goes on and on"):
        run(restless, torch.zeros(1, dtype=torch.int32), torch.zeros(1))


@triton.jit
def atomic_words(flag, out, VALUE: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.atomic_poll(flag, VALUE, sem="acquire", scope="gpu")
        tl.store(out, tl.atomic_load(flag, sem="acquire", scope="gpu") + tl.load(out))
    else:
        tl.store(out, 5)
        tl.debug_barrier()
        tl.atomic_store(flag, VALUE, sem="release", scope="gpu")


def test_atomic_loads_and_stores_where_triton_has_them():
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for seed in range(5):
        flag.zero_()
        if hasattr(tl, "atomic_poll"):
            run(atomic_words, flag, out, VALUE=3, grid=(2,), world=World(1, seed=seed))
            assert out.item() == 8
        else:
            with pytest.raises(KernelCrashFault, match="atomic_poll|atomic_store"):
                run(atomic_words, flag, out, VALUE=3, grid=(2,), world=World(1, seed=seed))


@triton.jit
def unknown_assembly(dst):
    tl.store(dst, tl.inline_asm_elementwise("bfind.u32 $0, $1;", "=r,r", [1], dtype=tl.int32, is_pure=True, pack=1))


def test_unknown_assembly_is_refused_with_its_line():
    with pytest.raises(UnsupportedError, match="inline assembly that the simulator does not know") as caught:
        run(unknown_assembly, torch.zeros(1, dtype=torch.int32))
    assert caught.value.where.path == __file__


@triton.jit
def crashes(dst):
    x = tl.arange(0, 16)
    tl.store(dst + x, x.no_such_thing)


def test_a_kernel_that_raises_is_a_fault_with_its_line():
    with pytest.raises(KernelCrashFault, match="no_such_thing") as caught:
        run(crashes, torch.zeros(16, dtype=torch.int32))
    assert caught.value.where.text.strip().startswith("tl.store(dst + x")


@triton.jit
def asserts(x):
    tl.device_assert(x > 3, "too small")


def test_device_assert():
    with pytest.raises(KernelCrashFault, match="too small"):
        run(asserts, 2, debug=True)


def test_triton_is_as_it_was_after_a_run():
    before = (tl.load, tl.tensor.__add__, tl.range, type(convert).run, torch.empty)
    run(everybody_adds, torch.zeros(1, dtype=torch.int32))
    with pytest.raises(KernelCrashFault):
        run(crashes, torch.zeros(16, dtype=torch.int32))
    assert (tl.load, tl.tensor.__add__, tl.range, type(convert).run, torch.empty) == before
