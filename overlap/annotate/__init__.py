"""Source text in, `ProgramModel` out.

    SourceUnit --pragmas--> KernelSource --grid, regions--> axes, tile ids, dispatch regions
               --evaluate--> values of every variable, raw accesses --slice, access--> KernelModel
               --host--> HostEntry
"""

from .build import annotate
from .source import SourceUnit

__all__ = ["SourceUnit", "annotate"]
