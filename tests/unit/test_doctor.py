"""`overlap doctor`: what it says of a machine, from made-up answers and from real processes with broken packages."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys

import pytest

from overlap import doctor
from overlap.backends import Backend, backends, capabilities
from overlap.cli import main
from overlap.doctor import assess
from overlap.doctor.children import NO_MULTICAST, ask
from overlap.doctor.render import print_tables

NAME = "NVIDIA H100 80GB HBM3"
HEALTHY = {
    "compiler": {"ok": True, "lines": 150},
    "simulator": {"ok": True},
    "triton": {"ok": True, "version": "3.6.0"},
    "driver_calls": {"ok": True, "cuda": "13.0"},
    "nvshmem": {"ok": False, "error": "ModuleNotFoundError: No module named 'nvshmem'"},
    "torch": {
        "ok": True,
        "cuda": "13.0",
        "hip": "",
        "nccl": "2.28.9",
        "devices": [[i, NAME, 132, 85 * 10**9, [9, 0]] for i in range(3)],
        "peers": [[True] * 3 for _ in range(3)],
        "symmetric": "",
    },
}
NO_GPU = {"devices": [], "peers": [], "symmetric": "no GPU", "no_devices": "this torch is built without CUDA"}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """No variable, driver or compiler of the machine that runs the tests."""
    for name in [v for v in os.environ if v.startswith("OVERLAP_") or v in assess.WATCHED]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(assess, "driver_version", lambda: "580.159.04")
    monkeypatch.setattr(assess.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "gcc" else None)


def examined(**changes):
    """The examination of a machine that differs from `HEALTHY` in some answers."""
    answers = copy.deepcopy(HEALTHY)
    for name, change in changes.items():
        answers[name].update(change)
    return doctor.examine(answers)


def lines(found) -> dict[str, str]:
    """The report's rows by their first word."""
    text = doctor.as_text(found)
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("  ")}


def test_a_machine_where_all_works():
    found = examined()
    assert found.ok
    assert all(part.ok for part in found.parts.values())
    assert (found.devices[2].name, found.devices[2].sms, found.devices[2].capability) == (NAME, 132, (9, 0))
    (ability,) = (b for b in found.backends if b.name == "copy_engine")
    assert (ability.compile.ok, ability.simulate.ok, ability.run.ok) == (True, True, True)
    assert ability.run.why == "up to 3 ranks"
    shown = lines(found)
    assert shown["2"] == "yes yes yes"
    assert shown["driver"] == "580.159.04"
    assert f"2    {NAME}  132  79 GiB  9.0" in doctor.as_text(found)
    assert doctor.as_text(found).splitlines()[-1] == "doctor: ok: compiler, simulator, build, GPUs work here"


def test_without_a_gpu_the_compiler_half_counts():
    found = examined(torch=NO_GPU, driver_calls={"ok": False, "error": "ModuleNotFoundError: No module named 'cuda'"})
    assert found.ok
    assert not found.parts["GPUs"].ok
    assert not any(p.ok for p in found.providers.values())
    shown = lines(found)
    assert shown["copy_engine"] == "pull push yes yes no: this torch is built without CUDA"
    assert shown["GPUs"] == "no: this torch is built without CUDA"


def test_devices_that_do_not_reach_each_other():
    found = examined(torch={"peers": [[True, True, True], [True, True, False], [True, True, True]]})
    assert found.providers["torch"].why == "GPU 1 has no access to the memory of GPU 2"
    assert not found.backends[0].run.ok
    assert "GPU 1 has no access to the memory of GPU 2" in found.backends[0].run.why
    assert lines(found)["1"] == "yes yes no"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"triton": {"ok": False, "error": "OSError: libcuda.so.1"}}, "Triton cannot be imported"),
        ({"driver_calls": {"ok": False, "error": "RuntimeError: cuInit"}}, "cuda-bindings: RuntimeError: cuInit"),
        ({"torch": {"symmetric": "RuntimeError: no handle"}}, "no symmetric memory: torch: RuntimeError: no handle"),
    ],
)
def test_why_a_backend_cannot_run_here(change, words):
    found = examined(**change)
    assert not found.backends[0].run.ok
    assert words in found.backends[0].run.why
    assert found.ok


def test_the_other_provider_is_enough():
    found = examined(torch={"symmetric": "RuntimeError: no handle"}, nvshmem={"ok": True, "error": ""})
    assert (found.providers["torch"].ok, found.providers["nvshmem"].ok, found.provider) == (False, True, "nvshmem")
    assert found.backends[0].run.ok


def test_the_provider_that_the_setting_names_is_taken(monkeypatch):
    assert examined().provider == "torch"
    assert lines(examined())["torch"].startswith("yes yes")
    monkeypatch.setenv("OVERLAP_PROVIDER", "nvshmem")
    found = examined()
    assert found.provider == ""
    assert found.backends[0].run.why == "no symmetric memory: nvshmem: ModuleNotFoundError: No module named 'nvshmem'"


def test_a_backend_that_writes_by_tma_needs_sm_90(monkeypatch):
    tma = Backend("tma", "push", ("push",), False, True, False, True, "tma store")
    monkeypatch.setitem(backends, "tma", tma)
    old = [[0, "NVIDIA A100", 108, 80 * 10**9, [8, 0]]]
    by_name = {b.name: b for b in examined(torch={"devices": old, "peers": [[True]]}).backends}
    assert by_name["tma"].run.why == "GPU 0 is sm_80, TMA needs sm_90"
    assert by_name["copy_engine"].run.ok


def test_a_triton_that_is_too_old_for_a_backend():
    found = examined(triton={"version": "3.5.1"})
    assert found.backends[0].run.why == "Triton is 3.5.1, copy_engine needs 3.6"


NVSHMEM = {"ok": True, "error": "", "version": "3.4.5", "bitcode": "/lib/x.bc"}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, "NVSHMEM: ModuleNotFoundError: No module named 'nvshmem'"),
        (
            {"ok": True, "error": "", "version": "3.4.5"},
            "NVSHMEM 3.4.5: its device code (libnvshmem_device.bc) is not here",
        ),
        (NVSHMEM, "up to 3 ranks of several nodes; of one node with OVERLAP_PROVIDER=nvshmem"),
    ],
)
def test_what_ranks_of_other_nodes_take(told, why):
    (found,) = (b for b in examined(nvshmem=told).backends if b.name == "nvshmem")
    assert (found.run.ok, found.run.why) == (told is NVSHMEM, why)


@pytest.mark.parametrize(
    ("provider", "ok", "why"),
    [("nvshmem", True, "up to 3 ranks"), ("torch", False, "OVERLAP_PROVIDER leaves NVSHMEM out")],
)
def test_whose_symmetric_memory_ranks_of_other_nodes_take(monkeypatch, provider, ok, why):
    monkeypatch.setenv("OVERLAP_PROVIDER", provider)
    (found,) = (b for b in examined(nvshmem=NVSHMEM).backends if b.name == "nvshmem")
    assert (found.run.ok, found.run.why) == (ok, why)


def test_the_table_of_what_backends_can_do():
    found = examined()
    assert found.abilities == (capabilities.HEADINGS, *capabilities.rows())
    text = doctor.as_text(found)
    shown = text[text.index("what backends can do") : text.index("backends here")].splitlines()
    assert [line.split()[0] for line in shown[1:] if line] == ["backend", *backends, "collective", "serial"]


def test_no_c_compiler(monkeypatch):
    monkeypatch.setattr(assess.shutil, "which", lambda name: None)
    assert examined().backends[0].run.why == "Triton needs a C compiler: neither gcc nor clang is there"
    monkeypatch.setattr(assess.shutil, "which", lambda name: name if name == "/opt/cc" else None)
    monkeypatch.setenv("CC", "/opt/cc")
    assert examined().backends[0].run.ok


def test_settings_and_where_they_come_from(monkeypatch):
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "5")
    monkeypatch.setenv("OVERLAP_SIM_SMS", "many")
    monkeypatch.setenv("OVERLAP_DEADLINE", "5")
    found = examined()
    by_name = {s.name: s for s in found.settings}
    assert (by_name["deadline_s"].value, by_name["deadline_s"].source) == ("5.0", "environment")
    assert by_name["provider"].source == "default"
    assert by_name["sim_sms"].error == "OVERLAP_SIM_SMS is an integer, at least 1"
    assert found.unknown == ("OVERLAP_DEADLINE (did you mean OVERLAP_DEADLINE_S?)",)
    assert lines(found)["OVERLAP_SIM_SMS"] == "many (OVERLAP_SIM_SMS is an integer, at least 1) environment"


def test_multicast_is_off_only_when_every_library_is_told(monkeypatch):
    assert not examined().multicast.ok
    for name, value in NO_MULTICAST.items():
        monkeypatch.setenv(name, value)
    assert examined().multicast.ok
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    assert examined().multicast.why == "NCCL_NVLS_ENABLE is not 0"


def test_json_holds_what_the_report_shows():
    told = json.loads(doctor.as_json(examined()))
    assert told["ok"] is True
    assert told["devices"][0]["sms"] == 132
    assert told["backends"][0]["run"] == {"ok": True, "why": "up to 3 ranks"}
    assert told["providers"]["nvshmem"] == {"ok": False, "why": "ModuleNotFoundError: No module named 'nvshmem'"}
    assert {s["variable"] for s in told["settings"]} >= {"OVERLAP_DEADLINE_S", "OVERLAP_PROVIDER"}


def test_tables_on_a_terminal_keep_brackets(capsys):
    print_tables(examined(torch={"ok": False, "error": "ImportError: [Errno 2] libfoo", **NO_GPU}))
    assert "[Errno 2]" in capsys.readouterr().out


def test_command(monkeypatch, capsys):
    monkeypatch.setattr(assess, "ask", lambda: copy.deepcopy(HEALTHY))
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.rstrip().endswith("work here")
    missing = "ModuleNotFoundError: No module named 'libcst'"
    broken = {**HEALTHY, "compiler": {"ok": False, "error": missing}}
    monkeypatch.setattr(assess, "ask", lambda: broken)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["parts"]["compiler"]["why"] == missing


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Puts packages that shadow the real ones on the children's path: name to source of its __init__."""

    def shadow(**packages: str) -> None:
        for name, source in packages.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return shadow


def test_packages_that_raise_crash_or_end_the_process(broken):
    broken(
        torch="import os\nos.abort()\n",
        triton="raise OSError('libtriton.so: cannot open shared object file\\nsecond line')\n",
        cuda="import sys\nprint('x' * 200_000)\nprint('overlap-doctor')\nsys.exit(3)\n",
    )
    answers = ask(["torch", "triton", "driver_calls"])
    assert answers["torch"] == {"ok": False, "error": "importing it ended the process (killed by SIGABRT)"}
    assert answers["triton"] == {"ok": False, "error": "OSError: libtriton.so: cannot open shared object file"}
    assert answers["driver_calls"] == {"ok": False, "error": "SystemExit: 3"}


def test_a_package_that_hangs_is_left_behind(broken):
    broken(nvshmem="import time\ntime.sleep(600)\n")
    assert ask(["nvshmem"], limit_s=2) == {"nvshmem": {"ok": False, "error": "importing it did not end within 2 s"}}


MISSING = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"


def run_doctor(repo, tmp_path, module: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{repo}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", *module.split()]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)


def test_with_neither_torch_nor_triton_the_command_ends_well(broken, repo, tmp_path):
    broken(torch=MISSING, triton=MISSING)
    done = run_doctor(repo, tmp_path, "overlap doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPUs       no: ModuleNotFoundError: No module named 'torch'" in done.stdout
    assert done.stdout.splitlines()[-1] == "doctor: ok: compiler works here"


def test_with_nothing_installed_at_all(broken, repo, tmp_path):
    broken(**{name: MISSING for name in ("torch", "triton", "libcst", "networkx", "click", "rich", "msgspec", "yaml")})
    done = run_doctor(repo, tmp_path, "overlap.doctor")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "compiler   no: ModuleNotFoundError: No module named" in done.stdout
    assert done.stdout.splitlines()[-1] == "doctor: the compiler half does not work: nothing works here"


def test_commands_that_miss_a_package_point_at_the_doctor(broken, repo, tmp_path):
    broken(libcst=MISSING)
    done = run_doctor(repo, tmp_path, "overlap compile kernel.py --plan all_gather_1d")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "<command-line>:1:1: `overlap compile` cannot start: No module named 'libcst'"
    assert "overlap doctor" in done.stderr
    listed = run_doctor(repo, tmp_path, "overlap --help")
    assert listed.returncode == 0
    assert re.search(r"^ +compile +Not usable here: No module named 'libcst'$", listed.stdout, re.M)
