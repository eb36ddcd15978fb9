"""Launches that run one compiled kernel, and launches that do not."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.runtime.launch.variant import variant_of


@triton.jit
def kernel(a_ptr, n, x, BLOCK: tl.constexpr, HOW: tl.constexpr = "rows"):
    pass


MEMORY = torch.empty(64, dtype=torch.float32)
ALIGNED, OTHER, SHIFTED = MEMORY, MEMORY[16:], MEMORY[1:]
USUAL = {"a_ptr": ALIGNED, "n": 32, "x": 1.5, "BLOCK": 64, "HOW": "rows", "num_warps": 4}


def descriptor(block: int, dtype: torch.dtype = torch.float16) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(torch.empty(64, 64, dtype=dtype), [block, 64])


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("BLOCK", 64, 128),
        ("BLOCK", 1, True),
        ("HOW", "rows", "columns"),
        ("num_warps", 4, 8),
        ("n", 1, 2),
        ("n", 1, True),
        ("n", 32, 33),
        ("n", 2**31 - 16, 2**31),
        ("n", 2**63 - 16, 2**63),
        ("n", 2, None),
        ("x", 1.5, 1),
        ("a_ptr", ALIGNED, SHIFTED),
        ("a_ptr", ALIGNED, ALIGNED.view(torch.int32)),
        ("a_ptr", ALIGNED, None),
        ("a_ptr", descriptor(16), descriptor(32)),
        ("a_ptr", descriptor(16), descriptor(16, torch.bfloat16)),
        ("a_ptr", descriptor(16), ALIGNED),
    ],
)
def test_another_kernel(name, one, other):
    first, second = (variant_of(kernel, {**USUAL, name: value}) for value in (one, other))
    assert first.exact and second.exact and first.key != second.key


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("n", 32, 64),
        ("n", 3, 5),
        ("n", 2**31, 2**32),
        ("x", 1.5, 2.5),
        ("a_ptr", ALIGNED, OTHER),
        ("a_ptr", descriptor(16), descriptor(16)),
    ],
)
def test_the_same_kernel(name, one, other):
    first, second = (variant_of(kernel, {**USUAL, name: value}) for value in (one, other))
    assert first.exact and first.key == second.key


@pytest.mark.parametrize(("name", "value"), [("n", (1, 2)), ("a_ptr", object()), ("BLOCK", [64])])
def test_what_only_triton_can_judge(name, value):
    assert not variant_of(kernel, {**USUAL, name: value}).exact


def test_a_hook_before_every_run_is_run():
    @triton.jit
    def hooked(n):
        pass

    assert variant_of(hooked, {"n": 2}).exact
    hooked.add_pre_run_hook(lambda *args, **kwargs: None)
    assert not variant_of(hooked, {"n": 2}).exact
