"""``--path``, ``--links`` and ``--machine``: collectives three ways on the command line, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.collectives.lower import lower_collective, verify_collective
from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.collectives.text import collective_text
from overlap.chunkplan.links import full_mesh, ring
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.cli.main import main
from overlap.errors import UsageError
from overlap.pipeline import Request, compile_source, planned

KERNEL = "templates/kernels/grouped_gemm.py"
RING = """world: 4
pairs:
  - {for: a in range(world), between: [a, (a + 1) % world], link: nvlink}
"""
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@pytest.fixture
def links(tmp_path: Path) -> str:
    path = tmp_path / "ring.yaml"
    path.write_text(RING)
    return str(path)


def run(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(args)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("path", ["direct", "template", "synth"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_and_plan_are_one(kind, path):
    """What is written as text is what `lower_collective` makes; that of templates and of libraries serves other shapes."""
    to_dim = 1 if kind == "all_to_all" else None
    table = ring(5) if kind != "all_to_all" else full_mesh(5)
    for direction in ("pull", "push"):
        step = CollectiveStep(kind, TensorSpec("a", (37, 21)), 5, to_dim=to_dim)
        name, text = collective_text(step, path=path, links=table, direction=direction)
        given = {"world": 5, "dim": 0, "to_dim": to_dim, "direction": direction, "path": name}
        plan = build_plan(text, tensor=step.tensor, **given)
        wanted = lower_collective(step, path=path, links=table, direction=direction)
        assert (plan.ops, plan.before, plan.after) == (wanted.ops, wanted.before, wanted.after)
        verify_collective(plan, step)
        if path != "synth":
            other = CollectiveStep(kind, TensorSpec("a", (8, 6)), 5, to_dim=to_dim)
            verify_collective(build_plan(text, tensor=other.tensor, **given), other)


def test_check_makes_plans_for_links(links, capsys):
    code, out, _ = run(
        ["check", "all_gather", "--world", "4", "--shape", "M=9,K=4", "--path", "synth", "--links", links], capsys
    )
    assert code == 0 and out.splitlines()[0].startswith("plan all_gather_synth: 4 ranks") and out.endswith("ok\n")
    # Every pair that it uses is joined, and without the file ranks 0 and 2 are joined as well.
    pairs = {(rank, int(src)) for rank, src in pulls(out)}
    assert pairs <= {(a, b) for a in range(4) for b in range(4) if (a - b) % 4 in (1, 3)}
    _, out, _ = run(["check", "all_gather", "--world", "4", "--shape", "M=9,K=4", "--path", "synth"], capsys)
    assert (0, 2) in pulls(out)


def pulls(out: str) -> set[tuple[int, int]]:
    found, rank = set(), -1
    for line in out.splitlines():
        if match := re.match(r"  rank (\d+):", line):
            rank = int(match[1])
        if match := re.search(r"pull .* from rank (\d+)", line):
            found.add((rank, int(match[1])))
    return found


def test_machines_and_meshes_choose(capsys):
    """Over two nodes the template of two levels; in one node the usual one; a library whatever the links."""
    args = ["check", "all_gather", "--shape", "M=64,K=4096", "--path", "template"]
    assert run([*args, "--mesh", "2x4"], capsys)[1].startswith("plan all_gather_2d:")
    assert run([*args, "--world", "8", "--machine", "pcie"], capsys)[1].startswith("plan all_gather_1d:")
    _, out, _ = run(
        ["check", "all_to_all", "--world", "3", "--shape", "M=9,K=4", "--path", "direct", "--on", "a[M:K]"], capsys
    )
    assert out.startswith("plan all_to_all_direct: 3 ranks, a[9, 4], 3 operations") and "over ranks 0, 1, 2" in out


def test_a_module_of_a_made_plan_is_pinned(links, tmp_path, repo, monkeypatch, capsys):
    monkeypatch.chdir(repo)
    out = tmp_path / "out.py"
    args = ["compile", KERNEL, "--on", "a[M]", "--path", "synth", "--links", links, "--world", "4", "-o", str(out)]
    code, said, _ = run([*args, "--shape", "M=136,K=96"], capsys)
    assert code == 0 and "plan all_gather_synth on a[M]" in said
    text = out.read_text()
    head = text.replace(" \\\n#     ", " ")
    assert "# overlap world: 4" in head and "--path synth" in head and "--shape M=136,K=96" in head
    assert "--world 4 --shape M=136,K=96,N=" in head, "the command that checks it has its shape"
    plan = load_plan(re.search(r'OL_PLAN = """\\?\n?(.*?)"""', text, re.S)[1])
    verify_collective(plan, CollectiveStep("all_gather", TensorSpec("a", (136, 96)), 4))
    # The template of a path is for any shape, and is named in the header.
    args[args.index("synth")] = "template"
    code, said, _ = run(args, capsys)
    assert code == 0 and "plan all_gather_ring_both_ways on a[M]" in said


@pytest.mark.parametrize(
    ("on", "kind"),
    [("a[M]", "all_gather"), ("c[M]", "reduce_scatter"), ("c[]", "all_reduce"), ("c[M:N]", "all_to_all")],
)
def test_what_is_communicated_names_the_collective(on, kind, repo):
    unit = SourceUnit.from_file(str(repo / KERNEL))
    sizes = {"M": 20, "N": 12, "K": 8}
    made = compile_source(Request(unit, "", on, world=4, path="synth", sizes=sizes))
    assert made.plans[0].name == f"{kind}_synth"
    if kind == "all_gather":
        two = compile_source(Request(unit, "", on, mesh=Mesh((2, 2)), world=4, path="template"))
        assert two.plans[0].name == "all_gather_2d" and "{node: 2, gpu: 2}" in two.plans[0].text
    grid = Mesh((2, 2), ("node", "gpu"))
    far = compile_source(Request(unit, "", on, mesh=grid, world=4, path="synth", sizes=sizes))
    assert "mesh: {node: 2, gpu: 2}" in far.plans[0].text
    assert planned(far, world=4, sizes=sizes).plan.mesh == grid
    with pytest.raises(UsageError, match="is no all_gather" if kind != "all_gather" else "is no all_reduce"):
        wrong = "all_gather" if kind != "all_gather" else "all_reduce"
        compile_source(Request(unit, wrong, on, world=4, path="synth", sizes=sizes))


CHECK = ["check", "all_gather", "--world", "4", "--shape", "M=9,K=4"]
COMPILE = ["compile", KERNEL, "--on", "a[M]", "-o", "-"]


@pytest.mark.parametrize(
    ("args", "message", "help"),
    [
        ([*CHECK, "--path", "sinth"], "'sinth' is not one of", ""),
        (
            ["check", "all_gathr", *CHECK[2:], "--path", "synth"],
            "`all_gathr` is no collective",
            "did you mean `all_gather`",
        ),
        ([*CHECK, "--links", "LINKS"], "--links without --path", "--path synth"),
        ([*CHECK, "--path", "synth", "--links", "none.yaml"], "there is no link file none.yaml", ""),
        (
            ["check", "all_gather", "--world", "3", "--shape", "M=9", "--path", "synth", "--links", "LINKS"],
            "for a world of 4, not 3",
            "on 4",
        ),
        ([*CHECK, "--path", "synth", "--machine", "h80"], "unknown machine `h80`", "h800"),
        (["check", "all_to_all", *CHECK[2:], "--path", "synth"], "from one axis to another", "x[M:K]"),
        (
            ["check", "all_to_all", *CHECK[2:], "--path", "template", "--links", "LINKS", "--on", "x[M:K]"],
            "there is no link",
            "synth",
        ),
        (
            ["check", "all_gather", "--mesh", "node=2,gpu=2", "--over", "gpu", "--shape", "M=9", "--path", "synth"],
            "with --over",
            "template",
        ),
        ([*COMPILE, "--path", "synth"], "is for one world", "--world 8"),
        ([*COMPILE, "--path", "synth", "--world", "4"], "a has no size for axis M", "--shape M=..,K=.."),
        ([*COMPILE, "--path", "synth", "--world", "4", "--shape", "M=8,K=8,Q=3"], "no tensor has an axis Q", "M, K, N"),
        (
            [*COMPILE, "--plan", "all_gather_1d", "--path", "synth", "--world", "4", "--shape", "M=8,K=8"],
            "is no collective",
            "all_gather",
        ),
        ([*COMPILE, "--plan", "all_gather_1d", "--shape", "M=8"], "--shape without --path", "every shape"),
        ([*COMPILE, "--plan", "all_gather_1d", "--links", "LINKS"], "--links without --path", "--path"),
        (
            [*COMPILE, "--path", "direct", "--world", "4"],
            "tiles cannot wait for parts of the all_gather",
            "--path template",
        ),
        (COMPILE, "no plan", "--plan all_gather_1d"),
        (
            ["predict", "--op", "ag_gemm", "--shape", "M=8,N=8,K=8", "--machine", "pcie", "--world", "9"],
            "one node of 8 ranks, not 9",
            "ib400",
        ),
    ],
)
def test_mistakes_are_explained(args, message, help, links, repo, monkeypatch, capsys):
    monkeypatch.chdir(repo)
    code, out, err = run([links if arg == "LINKS" else arg for arg in args], capsys)
    assert code == 2 and not out
    assert message in err and help in err and "Traceback" not in err
