"""Decode attention over a paged cache: a table of blocks, a while loop over pages, one query a program."""
import torch
import triton
import triton.language as tl


@triton.jit
def paged(q_ptr, k_ptr, v_ptr, table_ptr, len_ptr, o_ptr, B, P, T, scale, sqb, skp, skt, stb, PAGE: tl.constexpr, D: tl.constexpr):
    # @overlap.axis_count B block=1
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.dispatch begin
    # @overlap.pid_map B=b
    b = pid
    # @overlap.dispatch end
    d = tl.arange(0, D)
    t = tl.arange(0, PAGE)
    q = tl.load(q_ptr + b * sqb + d).to(tl.float32)
    n = (tl.load(len_ptr + b).to(tl.int32) + 8) % (T * PAGE) + 1
    m = -float("inf")
    l = 0.0
    acc = tl.zeros((D,), dtype=tl.float32)
    page = 0
    while page * PAGE < n:
        block = (tl.load(table_ptr + b * stb + page).to(tl.int32) + 8) % P
        inside = page * PAGE + t < n
        k = tl.load(k_ptr + block * skp + t[:, None] * skt + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        s = tl.where(inside, tl.sum(k * q[None, :], axis=1) * scale, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=0))
        p = tl.exp(s - m_new)
        alpha = tl.exp(m - m_new)
        v = tl.load(v_ptr + block * skp + t[:, None] * skt + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        acc = acc * alpha + tl.sum(p[:, None] * v, axis=0)
        l = l * alpha + tl.sum(p, axis=0)
        m = m_new
        page += 1
    tl.store(o_ptr + b * sqb + d, (acc / l).to(o_ptr.dtype.element_ty))


# @overlap.host_entry q[B,D] k[P,S,D] v[P,S,D] table[B,T] lens[B] -> o[B,D]
def decode(q, k, v, table, lens):
    B, D = q.shape
    o = torch.empty_like(q)
    paged[(B,)](q, k, v, table, lens, o, B, k.shape[0], table.shape[1], D ** -0.5, q.stride(0), k.stride(0), k.stride(1), table.stride(0), PAGE=k.shape[1], D=D)
    return o
