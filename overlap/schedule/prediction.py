"""What is predicted of an operator: the result of `predict`, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .carried import LANES, Way
from .operators import Sizes

REACH = 64
"""Break-evens are looked for up to so many times the size given, and as far below it."""


@dataclass(frozen=True)
class Prediction:
    """Times in seconds of one call on the slowest rank, and where overlap begins to pay.

    ``gemm``: the product alone; ``library``: the collective alone; ``serial``: one behind the other; ``fused``: overlapped;
    ``limit``: no order of things is faster (the longer of product and bytes). ``pays[axis]`` is the smallest size of an axis
    from which on ``fused`` beats ``serial``, the others as given, and ``hides[axis]`` the smallest at which the product is as
    long as the bytes take; None where no size within `REACH` does. ``plan`` is what moves the bytes, ``ways`` how, and with
    ``in_tiles`` the tiles of the part that a rank keeps add what comes of it (`tile_sums`).
    """

    op: str
    world: int
    sizes: Sizes
    machine: str
    plan: str
    gemm: float
    library: float
    fused: float
    limit: float
    sent: float
    pays: Mapping[str, int | None]
    hides: Mapping[str, int | None]
    ways: tuple[Way, ...] = (LANES,)
    in_tiles: bool = False

    @property
    def serial(self) -> float:
        return self.gemm + self.library

    @property
    def gain(self) -> float:
        """How many times faster than serial."""
        return self.serial / self.fused if self.fused else 1.0

    @property
    def ceiling(self) -> float:
        """The gain that nothing exceeds."""
        return self.serial / self.limit if self.limit else 1.0

    def __str__(self) -> str:
        shape = ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        if self.world == 1:
            verdict = "nothing moves on one rank"
        elif self.gain > 1:
            verdict = f"overlap pays: {self.gain:.2f} times as fast as serial"
        else:
            verdict = f"overlap does not pay: {self.gain:.2f} times as fast as serial"
        exposed = max(0.0, self.fused - self.gemm)
        how = "" if set(self.ways) <= {LANES} else f", {' and '.join(map(str, self.ways))}"
        how += ", sums in tiles" if self.in_tiles else ""
        lines = [
            f"{self.op} on {self.world} ranks of {self.machine}, {shape}",
            f"  product alone      {self.gemm * 1e3:10.3f} ms",
            f"  collective alone   {self.library * 1e3:10.3f} ms, {self.sent / 1e6:.1f} MB from each rank",
            f"  serial             {self.serial * 1e3:10.3f} ms",
            f"  overlapped         {self.fused * 1e3:10.3f} ms, {exposed * 1e3:.3f} ms exposed, by {self.plan}{how}",
            f"  limit              {self.limit * 1e3:10.3f} ms, a ceiling of {self.ceiling:.2f} times serial",
            verdict,
        ]
        for axis, size in self.pays.items():
            lines.append(
                f"  {axis}: pays {self._from(axis, size)}, hides communication {self._from(axis, self.hides[axis])}"
            )
        return "\n".join(lines)

    def _from(self, axis: str, size: int | None) -> str:
        if size is None:
            return f"not up to {self.sizes[axis] * REACH}"
        return f"from {size} or less" if size <= max(1, self.sizes[axis] // REACH) else f"from about {size}"
