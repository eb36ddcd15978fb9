"""Puts the probes' answers together: versions, devices, and from both what each backend could do here."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlap import settings
from overlap.errors import OverlapError
from overlap.version import __version__

from .children import NO_MULTICAST, Answers, ask
from .model import BackendAbility, Device, Examination, Package, SettingValue, Verdict

COMPILER_PACKAGES = ("click", "libcst", "msgspec", "networkx", "pyyaml", "rich")
PACKAGES: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "triton": ("triton",),
    "numpy": ("numpy",),
    "greenlet": ("greenlet",),
    "ml_dtypes": ("ml_dtypes",),
    **{name: (name,) for name in COMPILER_PACKAGES},
    "cuda-bindings": ("cuda-bindings",),
    "nvshmem4py": ("nvshmem4py-cu13", "nvshmem4py-cu12"),
    "nvshmem": ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"),
}
"""A package's name here and the distributions that bring it."""

PROBE_OF = {"torch": "torch", "triton": "triton", "cuda-bindings": "driver_calls", "nvshmem4py": "nvshmem"}
WATCHED = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "TRITON_INTERPRET",
    "TRITON_CACHE_DIR",
    *NO_MULTICAST,
)
OTHER_VARIABLES = {"OVERLAP_SWEEP"}
"""Read by the tests and the Makefile."""


def examine(answers: Answers | None = None) -> Examination:
    """Looks at this machine; a few seconds, most of them importing torch.

    Args:
        answers: the probes' answers, by name; asked for when None.
    """
    answers = ask() if answers is None else answers
    torch = answers["torch"]
    devices = tuple(Device(i, name, sms, memory, tuple(cap)) for i, name, sms, memory, cap in torch.get("devices", ()))
    peers = tuple(tuple(row) for row in torch.get("peers", ()))
    parts = _parts(answers, devices)
    providers = _providers(answers, devices, peers)
    values, unknown = _settings()
    return Examination(
        overlap=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        parts=parts,
        packages=_packages(answers),
        driver=driver_version(),
        cuda=torch.get("cuda") or (f"hip {torch['hip']}" if torch.get("hip") else ""),
        nccl=torch.get("nccl", ""),
        devices=devices,
        peers=peers,
        providers=providers,
        provider=_chosen(providers),
        abilities=_abilities(),
        backends=_backends(answers, parts, providers, devices),
        multicast=_multicast(os.environ),
        settings=values,
        unknown=unknown,
        environment={name: os.environ[name] for name in WATCHED if name in os.environ},
    )


def _verdict(answer: Mapping[str, Any]) -> Verdict:
    return Verdict(bool(answer["ok"]), answer.get("error", ""))


def _parts(answers: Answers, devices: tuple[Device, ...]) -> dict[str, Verdict]:
    torch = answers["torch"]
    gpus = Verdict(bool(devices), f"{len(devices)} x {devices[0].name}" if devices else torch.get("no_devices", ""))
    return {
        "compiler": _verdict(answers["compiler"]),
        "simulator": _verdict(answers["simulator"]),
        "build": _verdict(answers["triton"]),
        "GPUs": gpus if torch["ok"] else _verdict(torch),
    }


def _packages(answers: Answers) -> tuple[Package, ...]:
    found = []
    for name, distributions in PACKAGES.items():
        version = next(filter(None, map(_version, distributions)), None)
        answer: Mapping[str, Any] = answers[PROBE_OF[name]] if name in PROBE_OF else {}
        # A driver that is not there is no fault of the bindings, but it does stop them.
        found.append(Package(name, version, "" if version is None else answer.get("error", "")))
    return tuple(found)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str:
    """Version of the NVIDIA driver, from nvidia-smi or the kernel module; empty where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    except (OSError, subprocess.TimeoutExpired):
        pass
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    return next((w for w in words if w[:1].isdigit() and "." in w), "")


def _isolated(peers: tuple[tuple[bool, ...], ...]) -> str:
    """The first pair of devices that cannot reach each other, in words; empty if all can."""
    for i, row in enumerate(peers):
        for j, reached in enumerate(row):
            if not reached:
                return f"GPU {i} has no access to the memory of GPU {j}"
    return ""


def _providers(
    answers: Answers, devices: tuple[Device, ...], peers: tuple[tuple[bool, ...], ...]
) -> dict[str, Verdict]:
    def verdict(probe: str, trial: str) -> Verdict:
        answer = answers[probe]
        why = answer.get("error", "") or ("" if devices else "no GPU") or trial or _isolated(peers)
        return Verdict(not why, why)

    return {
        "torch": verdict("torch", answers["torch"].get("symmetric", "")),
        "nvshmem": verdict("nvshmem", ""),
    }


def _allowed(providers: dict[str, Verdict]) -> list[str]:
    """The providers that the setting allows, in the order in which they are tried."""
    try:
        wanted = settings.get("provider")
    except OverlapError:
        return list(providers)
    return [name for name in providers if wanted in ("auto", name)]


def _chosen(providers: dict[str, Verdict]) -> str:
    return next((name for name in _allowed(providers) if providers[name].ok), "")


def _abilities() -> tuple[tuple[str, ...], ...]:
    try:
        from overlap.backends.capabilities import HEADINGS, rows
    except Exception:  # A broken installation; the parts say what is wrong with it.
        return ()
    return (HEADINGS, *rows())


BITCODE = "libnvshmem_device.bc"
"""As `overlap.backends.bitcode` looks for it; a broken installation must not keep this module from being imported."""


def _backends(
    answers: Answers,
    parts: dict[str, Verdict],
    providers: dict[str, Verdict],
    devices: tuple[Device, ...],
) -> tuple[BackendAbility, ...]:
    try:
        from overlap.backends import backends
    except Exception:  # A broken installation; the parts say what is wrong with it.
        return ()
    found = []
    for backend in backends.values():
        missing = [] if parts["GPUs"].ok else [parts["GPUs"].why or "no GPU"]
        if not answers["triton"]["ok"]:
            missing.append("Triton cannot be imported")
        if devices and not _chosen(providers):
            why = "; ".join(f"{name}: {providers[name].why}" for name in _allowed(providers))
            missing.append(f"no symmetric memory: {why}")
        if backend.writer == "copy engine" and devices and not answers["driver_calls"]["ok"]:
            missing.append(f"cuda-bindings: {answers['driver_calls']['error']}")
        if backend.far and devices:
            found_here = answers["nvshmem"]
            if not providers["nvshmem"].ok:
                missing.append(f"NVSHMEM: {providers['nvshmem'].why}")
            elif not found_here.get("bitcode"):
                missing.append(f"NVSHMEM {found_here.get('version', '')}: its device code ({BITCODE}) is not here")
            elif "nvshmem" not in _allowed(providers):
                missing.append("OVERLAP_PROVIDER leaves NVSHMEM out")
        oldest = backend.compute_capability
        if oldest is not None:
            needed = f"TMA needs sm_{oldest[0]}{oldest[1]}"
            old = [d for d in devices if d.capability < oldest]
            missing += [f"GPU {d.index} is sm_{d.capability[0]}{d.capability[1]}, {needed}" for d in old]
        if answers["triton"]["ok"] and _numbers(answers["triton"].get("version", "")) < backend.triton:
            needed = ".".join(map(str, backend.triton))
            missing.append(f"Triton is {answers['triton'].get('version')}, {backend.name} needs {needed}")
        if devices and not shutil.which(os.environ.get("CC", "")) and not any(map(shutil.which, ("gcc", "clang"))):
            missing.append("Triton needs a C compiler: neither gcc nor clang is there")
        room = f"up to {len(devices)} ranks"
        if backend.far and devices and _chosen(providers) != "nvshmem":
            room += " of several nodes; of one node with OVERLAP_PROVIDER=nvshmem"
        run = Verdict(not missing, "; ".join(missing) or room)
        found.append(BackendAbility(backend.name, backend.directions, parts["compiler"], parts["simulator"], run))
    return tuple(found)


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor of a version; (0, 0) of what is none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _multicast(environment: Mapping[str, str]) -> Verdict:
    """Whether NVLink multicast is off for every library that could use it."""
    on = [f"{name} is not {wanted}" for name, wanted in NO_MULTICAST.items() if environment.get(name) != wanted]
    return Verdict(not on, "; ".join(on))


def _settings() -> tuple[tuple[SettingValue, ...], tuple[str, ...]]:
    values = []
    for name, setting in settings.SETTINGS.items():
        given = os.environ.get(setting.variable, "").strip()
        source = "environment" if given else "default"
        try:
            value, error = settings.get(name), ""
        except OverlapError as wrong:
            value, error = given, wrong.help
        values.append(SettingValue(name, setting.variable, "unset" if value is None else str(value), source, error))
    return tuple(values), _unknown()


def _unknown() -> tuple[str, ...]:
    """Variables that look like settings and are none, each with the nearest name."""
    known = {setting.variable for setting in settings.SETTINGS.values()} | OTHER_VARIABLES
    strangers = sorted(v for v in os.environ if v.startswith(settings.PREFIX) and v not in known)
    near = {v: difflib.get_close_matches(v, known, 1) for v in strangers}
    return tuple(f"{v} (did you mean {near[v][0]}?)" if near[v] else v for v in strangers)
