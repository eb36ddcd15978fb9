"""What backends can do: one table, shown as it is, and refused by its cells wherever a backend is asked for."""

import re
import shlex

import pytest
import torch

from overlap.backends import Backend, backends, capabilities
from overlap.backends.capabilities import Need, check_named, names, require, table
from overlap.backends.carriers import check_copied
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.plan import TensorSpec
from overlap.cli import main
from overlap.errors import UnsupportedError, UsageError


def page(repo) -> str:
    return (repo / "docs" / "backends.md").read_text()


def test_the_page_shows_the_table(repo):
    assert f"<!-- table -->\n{table()}\n" in page(repo)


def test_the_page_has_a_part_for_every_backend(repo):
    assert re.findall(r"^## (\w+)$", page(repo), re.M) == list(names())


def run(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code, capsys.readouterr().err


def test_the_page_shows_todays_refusal(repo, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(repo)
    command, told = re.search(r"<!-- refusal -->\n```\noverlap (.*?)\n```\n```\n(.*?)```", page(repo), re.S).groups()
    words = [str(tmp_path / word) if word == "OUT.py" else word for word in shlex.split(command)]
    assert run(capsys, *words) == (2, told)


def test_backends_that_no_operation_may_name(repo, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(repo)
    text = (repo / "templates/plans/all_gather_1d.yaml").read_text()
    kernel = "templates/kernels/grouped_gemm.py"
    for name, told in (
        ("warp_drive", "unknown backend 'warp_drive'"),
        ("copy_engin", "did you mean 'copy_engine'?"),
        ("serial", "serial carries out whole calls, not single operations"),
    ):
        plan = tmp_path / "plan.yaml"
        plan.write_text(text.replace("    from: peer\n", f"    from: peer\n    backend: {name}\n"))
        code, said = run(capsys, "compile", kernel, "--plan", str(plan), "--on", "a[M]", "-o", str(tmp_path / "o.py"))
        assert code == 2 and told in said


def test_a_plan_without_a_kernel_goes_by_one_backend(repo):
    text = (repo / "templates/plans/all_gather_1d.yaml").read_text()
    named = text.replace("    from: peer\n", "    from: peer\n    backend: NAME\n")
    for name, told in (("ldst_reserved", "without a kernel all go by copy_engine"), ("none", "unknown backend 'none'")):
        plan = build_plan(named.replace("NAME", name), world=2, tensor=TensorSpec("a", (4, 4)), dim=0, path="plan.yaml")
        with pytest.raises(UsageError, match=told) as caught:
            check_copied(plan, "copy_engine")
        assert caught.value.where is not None and caught.value.where.path == "plan.yaml"
        if name in backends:
            check_copied(plan, name)


ALL = {"triton": (3, 9), "capability": (9, 0)}
TMA = Backend("tma", "push", ("push",), False, False, False, True, "tma store", triton=(3, 8))


@pytest.mark.parametrize(
    ("need", "why"),
    [
        ({"moves": "input"}, ""),
        ({"directions": ("push",), **ALL}, ""),
        ({"directions": ("push", "pull")}, "tma can only push, and this is a pull"),
        ({"reduce": True}, "tma does not add where chunks arrive"),
        ({"strided": True}, "tma moves whole rows alone, and this is a part of each"),
        ({"far": True}, "tma reaches peers by pointer, and no pointer reaches this one"),
        ({"triton": (3, 7)}, "tma needs Triton 3.8, here is 3.7"),
        ({"capability": (8, 9)}, "tma needs sm_90, here is sm_89"),
    ],
)
def test_every_column_refuses(monkeypatch, need, why):
    monkeypatch.setitem(backends, "tma", TMA)
    wanted = Need("a request", **need)
    assert wanted.lacking(TMA) == why
    if not why:
        require(TMA, wanted)
        return
    with pytest.raises(UnsupportedError, match="a request: tma ") as caught:
        require(TMA, wanted)
    able = [b for b in backends.values() if not wanted.lacking(b)]
    assert all(b.name in caught.value.help for b in able)
    assert able or caught.value.help == 'no backend can; backend="serial" does'


def test_the_row_of_a_backend_says_where_it_runs(monkeypatch):
    monkeypatch.setitem(backends, "tma", TMA)
    assert (
        "| tma | inputs, results | yes | no | no | no | no | some reserved | 3.8 and later | NVIDIA sm_90 and later |"
        in (table())
    )
    assert "tma" in names("input", "result") and capabilities.rows()[-3][0] == "tma"


def test_nobody_lists_backends_by_hand():
    """What operators and the decorator take follows from the table."""
    from overlap.api.fallback import BACKENDS, KNOWN, MOVING, STORING

    for name, backend in backends.items():
        assert name in KNOWN
        assert (name in MOVING, name in STORING) == ("input" in backend.moves, "result" in backend.moves)
        assert (name in BACKENDS) == (len(backend.moves) == 2)


def test_a_name_that_is_none_names_the_nearest():
    assert check_named(None, names(), Need("it")) is None and check_named("serial", names(), Need("it")) == "serial"
    with pytest.raises(UsageError, match="unknown backend 'copyengine'") as caught:
        check_named("copyengine", names(), Need("it"))
    assert caught.value.help.startswith("did you mean 'copy_engine'? backends: copy_engine, ")


def test_words_are_for_those_who_name_them_and_for_tuned_products_that_walk_over_tiles():
    """A product has a program for each tile where TMA does not take its rows, as it never does without a GPU."""
    from overlap.ops.partials import chosen_reason, storing_reason
    from overlap.ops.tuning import problem_of

    assert [name for name, backend in backends.items() if capabilities.unasked(backend)] == ["words_inline"]
    for op in ("gemm_rs", "gemm_ar", "gemm_a2a"):
        problem = problem_of(op, {"M": 16, "N": 4096, "K": 4096}, torch.bfloat16, 2)
        assert "one for each tile" in problem.lacking("words_inline") and not problem.lacking("ldst_inline")
    for name in (*backends, None, "serial"):
        assert chosen_reason(name, True) == ""
        assert name == "words_inline" or chosen_reason(name, False) == storing_reason(name, False)
    assert storing_reason("words_inline", False) == ""
