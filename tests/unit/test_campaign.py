"""The campaign over the GPUs of one host, without any: its commands are ones that the tools take, and none holds up the rest."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

import pytest

from bench import campaign


class Parsed(Exception):
    """A script has understood its arguments."""


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
@pytest.mark.usefixtures("bench")
def test_every_script_takes_its_arguments(repo, monkeypatch, ranks):
    def parse(parser, *arguments):
        options, unknown = parser.parse_known_args(*arguments)
        assert not unknown
        raise Parsed(options)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    ran = 0
    for stage in campaign.stages(ranks, Path("out"), "abc"):
        script = [part for part in stage.command if part.endswith(".py")]
        if not script:
            continue
        arguments = stage.command[stage.command.index(script[0]) :]
        monkeypatch.setattr(sys, "argv", list(arguments))
        with pytest.raises(Parsed) as said:
            runpy.run_path(str(repo / script[0]), run_name="__main__")
        assert said.value.args[0].commit == "abc" and said.value.args[0].out == Path("out", f"{stage.name}.json")
        ran += 1
    assert ran > 10


def test_backends_are_measured_in_the_memory_that_all_of_them_can_move():
    side_by_side = [stage for stage in campaign.stages(2, Path("out"), "") if "--backends" in stage.command]
    assert len(side_by_side) == 6
    assert all(stage.command[:2] == ("env", "OVERLAP_PROVIDER=nvshmem") for stage in side_by_side)


def test_every_file_of_tests_is_there(repo):
    named = set()
    for stage in campaign.stages(2, Path("out"), ""):
        if "tests.multigpu.each" in stage.command:
            named |= set(stage.command[stage.command.index("--seconds") + 2 :])
    assert {"matrix", "realizations", "faults"} <= named
    assert all((repo / "tests" / "multigpu" / f"test_{name}.py").is_file() for name in named)


def test_shapes_leave_a_rank_its_product():
    for op, rows in campaign.TARGETS.items():
        assert campaign.shapes(op, 4) == [",".join(map(str, sizes)) for sizes in rows]
    assert campaign.shapes("ag_gemm", 2)[:2] == ["8192,3072,4096", "8192,7168,4096"]
    assert campaign.shapes("gemm_rs", 2)[0] == campaign.shapes("gemm_ar", 2)[0] == "8192,4096,7168"
    assert campaign.shapes("a2a_gemm", 8) == campaign.shapes("gemm_a2a", 8) == ["65536,8192,8192", "131072,4096,4096"]
    assert campaign.shapes("gemm_ar", 3)[1] == "8192,8192,21504"


def stage(name: str, code: str, seconds: float = 20.0) -> campaign.Stage:
    return campaign.Stage(name, "", seconds, (sys.executable, "-c", code))


def told(monkeypatch, tmp_path, capsys, stages, *arguments):
    monkeypatch.setattr(campaign, "stages", lambda ranks, out, commit: stages)
    status = campaign.main(["--ranks", "2", "--out", str(tmp_path), *arguments])
    return status, capsys.readouterr().out.splitlines()


def test_what_hangs_or_fails_does_not_keep_the_rest(monkeypatch, tmp_path, capsys):
    stages = (
        stage("hangs", "import time; print('begun', flush=True); time.sleep(60)", 0.0),
        stage("fails", "print('seen'); raise SystemExit(3)"),
        stage("ends", "print('first'); print('42 rows'); print()"),
    )
    monkeypatch.setattr(campaign, "STARTING", 2.0)
    status, lines = told(monkeypatch, tmp_path, capsys, stages)
    assert status == 1 and lines[-1] == "1 of 3 ended well"
    for line, (name, how, last) in zip(
        lines,
        (("hangs", "not done in time", "begun"), ("fails", "exit 3", "seen"), ("ends", "ok", "42 rows")),
        strict=False,
    ):
        assert line.startswith(name) and how in line and line.endswith(last)
    assert (tmp_path / "ends.txt").read_text().endswith("first\n42 rows\n\n")


def test_no_stage_begins_that_may_not_be_over_in_time(monkeypatch, tmp_path, capsys):
    stages = (stage("long", "print('no')", 500.0), stage("short", "print('yes')", 1.0))
    status, lines = told(monkeypatch, tmp_path, capsys, stages, "--seconds", "60")
    assert status == 1 and len(lines) == 2 and lines[0].startswith("short")
    assert lines[-1] == "1 of 1 ended well; no time for long"


def test_chosen_ones_in_that_order(monkeypatch, tmp_path, capsys):
    stages = tuple(stage(name, f"print('{name}')") for name in ("a", "b", "c"))
    status, lines = told(monkeypatch, tmp_path, capsys, stages, "c", "a")
    assert status == 0 and [line.split()[0] for line in lines] == ["c", "a", "2"]


def test_a_stage_that_is_none(capsys):
    with pytest.raises(SystemExit):
        campaign.main(["--ranks", "2", "matrx"])
    assert "no stage 'matrx'; there are matrix, realizations" in capsys.readouterr().err
