"""The first tutorial: z = x + alpha * y over flat vectors."""
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, alpha, BLOCK_SIZE: tl.constexpr):
    # @overlap.axis_count n_elements block=BLOCK_SIZE
    # @overlap.tile_id
    pid = tl.program_id(axis=0)
    # @overlap.dispatch begin
    # @overlap.pid_map n_elements=block
    block = pid
    # @overlap.dispatch end
    block_start = block * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + alpha * y, mask=mask)


# @overlap.host_entry x[n_elements] y[n_elements] -> out[n_elements]
def add(x, y, alpha=2):
    out = torch.empty_like(x)
    n_elements = out.numel()
    grid = lambda meta: (triton.cdiv(n_elements, meta['BLOCK_SIZE']),)
    add_kernel[grid](x, y, out, n_elements, alpha, BLOCK_SIZE=64)
    return out
