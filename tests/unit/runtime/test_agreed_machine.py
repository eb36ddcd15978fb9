"""Ranks tell each other which machine decides their order, before any of them schedules."""

from __future__ import annotations

from types import SimpleNamespace

from overlap.backends.base import Realization
from overlap.runtime.group.meeting import first_difference
from overlap.runtime.instances import _machine_in_words


def words(machine: str | None = None, world: int = 4) -> str:
    return _machine_in_words(SimpleNamespace(realization=Realization(machine=machine)), world)


def test_a_machine_that_differs_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("OVERLAP_MACHINE", raising=False)
    mine = words()
    assert mine == words("h100-nvlink") and mine.startswith("h100-nvlink (")
    monkeypatch.setenv("OVERLAP_MACHINE", "h800")
    theirs = words()
    assert theirs == words("h800") != mine and words("h100-nvlink") == mine, "a module's own machine counts first"
    assert "h800" in first_difference({"machine": mine}, {"machine": theirs})
    # Files of one name and other numbers are different machines.
    path = tmp_path / "box.yaml"
    text = "machine: box\nnode: 4\ninside: {latency_us: 1, gb_per_s: 10, library_latency_us: 5, library_gb_per_s: 8}\n"
    text += "compute: {units: 4, memory_gb_per_s: 100, tflops: {fp16: 2}}\nlaunch: {kernel_us: 3, entry_us: 2, flag_us: 1}\n"
    path.write_text(text)
    one = words(str(path))
    path.write_text(text.replace("gb_per_s: 10", "gb_per_s: 11"))
    assert one != words(str(path)) and one.split()[0] == "box"


def test_what_is_wrong_with_a_machine_is_told_before_it_is_raised(monkeypatch):
    """A rank that raised alone would leave the others waiting: its words differ, and every rank names it."""
    monkeypatch.setenv("OVERLAP_MACHINE", "h80")
    assert words() == "unknown machine `h80` (the setting OVERLAP_MACHINE)"
    assert "one node of 8 ranks, not 9" in words("pcie", world=9)
