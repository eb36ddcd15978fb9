"""Stand-ins: what the user's host body holds in place of a sharded tensor.

A stand-in has the global shape and the layout of the gathered buffer. Shapes, strides and views may be
used, because the launch arguments are computed from them; its data is not there yet, so reading it is
an error at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overlap.errors import HostEntryError, SourceSpan

_FACTS = {
    "shape",
    "dtype",
    "device",
    "ndim",
    "is_cuda",
    "is_cpu",
    "layout",
    "requires_grad",
    "is_sparse",
    "is_meta",
    "is_leaf",
    "is_quantized",
    "is_nested",
    "itemsize",
    "nbytes",
    "grad",
    "grad_fn",
    "names",
    "_base",
    "is_mps",
    "is_xpu",
}
_VIEW_FACTS = {"T", "mT", "H", "mH", "data"}
_METHODS = {
    "stride",
    "size",
    "dim",
    "numel",
    "nelement",
    "ndimension",
    "is_contiguous",
    "element_size",
    "storage_offset",
    "data_ptr",
    "untyped_storage",
    "get_device",
    "is_floating_point",
    "is_complex",
    "is_signed",
    "__len__",
    "is_non_overlapping_and_dense",
    "_is_view",
    "type",
    "is_pinned",
    "__hash__",
    "is_shared",
}
_VIEWS = {
    "view",
    "reshape",
    "t",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "narrow",
    "expand",
    "flatten",
    "unflatten",
    "select",
    "__getitem__",
    "contiguous",
    "detach",
    "movedim",
    "swapaxes",
    "swapdims",
    "as_strided",
    "split",
    "chunk",
    "unbind",
    "view_as",
    "expand_as",
    "adjoint",
    "requires_grad_",
    "alias",
    "unfold",
    "diagonal",
    "squeeze_",
}
_FACTORIES = {
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_tensor",
    "new_empty_strided",
}


class StandIn(torch.Tensor):
    """A tensor of the right shape whose data may not be read. Made by `stand_in`."""

    ol_name: str
    ol_refuse: Callable[[str], Any]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = func.__self__.__name__
            kind = "fact" if name in _FACTS else "view" if name in _VIEW_FACTS else None
        elif name in _METHODS or name in _FACTORIES:
            kind = "fact"
        else:
            kind = "view" if name in _VIEWS else None
        holder = next((a for a in _flat((args, kwargs)) if isinstance(a, StandIn)), None)
        with torch._C.DisableTorchFunctionSubclass():
            if kind is None and holder is not None:
                holder.ol_refuse(f"`{name}` reads the data of `{holder.ol_name}`, which is sharded")
            result = func(*args, **kwargs)
            if name in _FACTORIES:
                return _plain(result)
            if kind == "view" and holder is not None:
                return _rewrap(result, holder, name)
        return result

    def __repr__(self, **_: Any) -> str:
        with torch._C.DisableTorchFunctionSubclass():
            return f"StandIn({self.ol_name}, shape={tuple(self.shape)}, dtype={self.dtype})"


def _flat(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _flat(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _flat(v)
    else:
        yield value


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value


def _rewrap(result: Any, holder: StandIn, name: str) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_rewrap(r, holder, name) for r in result)
    if not isinstance(result, torch.Tensor):
        return result
    if result.untyped_storage().data_ptr() != holder.untyped_storage().data_ptr():
        holder.ol_refuse(f"`{name}` copies the data of `{holder.ol_name}`, which is sharded")
    wrapped = result.as_subclass(StandIn)
    wrapped.ol_name, wrapped.ol_refuse = holder.ol_name, holder.ol_refuse
    return wrapped


def stand_in(buffer: torch.Tensor, name: str, locate: Callable[[], SourceSpan | None]) -> StandIn:
    """A stand-in over ``buffer`` (global shape).

    Args:
        buffer: the gathered tensor's memory.
        name: the user's name for it.
        locate: gives the user's line when something is refused.
    """

    def refuse(message: str) -> None:
        raise HostEntryError(
            message,
            where=locate(),
            help="only shapes, strides and views may be used before the launch; compute on data inside the kernel or "
            "pass the result in as another argument",
        )

    wrapped = buffer.as_subclass(StandIn)
    wrapped.ol_name, wrapped.ol_refuse = name, refuse
    return wrapped


def unwrap(value: Any) -> Any:
    """The same argument with every stand-in replaced by the tensor under it, through tuples and tensor descriptors."""
    if isinstance(value, StandIn):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(torch.Tensor)
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(unwrap(v) for v in value)
    if hasattr(value, "block_shape") and isinstance(getattr(value, "base", None), torch.Tensor):
        value.base = unwrap(value.base)
    return value
