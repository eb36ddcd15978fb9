"""Index expressions: exact against integers, canonical, readable."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.annotate.index import Atom, IndexExpr
from tests.support.sweep import examples

NAMES = ("M", "BM", "pid")


def symbol(name: str) -> IndexExpr:
    return IndexExpr.of(Atom("coord" if name == "pid" else "param", name))


def evaluate(expr: IndexExpr, env: dict[str, int]) -> int:
    total = 0
    for factors, coefficient in expr.terms:
        product = coefficient
        for atom in factors:
            if atom.kind in ("mod", "floordiv", "cdiv"):
                a, b = (evaluate(x, env) for x in atom.args)
                product *= a % b if atom.kind == "mod" else a // b if atom.kind == "floordiv" else -(-a // b)
            else:
                product *= env[atom.name]
        total += product
    return total


@st.composite
def trees(draw, depth=3):
    """A pair: Python source over NAMES, divisors being positive, and the expression built from it."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(NAMES))
            return name, symbol(name)
        value = draw(st.integers(-3, 40))
        return f"({value})", IndexExpr.constant(value)
    op = draw(st.sampled_from("+-*/%"))
    left, a = draw(trees(depth - 1))
    if op in "/%":
        by = draw(st.sampled_from(["BM", "M", 8]))
        divisor = IndexExpr.constant(by) if isinstance(by, int) else symbol(by)
        return (f"({left} // {by})", a // divisor) if op == "/" else (f"({left} % {by})", a % divisor)
    right, b = draw(trees(depth - 1))
    return f"({left} {op} {right})", {"+": a + b, "-": a - b, "*": a * b}[op]


@settings(max_examples=examples(400), deadline=None)
@given(trees(), st.integers(1, 50), st.integers(1, 16), st.integers(0, 9))
def test_arithmetic_is_exact(tree, m, bm, pid):
    source, expr = tree
    env = {"M": m, "BM": bm, "pid": pid}
    assert evaluate(expr, env) == eval(source, {}, dict(env))


def test_canonical():
    m, b, pid = symbol("M"), symbol("BM"), symbol("pid")
    one = IndexExpr.constant(1)
    assert (m + b) * pid == pid * b + pid * m
    assert hash((m + b) * pid) == hash(pid * b + pid * m)
    assert m - m == IndexExpr() and (m - m).as_int() == 0
    assert (m + b - one) // b == m.cdiv(b)
    assert (m - one + b) // b == m.cdiv(b)
    assert (m + b) // b != m.cdiv(b)
    assert (pid * b * IndexExpr.constant(4)) // (b * IndexExpr.constant(2)) == pid * IndexExpr.constant(2)
    assert pid.as_atom() is not None and (pid + one).as_atom() is None
    assert (pid * b).divided_by(m) is None


def test_readable():
    m, b, pid = symbol("M"), symbol("BM"), symbol("pid")
    lanes = IndexExpr.of(Atom("lanes", "lanes", (b,)))
    assert str(pid * b + lanes) in ("pid * BM + [0:BM]", "BM * pid + [0:BM]")
    assert str((pid * b + lanes) % m).endswith(") % M")
    assert str(IndexExpr()) == "0" and str(-pid) == "-pid" and str(m - IndexExpr.constant(2) * pid) == "-2 * pid + M"
    assert str(m.cdiv(b)) == "cdiv(M, BM)"
    assert str(pid // (m // b)) == "pid // (M // BM)" and str((pid // m) // b) == "(pid // M) // BM"


def test_leaves_go_through_operations():
    m, b, pid = symbol("M"), symbol("BM"), symbol("pid")
    hidden = IndexExpr.of(Atom("opaque", "f(x)", deps=frozenset((pid % m).leaves()), line=3))
    assert {leaf.name for leaf in (hidden // b).leaves()} == {"pid", "M", "BM"}
    assert hidden.depends_on("coord") and not m.depends_on("coord")
    assert m.cdiv(b).is_invariant and not hidden.is_invariant


def test_replaced():
    m, pid = symbol("M"), symbol("pid")
    tripled = (pid * m + pid).replaced(lambda a: m * IndexExpr.constant(3) if a.name == "pid" else None)
    assert tripled == m * m * IndexExpr.constant(3) + m * IndexExpr.constant(3)
