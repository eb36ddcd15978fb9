"""Rows of bench/gaps.py as one Markdown table, and what profiler and records cost.

Of the terms that are no tiles the longest is bold. ``copies run``: from when to when chunks are copied, how much of that time a
copy runs, and how fast they are then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apart import TERMS
from suite import Row

CLOCKED = ("ours_graph", "triton_gemm")


def gaps_table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a row, in us: time, limit, the terms that add up to the time, and the product in two ways by itself."""
    headings = ["", "M, N, K", "ours", "limit", "eta", "asked", *TERMS, "copies run", "launch alone", "kernel alone"]
    headings.append("MHz")
    lines = ["|" + "|".join(f" {name} " if name else " " for name in headings) + "|"]
    lines.append("|---|---" + "|---:" * (len(headings) - 2) + "|")
    good = [row for row in rows if "failed" not in row]
    for row in good:
        ours, asked = row["ms"]["ours_graph"], _target(row)
        cells = [
            _name(row),
            _sizes(row),
            f"{1e3 * ours:.0f}",
            f"{1e3 * row['limit']:.0f}",
            f"{row['limit'] / ours:.2f}",
        ]
        longest = max((name for name in TERMS if name != "tiles"), key=lambda name: row["terms"][name])
        cells.append("-" if asked is None else f"{asked:.2f}")
        cells += [f"**{row['terms'][name]:.0f}**" if name == longest else f"{row['terms'][name]:.0f}" for name in TERMS]
        cells.append(_copies(row["copying"]))
        cells += [f"{row['beside'][name]:.0f}" for name in ("alone", "product")]
        lines.append("| " + " | ".join([*cells, _clocks(row)]) + " |")
    if good:
        (least, most), (low, high) = (
            (min(values), max(values))
            for values in ([row["beside"][name] for row in good] for name in ("profiled", "recorded"))
        )
        lines += [
            "",
            f"Calls took under the profiler {least:.1f} to {most:.1f} us more, those that record {low:.1f} to {high:.1f}.",
        ]
    left = [f"{_name(row)} {_sizes(row)}: {row['failed']}" for row in rows if "failed" in row]
    return [*lines, *(["", "Left out: " + "; ".join(left) + "."] if left else [])]


def gaps_head_of(rows: Sequence[dict[str, Any]]) -> str:
    """What the rows were measured on."""
    first = rows[0]
    return f"{first['world']} x {first['device']}, {first['dtype']}, us, host ahead:"


def _name(row: dict[str, Any]) -> str:
    return f"{row['op']} {row['how']}".strip()


def _sizes(row: dict[str, Any]) -> str:
    return f"{row['M']}, {row['N']}, {row['K']}"


def _target(row: dict[str, Any]) -> float | None:
    return Row(row["op"], row["M"], row["N"], row["K"]).target


def _copies(found: dict[str, float]) -> str:
    if not found:
        return "-"
    share = found["busy"] / (found["until"] - found["from"])
    return f"{found['from']:.0f} to {found['until']:.0f}, {100 * share:.0f} %, {found['gb_s']:.0f} GB/s"


def _clocks(row: dict[str, Any]) -> str:
    """Of our calls and of the product alone, on the rank where each is lowest."""
    found = [[each.get(name, {}).get("sm_mhz") for each in row["clocks"]] for name in CLOCKED]
    return " / ".join("-" if None in mhz or not mhz else f"{min(mhz):.0f}" for mhz in found)
