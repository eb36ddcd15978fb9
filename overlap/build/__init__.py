"""What a generated module compiles to, without a GPU: artifacts, facts and findings.

module.py    a generated file, its launch and its original
artifact.py  one kernel for one target, registers, stages, instruction counts
ttir.py dataflow.py ptx.py   readers of what Triton emitted
findings.py  the memory model's rules, checked
flattened.py what a flattened loop carries from tile to tile
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
