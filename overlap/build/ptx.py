"""Reads PTX text into instructions and a control-flow graph.

Enough to ask what every path from one instruction meets first. Of values only predicates are followed (`guards`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

_LABEL = re.compile(r"^([$\w]+):")
_LOC = re.compile(r"^\.loc\s+(\d+\s+\d+\s+\d+)(.*)$")
_INLINED = re.compile(r"inlined_at\s+(\d+\s+\d+\s+\d+)")
_CALLED = re.compile(r"@\[ [^\]:]*:(\d+):\d+")
_GUARD = re.compile(r"^@!?([%$\w]+)")
_MADE = re.compile(r"^(?:@!?[%$\w]+\s+)?(setp|and|selp)\.\S+\s+([%$\w]+)\s*,\s*(.*)$")
_REGISTER = re.compile(r"%\w+")
_TARGET = re.compile(r"\bbra(?:\.uni)?\s+([$\w]+)")


@dataclass(frozen=True)
class Instruction:
    """One instruction. ``line`` is the kernel's own source line, callers of inlined code included (0: unknown)."""

    text: str
    line: int
    index: int

    @cached_property
    def predicated(self) -> bool:
        return self.text.startswith("@")

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The opcode's dot-separated words, without the predicate."""
        code = self.text.split(None, 1)[1] if self.predicated else self.text
        return tuple(code.split(None, 1)[0].rstrip(";").split("."))

    def has(self, *words: str) -> bool:
        return set(words) <= set(self.words)


@dataclass
class Block:
    """Instructions that run one after another; ``label`` is empty where only a branch ended the block before."""

    labels: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    predecessors: list[int] = field(default_factory=list)


@dataclass
class Program:
    """The entry function of a PTX module."""

    blocks: list[Block]

    @cached_property
    def instructions(self) -> list[Instruction]:
        return [i for block in self.blocks for i in block.instructions]

    @cached_property
    def _homes(self) -> list[int]:
        return [number for number, block in enumerate(self.blocks) for _ in block.instructions]

    def block_of(self, instruction: Instruction) -> int:
        """Number of the block an instruction stands in."""
        return self._homes[instruction.index]

    def meets_before(
        self, start: Instruction, bad: Callable[[Instruction], bool], good: Callable[[Instruction], bool]
    ) -> Instruction | None:
        """Back from ``start`` along every path: the first ``bad`` instruction met before a ``good`` one, or None."""
        home = self.block_of(start)
        before = [i for i in self.blocks[home].instructions if i.index < start.index]
        todo = [(home, before)]
        seen: set[int] = set()
        while todo:
            number, instructions = todo.pop()
            for instruction in reversed(instructions):
                if good(instruction):
                    break
                if bad(instruction):
                    return instruction
            else:
                for predecessor in self.blocks[number].predecessors:
                    if predecessor not in seen:
                        seen.add(predecessor)
                        todo.append((predecessor, self.blocks[predecessor].instructions))
        return None

    def leaves_without(self, start: Instruction, good: Callable[[Instruction], bool]) -> bool:
        """Whether some path from ``start`` ends the program without meeting a ``good`` instruction."""
        home = self.block_of(start)
        todo = [(home, [i for i in self.blocks[home].instructions if i.index > start.index])]
        seen: set[int] = set()
        while todo:
            number, instructions = todo.pop()
            if any(good(i) for i in instructions):
                continue
            if not self.blocks[number].successors:
                return True
            for successor in self.blocks[number].successors:
                if successor not in seen:
                    seen.add(successor)
                    todo.append((successor, self.blocks[successor].instructions))
        return False

    def guards(self, instruction: Instruction, *, alone: bool = False) -> frozenset[str]:
        """Predicates that are true whenever a predicated ``instruction`` runs: its own, and what that is the conjunction of.

        A number that was chosen by a predicate (``selp``) and is compared with 0 stands for that.

        Args:
            alone: those only of which each one says that it runs, so no parts of a conjunction.
        """
        found: set[str] = set()
        guard = _GUARD.match(instruction.text)
        todo = [(guard[1], instruction.index)] if guard and "!" not in guard[0] else []
        while todo:
            name, before = todo.pop()
            found.add(name)
            made = next((d for d in reversed(self._made.get(name, [])) if d[0] < before), None)
            if made is not None:
                index, sources = made
                if not alone or len(sources) == 1:
                    todo += [(source, index) for source in sources if source not in found]
        return frozenset(found)

    @cached_property
    def _made(self) -> dict[str, list[tuple[int, list[str]]]]:
        """By register, where predicates are made, and of which other ones."""
        made: dict[str, list[tuple[int, list[str]]]] = {}
        for instruction in self.instructions:
            found = _MADE.match(instruction.text)
            if not found or instruction.predicated:
                continue
            opcode, name, rest = found.groups()
            words, registers = instruction.words, _REGISTER.findall(rest)
            if opcode == "and" and "pred" in words:
                made.setdefault(name, []).append((instruction.index, registers))
            elif opcode == "selp" and re.match(r"\s*(?:1|-1)\s*,\s*0\s*,", rest):
                made.setdefault(name, []).append((instruction.index, registers))
            elif opcode == "setp" and "ne" in words and re.search(r",\s*0$", rest):
                made.setdefault(name, []).append((instruction.index, registers))
        return made

    def can_follow(self, first: Instruction, last: Instruction) -> bool:
        """Whether ``last`` can run after ``first`` on some path."""
        home, goal = self.block_of(first), self.block_of(last)
        if home == goal and first.index < last.index:
            return True
        seen: set[int] = set()
        todo = list(self.blocks[home].successors)
        while todo:
            number = todo.pop()
            if number == goal:
                return True
            if number not in seen:
                seen.add(number)
                todo += self.blocks[number].successors
        return False


def parse(text: str) -> Program:
    """The entry function of a PTX module.

    Raises:
        ValueError: the text holds no entry function.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if ".entry" in line), None)
    if start is None:
        raise ValueError("no .entry in this text")
    blocks = [Block()]
    callers: dict[str, str] = {}
    line_number, index = 0, 0
    for raw in lines[start:]:
        line = raw.strip()
        if line.startswith(".file") or line.startswith(".section"):
            break
        place = _LOC.match(line)
        if place:
            line_number = _outermost(place[1], place[2], callers)
            continue
        line = line.split("//")[0].strip()
        label = _LABEL.match(line)
        if label:
            if blocks[-1].instructions:
                blocks.append(Block())
            blocks[-1].labels.append(label[1])
            line = line[label.end() :]
        for statement in line.strip("{} \t").split(";"):
            statement = statement.strip("{} \t")
            if not statement or statement[0] in ".,)(":
                continue
            blocks[-1].instructions.append(Instruction(statement, line_number, index))
            index += 1
            if re.search(r"\bbra\b|\bbra\.uni\b|^ret\b|^@\S+ ret\b|\bexit\b|\btrap\b", statement):
                blocks.append(Block())
    _connect(blocks)
    return Program(blocks)


def _outermost(place: str, rest: str, callers: dict[str, str]) -> int:
    """The kernel's own line of a ``.loc``: the comment names every caller, ``inlined_at`` only the next one out.

    ``callers`` remembers where each place seen so far was inlined.
    """
    called = _CALLED.findall(rest)
    if called:
        return int(called[-1])
    inlined = _INLINED.search(rest)
    if inlined:
        callers[place] = inlined[1]
    else:
        callers.pop(place, None)
    for _ in range(len(callers)):
        place = callers.get(place, place)
    return int(place.split()[1])


def _connect(blocks: list[Block]) -> None:
    for number, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        target = _TARGET.search(last.text) if last else None
        if target:
            found = _definition(blocks, target[1], number)
            if found is not None:
                block.successors.append(found)
        leaves = last is not None and not last.predicated and (target or last.words[0] in ("ret", "exit", "trap"))
        if not leaves and number + 1 < len(blocks):
            block.successors.append(number + 1)
    for number, block in enumerate(blocks):
        for successor in block.successors:
            blocks[successor].predecessors.append(number)


def _definition(blocks: list[Block], label: str, near: int) -> int | None:
    """Block that defines ``label``; of several (labels inside inline assembly), the nearest that is not later."""
    places = [n for n, block in enumerate(blocks) if label in block.labels]
    earlier = [n for n in places if n <= near]
    return earlier[-1] if len(places) > 1 and earlier else places[0] if places else None


def stores(i: Instruction) -> bool:
    """Whether it stores to global memory, without releasing anything."""
    return i.words[0] == "st" and not {"shared", "shared::cta", "local", "param", "release"} & set(i.words)


def synchronises(i: Instruction) -> bool:
    """Whether it is a CTA barrier."""
    return i.words[0] in ("bar", "barrier") and "sync" in i.words


def stores_by_tma(i: Instruction) -> bool:
    """Whether it starts a bulk copy from shared to global memory."""
    words = i.words
    return (
        words[0] == "cp"
        and "bulk" in words
        and "global" in words
        and words.index("global") < len(words) - 1
        and (words[words.index("global") + 1].startswith("shared"))
    )


def drains(i: Instruction) -> bool:
    """Whether it waits until bulk copies have landed, not only been read."""
    return i.has("cp", "bulk", "wait_group") and "read" not in i.words
