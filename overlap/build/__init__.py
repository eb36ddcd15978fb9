"""What a generated module compiles to, without a GPU: artifacts, facts and findings.

module.py    a generated file, its launch and its original
device.py    what host code finds when it asks for its device
target.py    the GPUs that a kernel can be compiled for
artifact.py  one kernel for one target, registers, stages, instruction counts
ttir.py dataflow.py ptx.py   readers of what Triton emitted
rules.py     the names of the rules, and a broken one
findings.py  the memory model's rules, checked
words.py     those of results that leave in words
flattened.py what a flattened loop carries from tile to tile
callees.py   functions that are not inlined, and their shared memory
static_memory.py   shared memory that inline assembly declares
compare.py   what the kernel lost against its original
report.py    all of it as text
compat.py    what differs between Triton versions
"""

from .artifact import Artifact, Buffer, Facts, compile_kernel, facts
from .findings import check
from .module import BuildResult, build_module
from .report import build_report
from .rules import RULES, Finding
from .target import KNOWN, Target, parse_target

__all__ = [
    "KNOWN",
    "RULES",
    "Artifact",
    "BuildResult",
    "Buffer",
    "Facts",
    "Finding",
    "Target",
    "build_module",
    "build_report",
    "check",
    "compile_kernel",
    "facts",
    "parse_target",
]
