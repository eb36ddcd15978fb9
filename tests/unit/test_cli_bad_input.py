"""Bad input through the command line: exit code 2, ``PATH:LINE:COL: message`` first, a caret, what to write instead.

What is found only while ranks run is in tests/sim.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from overlap.cli import main

FIRST = re.compile(r"^(?P<path>[^\s:]+):(?P<line>\d+):(?P<col>\d+): \S.*$")
KERNEL = "templates/kernels/grouped_gemm.py"
PREDICT = ["predict", "--op", "ag_gemm", "--world", "4", "--shape", "M=64,N=64,K=64"]
COMPILE = ["--plan", "all_gather_1d", "--on", "a[M]", "-o", "-"]


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Runs the program in this process, as ``python -m overlap`` would."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return Result(int(ended.value.code or 0), said.out, said.err)

    return run


def refused(result, path: str, line: int | None, *words: str):
    """The error is for a person: place, caret, what is wrong, what to write."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    match = FIRST.match(lines[0])
    assert match, lines[0]
    assert match["path"] == path
    if line is not None:
        assert int(match["line"]) == line
    assert len(lines) < 3 or set(lines[2].strip()) == {"^"}, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def edited(repo, tmp_path, *edits: tuple[str, str]) -> str:
    text = (repo / KERNEL).read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    (tmp_path / "user.py").write_text(text)
    return text


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


EDITS = {
    "misspelt pragma": ("# @overlap.dispatch begin", "# @overlap.dispach begin", ["dispatch"]),
    "misspelt key": ("axis_count M block=BLOCK_M", "axis_count M blok=BLOCK_M", ["block"]),
    "unclosed": ("    # @overlap.dispatch end\n", "", ["dispatch end"]),
    "undeclared axis": ("pid_map M=pid_m N=pid_n", "pid_map M=pid_m Q=pid_n", ["Q"]),
    "nested": ("# @overlap.pid_map", "# @overlap.dispatch begin\n    # @overlap.pid_map", ["begin"]),
    "tile id in an address": ("offs_k = tl.arange(0, BLOCK_K)", "offs_k = tl.arange(0, BLOCK_K) + pid", ["pid"]),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_kernels(cli, repo, tmp_path, name):
    old, new, words = EDITS[name]
    edited(repo, tmp_path, (old, new))
    refused(cli("compile", "user.py", *COMPILE), "user.py", None, *words)


def test_syntax_error(cli, repo, tmp_path):
    text = edited(repo, tmp_path, ("def matmul(a, b):", "def matmul(a, b)"))
    refused(cli("compile", "user.py", *COMPILE), "user.py", line_of(text, "def matmul("), "syntax error")


def test_two_launches(cli, repo, tmp_path):
    text = (repo / KERNEL).read_text()
    start, end = text.index("    matmul_kernel[grid]("), text.index("    return c")
    text = text[:end] + text[start:end] + text[end:]
    (tmp_path / "user.py").write_text(text)
    second = [n for n, line in enumerate(text.splitlines(), 1) if "matmul_kernel[grid](" in line][1]
    refused(cli("compile", "user.py", *COMPILE), "user.py", second, "launched twice")


@pytest.mark.parametrize(
    "on,words",
    [
        ("q[M]", ["no tensor `q`", "a, b, c"]),
        ("a[Q]", ["no axis Q", "M, K"]),
        ("a", ["a[M]"]),
        ("a[K:K]", ["from K to K", "another axis of a[M,K]"]),
    ],
)
def test_on(cli, repo, tmp_path, on, words):
    text = edited(repo, tmp_path)
    result = cli("compile", "user.py", "--plan", "all_gather_1d", "--on", on, "-o", "-")
    refused(result, "user.py", line_of(text, "host_entry"), *words)


def test_return_between_wait_and_raise(cli, repo, tmp_path):
    text = edited(
        repo,
        tmp_path,
        ("    # @overlap.dispatch end\n", "    # @overlap.dispatch end\n    if pid_m > 7:\n        return\n"),
    )
    scatter = ("--plan", "reduce_scatter_1d", "--on", "c[M]", "-o", "out.py")
    refused(cli("compile", "user.py", *scatter), "user.py", line_of(text, "        return"), "return", "mask")
    assert cli("compile", "user.py", *COMPILE).returncode == 0  # nobody counts the tiles of a kernel that only reads


def test_return_above_the_region_is_fine(cli, repo, tmp_path):
    guard = "    if pid >= num_pid_m * num_pid_n:\n        return\n    # Tiles are numbered"
    edited(repo, tmp_path, ("    # Tiles are numbered", guard))
    assert cli("compile", "user.py", *COMPILE).returncode == 0


def test_unknown_plan(cli, repo, tmp_path):
    edited(repo, tmp_path)
    result = cli("compile", "user.py", "--plan", "all_gather_1f", "--on", "a[M]", "-o", "-")
    refused(result, "<command-line>", 1, "all_gather_1f", "did you mean `all_gather_1d`")
    assert "--plan all_gather_1f" in result.stderr  # the wrong word is shown, not the kernel that it was said of
    result = cli("check", "all_gather_1d.yaml", "--world", "2", "--shape", "M=4")
    refused(result, "<command-line>", 1, "no plan file", "`all_gather_1d` is the template")
    refused(cli("check", "all_gather_4d", "--world", "2", "--shape", "M=4"), "<command-line>", 1, "all_gather_1d")


OPS = "ops:\n  - for: step in range({first}, world)\n    pull: shard((rank + step) % world)\n    from: (rank + step) % world\n"


def test_plan_for_another_world(cli, repo, tmp_path):
    edited(repo, tmp_path)
    (tmp_path / "four.yaml").write_text(
        "plan: four\nworld: 4\nbefore: shard(rank)\nafter: whole\n" + OPS.format(first=1)
    )
    arguments = ["--plan", "four.yaml", "--on", "a[M]", "-o", "-"]
    refused(cli("compile", "user.py", *arguments, "--world", "3"), "four.yaml", 2, "world of 4, not 3")
    assert cli("compile", "user.py", *arguments, "--world", "4").returncode == 0
    assert cli("compile", "user.py", *arguments).returncode == 0


def test_plan_that_does_not_cover(cli, repo, tmp_path):
    edited(repo, tmp_path)
    (tmp_path / "gap.yaml").write_text("plan: gap\nbefore: shard(rank)\nafter: shard(rank)\n" + OPS.format(first=2))
    result = cli("compile", "user.py", "--plan", "gap.yaml", "--on", "a[M]", "-o", "-")
    refused(result, "gap.yaml", 1, "never brings", "tile")


@pytest.mark.parametrize(
    "words,part",
    [
        (["compile", "gone.py", *COMPILE], "gone.py"),
        (["compile", "user.py", *COMPILE, "--set", "splt=2"], "did you mean 'split'"),
        (["compile", "user.py", *COMPILE, "--set", "split=two"], "integer"),
        (["compile", "user.py", *COMPILE, "--set", "split=0"], "at least 1"),
        (["compile", "user.py", *COMPILE, "--set", "comm_sms=4"], "comm_sms must be 0"),
        (["compile", "user.py", *COMPILE, "--set", "split"], "KEY=VALUE"),
        (["compile", "user.py", *COMPILE, "--backend", "copy_engin"], "did you mean 'copy_engine'"),
        (["compile", "user.py", *COMPILE, "--world", "0"], "--world"),
        (["compile", "user.py", *COMPILE, "--set", "block_m=64"], "did you mean 'BLOCK_M'"),
        (["compile", "user.py", *COMPILE, "--set", "BLOCK_M=0"], "at least 1"),
        (["compile", "user.py", *COMPILE, "--set", "num_warps=3"], "power of two"),
        (["compile", "user.py", *COMPILE, "--set", "split=99999"], "1024 parts at most"),
        (["compile", "user.py", *COMPILE, "--set", "trace=yes"], "--set trace=1"),
        (["compile", "user.py", *COMPILE, "--backend", "COPY_ENGINE"], "did you mean 'copy_engine'"),
        (["compile", "user.py", *COMPILE, "--backend", "serial"], "not to compile"),
        (["compile", "user.py", *COMPILE, "--backend", ""], "unknown backend ''"),
        (["compile", "user.py", *COMPILE, "--machine", "pci"], "did you mean `pcie`"),
        (["compile", "user.py", *COMPILE, "--links", "l.yaml"], "--links without --path"),
        (["compile", ".", *COMPILE], "is a folder"),
        ([*PREDICT, "--backend", "ldst_reserved", "--comm-sms", "9999"], "has 132 multiprocessors"),
        ([*PREDICT, "--sum-sms", "8"], "adds nothing up"),
        (["check", "all_gather_1d", "--world", "3", "--shape", "M"], "AXIS=SIZE"),
        (["check", "all_gather_1d", "--world", "3", "--shape", "M=4", "--on", "x[Q]"], "--on x[Q]"),
        (["simulate", "out.py", "--world", "2", "--shape", "M=4", "--dtype-of", "ids"], "TENSOR=DTYPE"),
        (["bogus"], "bogus"),
        (["compile", "user.py", "--on", "a[M]", "-o", "-"], "--plan"),
        (
            ["explain", "user.py", "--plan", "all_gather_1d", "--on", "a[M]", "--world", "2", "--rank", "2"],
            "ranks 0 to 1",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_usage(cli, repo, tmp_path, words, part):
    edited(repo, tmp_path)
    refused(cli(*words), "<command-line>", 1, part)


def test_no_command(cli):
    """Help as it is, not as the message of a mistake."""
    for words in [], ["cache"]:
        result = cli(*words)
        assert result.returncode == 2 and result.stderr.startswith("Usage: overlap"), result.stderr
        assert "\nCommands:\n" in result.stderr


@pytest.mark.parametrize("command", ["compile", "verify"])
def test_output_over_its_source(cli, repo, tmp_path, command):
    text = edited(repo, tmp_path)
    shape = ["--shape", "M=4,N=4,K=4"] if command == "verify" else []
    result = cli(command, "user.py", "--plan", "all_gather_1d", "--on", "a[M]", *shape, "-o", "./user.py")
    refused(result, "<command-line>", 1, "is the file that this reads")
    assert (tmp_path / "user.py").read_text() == text


def test_output_through_a_link_and_into_a_pipe(cli, repo, tmp_path):
    """What -o names is written, not replaced: a device that a file is renamed over is gone for everybody."""
    edited(repo, tmp_path)
    (tmp_path / "link.py").symlink_to("target.py")
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in "link.py", "pipe":
        assert cli("compile", "user.py", *COMPILE[:-1], name).returncode == 0
    assert (tmp_path / "link.py").is_symlink() and (tmp_path / "target.py").is_file()
    assert (tmp_path / "pipe").is_fifo()
    assert os.read(read, 1 << 20).decode() == (tmp_path / "target.py").read_text().replace("target.py", "pipe").replace(
        "link.py", "pipe"
    )
    os.close(read)


@pytest.mark.parametrize(
    "words,part",
    [
        (["compile", "user.py", *COMPILE[:-1], ""], "names no file"),
        (["compile", "user.py", *COMPILE[:-1], "gone/out.py"], "there is no folder 'gone'"),
        (["explain", "user.py", *COMPILE[:-2], "--html", "-"], "names no file"),
        (["explain", "user.py", *COMPILE[:-2], "--tile-us", "inf", "--html", "out.html"], "no time"),
        (["explain", "user.py", *COMPILE[:-2], "--tile-us", "nan"], "no time"),
        (["compile", "us\udcffer.py", *COMPILE], "no text in"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_files_and_numbers_that_are_none(cli, repo, tmp_path, words, part):
    edited(repo, tmp_path)
    refused(cli(*words), "<command-line>", 1, part)
    assert [p.name for p in tmp_path.iterdir()] == ["user.py"]


def test_streams_that_end(repo, tmp_path):
    """A reader that leaves ends the command without a word; a full disk is a mistake of one line."""

    def run(program: list[str], out) -> Result:
        done = subprocess.run(
            [sys.executable, *program], cwd=repo, stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
        return Result(done.returncode, "", done.stderr)

    doctor = "from overlap.doctor import __main__ as m; m.examine = m.as_text = str; raise SystemExit(m.main([]))"
    for program in ["-m", "overlap", "check", "--schema"], ["-c", doctor]:
        read, write = os.pipe()
        os.close(read)
        result = run(program, write)
        os.close(write)
        assert (result.returncode, result.stderr) == (141, ""), result.stderr
    with open("/dev/full", "w") as full:
        refused(
            run(["-m", "overlap", "check", "--schema"], full), "<command-line>", 1, "standard output cannot be used"
        )


def test_a_generated_module_as_source(cli, repo, tmp_path):
    edited(repo, tmp_path)
    assert cli("compile", "user.py", *COMPILE[:-1], "made.py").returncode == 0
    refused(cli("compile", "made.py", *COMPILE), "made.py", 1, "made by overlap already")


def test_settings_that_lead_nowhere(cli, repo, tmp_path, monkeypatch):
    edited(repo, tmp_path)
    with monkeypatch.context() as env:
        env.setenv("OVERLAP_DUMP_DIR", str(tmp_path / "user.py"))
        refused(cli("compile", "user.py", *COMPILE), "<command-line>", 1, "cannot be written", "OVERLAP_DUMP_DIR")
    monkeypatch.setenv("OVERLAP_MACHINE", "h101")
    refused(
        cli("compile", "user.py", *COMPILE), "user.py", None, "unknown machine `h101` (the setting OVERLAP_MACHINE)"
    )


def test_modules_that_are_no_text(cli, tmp_path):
    (tmp_path / "bytes.py").write_bytes(b"\xaf\xfe")
    refused(cli("build", "bytes.py", "--target", "sm_90"), "<command-line>", 1, "not UTF-8 text")


def test_shape_without_an_axis(cli, repo, tmp_path):
    text = edited(repo, tmp_path)
    result = cli("explain", "user.py", "--plan", "all_gather_1d", "--on", "a[M]", "--shape", "M=64,N=64")
    refused(result, "user.py", line_of(text, "host_entry"), "no size for axis K")


def test_not_a_generated_module(cli, repo, tmp_path):
    """`overlap simulate` says the same, which needs a process that interprets: tests/sim/test_plan_command.py."""
    edited(repo, tmp_path)
    refused(cli("build", "user.py", "--target", "sm_90"), "user.py", 1, "not a module generated by overlap")


WITHOUT_TORCH = """
import contextlib, importlib.util, io, json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(name)

real = importlib.util.find_spec
importlib.util.find_spec = lambda n, *a: None if n in ("torch", "triton") else real(n, *a)
sys.meta_path.insert(0, Hidden())
from overlap.cli import main

def run(words):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code or 0
    return code, out.getvalue(), err.getvalue()

print(json.dumps([run(words) for words in json.loads(sys.argv[1])]))
"""


def test_missing_torch_and_triton(repo, tmp_path):
    """Where the packages are not installed the command says so; compile, check and explain work."""
    edited(repo, tmp_path)
    plan, shape = ["--plan", "all_gather_1d", "--on", "a[M]"], ["--shape", "M=4,N=4,K=4"]
    work = [
        ["compile", "user.py", *plan, "-o", "out.py"],
        ["check", "all_gather_1d", "--world", "2", "--shape", "M=4"],
        ["explain", "user.py", *plan, *shape, "--world", "2"],
    ]
    need = [
        ["simulate", "out.py", "--world", "2", *shape],
        ["verify", "user.py", *plan, *shape],
        ["build", "out.py", "--target", "sm_90"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(work + need)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(repo)},
    )
    assert done.returncode == 0, done.stderr
    results = [Result(*told) for told in json.loads(done.stdout)]
    assert [result.returncode for result in results[: len(work)]] == [0] * len(work), results
    for result in results[len(work) :]:
        refused(result, "<command-line>", 1, "torch and triton", "not installed")
