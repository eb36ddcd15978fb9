"""Exchanges, and gathers along what tiles loop over, in parts: tiles of the first rows wait for the first part of every rank's
piece, and for no more."""

from __future__ import annotations

import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.pipeline import Request, compile_source, explain
from overlap.sim import check_module


@pytest.fixture(scope="module")
def compilation(repo, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "out.py"
    unit = SourceUnit.from_file(repo / "templates" / "kernels" / "grouped_gemm.py")
    request = Request(unit, plan="all_to_all_1d", on="a[K:M]", output=str(path), settings={"split": "2"})
    made = compile_source(request)
    path.write_text(made.module.text)
    return made, path


def test_every_part_of_the_rows_is_a_run(compilation):
    titles = dict(explain(compilation[0], world=3, sizes={"M": 384, "N": 128, "K": 90}, rank=0))
    waits = re.findall(r"a\[(\d+:\d+), \d+:\d+\] \(pull from rank (\d)\) +flag (\d)", titles["runs of rank 0"])
    assert waits == [("0:64", "1", "1"), ("64:128", "1", "3")]


@pytest.mark.parametrize("world", [2, 3])
def test_an_exchange_in_parts_is_right(compilation, world):
    report = check_module(
        str(compilation[1]), world=world, shape={"M": 310, "N": 70, "K": 50}, dtype="fp16", seeds=[0], launches=2
    )
    assert report.ok, str(report)


@pytest.fixture(scope="module")
def gathered(repo, tmp_path_factory):
    path = tmp_path_factory.mktemp("gathered") / "out.py"
    unit = SourceUnit.from_file(repo / "templates" / "kernels" / "grouped_gemm.py")
    request = Request(unit, plan="all_gather_1d", on="a[K/M]", output=str(path), settings={"split": "1:3"})
    made = compile_source(request)
    path.write_text(made.module.text)
    return made, path


def test_a_gather_in_parts_along_another_axis_waits_before_the_loop(gathered):
    titles = dict(explain(gathered[0], world=3, sizes={"M": 384, "N": 128, "K": 90}, rank=0))
    waits = re.findall(
        r"(M\[\d:\d\]).* a\[(\d+:\d+), \d+:\d+\] \(pull from rank (\d)\) +flag (\d)", titles["runs of rank 0"]
    )
    assert waits == [("M[0:1]", "0:96", "2", "1"), ("M[1:6]", "96:384", "2", "3")]
    assert "for ol_part" not in gathered[0].module.text


@pytest.mark.parametrize(("world", "sizes"), [(3, {"M": 310, "N": 70, "K": 50}), (4, {"M": 3, "N": 33, "K": 2})])
def test_a_gather_in_parts_along_another_axis_is_right(gathered, world, sizes):
    report = check_module(str(gathered[1]), world=world, shape=sizes, dtype="fp16", seeds=[0], launches=2)
    assert report.ok, str(report)
