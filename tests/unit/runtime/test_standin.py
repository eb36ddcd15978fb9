"""Stand-ins give shapes, strides and views, and refuse everything that would read data."""

import pytest
import torch

from overlap.errors import HostEntryError, SourceSpan
from overlap.runtime.calls.standin import StandIn, stand_in, unwrap

WHERE = SourceSpan("user.py", 7, 5, "    x = a + 1")


@pytest.fixture
def a():
    return stand_in(torch.full((4, 6), float("nan")), "a", lambda: WHERE)


def test_facts(a):
    assert a.shape == (4, 6) and a.stride() == (6, 1) and a.dtype == torch.float32 and a.dim() == a.ndim == 2
    assert a.size(1) == 6 and a.numel() == 24 and len(a) == 4 and a.is_contiguous() and a.element_size() == 4
    assert not a.is_cuda and a.device.type == "cpu" and a.stride(0) == 6 and a.is_floating_point()
    rows, columns = a.shape
    assert (rows, columns) == (4, 6)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.t(),
        lambda a: a.T,
        lambda a: a.view(-1),
        lambda a: a.reshape(2, 12),
        lambda a: a[1:3],
        lambda a: a.unsqueeze(0).transpose(0, 1),
        lambda a: a.contiguous(),
        lambda a: a.flatten(),
        lambda a: torch.transpose(a, 0, 1),
        lambda a: a.detach(),
        lambda a: a.expand(3, 4, 6),
    ],
)
def test_views_stay_stand_ins_on_the_same_memory(a, view):
    result = view(a)
    assert isinstance(result, StandIn)
    plain = unwrap(result)
    assert type(plain) is torch.Tensor
    assert plain.untyped_storage().data_ptr() == unwrap(a).untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a + 1,
        lambda a: a.sum(),
        lambda a: torch.relu(a),
        lambda a: a[0, 0].item(),
        lambda a: a.t().contiguous(),
        lambda a: a.t().reshape(-1),
        lambda a: a.clone(),
        lambda a: a.to(torch.float16),
        lambda a: a.zero_(),
        lambda a: a.numpy(),
        lambda a: a.tolist(),
        lambda a: bool(a.view(-1)[0]),
        lambda a: torch.empty(4, 6).copy_(a),
        lambda a: a[torch.tensor([0, 1])],
        lambda a: torch.cat([a, a]),
        lambda a: a.cpu().max(),
    ],
)
def test_reading_data_is_refused_with_the_line(a, read):
    with pytest.raises(HostEntryError) as caught:
        read(a)
    assert caught.value.where == WHERE
    assert "`a`" in caught.value.message


def test_factories_give_ordinary_tensors(a):
    for made in (torch.empty_like(a), a.new_zeros(3), torch.zeros_like(a)):
        assert type(made) is torch.Tensor
