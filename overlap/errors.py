"""Every mistake `overlap` reports, one class each, with the user's line and a caret.

The first line of a rendered error is always ``PATH:LINE:COL: message`` and is never wrapped,
so that editors and CI logs can jump to it. The lines below show the source line, a caret and,
as ``help:``, what to write instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceSpan:
    """A place in a user's file. ``line`` and ``col`` count from 1; ``text`` is the whole source line."""

    path: str
    line: int
    col: int = 1
    text: str = ""
    width: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.col}"


class OverlapError(Exception):
    """Base of all errors meant for a user.

    Args:
        message: one sentence, what is wrong.
        where: the place in the user's file, if there is one.
        help: what to write instead.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: SourceSpan | None = None, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.help = help
        self.about = False

    def at(self, where: SourceSpan, *, about: bool = False) -> OverlapError:
        """The same error, given a place if it has none yet.

        ``about``: what the mistake is about, and not where it was made, so whoever knows that place may say it instead.
        """
        if self.where is None:
            self.where, self.about = where, about
        return self

    def render(self) -> str:
        """The text for stderr: location and message, source line, caret, help."""
        first = f"{self.where}: {self.message}" if self.where else f"overlap: {self.message}"
        lines = [first.replace("\n", " ")]
        if self.where and self.where.text:
            shown = self.where.text.rstrip("\r\n").replace("\t", " ")
            lines.append(f"    {shown}")
            lines.append("    " + " " * (self.where.col - 1) + "^" * max(1, self.where.width))
        if self.help:
            lines.extend(f"  help: {line}" for line in self.help.splitlines())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


class UsageError(OverlapError):
    """A command, keyword or setting that cannot be meant as written."""


class MissingDependencyError(UsageError):
    """A package the command needs is not installed."""


class SourceError(OverlapError):
    """The user's file cannot be read or parsed."""


class PragmaError(OverlapError):
    """A pragma that is unknown, misspelt, misplaced or contradicts the code under it."""


class HostEntryError(OverlapError):
    """The host function breaks the host contract (reads sharded data, launches twice, ...)."""


class UnsupportedError(OverlapError):
    """Valid code that this version does not compile; the message names the construct."""


class OnError(UsageError):
    """``--on`` / ``on=`` names no tensor or no axis of it."""


class PlanError(OverlapError):
    """A communication plan that is malformed, unknown, for another world, or breaks its own rules."""


class ScheduleError(OverlapError):
    """A schedule that is not a permutation, waits for nothing that is raised, or cannot progress."""


class CodegenError(OverlapError):
    """A rewriting pass found nothing to rewrite, or its result would not be valid code."""


class AlignmentError(OverlapError):
    """A tensor row that a TMA descriptor cannot take."""


class RuntimeContractError(OverlapError):
    """A call that breaks the runtime's contract: shapes, groups or plans that differ between ranks, ..."""


class DeadlineError(RuntimeContractError):
    """A rank waited longer than the deadline; the message names rank, operation, and the value wanted and seen."""


class SimFault(OverlapError):
    """A fault that the simulator found. ``kind`` is the word reports use."""

    exit_code = 1
    kind = "fault"


class RaceFault(SimFault):
    kind = "race"


class DeadlockFault(SimFault):
    kind = "deadlock"


class LostSignalFault(SimFault):
    kind = "lost signal"


class StrayAccessFault(SimFault):
    kind = "stray access"


class UnwrittenFault(SimFault):
    kind = "unwritten"


class MismatchFault(SimFault):
    kind = "mismatch"


class KernelCrashFault(SimFault):
    """The kernel or host code under simulation raised."""

    kind = "crash"
