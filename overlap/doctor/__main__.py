"""``python -m overlap.doctor``: the report where not even click is installed."""

from __future__ import annotations

import argparse
import os
import sys

from . import as_json, as_text, examine


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m overlap.doctor", description="What overlap can do on this machine."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    found = examine()
    try:
        print(as_json(found) if options.json else as_text(found), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter flushes it once more
        return 141
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
