"""The prints shown in docs/architecture.md and README.md, made by the compiler itself.

A fenced block behind ``<!-- print NAME -->`` must equal `prints()[NAME]`; tests/unit/test_docs.py compares, and

    python tests/support/prints.py --write

puts today's prints in.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("docs/architecture.md", "README.md")
BLOCK = re.compile(r"<!-- print (?P<name>[\w-]+) -->\n```(?P<kind>\w*)\n(?P<text>.*?)```\n", re.S)


def prints() -> dict[str, str]:
    """Every print by name, from the grouped GEMM template on 4 ranks."""
    from overlap.annotate.source import SourceUnit
    from overlap.chunkplan.library import find_template
    from overlap.pipeline import Request, compile_source, explain, planned
    from overlap.schedule.steps import launch_steps

    os.chdir(ROOT)
    request = Request(SourceUnit.from_file("templates/kernels/grouped_gemm.py"), plan="all_gather_1d", on="a[M]")
    compilation = compile_source(request)
    sizes = {"M": 1000, "K": 96, "N": 130}
    made = {title.split()[0]: text.rstrip("\n") for title, text in explain(compilation, world=4, sizes=sizes, rank=1)}
    plan = planned(compilation, world=4, sizes=sizes).plan
    lines = compilation.module.text.splitlines()
    first = next(i for i, line in enumerate(lines) if "The run that holds" in line)
    last = next(i for i, line in enumerate(lines) if ".after(" in line)
    operator = next(i for i, line in enumerate(lines) if line.startswith("OL_OPERATOR"))
    inside = compile_source(
        Request(SourceUnit.from_file("templates/kernels/grouped_gemm.py"), plan="all_gather_1d", on="a[K]")
    )
    walked = {title.split()[0]: text for title, text in explain(inside, world=4, sizes=sizes | {"K": 200}, rank=1)}
    loop = inside.module.text.splitlines()
    head = next(i for i, line in enumerate(loop) if "in the order in which they arrive" in line)
    tail = next(i for i, line in enumerate(loop) if line.startswith("    c_ptrs ="))
    return {
        "range-loop": "\n".join(loop[head:tail]),
        "parts": walked["parts"].rstrip("\n"),
        "model": made["kernel"],
        "plan": "\n".join(made["plan"].splitlines()[:9]) + "\n  ...",
        "template": find_template("all_gather_1d")[1].rstrip("\n"),
        "runs": made["runs"],
        "steps": "\n".join(str(step) for step in launch_steps(plan, 1)),
        "dispatch": "\n".join(lines[first : last + 1]),
        "operator": "\n".join(lines[operator : operator + 21]),
        "realization": repr(compilation.realization),
    }


def with_prints(text: str, made: dict[str, str]) -> str:
    """The page with every marked block replaced by its print."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- print {match['name']} -->\n```{match['kind']}\n{made[match['name']]}\n```\n"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    made = prints()
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        new = with_prints(text, made)
        if new != text:
            if "--write" not in sys.argv:
                sys.exit(f"{page} shows old prints; run python tests/support/prints.py --write")
            path.write_text(new)
            print(f"wrote {page}")
