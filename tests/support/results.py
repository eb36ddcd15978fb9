"""Rows and result files of benchmarks, by hand."""

from __future__ import annotations


def rows_of(op, m, n, k, times, **more) -> list[dict]:
    """Rows of one shape; a time is ms, or (ms, queued), or the reason why there is none."""
    made = []
    for who, time in times.items():
        head = {"op": op, "M": m, "N": n, "K": k, "world": 4, "dtype": "bf16", "contender": who}
        if isinstance(time, str):
            made.append({**head, "ms": None, "device": "H100", "failed": time})
        elif isinstance(time, tuple):
            tail = {"p99": time[0], "queued": time[1], "queued_p99": time[1] and 2 * time[1], "rounds": 12}
            made.append({**head, "ms": time[0], "device": "H100", **more, **tail})
        else:
            made.append({**head, "ms": time, "device": "H100"})
    return made


def result(rows, **changes) -> dict:
    keys = ("hardware", "versions", "clocks", "commit", "command", "date")
    values = ({}, {"torch": "2.11.0"}, [], "0123456789abcdef", "python bench/run_suite.py", "2026-11-28T00:00:00+00:00")
    return {**dict(zip(keys, values, strict=True)), "rows": rows, **changes}
