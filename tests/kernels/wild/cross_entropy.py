"""Rows against a label: online log-sum-exp over columns; loss is a vector; label may say ignore (early return)."""
import torch
import triton
import triton.language as tl


@triton.jit
def xent(logits_ptr, labels_ptr, loss_ptr, M, V, stride, ignore, BLOCK_V: tl.constexpr):
    # @overlap.axis_count M block=1
    # @overlap.tile_id
    pid = tl.program_id(0).to(tl.int64)
    # @overlap.dispatch begin
    # @overlap.pid_map M=row
    row = pid
    # @overlap.dispatch end
    label = tl.load(labels_ptr + row).to(tl.int32)
    if label == ignore:
        tl.store(loss_ptr + row, 0.0)
        return
    label = (label + 8) % V
    m = float("-inf")
    d = 0.0
    for i in range(0, V, BLOCK_V):
        cols = i + tl.arange(0, BLOCK_V)
        x = tl.load(logits_ptr + row * stride + cols, mask=cols < V, other=float("-inf")).to(tl.float32)
        block_max = tl.max(x)
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    chosen = tl.load(logits_ptr + row * stride + label).to(tl.float32)
    tl.store(loss_ptr + row, m + tl.log(d) - chosen)


# @overlap.host_entry logits[M,V] labels[M] -> loss[M]
def cross_entropy(logits, labels, ignore=-3):
    M, V = logits.shape
    loss = torch.empty(M, dtype=torch.float32, device=logits.device)
    xent[(M,)](logits, labels, loss, M, V, logits.stride(0), ignore, BLOCK_V=32)
    return loss
