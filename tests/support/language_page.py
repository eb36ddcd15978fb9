"""The example of docs/language.md: the test file that stands there, and the story of the kernel that lacks a wait.

python tests/support/language_page.py --write      # puts today's table of words and story into the page
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlap.language.words import table

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
_EXAMPLE = re.compile(r"<!-- (\S+\.py) -->\n```python\n(.*?)```\n", re.S)
_STORY = re.compile(r"(<!-- story -->\n```\n)(.*?)(```\n)", re.S)
_WORDS = re.compile(r"(<!-- words -->\n)(.*?\n)(\n)", re.S)
FIRST_WAIT = "    ol.wait(h, TAKEN, (launch - 1) * programs)\n"


def example() -> tuple[str, str]:
    """Name and text of the test file."""
    found = _EXAMPLE.search(PAGE.read_text())
    assert found is not None
    return found[1], found[2]


def host_code(folder: Path, name: str, text: str) -> Callable[[Any], Any]:
    """``rank`` of a version of the example, imported from a file in ``folder``."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rank


def story(folder: Path) -> str:
    """What the simulator says of the example without its first wait, the line's number kept."""
    from overlap.sim import check_ranks

    name, text = example()
    assert text.count(FIRST_WAIT) == 1
    body = host_code(folder, name.removesuffix(".py"), text.replace(FIRST_WAIT, "\n"))
    return f"{check_ranks(body, world=3)}\n".replace(f"{folder}/", "")


def with_parts(page: str, *, words: str | None = None, told: str | None = None) -> str:
    """The page with these parts in their places."""
    for pattern, part in ((_WORDS, words), (_STORY, told)):
        if part is not None:
            assert pattern.search(page) is not None
            page = pattern.sub(lambda m, part=part: m[1] + part + m[3], page)
    return page


if __name__ == "__main__" and "--write" in sys.argv:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(with_parts(PAGE.read_text(), words=table(), told=story(Path(folder))))
