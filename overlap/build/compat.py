"""What differs between Triton versions when a kernel is compiled without being launched.

Seen on 3.6.0 and 3.9.0; tests/compile runs on both. Both offer the same route from arguments to a
specialisation, the launcher's own, so nothing about divisibility, ones or descriptors is repeated here.
"""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from overlap.errors import UsageError

from .target import Target


def tells_functions_their_memory() -> bool:
    """Whether a function that is not inlined is told where its shared memory is, as of 3.9; 3.6 to 3.8 were seen not to."""
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9)


def gpu_target(target: Target) -> Any:
    """Triton's own form of a target."""
    return GPUTarget(target.backend, target.arch, target.warp)


def specialise(
    kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any], target: Target
) -> tuple[ASTSource, dict[str, Any]]:
    """Source and options of the kernel that a launch with these arguments would compile.

    Integers equal to one become constants, multiples of 16 an attribute; tensors are typed by dtype and aligned by
    address (a meta tensor's is 0), host-made descriptors typed by their block.

    Raises:
        UsageError: arguments or options that the kernel or the target does not take.
    """
    backend = make_backend(gpu_target(target))
    known = set(inspect.signature(backend.parse_options({}).__class__).parameters)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(f"{target.name} takes no launch option {unknown[0]!r}")
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    try:
        bound, specialization, extra = binder(**arguments, **options)
    except TypeError as error:
        raise UsageError(f"arguments that `{kernel.__name__}` does not take: {error}") from error
    packed, signature, constexprs, attributes = kernel._pack_args(
        backend, {**extra, "debug": False}, bound, specialization, extra
    )
    return ASTSource(kernel, signature, constexprs, attributes), dict(packed.__dict__)


def compile_source(source: ASTSource, options: dict[str, Any], target: Target) -> Any:
    """Triton's compiled kernel: ``asm`` by stage and ``metadata``."""
    return triton.compile(source, target=gpu_target(target), options=options)


def nvidia_tool(name: str) -> Path | None:
    """A tool of the CUDA toolkit that Triton ships, such as ``cuobjdump``."""
    import triton.backends.nvidia as nvidia

    path = Path(nvidia.__file__).parent / "bin" / name
    return path if path.is_file() else None


def run_tool(path: Path, *args: str) -> str:
    """Output of a tool, both streams."""
    done = subprocess.run([str(path), *args], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
