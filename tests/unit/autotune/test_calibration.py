"""Lines fitted to samples, and a calibration as a machine file that the compiler reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.autotune.calibrate.machinefile import machine_name, machine_text
from overlap.autotune.calibrate.samples import Calibration, Sample, fit_line
from overlap.errors import PlanError, UsageError
from overlap.schedule.machine import parse_machine

MIB = 1 << 20


def samples(latency: float, rate: float, *sizes: int) -> tuple[Sample, ...]:
    return tuple(Sample(n * MIB, latency + n * MIB / rate) for n in sizes)


FOUND = Calibration(
    device="NVIDIA H100 80GB HBM3",
    ranks=4,
    units=132,
    versions="torch 2, triton 3, NCCL 2",
    pull=samples(8e-6, 370e9, 1, 4, 256),
    push=samples(8e-6, 370e9, 1, 4, 256),
    library=samples(20e-6, 290e9, 16, 256),
    flops={"bf16": 7.123456e14, "fp32": 3.9e14},
    memory=3e12,
    kernel=2.5e-6,
    entry=9e-6,
    flag=0.0,
    contention=0.28,
    programs={
        "pull": {4: Sample(64 * MIB, 64 * MIB / 162e9), 132: Sample(64 * MIB, 64 * MIB / 297e9)},
        "push_tma": {8: Sample(64 * MIB, 64 * MIB / 241e9)},
    },
)


@given(st.floats(0, 1e-3), st.floats(1e9, 1e12))
def test_a_line_is_found_again(latency, rate):
    line = fit_line(samples(latency, rate, 1, 4, 16, 64, 256))
    assert line.bytes_per_s == pytest.approx(rate, rel=1e-4)
    assert line.latency_s == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert line.error < 1e-4


def test_a_small_message_counts_as_much_as_a_large_one():
    """By absolute squares the largest message alone would decide, and the latency be anything."""
    found = (*samples(10e-6, 100e9, 1, 4, 16, 64), Sample(256 * MIB, 1.1 * (10e-6 + 256 * MIB / 100e9)))
    assert fit_line(found).latency_s == pytest.approx(10e-6, rel=0.2)
    assert fit_line(found).error == pytest.approx(0.1, abs=0.06)


def test_a_latency_is_never_below_zero():
    line = fit_line([Sample(MIB, 1e-5), Sample(4 * MIB, 1e-4)])
    assert line.latency_s == 0 and line.bytes_per_s > 0
    assert fit_line([Sample(MIB, 1e-5), Sample(MIB, 1e-5)]).bytes_per_s == pytest.approx(MIB / 1e-5)


@pytest.mark.parametrize("found", [[], [Sample(0, 1.0)], [Sample(MIB, 0.0)]])
def test_what_gives_no_rate_is_refused(found):
    with pytest.raises(UsageError, match="no rate"):
        fit_line(found)


def test_the_machine_file_says_what_was_measured():
    machine = parse_machine(machine_text(FOUND, "mine", "overlap calibrate"))
    assert (machine.name, machine.node, machine.units) == ("mine", 4, 132)
    assert machine.inside.latency_s == pytest.approx(8e-6, rel=5e-3)
    assert machine.inside.bytes_per_s == pytest.approx(370e9, rel=5e-3)
    assert machine.library.latency_s == pytest.approx(20e-6, rel=5e-3)
    assert machine.library.bytes_per_s == pytest.approx(290e9, rel=5e-3)
    assert machine.flops == pytest.approx({"bf16": 7.12e14, "fp32": 3.9e14})
    assert (machine.memory, machine.kernel, machine.entry) == pytest.approx((3e12, 2.5e-6, 9e-6))
    assert (machine.flag, machine.contention) == (0.0, 0.28)
    assert machine.programs == {"pull": pytest.approx({4: 162e9, 132: 297e9}), "push_tma": {8: pytest.approx(241e9)}}


def test_every_number_has_its_measurement():
    lines = machine_text(FOUND, "mine", "overlap calibrate").splitlines()
    numbers = [line for line in lines if any(c.isdigit() for c in line.partition("#")[0]) and "node" not in line]
    assert len(numbers) == 14 and all(" # " in line for line in numbers)
    assert [line.partition("64 MiB, ")[2] for line in lines if "programs that copy" in line] == [
        "pull by load/store, by programs that copy",
        "push by TMA, by programs that copy",
    ]


def test_a_file_without_programs_is_one():
    text = machine_text(replace(FOUND, programs={}), "mine", "overlap calibrate")
    assert "programs" not in text and parse_machine(text).programs == {}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("programs: {pull: {4: fast}}", "`4` is a number above 0"),
        ("programs: {pull: {some: 4}}", "`some` programs"),
        ("programs: {aside: {4: 4}}", "aside"),
        ("programs: {push_by_tma: {4: 4}}", "push_tma"),
    ],
)
def test_bad_programs_are_refused_in_their_place(bad, said):
    text = machine_text(replace(FOUND, programs={}), "mine", "overlap calibrate")
    with pytest.raises(PlanError, match=said) as caught:
        parse_machine(text + bad + "\n")
    assert caught.value.where is not None and caught.value.where.line == len(text.splitlines()) + 1


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100x4"),
        ("NVIDIA H200", "h200x4"),
        ("NVIDIA GeForce RTX 4090", "4090x4"),
        ("", "gpux4"),
    ],
)
def test_names(device, name):
    assert machine_name(device, 4) == name
