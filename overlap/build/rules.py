"""The names of the compile tier's rules, and a broken one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]

RULES = {
    "wait-feeds-load": "the address of every load of a communicated tensor is computed from what a wait returned",
    "wait-used": "every wait feeds such a load",
    "load-after-wait": "in the machine code, no copy of such a load runs before any wait",
    "system-scope": "what crosses ranks is read and raised at system scope",
    "acquire-release": "flags are read with acquire and raised with release semantics, never by plain loads and stores",
    "wait-kept": "a wait of the source is still in the machine code",
    "barrier-before-release": "a CTA barrier stands between a program's stores and the release of its flag",
    "store-drained": "a TMA store is complete, not only read, before the flag behind it is raised",
    "count-after-store": "behind the last store to a communicated tensor its chunks' counters are raised, on every path",
    "sent-behind-store": "a CTA barrier stands between a program's stores of a tile and the words that carry it, on every path",
    "whole-words": "words that carry data and mark are stored and looked at by 64-bit accesses, relaxed at system scope",
    "proxy-fence": "a proxy fence stands between a wait and TMA loads of what it waited for",
    "one-cta": "num_ctas is 1: only the first CTA of a cluster would poll",
    "no-warp-specialised-wait": "no wait stands in a warp-specialised loop",
    "tail-reads-carried": "in a flattened loop, what tiles carry on before their tail is read in their head alone",
    "callee-shared-memory": "a function that is not inlined has shared memory of its own",
    "static-shared-memory": "shared memory that assembly declares leaves the kernel's buffers aligned, and room for them",
    "same-engines": "matrix instructions and TMA loads of the original are still there",
    "same-stages": "every pipelined operand has as many buffers as in the original",
    "same-shared-memory": "no more shared memory than the original, a few words for the waits aside",
    "same-flattening": "a tile loop that was fused with its inner loop still is",
    "no-spills": "no spilled registers that the original does not have",
}


@dataclass(frozen=True)
class Finding:
    """A broken rule, at a line of the compiled kernel's source (0: the kernel as a whole)."""

    rule: str
    severity: Severity
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.rule}: {f'line {self.line}: ' if self.line else ''}{self.text}"
