"""Shared memory that a kernel's assembly declares: what is left for its tiles, on H100's numbers."""

from types import SimpleNamespace

import pytest

from overlap.errors import UnsupportedError
from overlap.language.boxes import memory_assembly
from overlap.ops.blocks import BARRIERS, SHARED_BYTES, blocks_tried
from overlap.runtime.cuda import static_memory
from overlap.schedule.moves import BETWEEN_BYTES

H100 = 232448


def made(shared: int, ptx: str = memory_assembly()) -> SimpleNamespace:
    """A compiled kernel that asks for so many bytes of shared memory."""
    metadata = SimpleNamespace(shared=shared, num_warps=8)
    return SimpleNamespace(name="matmul_kernel", metadata=metadata, asm={"ptx": ptx}, function=7)


@pytest.fixture
def allowed(monkeypatch):
    """What functions are allowed to ask for."""
    found = []
    monkeypatch.setattr(static_memory, "_limit", lambda: H100)
    monkeypatch.setattr(static_memory, "_allow", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize("shared", [0, 40 * 1024, 48 * 1024, 213128, H100 - BETWEEN_BYTES])
def test_a_function_may_ask_for_all_that_is_left(allowed, shared):
    """Also where a launch asks for less than 48 KiB, of which the driver would take what is declared."""
    static_memory.make_room(made(shared))
    assert allowed == [(7, H100 - BETWEEN_BYTES)]


def test_what_does_not_fit_is_refused_with_what_does(allowed):
    with pytest.raises(UnsupportedError, match=r"`matmul_kernel` takes 223233 bytes .* 9216 .* has 232448") as caught:
        static_memory.make_room(made(H100 - BETWEEN_BYTES + 1))
    assert "ldst_inline" in caught.value.help and not allowed


def test_kernels_that_declare_nothing_stay_as_triton_loads_them(allowed):
    static_memory.make_room(made(H100, ptx=".extern .shared .align 16 .b8 global_smem[];"))
    static_memory.make_room(SimpleNamespace(name="kernel", module=7))
    static_memory.make_room(made(H100, ptx=".visible .entry tool_boxes_kernel(.param .u64 tool_boxes_kernel_param_0)"))
    assert not allowed and static_memory.declared(made(0)) == BETWEEN_BYTES
    assert static_memory.declared(made(0, ptx=2 * memory_assembly())) == 2 * BETWEEN_BYTES


@pytest.mark.parametrize("itemsize", [1, 2])
def test_all_blocks_that_operators_take_leave_room(itemsize):
    tried = [blocks for blocks in blocks_tried(descriptors=True, itemsize=itemsize) if blocks.fit(itemsize, 2)]
    assert len(tried) > 8
    for blocks in tried:
        tiles = blocks.stages * (blocks.m + blocks.n) * blocks.k * itemsize + blocks.m * blocks.n * 2 + BARRIERS
        assert tiles + BETWEEN_BYTES <= SHARED_BYTES, blocks
