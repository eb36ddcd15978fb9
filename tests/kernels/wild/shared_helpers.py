import triton
import triton.language as tl


@triton.jit
def _group(pid, width, G: tl.constexpr):
    return pid // width, pid % width


@triton.jit
def tile_of(pid, nm, nn, G: tl.constexpr):
    group, inside = _group(pid, G * nn, G)
    first = group * G
    size = min(nm - first, G)
    return first + inside % size, inside // size


@triton.jit
def relu(x):
    return tl.where(x > 0, x, 0.0)
