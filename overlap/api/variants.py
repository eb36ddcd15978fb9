"""One kernel compiled in other ways than its author's: by backend, by config, with tiles that record. Each is made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from overlap.autotune.config import Config

from .tuned_kernel import options_of

if TYPE_CHECKING:
    from .compiled import CompiledKernel

Again = Callable[[Mapping[str, str], "str | None", "str | Sequence[str] | None"], "CompiledKernel"]
"""Compiles the kernel once more: with more options, by a backend, with a plan (None: its own)."""


class Variants:
    """The variants of a kernel, by what is asked for."""

    def __init__(self, again: Again) -> None:
        self._again = again
        self._made: dict[object, CompiledKernel] = {}

    def of_backend(self, backend: str, programs: int = 0) -> CompiledKernel:
        """By a backend; ``programs`` of its launches move chunks (0: the backend's own number)."""
        options = {"comm_sms": str(programs)} if programs else {}
        return self._kept((backend, programs), options, backend)

    def of_config(self, config: Config) -> CompiledKernel:
        """By a config of the tuner's."""
        return self._kept(config, options_of(config), config.realization.backend, config.plan or None)

    def recording(self, backend: str | None) -> CompiledKernel:
        """By the kernel's own backend, with tiles that record."""
        return self._kept("recording", {"trace": "1"}, backend)

    def known(self) -> Mapping[object, CompiledKernel]:
        """Those that were asked for, by what was asked."""
        return self._made

    def _kept(
        self, key: object, options: Mapping[str, str], backend: str | None, plan: str | None = None
    ) -> CompiledKernel:
        if key not in self._made:
            self._made[key] = self._again(options, backend, plan)
        return self._made[key]
