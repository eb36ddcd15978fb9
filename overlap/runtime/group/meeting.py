"""`Meetings`: ranks of a group exchange small values through its store, with a deadline that names who did not come.

    rank 0   set 7/0 | 7/0? 7/1? 7/2? ... | read all | delete 6/0
    rank 1             set 7/1 ...
    rank 2   (dead)                       -> ranks 0 and 1: "rank 2 did not come to ..."

A store needs no GPU and no collective of the backend, so a rank that is compiling, or gone, blocks no stream.

A group that is destroyed and made anew may find the store of the one before it, and there what that one left. So each is another
life, which ranks count alike: every one of them comes to the first meeting.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from overlap.errors import DeadlineError, RuntimeContractError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2e-4, 0.02
"""Between two looks at who has come: short at first, for ranks that come together."""
RAISED = (Exception, KeyboardInterrupt, SystemExit)
"""What ends a call of one rank, and is told to those that would wait for it."""


class Meetings:
    """The meetings of one group, numbered alike on every rank.

    Args:
        store: the group's `torch.distributed.Store`.
        rank, world: this rank's place in the group.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._next = 0
        self._life = 0
        """Which group this is of those that have met over the store; 0 before the first meeting."""
        self._broken = ""

    def meet(self, what: str, value: Any, *, seconds: float) -> list[Any]:
        """Every rank's ``value``, in rank order.

        Args:
            what: names the meeting; ranks that meet over different things are told.
            value: anything that pickles. An exception says that this rank failed instead: the others raise, this
                call returns at once and its result means nothing.
            seconds: how long to wait for the others; 0: for ever.

        Raises:
            DeadlineError: a rank did not come in time.
            RuntimeContractError: a rank failed, or is at another meeting; or an earlier meeting of this group failed.
        """
        if self._broken:
            raise RuntimeContractError(
                f"the ranks of this group are out of step since an earlier call failed: {self._broken}",
                help="restart the job, or make a new process group",
            )
        number = self._next
        self._next += 1
        failed = isinstance(value, BaseException)
        told = (what, "failed", _one_line(value)) if failed else (what, "value", value)
        try:
            if not self._life:
                self._life = self._store.add(f"overlap/lives/{self._rank}", 1)
            self._store.set(self._key(number, self._rank), pickle.dumps(told))
            if failed:
                return []
            self._gather(number, what, seconds)
            brought = self._brought(number)
        except RuntimeError as error:
            self._broken = f"the group's store is gone ({_one_line(error)}); the rank that holds it has ended"
            raise RuntimeContractError(f"rank {self._rank}, {what}: {self._broken}") from error
        except DeadlineError as error:
            self._broken = error.message
            raise
        for rank, (_, kind, text) in brought.items():
            if kind == "failed":
                raise RuntimeContractError(f"rank {rank} raised instead of coming to {what}: {text}")
        for rank, (theirs, _, _) in brought.items():
            if theirs != what:
                raise RuntimeContractError(
                    f"rank {self._rank} calls {what} where rank {rank} calls {theirs}",
                    help="every rank of a group makes the same calls in the same order",
                )
        self._forget(number - 1)
        return [brought[p][2] for p in range(self._world)]

    def _brought(self, number: int) -> dict[int, tuple[str, str, Any]]:
        """What the ranks that have come brought, by rank."""
        keys = {p: self._key(number, p) for p in range(self._world)}
        return {p: pickle.loads(self._store.get(key)) for p, key in keys.items() if self._store.check([key])}

    def _key(self, number: int, rank: int) -> str:
        return f"overlap/{self._life}/{number}/{rank}"

    def _gather(self, number: int, what: str, seconds: float) -> None:
        """Waits until every rank has come or one of those who came has failed.

        Asks again and again instead of waiting in the store: a store wait that times out writes to stderr.
        """
        start, pause = time.monotonic(), _FIRST_PAUSE_S
        absent = list(range(self._world))
        while True:
            came = [p for p in absent if self._store.check([self._key(number, p)])]
            absent = [p for p in absent if p not in came]
            for p in came:
                _, kind, _ = pickle.loads(self._store.get(self._key(number, p)))
                if kind == "failed":
                    return
            if not absent:
                return
            if seconds and time.monotonic() - start >= seconds:
                who = ", ".join(map(str, absent))
                raise DeadlineError(
                    f"rank {self._rank} waited {seconds:g} s for rank {who} to come to {what}",
                    help=f"rank {who} has ended, has raised, or calls something else; "
                    "OVERLAP_DEADLINE_S and OVERLAP_COMPILE_DEADLINE_S set the limits",
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _forget(self, number: int) -> None:
        """Everybody who came to the next meeting has read this one."""
        if number >= 0:
            try:
                self._store.delete_key(self._key(number, self._rank))
            except (RuntimeError, NotImplementedError):
                return


def _one_line(error: Any) -> str:
    text = getattr(error, "message", None) or str(error)
    return f"{type(error).__name__}: {text}".splitlines()[0]


def first_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The first of the named facts that differs, as "name A against B"; long texts by their first differing line.

    Returns:
        the empty string when nothing differs.
    """
    for name, value in mine.items():
        other = theirs.get(name)
        if value == other:
            continue
        if isinstance(value, str) and isinstance(other, str) and "\n" in value + other:
            lines, others = value.splitlines(), other.splitlines()
            for number in range(max(len(lines), len(others))):
                one = lines[number].strip() if number < len(lines) else "(ends)"
                two = others[number].strip() if number < len(others) else "(ends)"
                if one != two:
                    return f"{name}, line {number + 1}: {one!r} against {two!r}"
        return f"{name} {value} against {other}"
    return ""
