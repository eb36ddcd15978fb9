"""The GPUs a kernel can be compiled for on a machine that has none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from overlap.errors import UsageError

KNOWN = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
_WAVE64 = re.compile(r"gfx9\w*")


@dataclass(frozen=True)
class Target:
    """A GPU architecture: ``backend`` is ``cuda`` or ``hip``, ``warp`` the number of threads a warp."""

    name: str
    backend: str
    arch: int | str
    warp: int

    @property
    def nvidia(self) -> bool:
        return self.backend == "cuda"

    @property
    def has_tma(self) -> bool:
        """Tensor descriptors become asynchronous bulk copies (sm_90 and later); elsewhere they become pointers."""
        return isinstance(self.arch, int) and self.arch >= 90

    @property
    def assembly(self) -> str:
        """Key of the assembly text among an artifact's stages."""
        return "ptx" if self.nvidia else "amdgcn"


def parse_target(name: str) -> Target:
    """``sm_90``, ``sm90`` or ``gfx942`` as a `Target`.

    Raises:
        UsageError: no such architecture.
    """
    text = name.strip().lower().replace("sm_", "sm").replace("sm", "sm_", 1)
    if text.startswith("sm_"):
        text = text.rstrip("a") if text.endswith("0a") else text
    if text not in KNOWN:
        near = get_close_matches(text, KNOWN, n=1)
        raise UsageError(
            f"no target {name!r}",
            help=(f"did you mean {near[0]!r}? " if near else "") + "targets: " + ", ".join(KNOWN),
        )
    if text.startswith("sm_"):
        return Target(text, "cuda", int(text[3:]), 32)
    return Target(text, "hip", text, 64 if _WAVE64.fullmatch(text) else 32)
