"""Source text in, `ProgramModel` out.

SourceUnit --pragmas--> KernelSource --grid, regions--> axes, tile ids, dispatch regions
           --evaluate--> values of every variable, raw accesses --slice, access--> KernelModel
           --host--> HostEntry
"""

from .access import merged_read
from .build import annotate
from .checks import returns_after_dispatch
from .describe import describe
from .on import OnSpec, parse_on
from .source import SourceUnit

__all__ = ["OnSpec", "SourceUnit", "annotate", "describe", "merged_read", "parse_on", "returns_after_dispatch"]
