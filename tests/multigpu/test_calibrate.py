"""This machine measured: within its time, the same on every rank, and near what a machine of its kind can do."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from overlap.autotune.calibrate.machinefile import machine_text
from overlap.autotune.calibrate.run import calibrate
from overlap.autotune.calibrate.samples import fit_line
from overlap.schedule.machine import parse_machine


@pytest.fixture(scope="module")
def measured():
    start = time.monotonic()
    found = calibrate()
    return found, time.monotonic() - start


def test_it_takes_less_than_two_minutes(measured):
    assert measured[1] < 120


def test_every_rank_knows_the_same(measured):
    told: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(told, measured[0])
    assert all(other == measured[0] for other in told)


def test_the_file_is_a_machine(measured):
    machine = parse_machine(machine_text(measured[0], "here", "overlap calibrate"))
    assert machine.node == measured[0].ranks
    # From a network's rate to more than any link's, and from an idle to an impossible device.
    assert 5e9 < machine.inside.bytes_per_s < 1.5e12 and machine.inside.latency_s < 1e-4
    assert machine.flops["bf16"] > machine.flops["fp32"] > 1e12
    assert 1e11 < machine.memory < 2e13
    assert 0 < machine.kernel < 5e-5 and 0 < machine.entry < 5e-4 and machine.contention < 2


def test_copies_of_several_sizes_lie_on_a_line(measured):
    found = measured[0]
    assert fit_line(found.pull).error < 0.5 and fit_line(found.push).error < 0.5


def test_more_programs_are_faster_at_first(measured):
    for samples in measured[0].programs.values():
        rates = [sample.gb_per_s for sample in samples.values()]
        assert rates[0] < max(rates)
