"""The rules of results that leave in words which carry their own flag, read off PTX (`overlap.language.inline_words`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from overlap.backends.memory_rules import SCOPE

from . import ptx
from .rules import Finding

_WHOLE = {"b64", "u64"}


def check_words(name: str, stored: Collection[int], program: ptx.Program) -> Iterable[Finding]:
    """What breaks a rule about the words that carry a result.

    Args:
        name: the parameter that the kernel stores its tiles to.
        stored: lines that do.
    """

    def tile(i: ptx.Instruction) -> bool:
        return i.line in stored and ptx.stores(i)

    sends = [i for i in program.instructions if _relaxed(i, "st")]
    looks = [i for i in program.instructions if _relaxed(i, "ld")]
    tiles = [i for i in program.instructions if tile(i) or (i.line in stored and ptx.stores_by_tma(i))]
    for what, found in ((f"store to `{name}`", tiles), ("word that is sent", sends), ("look at a word", looks)):
        if not found:
            yield Finding("sent-behind-store", "error", 0, f"no {what} found, so nothing was checked")
    for each in (*sends, *looks):
        if not _WHOLE & set(each.words):
            yield Finding("whole-words", "error", each.line, f"a word goes in parts: {'.'.join(each.words)}")
    for send in sends:
        store = program.meets_before(send, tile, ptx.synchronises)
        if store is not None:
            yield Finding(
                "sent-behind-store",
                "error",
                send.line,
                f"no barrier between the store of line {store.line} and its words",
            )
        tma = program.meets_before(send, ptx.stores_by_tma, ptx.drains)
        if tma is not None:
            yield Finding(
                "sent-behind-store", "error", send.line, f"the TMA store of line {tma.line} may land after its words"
            )


def _relaxed(i: ptx.Instruction, what: str) -> bool:
    return i.words[0] == what and "relaxed" in i.words and SCOPE in i.words
