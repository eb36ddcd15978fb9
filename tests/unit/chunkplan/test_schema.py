"""The JSON Schema of plan files: it cannot drift from the reader, takes what is right and refuses obvious mistakes."""

from __future__ import annotations

import importlib
import json
import random
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings

from overlap.chunkplan import countskey, depends, frame, reader, schema
from overlap.chunkplan.document import _Loader
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.reader import read_template
from overlap.chunkplan.schema import plan_schema, schema_text
from overlap.cli.check import command
from overlap.errors import PlanError

from .damage import damaged
from .test_dump import plans
from .test_groups import ROWS

FILE = Path(__file__).parents[3] / "templates" / "schema" / "plan.schema.json"
VALIDATOR = jsonschema.Draft7Validator(plan_schema())


class Yaml12(_Loader):
    """Scalars as editors read them: `on` is text, `true` is not. Scanned as the reader does it: libyaml takes more tabs."""

    yaml_implicit_resolvers: dict = {}


for tag, pattern, first in (
    ("bool", "true|false|True|False|TRUE|FALSE", "tTfF"),
    ("int", "[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})\\Z"), list(first))


def mistakes(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(as_json(yaml.load(text, Loader=Yaml12)))]


def as_json(value):
    """Keys are text there."""
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    return [as_json(entry) for entry in value] if isinstance(value, list) else value


def test_the_file_that_ships_is_the_readers():
    assert FILE.read_text() == schema_text(), "overlap check --schema > templates/schema/plan.schema.json"
    assert json.loads(schema_text()) == plan_schema()
    jsonschema.Draft7Validator.check_schema(plan_schema())


TABLES = {
    reader: ("PLAN_KEYS", "RANK_KEYS", "OP_KEYS", "REDUCE_KEYS"),
    frame: ("FRAME_KEYS",),
    countskey: ("KEYS",),
    depends: ("KEYS",),
}


@pytest.mark.parametrize(("module", "table"), [(module, table) for module in TABLES for table in TABLES[module]])
def test_a_key_of_the_reader_cannot_be_forgotten(monkeypatch, module, table):
    try:
        monkeypatch.setattr(module, table, (*getattr(module, table), "novel"))
        with pytest.raises(KeyError, match="novel"):
            importlib.reload(schema).plan_schema()
    finally:
        monkeypatch.undo()
        importlib.reload(schema)


def test_check_prints_it():
    result = CliRunner().invoke(command, ["--schema"], catch_exceptions=False)
    assert result.exit_code == 0 and result.output == schema_text()


@pytest.mark.parametrize("name", list_templates())
def test_every_template_is_valid(name):
    assert mistakes(find_template(name)[1]) == []


@settings(max_examples=40, deadline=None)
@given(plans())
def test_every_dump_is_valid(plan):
    assert mistakes(dump_plan(plan)) == []


def test_every_form_is_valid():
    text = ROWS + (
        "  - {for: i in range(2), let: {j: i + 1}, when: j > 1, do: [{local: whole, into: tensor.whole, backend: tma}]}\n"
        "  - {collective: all_gather, chunk: shard(rank), ranks: [0, 1], reduce: {op: sum, accumulate: fp64}}\n"
        '  - {pull: shard(0), from: 1, depends: [[0, 1], part, {rank: 0, index: 1, for: "q in [1]", when: true}]}\n'
        "ranks: {0: {before: [], ops: []}}\nworld: 2\ndim: 0\nmeta: {a: 1, b c: text}\nparts: {tensor: [0, 1]}\n"
        "tensors: {x: [M, 64], k: tensor}\ncounts: {sent: [world], more: {by: [E, 2], each: 4, total: M}}\n"
    )
    assert mistakes(text) == []
    for mesh in ("2x2", "[a]", "{a: 2, b: 3}", "4"):
        assert mistakes(f"plan: p\nmesh: {mesh}\nbefore: whole\nafter: whole\n") == []


HEAD = "plan: p\nbefore: whole\nafter: whole\n"
OP = HEAD + "ops:\n  - "


@pytest.mark.parametrize(
    "text",
    [
        "before: whole\nafter: whole\n",
        "plan: p\nbefore: whole\n",
        "- plan\n",
        HEAD + "worlds: 4\n",
        HEAD + "world: 0\n",
        HEAD + "world: four\n",
        HEAD + "dim: -1\n",
        HEAD + "mesh: []\n",
        HEAD + "mesh: [a, b, c, d]\n",
        HEAD + "mesh: {a: 0}\n",
        HEAD + "tensors: {}\n",
        HEAD + "tensors: {x y: [2]}\n",
        HEAD + "tensors: {x: other}\n",
        HEAD + "counts: {}\n",
        HEAD + "counts: {n: []}\n",
        HEAD + "counts: {n: {each: 3}}\n",
        HEAD + "counts: {n: {by: [3], most: 2}}\n",
        HEAD + "meta: {a: [1]}\n",
        HEAD + "ranks: {first: {}}\n",
        HEAD + "ranks: {0: {op: []}}\n",
        HEAD + "groups: {tensor: {0: 1}}\n",
        "plan: p\nbefore: {chunks: whole}\nafter: whole\n",
        "plan: p\nbefore: {when: rank}\nafter: whole\n",
        HEAD + "ops: {move: whole, from: 0, to: 1}\n",
        OP + "{moove: whole, from: 0, to: 1}\n",
        OP + "{move: whole, pull: whole, from: 0, to: 1}\n",
        OP + "{move: whole, from: 0}\n",
        OP + "{pull: whole, from: 0, to: 1}\n",
        OP + "{local: whole, from: 0}\n",
        OP + "{for: i in range(2)}\n",
        OP + "{do: [], move: whole}\n",
        OP + "{do: [], label: a}\n",
        OP + "{do: [{local: whole, form: 1}]}\n",
        OP + "{collective: broadcast, chunk: whole, ranks: [0]}\n",
        OP + "{collective: all_gather, ranks: [0]}\n",
        OP + "{local: whole, chunk: whole}\n",
        OP + "{local: whole, reduce: {accumulate: fp32}}\n",
        OP + "{local: whole, depends: [[0, 1, 2]]}\n",
        OP + "{local: whole, depends: {rank: 0}}\n",
        OP + "{local: whole, depends: {on: a, index: 0}}\n",
        OP + "{local: whole, depends: {rank: 0, index: 0, step: 1}}\n",
        OP + "{local: whole, let: [1]}\n",
        OP + "{local: }\n",
    ],
)
def test_obvious_mistakes_are_refused_by_both(text):
    assert mistakes(text)
    with pytest.raises(PlanError):
        read_template(text, "p.yaml")


def test_what_the_reader_takes_the_schema_takes():
    """Shipped plans with random damage: the schema refuses nothing that can be read."""
    dice = random.Random(5)
    sources = [*(find_template(name)[1] for name in list_templates()), ROWS]
    read = 0
    for _ in range(600):
        text = damaged(dice.choice(sources), dice)
        try:
            read_template(text, "p.yaml")
        except PlanError:
            continue
        read += 1
        assert mistakes(text) == [], text
    assert read > 100
