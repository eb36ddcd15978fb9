"""The compiler, top to bottom: one flat list of stages, each with a result that prints itself.

request.py   what the user asked for, and the commands that headers show
planning.py  plans, windows and schedules for one world and one set of sizes; the probe at compile time
stages.py    source -> model -> on -> plan -> realization -> checked -> module, and explain
paths.py     plans of a request: templates and files, or a collective by a path
kinds.py     whether a plan does what `--on` says
parts.py     schedules of in-tile loops that wait for chunks
finishing.py schedules of kernels whose tiles add, proven over all ranks
timing.py    when everything of one launch would happen on a machine
automatic.py the backend that is predicted to take least
"""

from .planning import Planned, plan_for, plan_launch, probe, tensor_reads, tensor_writes, tile_axes
from .request import Request, default_sizes, need_sizes
from .stages import Compilation, compile_kernel, compile_source, explain, planned

__all__ = [
    "Compilation",
    "Planned",
    "Request",
    "compile_kernel",
    "compile_source",
    "default_sizes",
    "explain",
    "need_sizes",
    "plan_for",
    "plan_launch",
    "planned",
    "probe",
    "tensor_reads",
    "tensor_writes",
    "tile_axes",
]
