"""Triton's interpreter, with memory, number formats and inline assembly of the simulator.

`SimBuilder` replaces the builder below `triton.language`: everything that touches memory goes to `KernelMemory`,
everything in bf16 or fp8 to `ml_dtypes`. It serves Triton 3.6 to 3.9, whose loads and stores differ in their
trailing cache arguments only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as stock

from overlap.errors import AlignmentError, KernelCrashFault

from .asm import twin_of
from .dtypes import convert, is_narrow_float, numpy_of
from .shadow import span

_SEMANTICS = {
    ir.MEM_SEMANTIC.ACQUIRE: "acquire",
    ir.MEM_SEMANTIC.RELEASE: "release",
    ir.MEM_SEMANTIC.RELAXED: "relaxed",
    ir.MEM_SEMANTIC.ACQUIRE_RELEASE: "acq_rel",
}
_SCOPES = {ir.MEM_SYNC_SCOPE.CTA: "cta", ir.MEM_SYNC_SCOPE.GPU: "gpu", ir.MEM_SYNC_SCOPE.SYSTEM: "sys"}
_RMW = {
    getattr(ir.ATOMIC_OP, name.upper()): name
    for name in ("add", "fadd", "min", "umin", "max", "umax", "and", "or", "xor", "xchg")
}
Handle = stock.TensorHandle


class _AsmResults:
    """What an inline-asm call gives back."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def get_result(self, index: int) -> Any:
        return self._handles[index]


class SimBuilder(stock.InterpreterBuilder):
    """The interpreter's builder for the programs of ``world`` (set while a world runs)."""

    world: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.options = stock.InterpreterOptions(sanitize_overflow=False, debug=True)
        self.codegen_fns["convert_custom_types"] = _convert_custom_types

    # programs

    def create_get_program_id(self, axis: int) -> Any:
        return Handle(np.array([self.world.scheduler.current.index[axis]], np.int32), tl.int32)

    def create_get_num_programs(self, axis: int) -> Any:
        return Handle(np.array([self.world.scheduler.current.grid[axis]], np.int32), tl.int32)

    def create_barrier(self, *_: Any) -> None:
        self.world.kernel_memory.barrier()

    # memory

    def create_load(self, ptr: Any, *_: Any) -> Any:
        return self._load(ptr, None, None)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        return self._load(ptrs, mask.data, None if other is None else other.data)

    def create_store(self, ptr: Any, value: Any, *_: Any) -> None:
        self._store(ptr, value.data, None)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        self._store(ptrs, value.data, mask.data)

    def create_tensor_pointer_load(self, ptr: Any, boundary_check: Any, padding_option: Any, *_: Any) -> Any:
        ptrs, mask = ptr.materialize_pointers(boundary_check)
        return self._load(ptrs, mask, _padding(padding_option, ptrs))

    def create_tensor_pointer_store(self, ptr: Any, value: Any, boundary_check: Any, *_: Any) -> None:
        ptrs, mask = ptr.materialize_pointers(boundary_check)
        self._store(ptrs, value.data, mask)

    def _load(self, ptrs: Any, mask: Any, other: Any, *, tma: bool = False) -> Any:
        dtype = ptrs.get_element_ty()
        return Handle(self.world.kernel_memory.load(ptrs.data, mask, other, numpy_of(dtype), tma=tma), dtype)

    def _store(self, ptrs: Any, values: Any, mask: Any, *, tma: bool = False) -> None:
        dtype = numpy_of(ptrs.get_element_ty())
        self.world.kernel_memory.store(ptrs.data, convert(values, dtype), mask, dtype, tma=tma)

    # descriptors: TMA, the async proxy

    def create_make_tensor_descriptor(
        self, base: Any, shape: Any, strides: Any, block: Any, is_signed: bool, padding: Any = None
    ) -> Any:
        """Raises AlignmentError for a tensor that TMA cannot take."""
        itemsize = max(1, base.dtype.element_ty.primitive_bitwidth // 8)
        check_descriptor(int(base.data.item()), [int(s.data.item()) for s in strides], itemsize)
        return stock.TensorDescHandle(base, shape, strides, block, padding)

    def create_descriptor_load(self, desc: Any, indices: Any, *_: Any) -> Any:
        ptrs, mask = self._materialize(desc, indices)
        loaded = self._load(ptrs, mask, _padding(desc.padding, ptrs), tma=True)
        if getattr(desc, "round_f32_to_tf32", False) and loaded.dtype == tl.float32:
            loaded = Handle(stock._round_f32_to_tf32(loaded.data), loaded.dtype)
        return loaded

    def create_descriptor_store(self, desc: Any, value: Any, indices: Any) -> None:
        self.world.kernel_memory.check_box([int(i.data.item()) for i in indices], desc.block_shape)
        ptrs, mask = self._materialize(desc, indices)
        self._store(ptrs, np.asarray(value.data).reshape(ptrs.data.shape), mask, tma=True)

    def create_descriptor_gather(self, desc: Any, x_offsets: Any, y_offset: Any, type: Any) -> Any:
        rows = [
            self.create_descriptor_load(desc, [Handle(np.array([x], np.int32), tl.int32), y_offset]).data.reshape(-1)
            for x in x_offsets.data
        ]
        return Handle(np.stack(rows), desc.base.dtype.element_ty)

    def create_descriptor_scatter(self, desc: Any, value: Any, x_offsets: Any, y_offset: Any) -> None:
        for row, x in zip(value.data, x_offsets.data, strict=True):
            self.create_descriptor_store(
                desc, Handle(row, value.dtype), [Handle(np.array([x], np.int32), tl.int32), y_offset]
            )

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Any, indices: Any) -> None:
        op = str(kind).rsplit(".", 1)[-1].lower()
        ptrs, mask = self._materialize(desc, indices)
        dtype = numpy_of(ptrs.get_element_ty())
        self.world.kernel_memory.atomic(op, ptrs.data, convert(value.data, dtype), mask, dtype, "relaxed", "gpu")

    @staticmethod
    def _materialize(desc: Any, indices: Any) -> tuple[Any, Any]:
        ptrs, mask = desc.materialize_pointers(indices)
        return ptrs, getattr(mask, "data", mask) if isinstance(mask, Handle) else mask

    # atomics

    def create_atomic_rmw(self, op: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        dtype = numpy_of(value.dtype)
        old = self.world.kernel_memory.atomic(
            _RMW[op], ptr.data, convert(value.data, dtype), mask.data, dtype, _SEMANTICS[sem], _SCOPES[scope]
        )
        return Handle(old, value.dtype.scalar)

    def create_atomic_cas(self, ptr: Any, cmp: Any, value: Any, sem: Any, scope: Any) -> Any:
        dtype = numpy_of(value.dtype)
        old = self.world.kernel_memory.atomic(
            "xchg", ptr.data, value.data, None, dtype, _SEMANTICS[sem], _SCOPES[scope], expected=cmp.data
        )
        return Handle(old, cmp.dtype.scalar)

    def create_atomic_load(self, ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        dtype = ptr.get_element_ty()
        loaded = self.world.kernel_memory.atomic_load(
            ptr.data, mask.data, numpy_of(dtype), _SEMANTICS[sem], _SCOPES[scope]
        )
        return Handle(loaded, dtype)

    def create_atomic_store(self, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> None:
        dtype = numpy_of(ptr.get_element_ty())
        self.world.kernel_memory.atomic("xchg", ptr.data, value.data, mask.data, dtype, _SEMANTICS[sem], _SCOPES[scope])

    def create_atomic_poll(self, ptr: Any, expected: Any, timeout_ns: Any, sem: Any, scope: Any) -> Any:
        dtype = numpy_of(ptr.get_element_ty())
        done = self.world.kernel_memory.atomic_poll(ptr.data, expected.data, dtype, _SEMANTICS[sem], _SCOPES[scope])
        return Handle(done, tl.int1)

    # numbers

    def get_bf16(self, value: float) -> Any:
        return Handle(convert(np.array([value], np.float32), numpy_of(tl.bfloat16)), tl.bfloat16)

    def get_fp8e4nv(self, value: float) -> Any:
        return Handle(convert(np.array([value], np.float32), numpy_of(tl.float8e4nv)), tl.float8e4nv)

    def get_fp8e5(self, value: float) -> Any:
        return Handle(convert(np.array([value], np.float32), numpy_of(tl.float8e5)), tl.float8e5)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        return Handle(convert(src.data, numpy_of(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        to = numpy_of(dst_type)
        if rounding_mode == ir.ROUNDING_MODE.RTZ and to.itemsize < src.data.dtype.itemsize:
            return Handle(_toward_zero(src.data, to), dst_type.scalar)
        return self.cast_impl(src, dst_type)

    def create_dot(self, a: Any, b: Any, d: Any, *_: Any) -> Any:
        """Products of narrow floats accumulate in float32, of integers in int32."""
        if a.data.dtype.kind in "iub":
            product = np.matmul(a.data.astype(np.int32), b.data.astype(np.int32))
        elif is_narrow_float(a.data.dtype) or is_narrow_float(b.data.dtype):
            product = np.matmul(a.data.astype(np.float32), b.data.astype(np.float32))
        else:
            product = np.matmul(a.data, b.data)
        wide = d.data.astype(np.float32) if is_narrow_float(d.data.dtype) else d.data
        return Handle(convert(np.add(product.astype(wide.dtype, copy=False), wide), d.data.dtype), d.dtype.scalar)

    def create_erf(self, arg: Any) -> Any:
        return Handle(convert(stock.np_erf_fp64(arg.data.astype(np.float64)), arg.data.dtype), arg.dtype.scalar)

    # escapes

    def create_inline_asm(self, asm: str, constraints: str, values: Any, types: Any, is_pure: bool, pack: int) -> Any:
        results = twin_of(asm)(self.world, *[value.data for value in values])
        handles = []
        for result, dtype in zip(results, types, strict=True):
            handles.append(Handle(np.asarray(result).astype(numpy_of(dtype)), dtype.scalar))
        return _AsmResults(handles)

    def create_assert(self, condition: Any, message: Any) -> None:
        if not np.all(getattr(condition, "data", condition)):
            self._fail(f"device_assert failed: {message}")

    def create_assume(self, condition: Any) -> None:
        if not np.all(getattr(condition, "data", condition)):
            self._fail("tl.assume of something that is false")

    def _fail(self, message: str) -> None:
        from .access import where_in_kernel

        fibre = self.world.scheduler.current
        raise KernelCrashFault(f"crash: {fibre.agent.name}: {message}", where=span(where_in_kernel(fibre)))

    def create_print(self, prefix: str, hex: bool, values: Any, is_signed: Any) -> None:
        fibre = self.world.scheduler.current
        shown = " ".join(str(value.data) for value in values)
        print(f"[{fibre.agent.name}] {prefix} {shown}")


def _convert_custom_types(value: Any, dst_ty: Any, fp_downcast_rounding: Any, _semantic: Any) -> Any:
    return tl.tensor(_semantic.builder.create_fp_to_fp(value.handle, dst_ty, fp_downcast_rounding), dst_ty)


def check_descriptor(address: int, strides: list[int], itemsize: int) -> None:
    """Raises AlignmentError unless a TMA descriptor can be made; strides in elements."""
    problem = ""
    if strides[-1] != 1:
        problem = f"its last dimension is not contiguous (stride {strides[-1]})"
    elif address % 16:
        problem = f"it starts at an address that is no multiple of 16 bytes (off by {address % 16})"
    for stride in strides[:-1]:
        if stride * itemsize % 16:
            problem = problem or f"its rows are {stride * itemsize} bytes apart, which is no multiple of 16"
    if problem:
        raise AlignmentError(
            f"a TMA descriptor cannot take this tensor: {problem}",
            help="pad the rows to a multiple of 16 bytes, or use a kernel with pointers for such shapes",
        )


def _padding(option: Any, ptrs: Any) -> np.ndarray | None:
    if option == ir.PADDING_OPTION.PAD_NAN:
        return np.array(float("nan"), np.float32).astype(numpy_of(ptrs.get_element_ty()))
    return None


def _toward_zero(data: np.ndarray, to: np.dtype) -> np.ndarray:
    """Float conversion that truncates: the nearest value, one step back where it grew."""
    wide = data.astype(np.float64)
    near = convert(data, to)
    grew = np.abs(near.astype(np.float64)) > np.abs(wide)
    bits = near.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[to.itemsize])
    return np.where(grew, bits - 1, bits).astype(bits.dtype).view(to)


BUILDER = SimBuilder()
SEMANTIC = TritonSemantic(BUILDER)
