"""docs/plans.md: the plans on it are right, and it leaves out no key, word or template."""

from __future__ import annotations

import re

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.chunkexpr import WORDS
from overlap.chunkplan.collectives.lower import lower_collective, verify_collective
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.expr import FUNCTIONS
from overlap.chunkplan.frame import FRAME_KEYS, SYMBOLS
from overlap.chunkplan.library import list_templates
from overlap.chunkplan.linkfile import read_links
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.reader import OP_KEYS, PLAN_KEYS
from overlap.chunkplan.trials import rooms_of, trials_of
from overlap.chunkplan.verify import verify_plan


@pytest.fixture(scope="module")
def page(repo) -> str:
    return (repo / "docs" / "plans.md").read_text()


def test_every_plan_on_it_is_right(page):
    files = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    plans, links = [text for text in files if text.startswith("plan:")], files[-1]
    assert len(plans) == 3 == len(files) - 1
    for text in plans:
        where = {"world": 6, "tensor": TensorSpec("x", (11, 2)), "dim": 0, "mesh": Mesh((2, 3))}
        for trial in trials_of(rooms_of(text, **where)) or [None]:
            verify_plan(build_plan(text, **where, counts=trial and trial.counts))
    step = CollectiveStep("all_gather", TensorSpec("x", (1000, 64)), world=8)
    verify_collective(lower_collective(step, path="synth", links=read_links(links)), step)


@pytest.mark.parametrize("words", [PLAN_KEYS, OP_KEYS, FRAME_KEYS, WORDS, FUNCTIONS, SYMBOLS])
def test_it_leaves_nothing_out(page, words):
    code = " ".join(re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)))
    assert [word for word in words if not re.search(rf"\b{word}\b", code)] == []


def test_it_lists_the_templates(page):
    rows = page.partition("## Templates")[2].partition("\n## ")[0]
    listed = re.findall(r"`(\w+)`", rows.replace("`_pull`, `_push`", "`all_gather_1d_pull`, `all_gather_1d_push`"))
    assert sorted(listed) == sorted(list_templates())
