"""SwiGLU: two weights share every load of A; persistent with tl.range(flatten=True)."""
import torch
import triton
import triton.language as tl


@triton.jit
def _tile(t, num_m, num_n, G: tl.constexpr):
    width = G * num_n
    g = t // width
    size = min(num_m - g * G, G)
    return g * G + (t % width) % size, (t % width) // size


@triton.jit
def swiglu(a_ptr, wg_ptr, wu_ptr, o_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, NUM_SMS: tl.constexpr, FLAT: tl.constexpr = True):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    wg = tl.make_tensor_descriptor(wg_ptr, shape=[K, N], strides=[N, 1], block_shape=[BLOCK_K, BLOCK_N])
    wu = tl.make_tensor_descriptor(wu_ptr, shape=[K, N], strides=[N, 1], block_shape=[BLOCK_K, BLOCK_N])
    o = tl.make_tensor_descriptor(o_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    # @overlap.axis_count M block=BLOCK_M
    num_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    num_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    # @overlap.tile_id persistent
    for t in tl.range(tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLAT, warp_specialize=False):
        # @overlap.dispatch begin
        # @overlap.pid_map M=tm N=tn
        tm, tn = _tile(t, num_m, num_n, GROUP)
        # @overlap.dispatch end
        gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for s in range(steps):
            x = a.load([tm * BLOCK_M, s * BLOCK_K])
            gate = tl.dot(x, wg.load([s * BLOCK_K, tn * BLOCK_N]), gate)
            up = tl.dot(x, wu.load([s * BLOCK_K, tn * BLOCK_N]), up)
        o.store([tm * BLOCK_M, tn * BLOCK_N], (gate * tl.sigmoid(gate) * up).to(o_ptr.dtype.element_ty))


# @overlap.host_entry x[M,K] w_gate[K,N] w_up[K,N] -> h[M,N]
def gated_mlp(x, w_gate, w_up):
    (M, K), N = x.shape, w_gate.size(1)
    h = torch.empty((M, N), device=x.device, dtype=x.dtype)

    def alloc(size, alignment, stream):
        return torch.empty(size, device=x.device, dtype=torch.int8)

    triton.set_allocator(alloc)
    sms = max(1, min(6, triton.cdiv(M, 64) * triton.cdiv(N, 64)))
    swiglu[(sms,)](x, w_gate, w_up, h, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP=4, NUM_SMS=sms, num_stages=3, num_warps=4)
    return h
