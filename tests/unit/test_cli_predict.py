"""``overlap predict``: what it prints, and what it says to mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.cli.main import main
from tests.support import mixed_plans

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


def test_a_plan_whose_operations_name_backends(capsys, tmp_path):
    """Each is timed as what carries it out, and one that cannot is refused."""
    args = [*GEMM, "--world", "4", "--no-break-even"]
    path = tmp_path / "mixed.yaml"
    path.write_text(mixed_plans.gather("ldst_reserved", "copy_engine"))
    said = {}
    for name in ("copy_engine", "ldst_reserved"):
        whole = tmp_path / f"{name}.yaml"
        whole.write_text(mixed_plans.gather(name, name))
        said[name] = run([*args, "--plan", str(whole)], capsys)[1]
    code, out, _ = run([*args, "--plan", str(path)], capsys)
    assert code == 0 and ", copy_engine and ldst_reserved" in out or ", ldst_reserved and copy_engine" in out
    lines = [next(line for line in text.splitlines() if "overlapped" in line) for text in (out, *said.values())]
    assert len({line.split(" ms")[0] for line in lines}) == 3
    path.write_text(mixed_plans.gather("ldst_reservd", "copy_engine"))
    code, out, err = run([*args, "--plan", str(path)], capsys)
    assert code == 2 and not out and "ldst_reservd" in err and "did you mean" in err


def test_stores_are_timed(capsys):
    args = ["predict", "--op", "gemm_rs", "--shape", "M=8192,N=8192,K=8192", "--world", "4", "--no-break-even"]
    code, out, _ = run([*args, "--backend", "ldst_inline"], capsys)
    assert code == 0 and "by reduce_scatter_1d, ldst_inline" in out
    auto = run([*args[:-1], "--backend", "auto"], capsys)[1]
    (line,) = [each for each in auto.splitlines() if each.startswith("  ldst_inline")]
    assert line.split()[1] in out


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
        (["--world", "9", "--machine", "h100-nvlink"], "one node of 8 ranks, not 9", "h100-nvlink-ib400"),
        (["--world", "9", "--mesh", "2x4"], "--mesh 2x4 has 8 ranks", "let them agree"),
        (["--world", "4", "--plan", "all_to_all_1d"], "cuts along a second dimension", "names two axes"),
        (["--world", "4", "--plan", "reduce_scatter_1d"], "plan reduce_scatter_1d is no", "such as all_gather_1d"),
        (["--world", "4", "--plan", "all_gather_1"], "unknown plan `all_gather_1`", "did you mean `all_gather_1d`"),
        (["--world", "4", "--plan", "reduce_scatter", "--path", "synth"], "is no", "such as all_gather_1d"),
        (["--world", "4", "--on", "x[M]"], "--on with --op", "the operator says what moves"),
        (["--world", "4", "--counts", "n=[1]"], "--counts with --op", "the operator says what moves"),
        (["--world", "4", "--links", "none.yaml"], "there is no link file none.yaml", ""),
        (["--world", "4", "--machine", "h100"], "unknown machine `h100`", "there is h100-nvlink"),
        (["--world", "4", "--dtype", "bf15"], "no rate for `bf15`", "did you mean `bf16`?"),
        (["--world", "4", "--op", "gem_rs"], "unknown operator `gem_rs`", "did you mean `gemm_rs`?"),
        (["--world", "4", "--shape", "M=8192,N=4"], "are M, N and K, not M, N", "M=8192,N=28672,K=8192"),
        (["--world", "4", "--shape", "M=0,N=4,K=4"], "M=0", "1 or more"),
        (["--world", "0"], "0 is not in the range", ""),
        (["--world", "4", "--backend", "tma_reserve"], "unknown backend 'tma_reserve'", "did you mean 'tma_reserved'?"),
        (["--world", "4", "--comm-sms", "4"], "copy_engine takes no multiprocessors", "ldst_reserved or tma_reserved"),
        (["--world", "4", "--op", "gemm_rs", "--backend", "tma_reserved"], "is a result", "copy_engine"),
        (["--mesh", "4x8", "--backend", "tma_reserved"], "no pointer reaches this one", "nvshmem can"),
        (["--world", "4", "--backend", "tma_reserved", "--machine", "pcie"], "how fast programs copy", "calibrate"),
    ],
)
def test_mistakes_are_explained(args, message, help, capsys):
    code, out, err = run([*GEMM, *args], capsys)
    assert code == 2 and not out
    assert message in err and help in err and "Traceback" not in err


def test_programs_of_the_kernel_copy_at_their_rate_and_do_not_compute(capsys):
    """A short product waits for four programs, a long one misses 32 that do not compute."""

    def overlapped(n: int, *args: str) -> float:
        shape = ["--shape", f"M=8192,N={n},K=8192", "--world", "4", "--no-break-even"]
        code, out, _ = run(["predict", "--op", "ag_gemm", *shape, *args], capsys)
        lines = {line.split("  ")[1]: line for line in out.splitlines() if line.startswith("  ")}
        assert code == 0 and lines["overlapped"].endswith("".join(f", {b} with {c} programs" for _, b, _, c in [args]))
        return float(lines["overlapped"].split()[1])

    few, more = (("--backend", "tma_reserved", "--comm-sms", count) for count in ("4", "32"))
    assert overlapped(1024, *few) > 100.6e6 / 130e9 * 1e3 > overlapped(1024, *more)
    assert overlapped(1 << 17, *few) < overlapped(1 << 17, *more)
    assert overlapped(1024, "--backend", "ldst_reserved", "--comm-sms", "4") < overlapped(1024, *few)


def test_a_plan_alone_has_no_backend(capsys):
    args = ["predict", "--plan", "all_gather_1d", "--world", "4", "--shape", "M=8,K=8", "--backend", "tma_reserved"]
    code, _, err = run(args, capsys)
    assert code == 2 and "--backend, --comm-sms, --sum-sms and --tile-sums are of an operator" in err and "--op" in err


def test_a_mesh_says_what_a_node_is(capsys):
    """2x4 is two nodes of four, by the plan of two levels; in one node of eight nothing is far."""
    _, out, _ = run([*GEMM, "--mesh", "2x4", "--no-break-even"], capsys)
    assert out.startswith("ag_gemm on 8 ranks of h100-nvlink-ib400,") and "by all_gather_2d" in out
    _, flat, _ = run([*GEMM, "--world", "8", "--no-break-even"], capsys)
    assert flat.startswith("ag_gemm on 8 ranks of h100-nvlink,") and "by all_gather_1d" in flat
    _, near, _ = run([*GEMM, "--mesh", "2x4", "--machine", "h100-nvlink", "--no-break-even"], capsys)
    assert near == flat


def test_any_plan_moves_the_tensor(capsys, tmp_path: Path):
    args = [*GEMM, "--mesh", "2x4", "--no-break-even"]
    _, own, _ = run(args, capsys)
    _, same, _ = run([*args, "--plan", "all_gather_2d"], capsys)
    assert same == own
    _, flat, _ = run([*args, "--plan", "all_gather_1d"], capsys)
    assert "by all_gather_1d" in flat and exposed(flat) > 3 * exposed(own)
    _, made, _ = run([*args, "--path", "synth"], capsys)
    assert "by all_gather_synth" in made and exposed(made) < 1.1 * exposed(own)
    path = tmp_path / "ring.yaml"
    path.write_text("world: 8\npairs:\n  - {for: a in range(world), between: [a, (a + 1) % world], link: nvlink}\n")
    _, ring, _ = run([*GEMM, "--world", "8", "--no-break-even", "--path", "template", "--links", str(path)], capsys)
    assert "by all_gather_ring_both_ways" in ring
    _, library, _ = run([*GEMM, "--world", "8", "--no-break-even", "--path", "direct"], capsys)
    assert "by all_gather_direct" in library


def exposed(out: str) -> float:
    return float(out.split(" ms exposed")[0].split()[-1])


def test_a_plan_alone(capsys):
    code, out, _ = run(["predict", "--plan", "kv_ring", "--world", "8", "--shape", "S=32768,D=1024"], capsys)
    lines = out.splitlines()
    assert code == 0 and lines[0] == "plan kv_ring on 8 ranks of h100-nvlink, k[32768, 1024], v[32768, 1024]"
    assert lines[2].split() == "nvlink 939.5 MB, at most 117.4 MB out of a rank (0) and 117.4 MB into one (0)".split()
    assert lines[4].split() == "chain 14 copies one behind the other, 14 over nvlink".split()
    _, out, _ = run(["predict", "--plan", "all_gather_2d", "--mesh", "4x2", "--shape", "S=65536,D=4096"], capsys)
    assert out.startswith("plan all_gather_2d on 8 ranks of h100-nvlink-ib400")
    assert "bottleneck   network" in out
    _, out, _ = run(
        ["predict", "--plan", "reduce_scatter", "--path", "synth", "--world", "3", "--shape", "M=9"], capsys
    )
    assert out.startswith("plan reduce_scatter_synth on 3 ranks of h100-nvlink, x[9]")
    args = ["predict", "--plan", "all_to_all_1d", "--world", "4", "--shape", "M=64,K=8", "--on", "a[M:K]"]
    assert run(args, capsys)[1].startswith("plan all_to_all_1d on 4 ranks of h100-nvlink, a[64, 8]")
    code, _, err = run(["predict", "--world", "4", "--shape", "M=8"], capsys)
    assert code == 2 and "nothing to predict" in err and "--plan all_gather_ring" in err
    code, _, err = run(
        ["predict", "--plan", "all_gather_1d", "--world", "4", "--shape", "M=8", "--dtype", "int3"], capsys
    )
    assert code == 2 and "unknown dtype `int3`" in err


def test_it_is_among_the_commands(capsys):
    code, out, _ = run(["--help"], capsys)
    assert code == 0 and "predict" in out


def test_sums_in_tiles_are_predicted_where_they_are_asked_for_and_can_be(capsys, monkeypatch):
    args = ["predict", "--op", "gemm_rs", "--world", "2", "--split", "2", "--no-break-even", "--shape"]
    even, ragged = [*args, "M=8192,N=8192,K=8192"], [*args, "M=8000,N=8192,K=8192"]
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "0")
    said = [
        run([*even, *more], capsys)[1]
        for more in ([], ["--no-tile-sums"], ["--tile-sums"], ["--tile-sums", "--sum-sms", "4"])
    ]
    assert said[0] == said[1] != said[2] == said[3]
    assert "by reduce_scatter_1d, sums in tiles\n" in said[2] and "sums in tiles" not in said[0]
    assert "sums in tiles" not in run([*ragged, "--tile-sums"], capsys)[1]
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "1")
    assert run(even, capsys)[1] == said[2]
    code, _, err = run([*GEMM, "--tile-sums", "--world", "2"], capsys)
    assert code == 2 and "--tile-sums with ag_gemm" in err
    code, _, err = run(["predict", "--plan", "ring", "--no-tile-sums", "--world", "2", "--shape", "M=8"], capsys)
    assert code == 2 and "--tile-sums are of an operator" in err
