"""``--backend auto`` on the command line: resolved for one world and shape, or refused by name."""

import shlex

import pytest

from overlap.cli import main
from overlap.codegen.module_io import read_header

KERNEL = "templates/kernels/grouped_gemm.py"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


@pytest.fixture
def compiled(repo, capsys, monkeypatch, tmp_path):
    """``compiled(plan, on, *more)``: exit status, what was said, and the module's text."""
    monkeypatch.chdir(repo)

    def make(plan: str, on: str, *more: str) -> tuple[int, str, str]:
        out = tmp_path / "out.py"
        code, _, said = run(
            capsys, "compile", KERNEL, "--plan", plan, "--on", on, "--backend", "auto", "-o", str(out), *more
        )
        return code, said, out.read_text() if out.exists() else ""

    return make


def test_a_module_for_what_is_predicted_to_take_least(compiled):
    code, said, text = compiled("all_gather_1d", "a[M]", "--world", "4", "--shape", "M=8192,N=28672,K=8192")
    assert code == 0 and said.startswith("copy_engine of: copy_engine 4."), said
    assert "; ldst_reserved with 4 programs 5." in said
    assert 'Realization(backend="copy_engine")' in text and "--backend copy_engine" in text


def test_its_header_makes_it_again(compiled, repo, tmp_path, capsys, monkeypatch):
    """The command in the header names the backend that was chosen, and writes the same bytes."""
    _, _, text = compiled("all_gather_1d", "a[M]", "--world", "4", "--shape", "M=640,N=64,K=64")
    command = read_header(text, "out.py").regenerate
    assert run(capsys, *shlex.split(command)[1:])[0] == 0
    assert (tmp_path / "out.py").read_text() == text


def test_programs_that_move_are_counted(compiled, repo, tmp_path):
    machine = tmp_path / "slow_copies.yaml"
    text = (repo / "templates" / "machines" / "h100-nvlink.yaml").read_text()
    machine.write_text(text.replace("latency_us: 8 ", "latency_us: 9000 ", 1))
    more = ("--world", "4", "--shape", "M=8192,N=6144,K=8192", "--set", f"machine={machine}")
    code, said, text = compiled("all_gather_1d", "a[M]", *more)
    assert code == 0 and "comm_sms=" in text and "ol.moving(" in text, said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--world", "4"), "--backend auto chooses for one world and one shape"),
        (("--shape", "M=8,N=8,K=8"), "--backend auto chooses for one world and one shape"),
        (("--world", "4", "--shape", "M=8,N=8"), "no size for axis K"),
        (("--world", "4", "--shape", "M=8,N=8,K=8", "--dtype", "int3"), "unknown dtype `int3`"),
        (("--world", "9", "--shape", "M=8,N=8,K=8", "--set", "machine=h100-nvlink"), "is one node of 8 ranks, not 9"),
    ],
)
def test_what_it_cannot_choose_for_is_refused(compiled, more, told):
    code, said, text = compiled("all_gather_1d", "a[M]", *more)
    assert code == 2 and told in said and not text, said


def test_what_no_backend_can_is_what_the_first_says(compiled):
    code, said, _ = compiled("reduce_scatter_1d", "a[M]", "--world", "2", "--shape", "M=8,N=8,K=8")
    assert code == 2 and "reduce_scatter_1d" in said, said


def test_all_that_can_are_predicted(capsys, repo, monkeypatch):
    monkeypatch.chdir(repo)
    shape = ("--world", "4", "--shape", "M=8192,N=8192,K=28672")
    args = ("predict", "--op", "gemm_rs", "--backend", "auto", "--split", "2", *shape)
    code, in_tiles, _ = run(capsys, *args, "--tile-sums")
    code, said, _ = run(capsys, *args)
    head, first, *rest, last = said.splitlines()
    assert code == 0 and head == "gemm_rs on 4 ranks of h100-nvlink, M=8192, N=8192, K=28672"
    assert "  copy_engine 1.375 ms" in in_tiles and run(capsys, *args, "--no-tile-sums")[1] == said
    assert first == "  copy_engine 1.400 ms" and "  serial 1.611 ms" in rest and last == "auto takes copy_engine"
    assert any(line.startswith("  ldst_reserved: ldst_reserved moves what a kernel reads") for line in rest)
    code, _, said = run(capsys, "predict", "--op", "gemm_rs", "--backend", "auto", "--path", "synth", *shape)
    assert code == 2 and "--backend auto is for one node and a plan by name" in said


def test_words_are_predicted_for_who_names_them_and_never_taken_by_auto(compiled, capsys):
    """Of a result that they would be fastest for: whether all their programs are resident is seen at a launch."""
    small = ("--world", "4", "--shape", "M=64,N=4096,K=4096")
    code, said, text = compiled("reduce_scatter_1d", "c[M]", *small)
    assert code == 0 and "words_inline: words_inline has all programs of a launch resident at once" in said, said
    assert "backend='words_inline'" not in text.replace('"', "'") and "backend=" in text
    predicted = ("predict", "--op", "gemm_rs", *small)
    code, listed, _ = run(capsys, *predicted, "--backend", "auto")
    assert code == 0 and "  words_inline: words_inline has all programs of a launch resident" in listed
    code, named, _ = run(capsys, *predicted, "--backend", "words_inline")
    assert code == 0 and "by reduce_scatter_1d, words_inline" in named
    by_words = float(named.split("  overlapped ")[1].split()[0])
    others = [float(line.split()[-2]) for line in listed.splitlines() if line.startswith("  ") and line.endswith(" ms")]
    assert 0 < by_words < min(others)
