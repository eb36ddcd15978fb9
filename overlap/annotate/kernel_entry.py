"""A kernel that is launched directly: its own parameters take the place of a host function.

    kernel(a_ptr, b_ptr, c_ptr, M, ...)   ->   host entry  a_ptr[M,K] b_ptr[K,N] -> c_ptr[M,N]  of the kernel's name

Its tensors and their dimensions come from the ``tensor`` pragmas, the file's host entry or the accesses.
"""

from __future__ import annotations

from dataclasses import replace

from .model import HostEntry, HostTensor, ProgramModel


def kernel_entry(program: ProgramModel) -> ProgramModel:
    """The program with the kernel itself as its host entry."""
    kernel = program.kernel
    inputs = tuple(HostTensor(t.param, t.dims) for t in kernel.tensors if t.mode == "read")
    outputs = tuple(HostTensor(t.param, t.dims) for t in kernel.tensors if t.mode != "read")
    entry = HostEntry(
        name=kernel.name,
        params=kernel.params,
        inputs=inputs,
        outputs=outputs,
        kernel_args=tuple((p.name, p.name) for p in kernel.params),
        tensor_params=tuple((t.param, t.param) for t in kernel.tensors),
        launch_line=kernel.span.line,
        span=kernel.span,
        param_dims=tuple((t.param, t.dims) for t in kernel.tensors),
    )
    return replace(program, host=entry)


def read_strides(program: ProgramModel, param: str) -> tuple[str | None, ...]:
    """Stride of every dimension of ``param``, as its loads and stores have it; None where they say nothing or differ."""
    reads = [a.strides for a in program.kernel.accesses if a.tensor == param]
    rank = len(program.kernel.tensor(param).dims)
    result: list[str | None] = []
    for d in range(rank):
        said = {s[d] for s in reads if d < len(s)} - {None}
        result.append(said.pop() if len(said) == 1 else None)
    return tuple(result)
