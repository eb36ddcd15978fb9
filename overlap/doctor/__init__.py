"""What this machine can do: versions, devices, symmetric memory, and what each backend could do here and why not.

    python -m overlap.doctor      # needs nothing but Python; `overlap doctor` is the same with click and rich

Every package is tried in a process of its own (`probe`), so that one that raises, hangs or crashes when it is imported
becomes a line of the report.

    probe (child processes) -> answers -> assess -> Examination -> render
"""

from .assess import examine
from .model import Examination
from .render import as_json, as_text

__all__ = ["Examination", "as_json", "as_text", "examine"]
