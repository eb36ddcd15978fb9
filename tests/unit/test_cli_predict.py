"""``overlap predict``: what it prints, and what it says to mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.cli.main import main

GEMM = ["predict", "--op", "ag_gemm", "--shape", "M=8192,N=28672,K=8192"]


def run(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(args)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_will_overlap_pay(capsys):
    code, out, err = run([*GEMM, "--world", "4"], capsys)
    lines = out.splitlines()
    assert code == 0 and not err
    assert lines[0] == "ag_gemm on 4 ranks of h100-nvlink, M=8192, N=28672, K=8192"
    assert [line.split("  ")[1] for line in lines[1:6]] == [
        "product alone",
        "collective alone",
        "serial",
        "overlapped",
        "limit",
    ]
    assert lines[6].startswith("overlap pays: 1.")
    assert lines[7].startswith("  N: pays from") and lines[8].startswith("  K: pays from")


def test_where_it_does_not_pay(capsys):
    args = ["predict", "--op", "gemm_rs", "--shape", "M=64,N=512,K=512", "--world", "8", "--no-break-even"]
    code, out, _ = run(args, capsys)
    assert code == 0 and out.splitlines()[-1].startswith("overlap does not pay: 0.")


def test_a_machine_file_of_ones_own(capsys, tmp_path: Path):
    path = tmp_path / "box.yaml"
    path.write_text(
        "machine: box\nnode: 4\ninside: {latency_us: 1, gb_per_s: 10, library_latency_us: 5, library_gb_per_s: 8}\n"
        "compute: {units: 4, memory_gb_per_s: 100, tflops: {fp16: 2}}\nlaunch: {kernel_us: 3, entry_us: 2, flag_us: 1}\n"
    )
    code, out, _ = run([*GEMM, "--world", "3", "--machine", str(path), "--dtype", "fp16", "--no-break-even"], capsys)
    assert code == 0 and out.startswith("ag_gemm on 3 ranks of box")
    path.write_text("machine: box\nnode: 4\ninsid: {}\n")
    code, _, err = run([*GEMM, "--world", "3", "--machine", str(path)], capsys)
    assert code == 2 and f"{path}:3:1: a machine has no key `insid`" in err and "did you mean `inside`" in err


@pytest.mark.parametrize(
    "args, message, help",
    [
        (["--world", "9"], "one node of 8 ranks, not 9", "h100-nvlink-ib400"),
        (["--world", "4", "--machine", "h100"], "unknown machine `h100`", "there is h100-nvlink"),
        (["--world", "4", "--dtype", "bf15"], "no rate for `bf15`", "did you mean `bf16`?"),
        (["--world", "4", "--op", "gem_rs"], "unknown operator `gem_rs`", "did you mean `gemm_rs`?"),
        (["--world", "4", "--shape", "M=8192,N=4"], "are M, N and K, not M, N", "M=8192,N=28672,K=8192"),
        (["--world", "4", "--shape", "M=0,N=4,K=4"], "M=0", "1 or more"),
        (["--world", "0"], "0 is not in the range", ""),
    ],
)
def test_mistakes_are_explained(args, message, help, capsys):
    code, out, err = run([*GEMM, *args], capsys)
    assert code == 2 and not out
    assert message in err and help in err and "Traceback" not in err


def test_it_is_among_the_commands(capsys):
    code, out, _ = run(["--help"], capsys)
    assert code == 0 and "predict" in out
