"""``--on a[M]``: which tensors are communicated, and how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from overlap.errors import OnError, SourceSpan, UnsupportedError

from .model import HostTensor, ProgramModel
from .pragmas import nearest
from .produced import check_produced
from .ranged import check_one_block, check_ranged, ranged_loops, reads_in_loops

_AXIS = r"[A-Za-z_]\w*"
_ON = re.compile(
    rf"\s*(?P<name>{_AXIS})\s*\[\s*(?P<axis>{_AXIS})?\s*(?:(?::\s*(?P<to>{_AXIS})|/\s*(?P<by>{_AXIS}))\s*)?\]\s*\Z"
)

Kind = Literal["gather", "reduce_scatter", "all_reduce", "all_to_all"]

FORMS = (
    "a[M] gathers an input, a[K/M] along K in parts along M, c[M] reduce-scatters a result, c[] all-reduces it, "
    "a[K:M] exchanges shards (all-to-all)"
)


@dataclass(frozen=True)
class OnSpec:
    """One communicated tensor.

    ``tensor`` is its host name, ``param`` the kernel parameter, ``dim`` the dimension that ``axis`` is. An input is
    sharded along ``axis`` before, a result of a reduce-scatter after; an all-reduce has no axis (``""``, dimension 0).
    An all-to-all moves the sharding from ``axis`` to ``to``, dimension ``to_dim``. ``produced``: the kernel makes it.
    ``ranged``: gathered along a range axis, so that an in-tile loop waits for its chunks; with ``by``, another axis of the
    tensor, tiles wait before that loop, for the parts along ``by`` of all shards that they read. An input gathered along an
    axis in which no loop walks and no tile differs, such as a table of rows picked by an index, is waited for whole.
    """

    tensor: str
    param: str
    dim: int
    axis: str
    kind: Kind
    to: str = ""
    to_dim: int | None = None
    produced: bool = False
    ranged: bool = False
    by: str = ""
    by_dim: int | None = None

    def __str__(self) -> str:
        return f"{self.tensor}[{self.axis}{f':{self.to}' if self.to else ''}{f'/{self.by}' if self.by else ''}]"

    @property
    def local(self) -> str:
        """The axis of which the kernel works on the rank's part alone: an all-to-all's, else none."""
        if self.kind != "all_to_all":
            return ""
        return self.axis if self.produced else self.to

    @property
    def reduces(self) -> bool:
        """Whether every rank makes a partial of the whole tensor, and the ranks' sum is wanted."""
        return self.kind in ("reduce_scatter", "all_reduce")


def parse_ons(texts: Sequence[str], program: ProgramModel) -> tuple[OnSpec, ...]:
    """Reads every ``--on`` of one kernel, in the order given (`parse_on`).

    Raises:
        OnError: none, two on one tensor, or two that need different parts of one axis.
    """
    where = program.host.span if program.host else program.kernel.span
    if not texts:
        raise OnError("nothing is communicated", where=where, help=f"give --on: {FORMS}")
    found: list[OnSpec] = []
    for text in texts:
        on = parse_on(text, program)
        twice = next((o for o in found if o.param == on.param), None)
        if twice is not None:
            raise OnError(
                f"{on.tensor} is communicated twice, as {twice} and as {on}",
                where=where,
                help=f"one --on a tensor: keep {twice} or {on}",
            )
        found.append(on)
    _check_parts(found, program, where)
    ranged = [loop for on in found if on.ranged for loop in ranged_loops(program.kernel, on.param, on.dim)]
    check_one_block(ranged, " ".join(map(str, found)))
    return tuple(found)


def _check_parts(ons: Sequence[OnSpec], program: ProgramModel, where: SourceSpan) -> None:
    """The kernel runs on all of an axis or on the rank's part of it, never on both."""
    host = program.host
    assert host is not None
    for on in ons:
        for other in ons:
            if on.local and on.local in host.tensor(other.tensor).dims and other.local != on.local:
                raise OnError(
                    f"{on} runs the kernel on the rank's part of {on.local}, {other} on all of {on.local}",
                    where=where,
                    help=f"communicate {other.tensor} so that each rank has its part of {on.local}, or leave it out",
                )


def parse_on(text: str, program: ProgramModel) -> OnSpec:
    """Reads ``a[M]`` (gather an input), ``c[M]`` (reduce-scatter), ``c[]`` (all-reduce), ``a[K:M]`` or ``c[M:N]`` (all-to-all).

    The name is a host tensor, or the kernel parameter it is passed as (``_ptr`` and ``_desc`` may be dropped).

    Raises:
        OnError: no such tensor, no such axis, or text of another form.
        UnsupportedError: valid, but the kernel reads or stores the tensor in a way that is not compiled.
    """
    match = _ON.match(text)
    if match is None or ((match["to"] or match["by"]) and not match["axis"]):
        raise OnError(f"cannot read `{text}`", help=f"write TENSOR[AXIS]: {FORMS}")
    where = program.host.span if program.host else program.kernel.span
    tensor = _tensor(match["name"], program, where)
    for axis in filter(None, (match["axis"], match["to"], match["by"])):
        if axis not in tensor.dims:
            raise OnError(
                f"`{tensor.name}` has no axis {axis}{nearest(axis, tensor.dims)}",
                where=where,
                help=f"its axes are {', '.join(tensor.dims) or 'none'}: {tensor.name}[{','.join(tensor.dims)}]",
            )
    host = program.host
    assert host is not None
    produced = tensor in host.outputs
    if match["axis"] and match["axis"] == match["to"]:
        raise OnError(
            f"{text.strip()} moves the sharding from {match['to']} to {match['to']}",
            where=where,
            help=f"write another axis of {tensor.name}[{','.join(tensor.dims)}] behind the colon",
        )
    kind: Kind = "gather"
    if match["to"]:
        kind = "all_to_all"
    elif produced:
        kind = "reduce_scatter" if match["axis"] else "all_reduce"
    elif not match["axis"]:
        raise OnError(
            f"`{tensor.name}` is an input, so it needs the axis it is gathered along",
            where=where,
            help=f"write {tensor.name}[{tensor.dims[0] if tensor.dims else 'AXIS'}]",
        )
    tiled = {a.name for a in program.kernel.axes if a.block is not None}
    if match["by"]:
        _check_by(match["axis"], match["by"], produced, tiled, text.strip(), where)
    on = OnSpec(
        tensor=tensor.name,
        param=_param(program, tensor, where),
        dim=tensor.dims.index(match["axis"]) if match["axis"] else 0,
        axis=match["axis"] or "",
        kind=kind,
        to=match["to"] or "",
        to_dim=tensor.dims.index(match["to"]) if match["to"] else None,
        produced=produced,
        ranged=(
            kind == "gather"
            and match["axis"] not in tiled
            and not match["by"]
            and reads_in_loops(program.kernel, _param(program, tensor, where), tensor.dims.index(match["axis"]))
        ),
        by=match["by"] or "",
        by_dim=tensor.dims.index(match["by"]) if match["by"] else None,
    )
    _check_view(on, program, tensor, where)
    if produced:
        check_produced(program, on.param, _concerned(on, tensor), str(on))
    else:
        _check_consumed(on, program, where)
    return on


def _check_by(axis: str, by: str, produced: bool, tiled: set[str], text: str, where: SourceSpan) -> None:
    """Parts along another axis are for gathers along one that every tile reads all of."""
    why = ""
    if produced:
        why = "is a result, whose chunks are made tile by tile"
    elif axis in tiled:
        why = f"is gathered along {axis}, in which tiles differ: its parts lie along {axis}"
    elif by not in tiled:
        why = f"has parts along {by}, in which tiles do not differ"
    if why:
        raise OnError(f"`{text}` {why}", where=where, help=f"leave /{by} out")


def _concerned(on: OnSpec, tensor: HostTensor) -> tuple[int, ...]:
    """Dimensions of a result in which its chunks lie: some tile axis must span one of them."""
    if on.kind == "all_reduce":
        return tuple(range(len(tensor.dims)))
    return (on.dim,) if on.to_dim is None else (on.dim, on.to_dim)


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


def _param(program: ProgramModel, tensor: HostTensor, where: SourceSpan) -> str:
    assert program.host is not None
    param = dict(program.host.tensor_params).get(tensor.name)
    if param is None:
        raise OnError(
            f"`{tensor.name}` is not passed to the kernel as it is",
            where=where,
            help="communicate a tensor the launch takes",
        )
    return param


def _check_view(on: OnSpec, program: ProgramModel, tensor: HostTensor, where: SourceSpan) -> None:
    known = [t for t in program.kernel.tensors if t.param == on.param]
    if known and known[0].dims != tensor.dims:
        raise UnsupportedError(
            f"{on}: the kernel sees {on.param}[{','.join(known[0].dims)}], "
            f"a view of {tensor.name}[{','.join(tensor.dims)}]",
            where=where,
            help="communicate a tensor that is passed to the kernel with its own dimensions",
        )


def _check_consumed(on: OnSpec, program: ProgramModel, where: SourceSpan) -> None:
    """What the kernel must do with an input whose chunks arrive while it runs."""
    kernel = program.kernel
    if on.ranged:
        dims = next((t.dims for t in program.host.inputs if t.name == on.tensor), ()) if program.host else ()
        tiled = [a.name for a in kernel.axes if a.block is not None and a.name in dims]
        check_ranged(kernel, on.param, on.dim, on.axis, str(on), where, by=tiled[0] if tiled else "")
        return
    reads = [a for a in kernel.accesses if a.tensor == on.param and a.mode == "read"]
    if not reads:
        raise UnsupportedError(
            f"{on}: the kernel never reads `{on.param}`", where=where, help="communicate a tensor that is read"
        )
    for access in reads:
        if access.region is None:
            raise UnsupportedError(
                f"{on}: this load of {on.param} does not depend on the tile coordinates, so it cannot wait for a chunk",
                where=access.span,
                help="load it at an index made from the pid_map variables",
            )
