"""Timed samples, and what is fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overlap.errors import UsageError


@dataclass(frozen=True)
class Sample:
    """Seconds that moving ``size`` bytes took."""

    size: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        return self.size / self.seconds / 1e9


@dataclass(frozen=True)
class Line:
    """``latency_s`` and then ``bytes_per_s``; ``error``: the largest relative distance of a sample from it."""

    latency_s: float
    bytes_per_s: float
    error: float

    def seconds(self, size: int) -> float:
        return self.latency_s + size / self.bytes_per_s


def fit_line(samples: Sequence[Sample]) -> Line:
    """The line nearest to the samples, by squares of relative distances, so that small messages count as much as large.

    A latency is never below 0. Of samples of one size it is 0.

    Raises:
        UsageError: no samples, or times and sizes from which no rate follows.
    """
    if not samples or any(s.seconds <= 0 or s.size <= 0 for s in samples):
        raise UsageError(f"no rate follows from {len(samples)} samples", help="time messages of several sizes above 0")
    # Seconds divided through by themselves: latency * (1 / s) + per_byte * (size / s) = 1.
    ones = [1 / s.seconds for s in samples]
    sizes = [s.size / s.seconds for s in samples]
    aa, ab, bb = (
        sum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((ones, ones), (ones, sizes), (sizes, sizes))
    )
    a, b = sum(ones), sum(sizes)
    determinant = aa * bb - ab * ab
    latency = per_byte = 0.0
    if determinant > 1e-9 * aa * bb:
        latency, per_byte = (a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant
    if latency < 0 or per_byte <= 0:
        latency, per_byte = 0.0, b / bb
    line = Line(latency, 1 / per_byte, 0.0)
    error = max(abs(line.seconds(s.size) / s.seconds - 1) for s in samples)
    return Line(line.latency_s, line.bytes_per_s, error)


@dataclass(frozen=True)
class Calibration:
    """Everything `probes` measured on ``ranks`` GPUs of one host.

    Args:
        device: the GPUs' name; ``versions``: what they ran with, for the file's head.
        pull, push: a copy by copy engine to or from the next rank, all ranks at once.
        library: all-gathers by the group's own library; sizes are bytes that a rank receives.
        programs: by way (`overlap.schedule.machine.PROGRAMS`), samples of a copy by how many programs copy.
        flops: by dtype, floating-point operations a second of the fastest product.
        memory: bytes a second read and written by a local copy.
        kernel, entry, flag: seconds, as `overlap.schedule.machine.Machine` means them.
        contention: seconds a product loses for each second of a copy beside it.
    """

    device: str
    ranks: int
    units: int
    versions: str
    pull: tuple[Sample, ...]
    push: tuple[Sample, ...]
    library: tuple[Sample, ...]
    flops: Mapping[str, float]
    memory: float
    kernel: float
    entry: float
    flag: float
    contention: float
    programs: Mapping[str, Mapping[int, Sample]] = field(default_factory=dict)
