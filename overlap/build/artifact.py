"""One kernel compiled for one target, and what can be read off it.

kernel + bound arguments + options --specialise--> TTIR -> TTGIR -> LLIR -> PTX -> cubin
                                                                           amdgcn -> hsaco
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.errors import CodegenError, OverlapError

from . import compat
from .target import Target


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel.

    ``stages`` maps ``ttir``, ``ttgir``, ``llir`` and ``ptx`` or ``amdgcn`` to text; ``binary`` is a cubin or hsaco.
    ``shared_bytes``: what Triton lays out and a launch asks for, without `static_bytes`.
    """

    name: str
    target: Target
    stages: dict[str, str]
    binary: bytes
    shared_bytes: int
    num_warps: int
    num_ctas: int
    num_stages: int

    @property
    def assembly(self) -> str:
        return self.stages[self.target.assembly]

    @property
    def static_bytes(self) -> int:
        """Shared memory that inline assembly declares, ahead of what a launch asks for; Triton declares none of its own."""
        found = _STATIC.findall(self.assembly)
        return sum(int(bits) // 8 * math.prod(map(int, re.findall(r"\d+", sizes))) for bits, sizes in found)

    def save(self, folder: Path) -> list[Path]:
        """Writes every stage and the binary as ``NAME.TARGET.STAGE``; returns the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for stage, text in self.stages.items():
            path = folder / f"{self.name}.{self.target.name}.{stage}"
            path.write_text(text)
            written.append(path)
        path = folder / f"{self.name}.{self.target.name}.{'cubin' if self.target.nvidia else 'hsaco'}"
        path.write_bytes(self.binary)
        return [*written, path]


def compile_kernel(
    kernel: Any, arguments: Mapping[str, Any], target: Target, options: Mapping[str, Any] | None = None
) -> Artifact:
    """Compiles a jitted kernel as a launch with these arguments would, without a GPU.

    Args:
        kernel: the innermost jitted function (`triton.runtime.JITFunction`).
        arguments: every parameter by name; tensors of any device, ``meta`` included.
        target: what to compile for.
        options: ``num_warps``, ``num_stages`` and other launch options.

    Raises:
        UsageError: arguments or options that do not fit.
        CodegenError: Triton does not compile the kernel; carries its message.
    """
    source, packed = compat.specialise(kernel, arguments, options or {}, target)
    try:
        compiled = compat.compile_source(source, packed, target)
    except OverlapError:
        raise
    except Exception as error:
        message = str(error).strip() or type(error).__name__
        raise CodegenError(f"Triton does not compile `{kernel.__name__}` for {target.name}: {message}") from error
    texts = {stage: text for stage, text in compiled.asm.items() if isinstance(text, str) and stage != "source"}
    meta = compiled.metadata
    binary = compiled.asm["cubin" if target.nvidia else "hsaco"]
    return Artifact(
        name=meta.name,
        target=target,
        stages=texts,
        binary=bytes(binary),
        shared_bytes=meta.shared,
        num_warps=meta.num_warps,
        num_ctas=getattr(meta, "num_ctas", 1),
        num_stages=meta.num_stages,
    )


@dataclass(frozen=True)
class Buffer:
    """A multi-buffered piece of shared memory: ``depth`` copies of a ``shape`` of ``dtype``."""

    depth: int
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.depth} x {'x'.join(map(str, self.shape))} {self.dtype}"


@dataclass(frozen=True)
class Facts:
    """What an artifact uses: registers a thread, bytes a program, static instruction counts.

    ``shared_bytes``: of both kinds, what a launch asks for and what assembly declares.
    ``buffers`` are the pipelined operands' buffers, read off TTGIR; a loop that is not pipelined has none.
    ``spill_bytes`` is stack per thread on NVIDIA, spilled registers on AMD; None where no tool could tell.
    """

    target: str
    shared_bytes: int
    registers: int | None
    spill_bytes: int | None
    num_warps: int
    num_ctas: int
    buffers: tuple[Buffer, ...]
    matrix_instructions: int
    wgmma: int
    tma_loads: int
    tma_stores: int
    async_copies: int

    @property
    def stages(self) -> int:
        """Depth of the deepest buffer: the number of pipeline stages that were really made."""
        return max((buffer.depth for buffer in self.buffers), default=0)


_STATIC = re.compile(r"^[\s{]*\.shared\b[^;]*\.[busf](\d+)\s+[\w$%]+\s*((?:\[\d+\]\s*)*);", re.MULTILINE)
"""Bits of an element, and how many there are in each dimension."""
_ALLOC = re.compile(r"ttg\.local_alloc\b[^\n]*?: \(\) -> !ttg\.memdesc<([0-9x]+)x([a-z]\w*),")
_MATRIX = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma|v_mfma_\w+|v_wmma_\w+)")
_TMA_LOAD = re.compile(r"cp\.async\.bulk\.tensor\.\w+\.shared::(?:cluster|cta)\.global")
_TMA_STORE = re.compile(r"cp\.(?:reduce\.)?async\.bulk\.tensor\.\w+\.global\.shared::cta")
_ASYNC_COPY = re.compile(r"\bcp\.async\.c[ag]\.")


def facts(artifact: Artifact) -> Facts:
    """The facts of an artifact."""
    text = artifact.assembly
    registers, spills = _registers(artifact)
    return Facts(
        target=artifact.target.name,
        shared_bytes=artifact.shared_bytes + artifact.static_bytes,
        registers=registers,
        spill_bytes=spills,
        num_warps=artifact.num_warps,
        num_ctas=artifact.num_ctas,
        buffers=pipelined_buffers(artifact.stages["ttgir"], artifact.num_stages + 1),
        matrix_instructions=len(_MATRIX.findall(text)),
        wgmma=text.count("wgmma.mma_async"),
        tma_loads=len(_TMA_LOAD.findall(text)),
        tma_stores=len(_TMA_STORE.findall(text)),
        async_copies=len(_ASYNC_COPY.findall(text)),
    )


def pipelined_buffers(ttgir: str, deepest: int | None = None) -> tuple[Buffer, ...]:
    """Uninitialised shared allocations with a leading stage dimension, deepest first.

    An operand is at least two-dimensional, so its buffer has three dimensions; barriers (``Nx1xi64``) and the
    staging tile of an epilogue, which has no stage dimension, are left out. A tile that has three of its own is told
    by its first: no pipeline has more than ``deepest`` buffers, one more than its stages.
    """
    found = []
    for shape, dtype in _ALLOC.findall(ttgir):
        depth, *rest = map(int, shape.split("x"))
        if len(rest) >= 2 and (deepest is None or depth <= deepest):
            found.append(Buffer(depth, tuple(rest), dtype))
    return tuple(sorted(found, key=lambda b: (-b.depth, b.shape, b.dtype)))


def _registers(artifact: Artifact) -> tuple[int | None, int | None]:
    """Registers a thread, and spills."""
    if not artifact.target.nvidia:
        text = artifact.assembly
        used = re.search(r"^\s*\.vgpr_count:\s+(\d+)", text, re.MULTILINE)
        spilled = re.search(r"^\s*\.vgpr_spill_count:\s+(\d+)", text, re.MULTILINE)
        return (int(used[1]) if used else None), (int(spilled[1]) if spilled else None)
    tool = compat.nvidia_tool("cuobjdump")
    if tool is None:
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(artifact.binary)
        file.flush()
        said = compat.run_tool(tool, "--dump-resource-usage", file.name)
    usage = re.search(r"REG:(\d+)\s+STACK:(\d+)", said)
    return (int(usage[1]), int(usage[2])) if usage else (None, None)
