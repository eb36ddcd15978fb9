"""Elements further than 2^31 from a tensor's first: kernels run as they are, over memory of which few pages are ever touched.

Simulated ranks would keep a shadow of all of it, so Triton's interpreter runs them alone. What wraps leaves the memory, and the
process ends in this test.
"""

from __future__ import annotations

import math

import pytest
import torch

from overlap.codegen.module_io import load_module
from overlap.ops.kernels import ag_gemm_any, gemm_out_stored
from overlap.runtime.kernels.entry import entry_kernel
from overlap.schedule.table import state_words

STEP = 2**30 + 2**20
"""Of three rows the last begins past 2^31, by a stride that 32 bits hold."""


def far(rows, columns, dim=0):
    """A tensor of bytes whose rows (or columns) lie `STEP` apart, filled with small numbers."""
    shape = (rows, columns) if dim == 0 else (columns, rows)
    strides = (STEP, 1) if dim == 0 else (1, STEP)
    memory = torch.empty((rows - 1) * STEP + columns, dtype=torch.int8)
    tensor = memory.as_strided(shape, strides)
    return tensor.copy_(torch.arange(rows * columns).view(shape) % 7 - 3)


@pytest.mark.parametrize("staged", ["from afar", "far away"])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_what_is_staged(staged, dims):
    """The far dimension is the outermost of ``dims``."""
    columns = 1 if dims == 1 else 16
    near = torch.arange(3 * columns, dtype=torch.int8).view(3, columns)
    src, dst = (far(3, columns), torch.zeros_like(near)) if staged == "from afar" else (near, far(3, columns))
    wanted = src.clone()
    sizes = {1: (1, 1, 1, 3), 2: (1, 1, 3, 16), 3: (1, 3, 4, 4), 4: (3, 2, 2, 4)}[dims]
    arguments = {f"n{i}": n for i, n in enumerate(sizes)}
    for sign, tensor in (("s", src), ("d", dst)):
        dense = [math.prod(sizes[i + 1 :]) for i in range(4)]
        dense[4 - dims] = tensor.stride(0)
        arguments |= {f"{sign}{i}": stride for i, stride in enumerate(dense)}
    words = torch.zeros(state_words(1, 1), dtype=torch.int64)
    entry_kernel[(1, 1, 1)](
        src=src, dst=dst, state=words, peers=words, rank=0, world=1, programs=1, instance=0, first_counter=0, counters=0,
        DIMS=dims, WIDE=False, WAIT_DONE=False, PUBLISH=False, READY=False, COUNTERS=False, BLOCK=32, **arguments,
    )  # fmt: skip
    assert torch.equal(dst, wanted)


@pytest.fixture(scope="module")
def plain(repo):
    return load_module(str(repo / "templates/kernels/gemm_2d.py")).matmul_kernel


@pytest.mark.parametrize("which", ["a rows", "a columns", "b rows", "b columns", "c rows"])
@pytest.mark.parametrize("kernel", [ag_gemm_any, gemm_out_stored, None], ids=["any", "stored", "template"])
def test_products(kernel, which, plain):
    """One of the three has its rows or its columns far apart, three of them."""
    shape, (operand, along) = {"M": 16, "N": 16, "K": 16}, which.split()
    dim = int(along == "columns")
    shape[{"a": "MK", "b": "KN", "c": "MN"}[operand][dim]] = 3
    m, n, k = shape.values()
    sizes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    a, b, c = (
        (far(3, size[1 - dim], dim) if name == operand else torch.empty(size, dtype=torch.int8)).view(torch.float8_e5m2)
        for name, size in sizes.items()
    )
    a.copy_(torch.arange(m * k).view(m, k) % 5 - 2.0)
    b.copy_(torch.arange(k * n).view(k, n) % 3 - 1.0)
    c.fill_(float("nan"))
    strides = {f"stride_{name}{d}": t.stride(i) for name, t in (("a", a), ("b", b), ("c", c)) for i, d in _DIMS[name]}
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": m, "N": n, "K": k, **strides}
    arguments |= {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
    if kernel is not None:
        arguments |= {
            "B": 1,
            "stride_ab": 0,
            "stride_cb": 0,
            "BLOCK_B": 1,
            "GROUP_M": 4,
            "bias_ptr": None,
            "HAS_BIAS": False,
        }
    if kernel is ag_gemm_any:
        arguments["PRECISION"] = "ieee"
    if kernel is gemm_out_stored:
        arguments |= {"NUM_PROGRAMS": 1, "A_BY": "pointers", "B_BY": "pointers", "a_desc": None, "b_desc": None}
    (kernel or plain)[(1, 1, 1)](**arguments)
    wanted = (a.float() @ b.float()).to(c.dtype)
    assert torch.equal(c.float(), wanted.float())


_DIMS = {"a": ((0, "m"), (1, "k")), "b": ((0, "k"), (1, "n")), "c": ((0, "m"), (1, "n"))}
