"""Rows of bench/gaps.py as two Markdown tables, and what profiler and records cost.

The first has a row's time, its limit and the terms that add up to the time, the longest that is no tiles in bold. The second what
stands beside them:

    copies run     from when to when chunks are copied, how much of that time a copy runs, and how fast they are then
    launch alone   the product in our call's own launch, by itself
    kernel alone   by the operator's kernel as it stands
    MHz            from the begin to the end of our call, and of that kernel by itself
    sustained      what our calls take one behind the other, the clock then, and eta with the product as long in that way
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apart import TERMS
from scores import BYTES_PER_MS, PRODUCTS, received_bytes
from suite import Row

BESIDE = ("copies run", "launch alone", "kernel alone", "MHz", "sustained")


def gaps_tables_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Both tables in us, a line a row each."""
    good = [row for row in rows if "failed" not in row]
    lines = [*_table(("ours", "limit", "eta", "asked", *TERMS), [(row, _terms(row)) for row in good]), ""]
    lines += _table(BESIDE, [(row, _beside(row)) for row in good])
    if good:
        (least, most), (low, high) = (
            (min(values), max(values))
            for values in ([row["beside"][name] for row in good] for name in ("profiled", "recorded"))
        )
        said = f"Calls took {least:.1f} to {most:.1f} us more under the profiler, {low:.1f} to {high:.1f} where tiles record."
        lines += ["", said]
    left = [f"{_name(row)} {_sizes(row)}: {row['failed']}" for row in rows if "failed" in row]
    return [*lines, *(["", "Left out: " + "; ".join(left) + "."] if left else [])]


def gaps_head_of(rows: Sequence[dict[str, Any]]) -> str:
    """What the rows were measured on."""
    first = rows[0]
    return f"{first['world']} x {first['device']}, {first['dtype']}, us, host ahead:"


def _table(headings: Sequence[str], rows: Sequence[tuple[dict[str, Any], list[str]]]) -> list[str]:
    lines = ["| | " + " | ".join(["M, N, K", *headings]) + " |", "|---|---" + "|---:" * len(headings) + "|"]
    return lines + ["| " + " | ".join([_name(row), _sizes(row), *cells]) + " |" for row, cells in rows]


def _terms(row: dict[str, Any]) -> list[str]:
    ours, asked, terms = row["ms"]["ours_graph"], _target(row), row["terms"]
    longest = max((name for name in TERMS if name != "tiles"), key=lambda name: terms[name])
    cells = [f"{1e3 * ours:.0f}", f"{1e3 * row['limit']:.0f}", f"{row['limit'] / ours:.2f}"]
    cells.append("-" if asked is None else f"{asked:.2f}")
    return cells + [f"**{terms[name]:.0f}**" if name == longest else f"{terms[name]:.0f}" for name in TERMS]


def _beside(row: dict[str, Any]) -> list[str]:
    alone = [f"{row['beside'][name]:.0f}" for name in ("alone", "product")]
    return [_copies(row["copying"]), *alone, _clocks(row), _sustained(row)]


def _name(row: dict[str, Any]) -> str:
    return f"{row['op']} {row['how']}".strip()


def _sizes(row: dict[str, Any]) -> str:
    return f"{row['M']}, {row['N']}, {row['K']}"


def _target(row: dict[str, Any]) -> float | None:
    """What is asked, which is of four ranks."""
    return Row(row["op"], row["M"], row["N"], row["K"]).target if row["world"] == 4 else None


def _copies(found: dict[str, float]) -> str:
    if not found:
        return "-"
    share = found["busy"] / (found["until"] - found["from"])
    return f"{found['from']:.0f} to {found['until']:.0f}, {100 * share:.0f} %, {found['gb_s']:.0f} GB/s"


def _clocks(row: dict[str, Any]) -> str:
    """On the rank that the terms are of."""
    found = [row["clocks"][row["rank"]].get(name, {}).get("mhz") for name in ("ours_graph", "triton_gemm")]
    return "-" if None in found else " / ".join(f"{mhz:.0f}" for mhz in found)


def _sustained(row: dict[str, Any]) -> str:
    """On the rank where each is longest, and the lowest clock of all."""
    us = {name: [each.get(name, {}).get("us") for each in row["clocks"]] for name in ("ours_graph", *PRODUCTS)}
    worst = {name: max(values) for name, values in us.items() if None not in values}
    alone = [worst[name] for name in PRODUCTS if name in worst]
    if "ours_graph" not in worst or not alone:
        return "-"
    limit = max(min(alone), 1e3 * received_bytes(row) / BYTES_PER_MS)
    mhz = [each["ours_graph"]["sm_mhz"] for each in row["clocks"] if "sm_mhz" in each["ours_graph"]]
    # Calls may be over before the driver is asked.
    clock = f" {min(mhz):.0f} MHz," if mhz else ""
    return f"{worst['ours_graph']:.0f},{clock} eta {limit / worst['ours_graph']:.2f}"
