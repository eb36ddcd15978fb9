"""`overlap trace` refuses what it cannot record, before anything is compiled or started."""

from __future__ import annotations

import pytest

from overlap.cli.main import main

SHAPE = ("--shape", "M=64,N=64,K=64")
FILE = "templates/kernels/grouped_gemm.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "neither FILE.py nor --op to trace"),
        ((FILE, "--op", "ag_gemm"), "both FILE.py and --op to trace"),
        (("--op", "ag_gem"), "unknown operator `ag_gem`"),
        (("--op", "ag_gemm", "--on", "a[M]"), "--on with --op"),
        (("--op", "ag_gemm", "--set", "split=2"), "--set with --op"),
        (("--op", "ag_gemm", "--plan", "all_gather_1d", "--plan", "all_gather_ring"), "2 plans for ag_gemm"),
        (("--op", "ag_gemm", "--backend", "serial"), "--backend serial: tiles are recorded of one fused kernel"),
        (("--op", "ag_gemm", "--backend", "auto"), "--backend auto"),
        (("--op", "ag_gemm", "--world", "2", "--ranks", "2"), "--world is of simulated ranks"),
        ((FILE, "--world", "2"), "no plan"),
        ((FILE, "--plan", "all_gather_1d", "--on", "a[Q]", "--world", "2"), "`a` has no axis Q"),
    ],
)
def test_what_cannot_be_traced_is_refused(repo, monkeypatch, capsys, words, said):
    monkeypatch.chdir(repo)
    with pytest.raises(SystemExit) as done:
        main(["trace", *words, *SHAPE])
    assert done.value.code not in (0, None)
    assert said in capsys.readouterr().err


def test_a_size_is_needed_for_every_axis(repo, monkeypatch, capsys):
    monkeypatch.chdir(repo)
    with pytest.raises(SystemExit):
        main(["trace", FILE, "--plan", "all_gather_1d", "--on", "a[M]", "--shape", "M=64", "--world", "2"])
    assert "--shape: no size for axis" in capsys.readouterr().err


@pytest.mark.parametrize("what", [("--op", "ag_gemm"), (FILE, "--plan", "all_gather_1d", "--on", "a[M]")])
def test_weights_split_shards_as_elsewhere(repo, monkeypatch, capsys, tmp_path, what):
    """What is refused is the backend, behind the split."""
    monkeypatch.chdir(repo)
    monkeypatch.setattr(
        "overlap.cli.trace.interpret", lambda *given: None
    )  # no rank runs, and Triton may be there already
    words = ("--split", "1/1/3:1", "--backend", "warp_drive", "--world", "2", "-o", str(tmp_path / "t.json"))
    with pytest.raises(SystemExit):
        main(["trace", *what, *words, *SHAPE])
    assert "unknown backend 'warp_drive'" in capsys.readouterr().err
