"""``--on a[M]``: which tensor is communicated, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from overlap.errors import OnError, SourceSpan, UnsupportedError

from .model import HostTensor, ProgramModel
from .pragmas import nearest

_ON = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*\[\s*(?P<axis>[A-Za-z_]\w*)?\s*(?::\s*(?P<to>[A-Za-z_]\w*))?\s*\]\s*\Z")

Kind = Literal["gather", "reduce_scatter", "all_reduce", "all_to_all"]


@dataclass(frozen=True)
class OnSpec:
    """One communicated tensor.

    ``tensor`` is its host name, ``param`` the kernel parameter, ``dim`` the dimension that tile axis ``axis`` spans.
    """

    tensor: str
    param: str
    dim: int
    axis: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.tensor}[{self.axis}]"


def parse_on(text: str, program: ProgramModel) -> OnSpec:
    """Reads ``a[M]`` (gather an input), ``c[M]`` (reduce-scatter), ``c[]`` (all-reduce) or ``a[K:M]`` (all-to-all).

    The name is a host tensor, or the kernel parameter it is passed as (``_ptr`` and ``_desc`` may be dropped).

    Raises:
        OnError: no such tensor, no such axis, or text of another form.
        UnsupportedError: valid, but not a gather of an input along a tile axis.
    """
    match = _ON.match(text)
    if match is None or (match["to"] and not match["axis"]):
        raise OnError(f"cannot read `{text}`", help="write TENSOR[AXIS], such as a[M]")
    where = program.host.span if program.host else program.kernel.span
    tensor = _tensor(match["name"], program, where)
    for axis in filter(None, (match["axis"], match["to"])):
        if axis not in tensor.dims:
            raise OnError(
                f"`{tensor.name}` has no axis {axis}{nearest(axis, tensor.dims)}",
                where=where,
                help=f"its axes are {', '.join(tensor.dims) or 'none'}: {tensor.name}[{','.join(tensor.dims)}]",
            )
    is_output = tensor in program.host.outputs if program.host else False
    kind: Kind = "gather"
    if match["to"]:
        kind = "all_to_all"
    elif is_output:
        kind = "reduce_scatter" if match["axis"] else "all_reduce"
    elif not match["axis"]:
        raise OnError(
            f"`{tensor.name}` is an input, so it needs the axis it is gathered along",
            where=where,
            help=f"write {tensor.name}[{tensor.dims[0] if tensor.dims else 'AXIS'}]",
        )
    if kind != "gather":
        named = {"reduce_scatter": "a reduce-scatter", "all_reduce": "an all-reduce", "all_to_all": "an all-to-all"}[
            kind
        ]
        raise UnsupportedError(
            f"{text.strip()} is {named}, which this version does not compile",
            where=where,
            help="this version gathers an input along a tile axis, such as a[M]",
        )
    return _gather(text.strip(), program, tensor, match["axis"], where)


def _tensor(name: str, program: ProgramModel, where: SourceSpan) -> HostTensor:
    host = program.host
    if host is None:
        raise OnError(
            f"kernel `{program.kernel.name}` has no host entry, so `{name}` names nothing",
            where=where,
            help="put `# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]` over the function that launches it",
        )
    tensors = (*host.inputs, *host.outputs)
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    names = {}
    for tensor_name, param in host.tensor_params:
        for alias in (param, *(param.removesuffix(end) for end in ("_ptr", "_desc") if param.endswith(end))):
            names[alias] = tensor_name
    if name in names:
        return host.tensor(names[name])
    valid = [t.name for t in tensors]
    raise OnError(
        f"no tensor `{name}`{nearest(name, [*valid, *names])}", where=where, help=f"the tensors are {', '.join(valid)}"
    )


def _gather(text: str, program: ProgramModel, tensor: HostTensor, axis: str, where: SourceSpan) -> OnSpec:
    host, kernel = program.host, program.kernel
    assert host is not None
    param = dict(host.tensor_params).get(tensor.name)
    if param is None:
        raise OnError(
            f"`{tensor.name}` is not passed to the kernel as it is",
            where=where,
            help="gather a tensor the launch takes",
        )
    dim = tensor.dims.index(axis)
    tile_axes = [a.name for a in kernel.axes if a.block is not None]
    if axis not in tile_axes:
        raise UnsupportedError(
            f"{text}: {axis} is a range axis; a gather inside the loop is not compiled by this version",
            where=where,
            help=f"gather along a tile axis: {', '.join(tile_axes)}",
        )
    reads = [a for a in kernel.accesses if a.tensor == param and a.mode == "read"]
    if not reads:
        raise UnsupportedError(
            f"{text}: the kernel never reads `{param}`", where=where, help="gather a tensor that is read"
        )
    for access in reads:
        if access.region is None:
            raise UnsupportedError(
                f"{text}: this load of {param} does not depend on the tile coordinates, so it cannot wait for a chunk",
                where=access.span,
                help="load it at an index made from the pid_map variables",
            )
    dims = kernel.tensor(param).dims
    if dims != tensor.dims:
        raise UnsupportedError(
            f"{text}: the kernel sees {param}[{','.join(dims)}], a view of {tensor.name}[{','.join(tensor.dims)}]",
            where=where,
            help="gather a tensor that is passed to the kernel with its own dimensions",
        )
    return OnSpec(tensor.name, param, dim, axis, "gather")
