"""Symbolic evaluation of one expression of a kernel body."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from .grid_nd import swizzled
from .index import Atom, AtomKind, IndexExpr
from .names import Names, callee, parameters, writes
from .values import BlockPointer, Descriptor, RawAccess, Sequence, Value, alternatives, from_memory, opaque, picks

# Functions and methods that return their first argument, as far as its numbers go.
_IDENTITY = frozenset(
    "multiple_of max_contiguous max_constancy cast broadcast_to expand_dims reshape view trans permute to "
    "broadcast int int32 int64 to_tensor assume_in_bounds".split()
)
_NARROW = frozenset("int1 int8 uint8 int16 uint16 float16 bfloat16".split())
"""Types that rows can be too many for."""
_BUILTINS = frozenset("min max abs range len print int float bool tuple list isinstance getattr static_print".split())
_READS = frozenset({"load", "gather"})
_WRITES = frozenset({"store", "scatter"})
_POLYNOMIAL = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.FloorDiv: "__floordiv__",
    ast.Mod: "__mod__",
}


def as_expr(value: Value, text: str = "?", line: int = 0) -> IndexExpr:
    """A value as a number; what is none is opaque."""
    return value if isinstance(value, IndexExpr) else opaque(text, line, value)


def items(value: Value) -> tuple[IndexExpr, ...]:
    """A sequence of numbers (a lone number counts as one)."""
    if isinstance(value, Sequence):
        return tuple(as_expr(item) for item in value.items)
    return (as_expr(value),)


@dataclass
class Evaluator:
    """Evaluates expressions over ``env`` and records every load and store it passes.

    ``locals`` are the kernel's own names (a call on one of them is a method), ``helpers`` the functions of the same
    module by name, ``constexprs`` the parameters that are known when the kernel is compiled and that nothing assigns to;
    ``assumed`` holds which conditions on them hold where what is evaluated now stands. ``guards`` are the conditions read
    from memory that it stands under. ``returned`` walks a helper's body in ``env`` and gives what it returns; ``site`` is
    the kernel's own call while it does.
    """

    names: Names
    locals: frozenset[str]
    params: frozenset[str]
    helpers: Mapping[str, ast.FunctionDef]
    constexprs: frozenset[str] = frozenset()
    assumed: dict[str, bool] = field(default_factory=dict)
    env: dict[str, Value] = field(default_factory=dict)
    accesses: list[RawAccess] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    tests: list[Atom] = field(default_factory=list)
    returned: Callable[[list[ast.stmt]], Value] | None = None
    site: ast.Call | None = None
    inlining: tuple[str, ...] = ()

    def value(self, node: ast.expr) -> Value:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, int) and not isinstance(node.value, bool):
                return IndexExpr.constant(node.value)
            return opaque(repr(node.value), 0)
        if isinstance(node, ast.Name):
            known = self.env.get(node.id)
            if known is None and node.id not in self.locals | self.params:
                number = self.names.constant(node.id)
                return IndexExpr.of(Atom("param", node.id)) if number is None else IndexExpr.constant(number)
            return known if known is not None else IndexExpr.of(Atom("param", node.id))
        if isinstance(node, (ast.Tuple, ast.List)):
            return Sequence(tuple(self.value(e) for e in node.elts))
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            operand = as_expr(self.value(node.operand))
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Attribute):
            if node.attr in ("T", "value"):
                return self.value(node.value)
            return opaque(ast.unparse(node), 0)  # a dtype, a shape, a module's constant
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            return self._conditional(node, line)
        if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            self.env[node.target.id] = value = self.value(node.value)
            return value
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.Compare):
            parts += self._picking(node, parts)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return reduce(lambda a, b: alternatives(ast.unparse(node), line, a, b), parts)
        return opaque(ast.unparse(node), line, *parts)

    def _picking(self, node: ast.Compare, parts: list[Value]) -> list[Value]:
        """Marks of a comparison that picks some of the elements that tiles make: of an index for equality, or of indices along
        different axes; not of an index with its bound."""
        found: list[Value] = []
        for a, op, b in zip(parts, node.ops, parts[1:], strict=False):
            if not isinstance(a, IndexExpr) or not isinstance(b, IndexExpr):
                continue
            coords = frozenset(leaf for part in (a, b) for leaf in part.leaves() if leaf.kind == "coord")
            above, below = (
                {
                    leaf.axis
                    for factors, coefficient in (a - b).terms
                    if coefficient * sign > 0
                    for atom in factors
                    for leaf in (atom, *atom.leaves())
                    if leaf.kind == "coord"
                }
                for sign in (1, -1)
            )
            if coords and (isinstance(op, (ast.Eq, ast.NotEq)) or (above - below and below - above)):
                found.append(IndexExpr.of(Atom("picks", ast.unparse(node), deps=coords)))
        return found

    def _conditional(self, node: ast.IfExp, line: int) -> Value:
        test, a, b = self.value(node.test), self.value(node.body), self.value(node.orelse)
        if a == b:
            return a
        known = self.condition(node.test)
        if known is None or not isinstance(a, IndexExpr) or not isinstance(b, IndexExpr):
            return alternatives(ast.unparse(node), line, a, b, test)
        text, holds = known
        return IndexExpr.of(Atom("either", ast.unparse(node), args=(a, b) if holds else (b, a), test=text))

    def condition(self, test: ast.expr) -> tuple[str, bool] | None:
        """A condition on constexpr parameters, as text without its ``not``, and whether it has none; None: another one."""
        holds = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        plain = not any(isinstance(n, ast.Call) for n in ast.walk(test))
        return (
            (ast.unparse(test), holds) if plain and names and names <= self.constexprs and self.site is None else None
        )

    def _chosen(self, expr: IndexExpr) -> IndexExpr:
        """An expression with what the assumed conditions choose."""

        def one(atom: Atom) -> IndexExpr | None:
            holds = self.assumed.get(atom.test) if atom.kind == "either" else None
            return None if holds is None else self._chosen(atom.args[0 if holds else 1])

        return expr.replaced(one)

    def _binary(self, node: ast.BinOp) -> Value:
        a, b = self.value(node.left), self.value(node.right)
        method = _POLYNOMIAL.get(type(node.op))
        if method and isinstance(a, IndexExpr) and isinstance(b, IndexExpr):
            if isinstance(node.op, (ast.Add, ast.Sub)) and _meet(a, b if isinstance(node.op, ast.Add) else -b):
                return opaque(ast.unparse(node), node.lineno, a, b)
            return getattr(a, method)(b)
        if isinstance(node.op, ast.BitOr):
            return alternatives(ast.unparse(node), node.lineno, a, b)
        if isinstance(node.op, ast.Add) and isinstance(a, Sequence) and isinstance(b, Sequence):
            return Sequence((*a.items, *b.items))
        return opaque(ast.unparse(node), node.lineno, a, b)

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.value(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if all(isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is None) for p in parts):
            return value  # x[:, None] broadcasts
        index = as_expr(self.value(node.slice)).as_int()
        if isinstance(value, Sequence) and index is not None and -len(value.items) <= index < len(value.items):
            return value.items[index]
        if index is not None and self._is_param(value):
            return IndexExpr.of(Atom("param", f"{value}[{index}]"))  # of a tuple that the launch passes
        return opaque(ast.unparse(node), node.lineno, value)

    # Calls

    def _call(self, node: ast.Call) -> Value:
        called = callee(node, self.locals, self.names)
        if called.kind == "method" and called.receiver is not None:
            return self._method(node, called.name, self.value(called.receiver))
        arguments = [self.value(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords}
        return self._function(node, called.name, arguments, keywords)

    def _function(self, node: ast.Call, name: str, args: list[Value], kw: dict[str | None, Value]) -> Value:
        values = [*args, *kw.values()]

        def argument(position: int, *keys: str) -> Value | None:
            found = next((kw[k] for k in keys if k in kw), None)
            return args[position] if found is None and position < len(args) else found

        first = argument(0, "x", "input", "pointer", "base", "value", "desc")
        if name in ("program_id", "num_programs"):
            axis = argument(0, "axis")
            d = as_expr(axis).as_int() if axis is not None else 0
            kind: AtomKind = "program_id" if name == "program_id" else "num_programs"
            if d is None:
                return IndexExpr.of(Atom(kind, ast.unparse(node)))
            return IndexExpr.of(Atom(kind, f"{name}({d})", args=(IndexExpr.constant(d),)))
        if name == "arange" and len(args) == 2:
            start, stop = as_expr(args[0]), as_expr(args[1])
            return start + IndexExpr.of(Atom("lanes", "lanes", (stop - start,)))
        if name == "where" and len(args) == 3 and isinstance(args[1], IndexExpr) and isinstance(args[2], IndexExpr):
            return _one_of(ast.unparse(node), node.lineno, args[0], args[1], args[2])
        if name == "swizzle2d" and (pair := swizzled(args)):
            return Sequence(pair)
        if name == "cdiv" and len(args) == 2:
            return as_expr(args[0]).cdiv(as_expr(args[1]))
        if name in ("make_tensor_descriptor", "_experimental_make_tensor_descriptor") and first is not None:
            shape, strides, block = argument(1, "shape"), argument(2, "strides"), argument(3, "block_shape")
            if shape is not None and block is not None:
                return Descriptor(as_expr(first), items(shape), items(block), items(strides) if strides else ())
        if name == "make_block_ptr" and first is not None:
            shape, strides = argument(1, "shape"), argument(2, "strides")
            offsets, block = argument(3, "offsets"), argument(4, "block_shape")
            if shape is not None and offsets is not None and block is not None:
                given = items(strides) if strides else ()
                return BlockPointer(as_expr(first), items(shape), items(offsets), items(block), given)
        if name == "advance" and isinstance(first, BlockPointer):
            moves = argument(1, "offsets")
            return self._advance(first, moves) if moves is not None else first
        if "descriptor" in name and ("load" in name or "store" in name or "gather" in name or "scatter" in name):
            offsets = argument(1, "offsets")
            mode = "read" if "load" in name or "gather" in name else "write"
            indexed = "gather" not in name and "scatter" not in name
            return self._access(node, name, mode, first, offsets if indexed else None, descriptor=True)
        if name in _READS | _WRITES and first is not None:
            mask = argument(1 if name in _READS else 2, "mask")
            return self._access(node, name, "read" if name in _READS else "write", first, None, mask=mask)
        if name.startswith("atomic_") and first is not None:
            return self._access(node, name, "reduce", first, None, mask=argument(2, "mask"))
        if name in _IDENTITY and first is not None:
            return self._cast(node, first)
        inlined = self._inlined(node, name, args, kw)
        return self._other(node, name, values) if inlined is None else inlined

    def _method(self, node: ast.Call, name: str, receiver: Value) -> Value:
        arguments = [self.value(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        keywords = {k.arg: self.value(k.value) for k in node.keywords}
        if name == "advance" and isinstance(receiver, BlockPointer) and arguments:
            return self._advance(receiver, arguments[0])
        is_descriptor = isinstance(receiver, Descriptor) or self._is_param(receiver)
        if is_descriptor and name in ("load", "store"):
            offsets = keywords.get("offsets", arguments[0] if arguments else None)
            return self._access(node, name, "read" if name == "load" else "write", receiver, offsets, descriptor=True)
        if is_descriptor and (name in ("gather", "scatter") or name.startswith("atomic_")):
            mode = "read" if name == "gather" else "write" if name == "scatter" else "reduce"
            offsets = arguments[0] if name.startswith("atomic_") and arguments else None
            return self._access(node, name, mode, receiver, offsets, descriptor=True)
        if name in _IDENTITY:
            return self._cast(node, receiver)
        return opaque(ast.unparse(node), node.lineno, receiver, *arguments, *keywords.values())

    def _cast(self, node: ast.Call, value: Value) -> Value:
        """A value in another form, which has its numbers unless they are too large for it."""
        types = {ast.unparse(a).split(".")[-1] for a in (*node.args, *(k.value for k in node.keywords))}
        if not types & _NARROW or not isinstance(value, IndexExpr) or value.depends_on("data"):
            return value
        return opaque(ast.unparse(node), node.lineno, value)

    def _is_param(self, value: Value) -> bool:
        atom = value.as_atom() if isinstance(value, IndexExpr) else None
        return atom is not None and atom.kind == "param" and atom.name in self.params

    @staticmethod
    def _advance(pointer: BlockPointer, moves: Value) -> BlockPointer:
        steps = items(moves)
        if len(steps) != len(pointer.offsets):
            lost = tuple(opaque("advance", 0, o) for o in pointer.offsets)
            return BlockPointer(pointer.base, pointer.shape, lost, pointer.block, pointer.strides)
        moved = tuple(o + s for o, s in zip(pointer.offsets, steps, strict=True))
        return BlockPointer(pointer.base, pointer.shape, moved, pointer.block, pointer.strides)

    def _access(
        self,
        node: ast.Call,
        name: str,
        mode: str,
        target: Value | None,
        offsets: Value | None,
        *,
        descriptor: bool = False,
        mask: Value | None = None,
    ) -> Value:
        where = items(offsets) if offsets is not None else None
        masked, node = node, self.site or node
        if isinstance(target, BlockPointer):
            raw = RawAccess(mode, "block_pointer", target.base, node, target.offsets, target.block, target.shape)  # type: ignore[arg-type]
            raw = replace(raw, strides=target.strides)
        elif isinstance(target, Descriptor):
            raw = RawAccess(mode, "device_descriptor", target.base, node, where, target.block, target.shape)  # type: ignore[arg-type]
            raw = replace(raw, strides=target.strides)
        elif descriptor:
            raw = RawAccess(mode, "host_descriptor", as_expr(target or IndexExpr()), node, where)  # type: ignore[arg-type]
        else:
            raw = RawAccess(mode, "pointer", as_expr(target or IndexExpr()), node)  # type: ignore[arg-type]
        raw = replace(raw, block=raw.block and tuple(self._chosen(size) for size in raw.block))
        guard = self.guards[0] if self.guards else ""
        if mask is not None and from_memory(mask):
            guard = f"mask {_mask_text(masked)}"
        picking = (*self.tests, *sorted(picks(mask) if mask is not None else (), key=str))
        self.accesses.append(replace(raw, operation=name, guard=guard, picks=picking))
        deps = frozenset(leaf for e in (raw.base, *(raw.offsets or ())) for leaf in e.leaves())
        return IndexExpr.of(Atom("data", ast.unparse(masked)[:60], deps=deps, line=masked.lineno))

    def _inlined(self, node: ast.Call, name: str, args: list[Value], kw: dict[str | None, Value]) -> Value | None:
        """What a helper of the same module returns, its loads taken for loads of the call; None if it is not followed.

        Stores are not: codegen looks for them in the kernel. Nor are calls whose arguments cannot be matched, and helpers that
        read a global of the name of a kernel parameter, which would be taken for it.
        """
        helper = self.helpers.get(name)
        if helper is None or self.returned is None or name in self.inlining or not isinstance(node.func, ast.Name):
            return None
        own = [p.arg for p in parameters(helper)]
        local = {n for s in helper.body for n in writes(s)} | set(own)
        given = dict(zip(own, args, strict=False)) | {k: v for k, v in kw.items() if k is not None}
        defaults = _defaults(helper)
        free = {n.id for s in helper.body for n in ast.walk(s) if isinstance(n, ast.Name)} - local
        if (
            any(isinstance(a, ast.Starred) for a in node.args)
            or None in kw
            or len(args) > len(own)
            or not set(given) <= set(own) <= set(given) | set(defaults)
            or free & self.params
            or self.calls(helper, "store", "scatter", "atomic")
        ):
            return None
        bound = {p: given[p] if p in given else self.value(defaults[p]) for p in own}
        kept = self.env, self.locals, self.site, self.inlining
        self.env, self.locals, self.site = bound, frozenset(local), self.site or node
        self.inlining = (*self.inlining, name)
        try:
            return self.returned(helper.body)
        finally:
            self.env, self.locals, self.site, self.inlining = kept

    def _other(self, node: ast.Call, name: str, values: list[Value]) -> Value:
        """A function that is not modelled. A helper may load through the pointers it is given."""
        helper = self.helpers.get(name)
        if helper is not None and self.calls(helper, "load", "gather", "atomic"):
            values = [*values, IndexExpr.of(Atom("data", f"loaded in {name}", line=node.lineno))]
        result = opaque(ast.unparse(node), node.lineno, *values)
        path = self.names.dotted(node.func) or ""
        if path.startswith("triton") or (name in _BUILTINS and helper is None):
            return result
        touches = helper is None or self.calls(helper, "load", "store", "gather", "scatter", "atomic")
        if touches:
            guard = self.guards[0] if self.guards else ""
            numbers = tuple(as_expr(value) for value in values)
            for value in values:
                for base in _bases(value):
                    escaped = RawAccess("read", "pointer", base, self.site or node, numbers, escapes=True)
                    self.accesses.append(replace(escaped, operation=name, guard=guard))
        if helper is not None and self.calls(helper, "program_id"):
            return opaque(
                ast.unparse(node), node.lineno, *values, IndexExpr.of(Atom("program_id", f"program_id in {name}"))
            )
        return result

    def calls(self, helper: ast.FunctionDef, *prefixes: str, seen: Iterable[str] = ()) -> bool:
        """Whether a helper, or a helper it calls, calls a function whose name starts so."""
        for inner in ast.walk(helper):
            if isinstance(inner, ast.Call):
                name = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
                if name.startswith(prefixes):
                    return True
                deeper = self.helpers.get(name)
                if deeper is not None and name not in seen and self.calls(deeper, *prefixes, seen=(*seen, name)):
                    return True
        return False


def _one_of(text: str, line: int, test: Value, a: IndexExpr, b: IndexExpr) -> IndexExpr:
    """One of two numbers, lane by lane: what decides is no part of it."""
    return IndexExpr.of(replace(opaque(text, line, test).terms[0][0][0], args=(a, b)))


def _meet(a: IndexExpr, b: IndexExpr) -> bool:
    """Whether a sum would cancel what differs between lanes, as ``x[:, None] - x[None, :]`` does not."""
    mine = dict(a.terms)
    return any(
        mine.get(factors, 0) * coefficient < 0
        and any(leaf.kind in ("lanes", "data", "opaque") for atom in factors for leaf in (atom, *atom.leaves()))
        for factors, coefficient in b.terms
    )


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Default values of parameters."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    found = {a.arg: d for a, d in zip(reversed(positional), reversed(arguments.defaults), strict=False)}
    return found | {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}


def _mask_text(node: ast.Call) -> str:
    """The mask of a load, store or atomic, as written."""
    mask = next((k.value for k in node.keywords if k.arg == "mask"), None)
    return f"`{ast.unparse(mask if mask is not None else node.args[-1])}`"


def _bases(value: Value) -> list[IndexExpr]:
    """Expressions inside a value that may be pointers."""
    if isinstance(value, (Descriptor, BlockPointer)):
        return [value.base]
    if isinstance(value, Sequence):
        return [base for item in value.items for base in _bases(item)]
    return [value]
