"""A build as text: what the kernel uses, beside the original, and what breaks a rule."""

from __future__ import annotations

from collections.abc import Sequence

from .artifact import Facts
from .rules import RULES, Finding

_ROWS = (
    ("registers a thread", "registers"),
    ("spills", "spill_bytes"),
    ("shared memory, bytes", "shared_bytes"),
    ("pipeline stages", "stages"),
    ("matrix instructions", "matrix_instructions"),
    ("warps", "num_warps"),
)
_NVIDIA_ROWS = (
    ("of these wgmma", "wgmma"),
    ("TMA loads", "tma_loads"),
    ("TMA stores", "tma_stores"),
    ("cp.async", "async_copies"),
)


def build_report(facts: Facts, findings: Sequence[Finding], original: Facts | None = None) -> str:
    """The facts as a table, the original's beside them if given, then the findings, or ``ok``."""
    columns = [facts] if original is None else [facts, original]
    head = ["", facts.target] if original is None else ["", facts.target, "original"]
    rows = [head]
    for title, name in (*_ROWS, *(_NVIDIA_ROWS if facts.target.startswith("sm_") else ())):
        values = [getattr(column, name) for column in columns]
        rows.append([title, *("unknown" if v is None else str(v) for v in values)])
    rows.append(["buffers", *(", ".join(map(str, column.buffers)) or "none" for column in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append("")
    for finding in findings:
        lines += [str(finding), f"    {finding.rule}: {RULES[finding.rule]}"]
    errors = sum(finding.severity == "error" for finding in findings)
    lines.append(f"{errors} rule{'s' if errors != 1 else ''} broken" if errors else "ok")
    return "\n".join(lines) + "\n"
