"""Memory that launches bring for descriptors made on the device: only where nobody else brings any."""

import pytest
import triton
from triton.runtime import _allocation

from overlap.runtime.cuda.scratch import scratch


@pytest.fixture
def nobody():
    """No allocator is set."""
    none = _allocation.NullAllocator()
    token = _allocation._allocator.set(none)
    yield none
    _allocation._allocator.reset(token)


def test_an_allocator_is_there_for_the_time_of_a_launch(nobody):
    with scratch():
        assert not isinstance(_allocation._allocator.get(), _allocation.NullAllocator)
    assert _allocation._allocator.get() is nobody
    with pytest.raises(RuntimeError, match="launch"), scratch():
        raise RuntimeError("the launch failed")
    assert _allocation._allocator.get() is nobody


def test_who_has_set_one_is_asked(nobody):
    def mine(size, alignment, stream):
        raise AssertionError

    triton.set_allocator(mine)
    with scratch():
        assert _allocation._allocator.get() is mine
    assert _allocation._allocator.get() is mine
