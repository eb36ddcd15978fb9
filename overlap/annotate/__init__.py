"""Source text in, `ProgramModel` out.

SourceUnit --pragmas--> KernelSource --grid, regions--> axes, tile ids, dispatch regions
           --evaluate--> values of every variable, raw accesses --slice, access--> KernelModel
           --host--> HostEntry
"""

from .access import merged_read
from .build import annotate
from .checks import returns_after_dispatch
from .describe import describe
from .kernel_entry import kernel_entry, read_strides
from .on import OnSpec, parse_on, parse_ons
from .produced import last_store, refuse_jumps
from .source import SourceUnit
from .strides import column_starts, compared_strides, read_alike

__all__ = [
    "OnSpec",
    "SourceUnit",
    "annotate",
    "column_starts",
    "compared_strides",
    "describe",
    "kernel_entry",
    "last_store",
    "merged_read",
    "parse_on",
    "parse_ons",
    "read_alike",
    "read_strides",
    "refuse_jumps",
    "returns_after_dispatch",
]
