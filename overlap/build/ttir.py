"""Reads a kernel's TTIR text into operations, values and where each value comes from.

Triton's Python bindings show neither attributes nor inline assembly on every version, so the printed form is read:
one operation a line, regions in braces, SSA names scoped by region (sibling regions reuse names).

    %seen = scf.for %i = %lb to %ub step %c2 iter_args(%s = %epoch) -> (i64) : i32 {  values: %seen, %i, %s
      %x = tt.atomic_rmw add, acquire, sys, %p, %c0, %true : ...
      scf.yield %x : i64                                                               %seen and %s come from %epoch, %x
    }
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Value:
    """An SSA value: result ``index`` of ``op``, or a block argument of ``owner`` (None: of the function).

    ``role`` tells block arguments apart: ``param``, ``induction``, ``carried``, ``before``, ``after``, ``block``.
    """

    name: str
    type: str = ""
    op: Op | None = None
    index: int = 0
    owner: Op | None = None
    role: str = "result"

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(eq=False)
class Op:
    """An operation.

    ``text`` is its line without the location, ``trailer`` what stands behind its last region (loop attributes);
    ``path`` and ``line`` are the user's place (0: unknown).
    """

    name: str
    text: str
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    regions: list[list[Op]] = field(default_factory=list)
    parent: Op | None = None
    trailer: str = ""
    path: str = ""
    line: int = 0

    def __repr__(self) -> str:
        return f"<{self.name} line {self.line}>"

    def walk(self) -> Iterator[Op]:
        """This operation and everything inside, in program order."""
        yield self
        for region in self.regions:
            for op in region:
                yield from op.walk()

    def ancestors(self) -> Iterator[Op]:
        op = self.parent
        while op is not None:
            yield op
            op = op.parent

    def terminator(self, region: int) -> Op | None:
        """The last operation of a region."""
        return self.regions[region][-1] if region < len(self.regions) and self.regions[region] else None


@dataclass
class Function:
    """A kernel: its parameters by the name the source gives them (the first value of a descriptor), and its body."""

    name: str
    params: dict[str, Value]
    body: Op

    def ops(self, *names: str) -> list[Op]:
        """Operations of these names (all when none is given), in program order."""
        return [op for op in self.body.walk() if not names or op.name in names]


_NAME = re.compile(r"%([\w.$-]+)(#\d+)?")
_RESULTS = re.compile(r"^((?:%[\w.$-]+(?::\d+)?(?:, )?)+) = ")
_OP = re.compile(r'^"?([a-z_][\w]*(?:\.[\w.]+)+)"?')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PARAM = re.compile(r'%([\w.$-]+): ([^,{]+?(?:<[^{]*?>)?)(?: \{[^}]*\})? loc\("([\w.]+)"(?:\((#loc\d*)\))?')
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_NAMED = re.compile(r'"([\w.]+)"\((#loc\d*)\)')
_PLACE = re.compile(r'"([^"]+)":(\d+):(\d+)')


class _Locations:
    """Resolves location aliases to the kernel's own line: the outermost caller of what was inlined."""

    def __init__(self, text: str) -> None:
        self.aliases = {m[1]: m[2] for m in map(_ALIAS.match, text.splitlines()) if m}

    def first_name(self, name: str, alias: str) -> str:
        """The name that a value had ahead of those that assignments gave it, of which ``name`` at ``alias`` is the last."""
        while found := _NAMED.fullmatch(self.aliases.get(alias, "")):
            name, alias = found[1], found[2]
        return name

    def place(self, text: str) -> tuple[str, int]:
        """Path and line of a ``loc(...)`` at the end of a line of TTIR; ``("", 0)`` when unknown."""
        for _ in range(64):
            text = text.strip()
            if text.startswith("#loc"):
                text = self.aliases.get(text, "")
                continue
            if text.startswith("callsite("):
                text = text[len("callsite(") : -1].rpartition(" at ")[2]
                continue
            named = re.fullmatch(r'"[^"]*"\((.*)\)', text)
            if named:
                text = named[1]
                continue
            found = _PLACE.fullmatch(text)
            return (found[1], int(found[2])) if found else ("", 0)
        return "", 0


def _split_location(line: str) -> tuple[str, str]:
    """A line and the inside of its trailing ``loc(...)``."""
    if not line.endswith(")"):
        return line, ""
    at = line.rfind(" loc(")
    return (line[:at], line[at + 5 : -1]) if at >= 0 else (line, "")


class _Reader:
    def __init__(self, text: str) -> None:
        self.locations = _Locations(text)
        self.lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self.at = 0
        self.scopes: list[dict[str, Value]] = []

    def functions(self) -> list[Function]:
        found = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            header = re.match(r"tt\.func (?:public |private )?@\"?([^\"(]+)\"?\(", line)
            if header:
                found.append(self._function(header[1], line))
        return found

    def _function(self, name: str, line: str) -> Function:
        body = Op("tt.func", line)
        self.scopes = [{}]
        params: dict[str, Value] = {}
        for ssa, type_, source, alias in _PARAM.findall(line):
            source = self.locations.first_name(source, alias)
            value = Value(ssa, type_.strip(), owner=body, role="param")
            body.arguments.append(value)
            self.scopes[0][ssa] = value
            params.setdefault(source.split(".")[0], value)
        body.regions.append([])
        self._region(body)
        return Function(name, params, body)

    def _region(self, parent: Op) -> None:
        """Reads the operations of ``parent``'s newest region up to its closing brace, and the regions that follow."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line.startswith("}"):
                bare, place = _split_location(line)
                self._locate(parent, place)
                if bare.endswith("{"):  # `} do {`, `} else {`, `}, {`
                    parent.regions.append([])
                    self.scopes[-1] = {}
                    continue
                parent.trailer = bare.lstrip("})").strip()
                return
            if line.startswith("^"):
                for ssa, type_ in re.findall(r"%([\w.$-]+): ((?:[^,()]|\([^()]*\))+?)(?: loc\(|[,)])", line):
                    role = "after" if parent.name == "scf.while" else "block"
                    self._argument(parent, ssa, role, type_.strip())
                continue
            self._operation(line, parent)

    def _operation(self, line: str, parent: Op) -> None:
        bare, place = _split_location(line)
        opens = bare.endswith("{")
        found = _RESULTS.match(bare)
        rest = bare[found.end() :] if found else bare
        named = _OP.match(rest)
        if named is None:
            return
        op = Op(named[1], rest, parent=parent)
        self._locate(op, place)
        self._operands(op, rest[named.end() :])
        parent.regions[-1].append(op)
        if opens:
            op.regions.append([])
            self.scopes.append({})
            self._headers(op, rest)
            self._region(op)
            self.scopes.pop()
        if found:
            self._results(op, found[1], rest)

    def _operands(self, op: Op, rest: str) -> None:
        code = _STRING.sub('""', rest)
        if op.name in ("scf.for", "scf.while"):
            # `%a = %init`: what stands left of `=` is an argument of the region.
            code = re.sub(r"%[\w.$-]+ =", "", code)
        for name, number in _NAME.findall(code):
            value = self._find(name + number)
            if value is None:
                raise ValueError(f"%{name}{number} is used before it is defined: {op.text}")
            op.operands.append(value)

    def _headers(self, op: Op, rest: str) -> None:
        """Arguments that a region's header line declares."""
        if op.name == "scf.for":
            induction = re.match(r"scf\.for (?:unsigned )?%([\w.$-]+) =", rest)
            if induction:
                self._argument(op, induction[1], "induction")
            inside = re.search(r"iter_args\((.*?)\) ->", rest)
            for ssa in re.findall(r"%([\w.$-]+) =", inside[1] if inside else ""):
                self._argument(op, ssa, "carried")
        elif op.name == "scf.while":
            inside = re.match(r"scf\.while \((.*?)\) :", rest)
            for ssa in re.findall(r"%([\w.$-]+) =", inside[1] if inside else ""):
                self._argument(op, ssa, "before")

    def _argument(self, op: Op, ssa: str, role: str, type_: str = "") -> None:
        index = sum(1 for argument in op.arguments if argument.role == role)
        value = Value(ssa, type_, owner=op, index=index, role=role)
        op.arguments.append(value)
        self.scopes[-1][ssa] = value

    def _results(self, op: Op, names: str, rest: str) -> None:
        type_ = rest.rpartition(" -> ")[2] if " -> " in rest else rest.rpartition(" : ")[2]
        for entry in names.split(", "):
            ssa, _, count = entry[1:].partition(":")
            if not count:
                value = Value(ssa, type_, op=op, index=len(op.results))
                op.results.append(value)
                self.scopes[-1][ssa] = value
                continue
            for number in range(int(count)):
                value = Value(f"{ssa}#{number}", "", op=op, index=len(op.results))
                op.results.append(value)
                self.scopes[-1][f"{ssa}#{number}"] = value

    def _find(self, name: str) -> Value | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _locate(self, op: Op, place: str) -> None:
        if place and not op.line:
            op.path, op.line = self.locations.place(place)


def parse(text: str) -> Function:
    """The kernel of a TTIR module (its public function).

    Raises:
        ValueError: the text holds no function, or a value that nothing defines.
    """
    functions = _Reader(text).functions()
    if not functions:
        raise ValueError("no tt.func in this text")
    return next((f for f in functions if " public " in f.body.text), functions[0])
