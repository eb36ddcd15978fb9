"""Flash attention forward over [H, S, D]; K and V come as shards; causal by a constexpr; online softmax."""
import torch
import triton
import triton.language as tl


@triton.jit
def flash_fwd(Q, K, V, O, sm_scale, H, S, T, sqh, sqs, skh, sks, svh, svs, soh, sos,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr):
    # @overlap.axis_count S block=BLOCK_M
    # @overlap.axis_count H block=1
    # @overlap.axis_count T=range
    # @overlap.tensor K[H,T,D] read
    # @overlap.tensor V[H,T,D] read
    # @overlap.dispatch begin
    # @overlap.pid_map S=start_m H=head
    start_m = tl.program_id(0)
    head = tl.program_id(1)
    # @overlap.dispatch end
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD)
    q = tl.load(Q + head * sqh + offs_m[:, None] * sqs + offs_d[None, :], mask=offs_m[:, None] < S, other=0.0)
    m_i = tl.full([BLOCK_M], -1e30, dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    for start_n in range(0, T, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(K + head * skh + offs_n[:, None] * sks + offs_d[None, :], mask=offs_n[:, None] < T, other=0.0)
        qk = tl.dot(q, tl.trans(k)) * sm_scale
        keep = offs_n[None, :] < T
        if CAUSAL:
            keep = keep & (offs_m[:, None] >= offs_n[None, :])
        qk = tl.where(keep, qk, -1e30)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(V + head * svh + offs_n[:, None] * svs + offs_d[None, :], mask=offs_n[:, None] < T, other=0.0)
        acc += tl.dot(p.to(v.dtype), v)
        m_i = m_new
    acc = acc / l_i[:, None]
    tl.store(O + head * soh + offs_m[:, None] * sos + offs_d[None, :], acc.to(O.dtype.element_ty), mask=offs_m[:, None] < S)


# @overlap.host_entry q[H,S,D] k[H,T,D] v[H,T,D] -> o[H,S,D]
def attention(q, k, v, causal=True):
    H, S, D = q.shape
    T = k.shape[1]
    o = torch.empty_like(q)
    grid = (triton.cdiv(S, 32), H)
    flash_fwd[grid](q, k, v, o, D ** -0.5, H, S, T, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                    o.stride(0), o.stride(1), BLOCK_M=32, BLOCK_N=16, HEAD=D, CAUSAL=causal)
    return o
