"""A calibration as the text of a machine file, each number with the measurement it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from overlap.schedule.machine import PROGRAMS

from .samples import Calibration, Sample, fit_line


def machine_name(device: str, ranks: int) -> str:
    """``h100x4`` for four of `NVIDIA H100 80GB HBM3`: the first word that is neither a maker nor a family."""
    words = [
        w for w in re.split(r"[^a-z0-9]+", device.lower()) if w not in ("", "nvidia", "amd", "geforce", "rtx", "tesla")
    ]
    return f"{words[0] if words else 'gpu'}x{ranks}"


def machine_text(found: Calibration, name: str, command: str) -> str:
    """The machine file; `overlap.schedule.machine.parse_machine` reads it.

    Args:
        command: what made it, for the head.
    """
    copies = (*found.pull, *found.push)
    copy, library = fit_line(copies), fit_line(found.library)
    rates = [
        _line(f"    {dtype}: {_digits(rate / 1e12)}", "measured: the fastest of two square products")
        for dtype, rate in found.flops.items()
    ]
    lines = [
        f"# {found.ranks} x {found.device}, measured on this machine by `{command}`.",
        f"# {found.versions}. Every time is the median of several calls on the rank where it was longest.",
        f"machine: {name}",
        f"node: {found.ranks}",
        "inside:",
        "  name: gpu",
        _line(
            f"  latency_us: {_digits(copy.latency_s * 1e6)}",
            f"measured: {_fit(copies, copy.error, 'copies by copy engine')}",
        ),
        _line(f"  gb_per_s: {_digits(copy.bytes_per_s / 1e9)}", f"the same line; {_ends(found.pull, found.push)}"),
        "  pointer: true",
        _line(
            f"  library_latency_us: {_digits(library.latency_s * 1e6)}",
            f"measured: {_fit(found.library, library.error, 'all-gathers')}",
        ),
        _line(f"  library_gb_per_s: {_digits(library.bytes_per_s / 1e9)}", "the same line"),
        *_programs(found),
        "compute:",
        _line(f"  units: {found.units}", "multiprocessors"),
        _line(f"  memory_gb_per_s: {_digits(found.memory / 1e9)}", "measured: a local copy, bytes read and written"),
        "  tflops:",
        *rates,
        "launch:",
        _line(
            f"  kernel_us: {_digits(found.kernel * 1e6)}", "measured: empty kernels one behind the other, in a graph"
        ),
        _line(
            f"  entry_us: {_digits(found.entry * 1e6)}",
            "measured: an all-gather of next to nothing, in a graph, less its copies",
        ),
        _line(
            f"  flag_us: {_digits(found.flag * 1e6)}", "measured: copies of 8 bytes one behind the other, in a graph"
        ),
        _line(
            f"  contention: {_digits(found.contention)}", "measured: a product beside a copy, against the product alone"
        ),
    ]
    return "\n".join(lines) + "\n"


def _programs(found: Calibration) -> list[str]:
    if not found.programs:
        return []
    lines = ["programs:"]
    for way, samples in found.programs.items():
        size = next(iter(samples.values())).size
        said = ", ".join(f"{count}: {_digits(sample.gb_per_s)}" for count, sample in samples.items())
        lines.append(
            _line(f"  {way}: {{{said}}}", f"measured: GB/s of {_bytes(size)}, {PROGRAMS[way]}, by programs that copy")
        )
    return lines


def _fit(samples: Sequence[Sample], error: float, what: str) -> str:
    sizes = sorted({s.size for s in samples})
    return f"{what} of {_bytes(sizes[0])} to {_bytes(sizes[-1])}, fitted by a line, at most {error:.0%} off"


def _ends(pull: Sequence[Sample], push: Sequence[Sample]) -> str:
    largest = [max(samples, key=lambda s: s.size) for samples in (pull, push)]
    return f"{_bytes(largest[0].size)}: pull {largest[0].gb_per_s:.0f}, push {largest[1].gb_per_s:.0f}"


def _bytes(size: int) -> str:
    """``64 MiB``, ``8 KiB``, ``100 B``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def _digits(value: float) -> str:
    """Three significant digits, never in powers of ten."""
    return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".")


def _line(text: str, comment: str) -> str:
    return f"{text:<28} # {comment}"
