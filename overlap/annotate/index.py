"""`IndexExpr`: the one symbolic type of index and offset analysis.

A polynomial with integer coefficients over atoms. An atom is a name with a meaning (a parameter, a tile coordinate,
a loop index, the lanes of ``tl.arange``) or an operation that is no polynomial (mod, floor division, an opaque call),
which keeps the leaf atoms it depends on. So ``pid_m * BLOCK_M + tl.arange(0, BLOCK_M)`` is affine in the coordinate
with the symbolic coefficient BLOCK_M, and ``(...) % M`` is one atom that still knows it depends on ``pid_m``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

AtomKind = Literal[
    "param",  # kernel parameter, or an item of one (``strides[0]``), or global constant
    "count",  # number of tiles of an axis
    "coord",  # tile coordinate of an axis, after a dispatch region
    "tile_id",  # a tile id variable
    "program_id",  # tl.program_id(d)
    "num_programs",  # tl.num_programs(d)
    "loop",  # iteration number of a loop, from 0
    "lanes",  # tl.arange(0, size)
    "mod",
    "floordiv",
    "cdiv",
    "either",  # one of two, by a condition on constexpr parameters
    "data",  # loaded from memory
    "picks",  # a condition that picks some of the elements that tiles make (`picks`)
    "opaque",  # anything else
]

INVARIANT = frozenset({"param", "count", "num_programs"})
"""Leaf kinds that are one number for a whole launch."""


@dataclass(frozen=True)
class Atom:
    """An indivisible factor.

    ``name`` is how it prints; ``args`` are the operands of mod, floordiv and cdiv, the size of lanes, a loop's start,
    stop and step, what either is where ``test`` holds and where not, what an opaque value is one of; ``deps`` the leaf
    atoms that an opaque or loaded value comes from; ``line`` tells opaque values and loops apart; ``axis`` and ``region``
    belong to counts and coordinates.
    """

    kind: AtomKind
    name: str
    args: tuple[IndexExpr, ...] = ()
    deps: frozenset[Atom] = field(default=frozenset())
    line: int = 0
    axis: str | None = None
    region: int | None = None
    test: str = ""

    def __str__(self) -> str:
        if self.kind == "mod":
            return f"({self.args[0]}) % {_operand(self.args[1])}"
        if self.kind == "floordiv":
            return f"{_operand(self.args[0])} // {_operand(self.args[1])}"
        if self.kind == "cdiv":
            return f"cdiv({self.args[0]}, {self.args[1]})"
        if self.kind == "lanes":
            return f"[0:{self.args[0]}]"
        return self.name

    @property
    def parameter(self) -> str:
        """Of a ``param``: the kernel parameter, where the atom is an item of a tuple."""
        return self.name.split("[")[0]

    @property
    def item(self) -> int:
        """Of a ``param``: which item of a tuple, those that are counted from the end behind the others."""
        number = int(self.name[:-1].split("[")[1]) if "[" in self.name else 0
        return number if number >= 0 else 1000 + number

    @property
    def is_compound(self) -> bool:
        return self.kind in ("mod", "floordiv")

    def leaves(self) -> Iterator[Atom]:
        """The atom if it is a name, else every name it was computed from."""
        if self.kind in ("mod", "floordiv", "cdiv", "either", "opaque"):
            for arg in self.args:
                yield from arg.leaves()
            yield from self.deps
        else:
            yield self
            yield from self.deps
            for arg in self.args:
                yield from arg.leaves()

    def _key(self) -> tuple[str, str, int, str]:
        return (self.kind, self.name, self.line, "" if self.kind in ("param", "count") else str(self))


Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class IndexExpr:
    """A sum of ``coefficient * atom * atom ...``; equal sums are equal objects.

    Build with `constant`, `of` and Python's operators.
    """

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def constant(value: int) -> IndexExpr:
        return IndexExpr((((), value),)) if value else IndexExpr()

    @staticmethod
    def of(atom: Atom) -> IndexExpr:
        return IndexExpr((((atom,), 1),))

    @staticmethod
    def _collect(terms: Iterable[tuple[Monomial, int]]) -> IndexExpr:
        summed: dict[Monomial, int] = {}
        for factors, coefficient in terms:
            summed[factors] = summed.get(factors, 0) + coefficient
        kept = [(factors, c) for factors, c in summed.items() if c]
        kept.sort(key=lambda t: (-len(t[0]), [a._key() for a in t[0]]))
        return IndexExpr(tuple(kept))

    def __add__(self, other: IndexExpr) -> IndexExpr:
        return self._collect((*self.terms, *other.terms))

    def __neg__(self) -> IndexExpr:
        return IndexExpr(tuple((f, -c) for f, c in self.terms))

    def __sub__(self, other: IndexExpr) -> IndexExpr:
        return self + -other

    def __mul__(self, other: IndexExpr) -> IndexExpr:
        return self._collect(
            (tuple(sorted((*f, *g), key=Atom._key)), c * d) for f, c in self.terms for g, d in other.terms
        )

    def __mod__(self, divisor: IndexExpr) -> IndexExpr:
        a, b = self.as_int(), divisor.as_int()
        if a is not None and b:
            return IndexExpr.constant(a % b)
        if not self.terms:
            return self
        return IndexExpr.of(Atom("mod", "%", (self, divisor)))

    def __floordiv__(self, divisor: IndexExpr) -> IndexExpr:
        a, b = self.as_int(), divisor.as_int()
        if a is not None and b:
            return IndexExpr.constant(a // b)
        exact = self.divided_by(divisor)
        if exact is not None:
            return exact
        if (numerator := self - divisor + IndexExpr.constant(1)).terms and self != divisor:
            # (x + b - 1) // b is how people write cdiv(x, b).
            if len(numerator.terms) < len(self.terms):
                return numerator.cdiv(divisor)
        return IndexExpr.of(Atom("floordiv", "//", (self, divisor)))

    def cdiv(self, divisor: IndexExpr) -> IndexExpr:
        """Ceiling division."""
        a, b = self.as_int(), divisor.as_int()
        if a is not None and b:
            return IndexExpr.constant(-(-a // b))
        if b == 1:
            return self
        return IndexExpr.of(Atom("cdiv", "cdiv", (self, divisor)))

    def as_int(self) -> int | None:
        """The value of a constant."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def as_atom(self) -> Atom | None:
        """The atom, if the expression is just one."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def divided_by(self, divisor: IndexExpr) -> IndexExpr | None:
        """The exact quotient by a single-term divisor, or None where it does not divide."""
        if len(divisor.terms) != 1 or not self.terms:
            return None
        by, by_coefficient = divisor.terms[0]
        quotient = []
        for factors, coefficient in self.terms:
            rest = list(factors)
            for atom in by:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if coefficient % by_coefficient:
                return None
            quotient.append((tuple(rest), coefficient // by_coefficient))
        return self._collect(quotient)

    def replaced(self, value_of: Callable[[Atom], IndexExpr | None]) -> IndexExpr:
        """The expression with factors replaced by what ``value_of`` gives for them (None: keep)."""
        total = IndexExpr()
        for factors, coefficient in self.terms:
            product = IndexExpr.constant(coefficient)
            for atom in factors:
                value = value_of(atom)
                product = product * (IndexExpr.of(atom) if value is None else value)
            total = total + product
        return total

    def leaves(self) -> Iterator[Atom]:
        """Every name the expression depends on, through all operations (with repeats)."""
        for factors, _ in self.terms:
            for atom in factors:
                yield from atom.leaves()

    def depends_on(self, *kinds: AtomKind) -> bool:
        return any(leaf.kind in kinds for leaf in self.leaves())

    @property
    def is_invariant(self) -> bool:
        """One number for a whole launch: made of parameters and counts only."""
        return all(leaf.kind in INVARIANT for leaf in self.leaves())

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        out = ""
        for factors, coefficient in self.terms:
            sign = " - " if coefficient < 0 else " + "
            size = abs(coefficient)
            single = len(factors) == 1 and size == 1
            parts = [str(a) if single or not a.is_compound else f"({a})" for a in factors]
            if size != 1 or not parts:
                parts.insert(0, str(size))
            text = " * ".join(parts)
            out += f"{sign}{text}" if out else ("-" if coefficient < 0 else "") + text
        return out


def _operand(expr: IndexExpr) -> str:
    plain = len(expr.terms) == 1 and len(expr.terms[0][0]) <= 1 and not any(a.is_compound for a in expr.terms[0][0])
    return str(expr) if plain else f"({expr})"


def size_expr(text: str) -> IndexExpr:
    """A size as a pragma has it: a number, or a parameter's name."""
    return IndexExpr.constant(int(text)) if text.isdecimal() else IndexExpr.of(Atom("param", text))
