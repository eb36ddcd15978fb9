"""Tensors whose memory is not their value, and results whose elements share memory: refused by name, with what to pass."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from overlap.errors import UsageError
from overlap.runtime.calls.operands import check_launch, check_operands, check_results, tensors_of


class Wrapper(torch.Tensor):
    """A tensor that holds another one, as quantized weights and distributed tensors do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("nobody reads it")


class Named(torch.Tensor):
    """A subclass whose memory is its own."""


def freed(x):
    x.untyped_storage().resize_(0)
    return x


ODD = {
    "negated": (torch._neg_view, r"x is a negated view.*\n.*resolve_neg"),
    "conjugate's imaginary part": (lambda x: torch.complex(x, x).conj().imag, "negated view"),
    "conjugated": (lambda x: torch.complex(x, x).conj(), r"x is a conjugated view.*\n.*resolve_conj"),
    "sparse": (torch.Tensor.to_sparse, r"x is torch.sparse_coo.*\n.*to_dense"),
    "compressed": (torch.Tensor.to_sparse_csr, "x is torch.sparse_csr"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "x is a nested tensor"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "x is a nested tensor"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "x is quantized, torch.qint8"),
    "on meta": (lambda x: x.to("meta"), "x has no memory of its own .Tensor on meta"),
    "zeros that autograd made up": (lambda x: torch._efficientzerotensor(x.shape), "no memory of its own"),
    "a wrapper": (Wrapper, "x has no memory of its own .Wrapper on cpu"),
    "a fake": (lambda x: FakeTensorMode().from_tensor(x), "no memory of its own .FakeTensor on cpu"),
    "freed": (lambda x: freed(x.clone()), "no memory of its own"),
    "a list": (torch.Tensor.tolist, "x is a list"),
    "nothing": (lambda x: None, "x is a NoneType"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD)
def test_what_has_no_memory_to_read_is_refused(kind):
    make, said = ODD[kind]
    with pytest.raises(UsageError, match="(?s)" + said):
        check_operands([("x", make(torch.randn(4, 6)))])


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, torch.func.functionalize])
def test_what_transforms_put_in_the_place_of_tensors_is_refused(transform):
    def body(x):
        check_operands([("x", x)])
        return x.sum()

    with pytest.raises(UsageError, match="transform of torch.func"):
        transform(body)(torch.randn(4))


def test_any_strides_subclasses_and_nothing_at_all_are_taken():
    x = torch.randn(4, 6)
    views = [x.t(), x[::2, 1::3], x[:1].expand(4, 6), x.view(-1).unfold(0, 6, 2), x[:0], x.sum()]
    subclasses = [torch.nn.Parameter(x), x.as_subclass(Named)]
    check_operands([("x", each) for each in (*views, *subclasses, x.half(), x.bool(), x.requires_grad_())])


def test_elements_of_a_result_lie_apart():
    x = torch.zeros(60)
    for y in (x, x.view(4, 15).t(), x.view(3, 20)[:, ::4], x[:1].expand(1), x[:0].expand(3, 0), x.view(1, 60)[:, 5:]):
        check_results([("out", y)])
    for y in (x[:1].expand(4), x.as_strided((4, 6), (1, 1)), x.unfold(0, 6, 4), x.view(3, 20)[:, :1].expand(3, 5)):
        with pytest.raises(UsageError, match="out has shape .* so that elements share memory"):
            check_results([("out", y)])
    with pytest.raises(UsageError, match="negated"):
        check_results([("out", torch._neg_view(x))])


def test_complex_numbers_are_not_for_kernels():
    with pytest.raises(UsageError, match=r"(?s)`z_ptr` is torch.complex64, which Triton has no type for.*view_as_real"):
        check_launch({"x_ptr": torch.zeros(3), "z_ptr": torch.zeros(3, dtype=torch.complex64), "n": 3})


def test_tensors_of_a_launch_are_those_under_descriptors_too():
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, y = torch.zeros(16, 16), torch.zeros(3)
    launch = {"a": TensorDescriptor.from_tensor(x, [16, 16]), "n": 3, "y_ptr": y, "none": None}
    assert [(name, tensor is given) for (name, tensor), given in zip(tensors_of(launch), (x, y), strict=True)] == [
        ("`a`", True),
        ("`y_ptr`", True),
    ]
