"""Plans by name and by path, and plans as text."""

from __future__ import annotations

import pytest

from overlap.chunkplan import library
from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.describe import describe
from overlap.chunkplan.library import find_template, list_templates
from overlap.chunkplan.pins import Pins, pins_of
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import PlanError


def test_templates_are_found_by_name():
    for name in list_templates():
        path, text = find_template(name)
        assert path.endswith(f"plans/{name}.yaml")
        assert f"\nplan: {name}\n" in text and text.startswith("# ")
        assert text.count("\n") <= (44 if "\nmesh:" in text else 30)


def test_an_installed_package_is_looked_into_first(tmp_path, monkeypatch):
    for place, note in ((tmp_path / "overlap", "inside"), (tmp_path, "beside")):
        (place / "templates" / "plans").mkdir(parents=True)
        (place / "templates" / "plans" / "mine.yaml").write_text(f"# {note}\n")
    (tmp_path / "templates" / "plans" / "other.yaml").write_text("# beside\n")
    monkeypatch.setattr(library, "_PACKAGE", tmp_path / "overlap")
    assert list_templates() == ("mine", "other")
    assert find_template("mine")[1] == "# inside\n"
    assert find_template("other")[1] == "# beside\n"


def test_a_file_of_the_users_own(tmp_path):
    file = tmp_path / "my plan.yml"
    file.write_text("plan: \u00e9\n", encoding="utf-8")
    assert find_template(str(file)) == (str(file), "plan: \u00e9\n")


@pytest.mark.parametrize(
    ("name", "said", "helped"),
    [
        ("all_gather_1f", "unknown plan `all_gather_1f`", "did you mean `all_gather_1d"),
        ("", "unknown plan ``", "all_gather_1d, all_gather_1d_pull"),
        ("{tmp}/mine.yml", "there is no plan file {tmp}/mine.yml", "did you mean `mine.yaml`?"),
        ("{tmp}/none/mine.yaml", "there is no plan file", "the path of a .yaml file"),
        ("{tmp}/folder.yaml", "cannot be read: is a directory", "the path of a .yaml file"),
        ("{tmp}/latin.yaml", "is not UTF-8 text", "save it as UTF-8"),
    ],
)
def test_plans_that_are_not_there(tmp_path, name, said, helped):
    (tmp_path / "mine.yaml").write_text("plan: p\n")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"plan: \xe9\n")
    with pytest.raises(PlanError) as caught:
        find_template(name.format(tmp=tmp_path))
    assert said.format(tmp=tmp_path) in caught.value.message
    assert helped in caught.value.help


@pytest.mark.parametrize(
    ("head", "world", "shape"),
    [
        ("", None, None),
        ("world: 3\ntensors: {x: [M, 64]}\n", 3, (None, 64)),
        ("tensors: {a: [2 * world, 64], b: [1]}\n", None, (None, 64)),
        ("tensors: {b: [7], c: [1]}\n", None, None),
    ],
)
def test_what_a_plan_fixes_by_itself(head, world, shape):
    assert pins_of(f"plan: p\nbefore: whole\nafter: whole\n{head}", "p.yaml", "a") == Pins(world, shape)


def test_a_plan_as_text():
    path, text = find_template("all_gather_ring")
    plan = build_plan(text, world=3, tensor=TensorSpec("a", (5, 2)), dim=0, direction="push", path=path)
    assert (
        describe(plan, 1)
        == """\
plan all_gather_ring: 3 ranks, a[5, 2], 6 operations
  rank 1: has a[2:4, 0:2]; ends with a[0:5, 0:2]
     0  push a[2:4, 0:2] to rank 0
     1  push a[4:5, 0:2] to rank 0, after rank 2 operation 0
     <  receives a[4:5, 0:2] from rank 2 (its operation 0)
     <  receives a[0:2, 0:2] from rank 2 (its operation 1)"""
    )
    everything = describe(plan)
    assert [line for line in everything.splitlines() if line.startswith("  rank")] == [
        f"  rank {rank}: has a[{lo}:{hi}, 0:2]; ends with a[0:5, 0:2]"
        for rank, lo, hi in ((0, 0, 2), (1, 2, 4), (2, 4, 5))
    ]
    assert describe(plan, 1).splitlines()[1:] == everything.splitlines()[6:11]


def test_what_a_line_of_text_says():
    plan = load_plan("""
plan: odd
world: 2
tensors: {a: [1, 2]}
before: {chunk: shard(rank), when: rank == 0}
after: []
ranks:
  1: {ops: [{pull: shard(1), from: 0, backend: tma}, {pull: shard(0), from: 0, channel: 1, reduce: sum}]}
""")
    assert (
        describe(plan)
        == """\
plan odd: 2 ranks, a[1, 2], 2 operations
  rank 0: has a[0:1, 0:2]; ends with nothing
  rank 1: has nothing; ends with nothing
     0  pull a[1:1, 0:2] from rank 0, channel 0, empty, by tma
     1  pull a[0:1, 0:2] (sum) from rank 0, channel 1"""
    )
