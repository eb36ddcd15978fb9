"""Rows of a table picked by an index; ids are made safe, so any integers will do."""
import torch
import triton
import triton.language as tl


@triton.jit
def embed(ids_ptr, table_ptr, out_ptr, T, V, D, stride_tv, stride_ot, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    # @overlap.axis_count T block=BLOCK_T
    # @overlap.axis_count D block=BLOCK_D
    # @overlap.dispatch begin
    # @overlap.pid_map T=pt D=pd
    pt = tl.program_id(0)
    pd = tl.program_id(1)
    # @overlap.dispatch end
    t = pt * BLOCK_T + tl.arange(0, BLOCK_T)
    d = pd * BLOCK_D + tl.arange(0, BLOCK_D)
    ids = tl.load(ids_ptr + t, mask=t < T, other=0).to(tl.int32)
    ids = tl.where(ids < 0, ids + 8, ids) % V
    inside = (t < T)[:, None] & (d < D)[None, :]
    rows = tl.load(table_ptr + ids[:, None] * stride_tv + d[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + t[:, None] * stride_ot + d[None, :], rows, mask=inside)


# @overlap.host_entry ids[T] table[V,D] -> out[T,D]
def embedding(ids, table):
    T, (V, D) = ids.shape[0], table.shape
    out = torch.empty((T, D), dtype=table.dtype, device=table.device)
    embed[(triton.cdiv(T, 16), triton.cdiv(D, 32))](ids, table, out, T, V, D, table.stride(0), out.stride(0), BLOCK_T=16, BLOCK_D=32)
    return out
