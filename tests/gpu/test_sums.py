"""The sum kernel against sums in the order of the ranks, to the last bit: dtypes, numbers of summands, strides, places."""

import functools

import pytest
import torch

from overlap.runtime.kernels.reduce import sum_kernel
from overlap.runtime.launch.prepared import BESIDE_WARPS, SUM_WARPS
from overlap.runtime.tables.sums import ACCUMULATORS, Addition, Operand, sum_table

DEVICE = "cuda"
ROOM = 24
"""Elements ahead of each tensor and behind it, which nothing may touch."""
CASES = {
    "one word": ((8,), 0),
    "a row": ((5000,), 0),
    "rows": ((67, 128), 0),
    "rows of a wider tensor": ((67, 128), 32),
    "rows that begin anywhere": ((67, 127), 5),
    "three dimensions": ((5, 33, 64), 16),
    "four dimensions": ((3, 4, 17, 24), 8),
    "more than every program's block": ((1031, 1024), 0),
}
"""Extents, and elements by which rows in memory are longer."""


def strided(shape, longer, *, copies, offset, dtype, fill):
    """``copies`` tensors of a shape in one memory, each row ``longer``; the memory, the tensors, and where each begins."""
    pitch = [1]
    for n, more in zip(reversed(shape[1:]), [longer] * (len(shape) - 1), strict=True):
        pitch.insert(0, pitch[0] * n + more)
    each = pitch[0] * shape[0] + 2 * ROOM + offset
    memory = fill(copies * each).to(dtype)
    begins = [i * each + ROOM + offset for i in range(copies)]
    return memory, [memory.as_strided(shape, pitch, begin) for begin in begins], begins, tuple(pitch)


def noise(seed):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return lambda n: torch.randn(n, device=DEVICE, generator=generator)


def nans(n):
    return torch.full((n,), float("nan"), device=DEVICE)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "made", "warps"),
    [
        (torch.bfloat16, torch.bfloat16, SUM_WARPS),
        (torch.bfloat16, torch.bfloat16, BESIDE_WARPS),
        (torch.float16, torch.float32, SUM_WARPS),
        (torch.float32, torch.float32, SUM_WARPS),
        (torch.float64, torch.float64, SUM_WARPS),
        (torch.float8_e4m3fn, torch.bfloat16, SUM_WARPS),
    ],
    ids=str,
)
@pytest.mark.parametrize("summands", [1, 2, 3, 4, 5, 9])
def test_sums_are_those_in_the_order_of_ranks(dtype, made, warps, case, summands):
    shape, longer = CASES[case]
    accumulator = "fp64" if dtype == torch.float64 else "fp32"
    memory, parts, begins, pitch = strided(shape, longer, copies=summands, offset=0, dtype=dtype, fill=noise(summands))
    out, (result,), (begin,), out_pitch = strided(shape, 0, copies=1, offset=0, dtype=made, fill=nans)
    places = tuple((Operand(at, pitch), -1) for at in begins)
    table = sum_table([Addition(shape, places, Operand(begin, out_pitch), None)], dtype.itemsize, warps)
    programs = min(64, table.blocks)
    state = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    sum_kernel[programs, 1, 1](
        memory, out, torch.tensor(table.values, device=DEVICE), state, pieces=table.pieces, programs=programs, peers=state,
        credits=0, DIMS=table.dims, WIDE=False, VEC=table.vec, SUMMANDS=2 if summands <= 2 else 4,
        ACCUMULATOR=ACCUMULATORS[accumulator], BLOCK=table.block, num_warps=warps,
    )  # fmt: skip
    exact = [part.to(torch.float64 if accumulator == "fp64" else torch.float32) for part in parts]
    wanted = functools.reduce(torch.add, exact).to(made)
    assert torch.equal(result.view(torch.uint8), wanted.view(torch.uint8).view(result.view(torch.uint8).shape))
    untouched = out.clone()
    untouched.as_strided(shape, out_pitch, begin).fill_(float("nan"))
    assert untouched.isnan().all(), "something beside the result was written"
