"""What `overlap doctor` finds out, as values; `dataclasses.asdict` of an `Examination` is its JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether something works here; ``why`` says what is missing where it does not, and a detail where it does."""

    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Package:
    """An installed distribution. ``version`` is None where there is none; ``error`` says why importing it fails."""

    name: str
    version: str | None
    error: str = ""


@dataclass(frozen=True)
class Device:
    """A GPU that this process sees. ``memory`` in bytes; ``capability`` as major, minor."""

    index: int
    name: str
    sms: int
    memory: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class BackendAbility:
    """What one backend could do on this machine."""

    name: str
    directions: tuple[str, ...]
    compile: Verdict
    simulate: Verdict
    run: Verdict


@dataclass(frozen=True)
class SettingValue:
    """A setting and where its value comes from: ``default`` or ``environment``. ``error``: what would be allowed."""

    name: str
    variable: str
    value: str
    source: str
    error: str = ""


@dataclass(frozen=True)
class Examination:
    """Everything the report shows.

    ``parts``: compiler, simulator, build, GPUs. ``peers[i][j]``: device i can read and write the memory of device j.
    ``providers``: where symmetric memory could come from; ``provider``: the one that would be taken, empty for none.
    ``abilities``: the table of what backends can do anywhere, its headings first; ``backends``: what each could do here.
    ``environment``: variables of others that matter here.
    """

    overlap: str
    python: str
    platform: str
    parts: dict[str, Verdict]
    packages: tuple[Package, ...]
    driver: str
    cuda: str
    nccl: str
    devices: tuple[Device, ...]
    peers: tuple[tuple[bool, ...], ...]
    providers: dict[str, Verdict]
    provider: str
    abilities: tuple[tuple[str, ...], ...]
    backends: tuple[BackendAbility, ...]
    multicast: Verdict
    settings: tuple[SettingValue, ...]
    unknown: tuple[str, ...]
    environment: dict[str, str]

    @property
    def ok(self) -> bool:
        """The compiler half works: kernels can be compiled here, whatever else is missing."""
        return self.parts["compiler"].ok
