"""Attention over batches of heads, one grid dimension for both; grouped heads of k and v; the loop in a helper (tutorial 06)."""
import torch
import triton
import triton.language as tl


@triton.jit
def _attn_fwd_inner(acc, l_i, m_i, q, K, V, kv_off, stride_kn, stride_vn, start_m, qk_scale, N_CTX,
                    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
                    offs_m: tl.constexpr, offs_n: tl.constexpr):
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    for start_n in range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        cols = start_n + offs_n
        k = tl.load(K + kv_off + cols[None, :] * stride_kn + tl.arange(0, HEAD_DIM)[:, None], mask=cols[None, :] < N_CTX, other=0.0)
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask & (cols < N_CTX)[None, :], 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            qk = tl.where((cols < N_CTX)[None, :], qk * qk_scale, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk = qk - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(V + kv_off + cols[:, None] * stride_vn + tl.arange(0, HEAD_DIM)[None, :], mask=cols[:, None] < N_CTX, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def _attn_fwd(Q, K, V, Out, sm_scale, Z, H, HK, HZ, S, stride_qz, stride_qh, stride_qm, stride_kz, stride_kh, stride_kn,
              HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr):
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    # @overlap.axis_count S block=BLOCK_M
    # @overlap.axis_count HZ block=1
    # @overlap.dispatch begin
    # @overlap.pid_map S=start_m HZ=off_hz
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    # @overlap.dispatch end
    off_z = off_hz // H
    off_h = off_hz % H
    # @overlap.tensor Q[Z,H,S,D] read
    # @overlap.tensor K[Z,HK,T,D] read
    # @overlap.tensor V[Z,HK,T,D] read
    # @overlap.tensor Out[Z,H,S,D] write
    qo = off_z.to(tl.int64) * stride_qz + off_h.to(tl.int64) * stride_qh
    kv = off_z.to(tl.int64) * stride_kz + (off_h // (H // HK)).to(tl.int64) * stride_kh
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_DIM)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = tl.load(Q + qo + offs_m[:, None] * stride_qm + offs_d[None, :], mask=offs_m[:, None] < S, other=0.0)
    if STAGE & 1:
        acc, l_i, m_i = _attn_fwd_inner(acc, l_i, m_i, q, K, V, kv, stride_kn, stride_kn, start_m, qk_scale, S, BLOCK_M, HEAD_DIM, BLOCK_N, 4 - STAGE, offs_m, offs_n)
    if STAGE & 2:
        acc, l_i, m_i = _attn_fwd_inner(acc, l_i, m_i, q, K, V, kv, stride_kn, stride_kn, start_m, qk_scale, S, BLOCK_M, HEAD_DIM, BLOCK_N, 2, offs_m, offs_n)
    acc = acc / l_i[:, None]
    tl.store(Out + qo + offs_m[:, None] * stride_qm + offs_d[None, :], acc.to(Out.type.element_ty), mask=offs_m[:, None] < S)


# @overlap.host_entry q[Z,H,S,D] k[Z,HK,T,D] v[Z,HK,T,D] -> o[Z,H,S,D]
def attention(q, k, v, causal=False):
    Z, H, S, D = q.shape
    assert D in {16, 32, 64, 128, 256}
    o = torch.empty_like(q)
    stage = 3 if causal else 1
    grid = (triton.cdiv(S, 16), q.shape[0] * q.shape[1], 1)
    _attn_fwd[grid](q, k, v, o, D**-0.5, Z, H, k.shape[1], q.shape[0] * q.shape[1], S, q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2),
                    HEAD_DIM=D, BLOCK_M=16, BLOCK_N=16, STAGE=stage)
    return o
