"""From what a user calls to one launch with everything bound.

call.py          one call of an operator: sizes checked, the host body run on stand-ins, its launch carried out
kernel_call.py   one launch of a kernel that its callers launch themselves
hostcall.py      a host body with its one launch intercepted, which both of them are
standin.py       what the host body holds in place of a sharded tensor
resolve.py       from a decorated kernel and a launch's arguments to the jitted function and everything bound
between_graphs.py   what torch.compile does not follow
operands.py      which tensors kernels and copies can take
passed.py        whether a launch passes a communicated tensor itself, by its own strides
shapes.py        global shapes of communicated tensors, and the piece that a rank holds or sees
capture.py       a host body run without ranks, to learn the launch it would make
"""
