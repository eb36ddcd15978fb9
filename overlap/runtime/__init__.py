"""What generated modules run on: the operator, the launch protocol, and the rank's runtime behind it.

operator.py     a generated module's description of itself, and the call it serves
instance.py     an operator on one group for global shapes: its plan there, its kernel's tables
instances.py    which instance a call is for, made by all ranks at the first call of a shape
bound_plan.py   any plan on one group: its steps, its flags, views of memory
workspace.py    the symmetric memory of an operator on a group; `check`, `release`
protocol.py     what a runtime must do, on GPUs (cuda/) and simulated (`overlap.sim.runtime`)
of_group.py     the runtime behind a group
dtypes.py       dtypes by their short names
folders.py      where files are kept that all processes of a user share

calls/      from what a user calls to one launch with everything bound
native/     what a repeated call does, in C
repeat/     calls that are like an earlier one but for where their tensors lie
launch/     the steps of a launch, made ready and enqueued
transfer/   a plan without a kernel
tables/     the tables that kernels are given
kernels/    the protocol's own Triton kernels
packets/    small collectives, by words that carry data and flag together, and by blocks
memory/     where tensors lie in symmetric memory, and views of that
providers/  who allocates it
cuda/       the protocol on GPUs of one host, and the driver
nvshmem/    what ranks on other nodes need
group/      meetings of ranks, who reaches whom, collectives by torch.distributed
faults/     deadlines, and what a late wait leaves behind
tracing/    what a trace measures
"""

from overlap.backends.base import Realization

from .operator import Operator, RangeAxis, Read, Source, TileAxis, Write

__all__ = ["Operator", "RangeAxis", "Read", "Realization", "Source", "TileAxis", "Write"]
