"""The command line with results and several tensors: what it writes, shows and refuses."""

# ruff: noqa: E501  (a table, one case a line)

from __future__ import annotations

import re

import pytest

from overlap.cli import main
from overlap.codegen.module_io import read_header

KERNEL = "templates/kernels/grouped_gemm.py"


@pytest.fixture
def cli(repo, monkeypatch, capsys):
    """Runs the program in this process, in the repository; gives exit code, output and errors."""
    monkeypatch.chdir(repo)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def asked(*pairs: str) -> list[str]:
    """``c[M]=reduce_scatter_1d`` as options."""
    return [w for pair in pairs for w in ("--plan", pair.partition("=")[2], "--on", pair.partition("=")[0])]


def test_several_tensors_and_how_to_make_the_module_again(cli, tmp_path):
    out = tmp_path / "out.py"
    words = asked("a[M]=all_gather_1d", "c[M]=reduce_scatter_1d")
    code, said, _ = cli("compile", KERNEL, *words, "-o", str(out))
    assert (code, said.strip()) == (
        0,
        f"wrote {out}: matmul_kernel, plan all_gather_1d reduce_scatter_1d on a[M] c[M]",
    )
    header = read_header(out.read_text(), str(out))
    assert (header.plan, header.on) == ("all_gather_1d reduce_scatter_1d", "a[M] c[M]")
    assert "--plan all_gather_1d --on 'a[M]' --plan reduce_scatter_1d --on 'c[M]'" in header.regenerate


@pytest.mark.parametrize(
    ("words", "place", "message", "help_text"),
    [
        (asked("c[K]=reduce_scatter_1d"), f"{KERNEL}:64:1", "`c` has no axis K", "its axes are M, N"),
        (asked("c[m]=reduce_scatter_1d"), f"{KERNEL}:64:1", "`c` has no axis m", "its axes are M, N"),
        (asked("c[M:K]=all_to_all_1d"), f"{KERNEL}:64:1", "`c` has no axis K", "its axes are M, N"),
        (asked("d[M]=reduce_scatter_1d"), f"{KERNEL}:64:1", "no tensor `d`", "the tensors are a, b, c"),
        (asked("c[M]=reduce_scatter_1d", "c[]=all_reduce_one_shot"), f"{KERNEL}:64:1", "c is communicated twice", "keep c[M] or c[]"),
        (asked("a[M]=all_gather_1d", "c[M:N]=all_to_all_1d"), f"{KERNEL}:64:1", "c[M:N] runs the kernel on the rank's part of M, a[M] on all of M", "communicate a"),
        ([*asked("c[M]=reduce_scatter_1d"), "--plan", "all_gather_1d"], f"{KERNEL}:64:1", "2 plans for 1 communicated tensor (c[M])", "one --plan for each --on"),
        ([*asked("c[M]=reduce_scatter_1d"), "--on", "a[M]"], f"{KERNEL}:64:1", "1 plan for 2 communicated tensors (c[M], a[M])", "one --plan for each --on"),
        (asked("c[M]=all_gather_1d"), "all_gather_1d.yaml:3:1", "rank 0 starts with c[0:7, 0:18], but with c[M] it starts with all of c", "reduce_scatter_1d"),
        (asked("c[M]=all_reduce_one_shot"), "all_reduce_one_shot.yaml:3:1", "but with c[M] it ends with a shard of c along M", "reduce_scatter_1d"),
        (asked("c[]=reduce_scatter_1d"), "reduce_scatter_1d.yaml:3:1", "but with c[] it ends with all of c", "all_reduce_one_shot or all_reduce_two_shot"),
        (asked("c[M:N]=reduce_scatter_1d"), "reduce_scatter_1d.yaml:3:1", "but with c[M:N] it starts with a shard of c along M", "all_to_all_1d"),
        (asked("c[M]=all_to_all_1d"), "all_to_all_1d.yaml:5:8", "`across(rank)` cuts along a second dimension", "two axes"),
    ],
)  # fmt: skip
def test_bad_input(cli, words, place, message, help_text):
    code, _, said = cli("compile", KERNEL, *words, "-o", "-")
    first, shown, caret, help_line = said.splitlines()[:4]
    assert code == 2 and "Traceback" not in said
    assert re.match(r"\S+:\d+:\d+: \S", first) and place in first and message in first
    assert shown.strip() and set(caret.strip()) == {"^"}
    assert help_line.startswith("  help: ") and help_text in help_line


def test_a_plan_that_counts_a_rank_twice(cli, tmp_path):
    plan = tmp_path / "twice.yaml"
    plan.write_text(
        "plan: twice\nbefore: whole\nafter: shard(rank)\nops:\n"
        "  - for: step in range(1, world)\n    let: {peer: (rank + step) % world}\n"
        "    move: shard(peer)\n    from: rank\n    to: peer\n    reduce: sum\n"
        "  - for: step in range(1, world)\n    let: {peer: (rank + step) % world}\n"
        "    move: shard(peer)\n    from: rank\n    to: peer\n    reduce: sum\n"
    )
    code, _, said = cli("compile", KERNEL, *asked(f"c[M]={plan}"), "-o", "-")
    assert code == 2 and said.startswith(f"{plan}:") and "^" in said.splitlines()[2]


def test_explain_shows_counters_and_what_each_run_counts_into(cli):
    code, said, _ = cli("explain", KERNEL, *asked("a[M]=all_gather_1d", "c[M]=reduce_scatter_1d"), "--world", "2")
    assert code == 0
    sections = re.findall(r"^== (.*)$", said, re.M)
    assert sections == ["kernel model", "plan", "runs of rank 0", "runs of rank 1"]
    assert "plan all_gather_1d+reduce_scatter_1d" in said
    assert "counter 0: c[100:200, 0:312] is whole at" in said and "counts into" in said


def test_explain_gives_each_rank_its_part_of_an_exchanged_axis(cli):
    code, said, _ = cli("explain", KERNEL, *asked("c[M:N]=all_to_all_1d"), "--world", "3", "--shape", "M=260,K=16,N=64")
    assert code == 0
    heads = re.findall(r"^rank (\d) of 3: \d+ tiles? \(M (\d+) x N (\d+)\)", said, re.M)
    assert heads == [("0", "2", "1"), ("1", "2", "1"), ("2", "2", "1")]


def test_pragmas_are_refused_before_plans_are_looked_for(cli, tmp_path, repo):
    text = (repo / KERNEL).read_text()
    store = "    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))\n"
    path = tmp_path / "kernel.py"
    path.write_text(text.replace(store, "    if tl.load(a_ptr) > 0:\n    " + store))
    code, _, said = cli("compile", str(path), *asked("c[M]=reduce_scatter_1d"), "-o", "-")
    assert code == 2 and f"{path}:" in said.splitlines()[0]
    assert "c[M]: this store to `c_ptr` depends on data, by `if tl.load(a_ptr) > 0`" in said.splitlines()[0]
    assert "tl.store" in said.splitlines()[1]
