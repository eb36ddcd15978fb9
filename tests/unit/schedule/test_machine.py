"""Machine files: those that ship, what they say of links, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.chunkplan.links import Link
from overlap.errors import PlanError
from overlap.schedule.collective import collective_bytes, library_seconds
from overlap.schedule.machine import list_machines, load_machine, machine_folders, machine_for, parse_machine

SMALL = """machine: box
node: 2
inside: {name: wire, latency_us: 1, gb_per_s: 10, library_latency_us: 5, library_gb_per_s: 8}
compute:
  units: 4
  memory_gb_per_s: 100
  tflops: {bf16: 2}
launch: {kernel_us: 3, entry_us: 2, flag_us: 0.5}
"""


def test_machines_that_ship():
    assert {"h100-nvlink", "h100-nvlink-ib400", "h800", "pcie"} <= set(list_machines())
    for name in list_machines():
        machine = load_machine(name)
        assert machine.name == name
        assert machine.node == 8 and machine.rate("bf16") > machine.rate("fp32")
        if machine.between is not None:
            assert machine.between.bytes_per_s < machine.inside.bytes_per_s
            assert machine.between.latency_s > machine.inside.latency_s
    assert load_machine("h800").inside.bytes_per_s < load_machine("h100-nvlink").inside.bytes_per_s / 2
    assert load_machine("h100-nvlink-ib400").inside == load_machine("h100-nvlink").inside


def test_every_number_of_a_file_has_its_source():
    for folder in machine_folders():
        for path in folder.glob("*.yaml"):
            for line in path.read_text().splitlines():
                key, _, value = line.partition(":")
                if key.strip() in ("machine", "node", "name", "pointer") or line.startswith("#"):
                    continue
                if value.split("#")[0].strip():
                    assert line.count("#") == 1 and len(line.split("#")[1].strip()) > 5, f"{path.name}: {line}"


def test_a_file_becomes_a_machine(tmp_path: Path):
    machine = parse_machine(SMALL)
    assert machine.inside == Link("wire", 1e-6, 10e9, True)
    assert machine.between is None and machine.library_between is None
    assert (machine.units, machine.memory, machine.rate("bf16")) == (4, 100e9, 2e12)
    assert (machine.kernel, machine.entry, machine.flag, machine.contention) == pytest.approx((3e-6, 2e-6, 5e-7, 0))
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL)
    assert load_machine(str(path)) == machine


def test_links_follow_nodes():
    machine = load_machine("h100-nvlink-ib400")
    assert machine.link(3, 3) is None
    assert machine.link(0, 7) == machine.inside and machine.link(7, 8) == machine.between
    table = machine.links(11)
    assert table.world == 11
    assert all(table.between(a, b) == machine.link(a, b) for a in range(11) for b in range(11))
    assert load_machine("pcie").links(3).between(0, 2) == load_machine("pcie").inside
    assert machine.links(1).classes == {}


def test_a_machine_without_network_is_one_node():
    machine = parse_machine(SMALL)
    machine.check_world(2)
    with pytest.raises(PlanError, match="one node of 2 ranks, not 3"):
        machine.links(3)
    with pytest.raises(PlanError, match="0 ranks"):
        machine.check_world(0)


@pytest.mark.parametrize(
    "old, new, message, line",
    [
        ("node: 2", "node: 0", "whole number of 1 or more, not `0`", 2),
        ("node: 2", "node: 2.5", "whole number", 2),
        ("gb_per_s: 10,", "gb_per_s: fast,", "above 0, not `fast`", 3),
        ("gb_per_s: 10,", "gb_per_s: nan,", "above 0", 3),
        ("latency_us: 1,", "latency_us: -1,", "0 or more", 3),
        ("latency_us: 1,", "latency: 1,", "no key `latency`", 3),
        ("  units: 4\n", "", "needs `units`", 5),
        ("machine: box\n", "", "needs `machine`", 1),
        ("tflops: {bf16: 2}", "tflops: 2", "is a mapping", 7),
        ("node: 2", "node: 2\nown_wires: maybe", "own_wires `maybe`", 3),
    ],
)
def test_mistakes_in_a_file_are_placed(old, new, message, line):
    assert old in SMALL
    with pytest.raises(PlanError, match=message) as caught:
        parse_machine(SMALL.replace(old, new), "my.yaml")
    assert caught.value.where is not None and caught.value.where.path == "my.yaml" and caught.value.where.line == line


def test_unknown_machines_and_dtypes_name_the_nearest(tmp_path: Path):
    with pytest.raises(PlanError) as caught:
        load_machine("h100-nvlin")
    assert "did you mean `h100-nvlink`?" in caught.value.help
    with pytest.raises(PlanError, match="cannot be read"):
        load_machine(str(tmp_path / "none.yaml"))
    (tmp_path / "raw.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="not UTF-8"):
        load_machine(str(tmp_path / "raw.yaml"))
    with pytest.raises(PlanError, match="no rate for `fp64`"):
        parse_machine(SMALL).rate("fp64")


def test_scaled_changes_rates_alone():
    machine = load_machine("h100-nvlink-ib400")
    twice = machine.scaled(compute=2, links=3)
    assert twice.rate("bf16") == 2 * machine.rate("bf16")
    assert twice.inside.bytes_per_s == 3 * machine.inside.bytes_per_s
    assert twice.between.bytes_per_s == 3 * machine.between.bytes_per_s
    assert twice.inside.latency_s == machine.inside.latency_s
    assert parse_machine(SMALL).scaled(links=2).between is None


def test_collectives_of_a_library():
    machine = parse_machine(SMALL)
    for kind, factor in {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}.items():
        assert collective_bytes(kind, 4, 100) == 75 * factor
        assert library_seconds(kind, range(2), 16e9, machine) == pytest.approx(5e-6 + factor)
        assert library_seconds(kind, [1], 16e9, machine) == 0.0
    far = load_machine("h100-nvlink-ib400")
    near = load_machine("h100-nvlink")
    assert library_seconds("all_gather", range(8), 1e9, far) == library_seconds("all_gather", range(8), 1e9, near)
    # Eight ports carry the ring of a whole node; one port alone carries what one rank sends to others.
    ring = library_seconds("all_gather", range(16), 1e9, far)
    assert ring == pytest.approx(60e-6 + 1e9 * 15 / 16 / 290e9)
    spread = library_seconds("all_gather", [0, 8], 1e9, far)
    assert spread == pytest.approx(60e-6 + 1e9 / 2 / 40e9)
    assert library_seconds("all_to_all", range(16), 1e9, far) == pytest.approx(60e-6 + 1e9 * 8 / 16 / 40e9)


@pytest.mark.parametrize("how", ["setting", "keyword"])
def test_a_machine_of_two_ranks_still_compiles_kernels_for_any_world(tmp_path, monkeypatch, how):
    """What `overlap calibrate` writes on two GPUs; worlds of other sizes are checked all the same."""
    from overlap.annotate.source import SourceUnit
    from overlap.pipeline import Request, compile_source

    path = tmp_path / "here.yaml"
    path.write_text(SMALL)
    if how == "setting":
        monkeypatch.setenv("OVERLAP_MACHINE", str(path))
    source = SourceUnit.from_file("templates/kernels/grouped_gemm.py")
    keys = {"machine": str(path)} if how == "keyword" else {}
    compilation = compile_source(Request(source, plan="all_gather_1d", on="a[M]", settings=keys))
    assert "all_gather_1d" in compilation.module.text
    with pytest.raises(PlanError, match="machine box is one node of 2 ranks, not 3"):
        machine_for(3, None, str(path))
