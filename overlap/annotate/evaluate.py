"""Symbolic walk over a kernel body: what every variable holds, and every load and store on the way.

A loop body is walked until the variables it carries are settled: one that grows by an invariant step holds
``entry + iteration * step`` (pointers advanced in a K loop), anything else becomes opaque. Only the settled walk is
recorded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from .expressions import Evaluator, as_expr, items
from .index import Atom, IndexExpr
from .names import writes
from .values import BlockPointer, RawAccess, Sequence, Value, from_memory, leaves, merge, opaque, picks

_JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


class Walk:
    """Walks statements with an `Evaluator`.

    Args:
        evaluator: holds the environment and collects the accesses.
        tile_ids: names that keep meaning "the tile id", whatever is assigned to them.
        counts: (name, line) of the assignment that holds an axis' number of tiles, to the axis name.
        coordinates: last statement of a dispatch region (by identity) to (region index, pid map).
    """

    def __init__(
        self,
        evaluator: Evaluator,
        tile_ids: frozenset[str],
        counts: Mapping[tuple[str, int], str],
        coordinates: Mapping[int, tuple[int, tuple[tuple[str, str], ...]]],
    ) -> None:
        self.evaluator = evaluator
        self.tile_ids = tile_ids
        self.counts = counts
        self.coordinates = coordinates
        evaluator.returned = self._returned
        self.results: list[Value] = []
        """What ``return`` statements gave so far."""
        self.tile_values: dict[tuple[str, int], Value] = {}
        self.region_values: dict[int, dict[str, Value]] = {}
        self.tile_loops: dict[str, tuple[ast.For, tuple[IndexExpr, ...]]] = {}
        self.left: list[list[dict[str, Value]]] = []
        """Of each loop around, innermost last: the variables where ``continue`` leaves an iteration."""
        self.broken: list[list[dict[str, Value]]] = []
        """Where ``break`` leaves the loop."""
        self.bounds: dict[int, tuple[IndexExpr, ...]] = {}
        """Arguments of each ``range``, by the identity of its loop."""

    @property
    def env(self) -> dict[str, Value]:
        return self.evaluator.env

    @property
    def guards(self) -> list[str]:
        return self.evaluator.guards

    @contextmanager
    def _guarded(self, guard: str) -> Iterator[None]:
        """Everything evaluated inside is under ``guard`` (nothing where it is empty)."""
        at = len(self.guards)
        if guard:
            self.guards.append(guard)
        yield
        if guard:
            del self.guards[at]

    @contextmanager
    def _assuming(self, test: ast.expr, taken: bool) -> Iterator[None]:
        """Everything evaluated inside stands where ``test`` holds, or where it does not."""
        known, kept = self.evaluator.condition(test), self.evaluator.assumed
        if known is not None:
            self.evaluator.assumed = {**kept, known[0]: known[1] == taken}
        yield
        self.evaluator.assumed = kept

    @contextmanager
    def _testing(self, picked: Iterable[Atom]) -> Iterator[None]:
        """Everything evaluated inside stands under conditions that pick elements."""
        at = len(self.evaluator.tests)
        self.evaluator.tests += sorted(picked, key=str)
        yield
        del self.evaluator.tests[at:]

    @property
    def accesses(self) -> list[RawAccess]:
        return self.evaluator.accesses

    def _returned(self, body: list[ast.stmt]) -> Value:
        """Walks a helper's body in the evaluator's environment; a value that is one of several is opaque."""
        walk = Walk(self.evaluator, frozenset(), {}, {})
        self.evaluator.returned = self._returned
        walk.block(body)
        if len(walk.results) == 1:
            return walk.results[0]
        return opaque("one of several results", body[0].lineno, *walk.results)

    def invariant_names(self) -> frozenset[str]:
        """Variables that hold one number for a whole launch (call it after the walk)."""
        return frozenset(n for n, v in self.env.items() if isinstance(v, IndexExpr) and v.terms and v.is_invariant)

    def block(self, body: list[ast.stmt]) -> bool:
        """Walks a statement list; True when it always jumps away at its end."""
        for statement in body:
            jumped = self.statement(statement)
            if id(statement) in self.coordinates:
                region, pid_map = self.coordinates[id(statement)]
                self.region_values[region] = {v: self.env[v] for _, v in pid_map if v in self.env}
                for axis, variable in pid_map:
                    self.env[variable] = IndexExpr.of(Atom("coord", variable, axis=axis, region=region))
            if jumped:
                return True
        return False

    def statement(self, node: ast.stmt) -> bool:
        value_of = self.evaluator.value
        if isinstance(node, ast.Assign):
            value = value_of(node.value)
            for target in node.targets:
                self._bind(target, value, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, value_of(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            self._augment(node)
        elif isinstance(node, ast.Expr):
            value_of(node.value)
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.While):
            self._loop(
                node,
                node.body,
                None,
                Atom("loop", f"iteration of line {node.lineno}", line=node.lineno, args=self._test(node.test)),
            )
        elif isinstance(node, ast.If):
            return self._if(node)
        elif isinstance(node, ast.With):
            for item in node.items:
                value_of(item.context_expr)
            return self.block(node.body)
        elif isinstance(node, ast.Assert):
            value_of(node.test)
        elif isinstance(node, ast.Return) and node.value is not None:
            self.results.append(value_of(node.value))
        elif isinstance(node, (ast.Continue, ast.Break)) and self.left:
            (self.left if isinstance(node, ast.Continue) else self.broken)[-1].append(dict(self.env))
        return isinstance(node, _JUMPS)

    def _test(self, test: ast.expr) -> tuple[IndexExpr, ...]:
        return (as_expr(self.evaluator.value(test)),)

    def _bind(self, target: ast.expr, value: Value, source: ast.expr) -> None:
        if isinstance(target, ast.Name):
            axis = self.counts.get((target.id, target.lineno))
            if axis is not None:
                value = IndexExpr.of(Atom("count", target.id, axis=axis))
            if target.id in self.tile_ids:
                self.tile_values[target.id, target.lineno] = value
                value = IndexExpr.of(Atom("tile_id", target.id))
            self.env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for i, part in enumerate(target.elts):
                if isinstance(value, Sequence) and len(value.items) == len(target.elts):
                    self._bind(part, value.items[i], source)
                else:
                    self._bind(part, opaque(f"{ast.unparse(source)}[{i}]", source.lineno, value), source)

    def _augment(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            whole = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
            self._bind(node.target, self.evaluator.value(whole), whole)

    def _if(self, node: ast.If) -> bool:
        test = self.evaluator.value(node.test)
        before = dict(self.env)
        guard = f"`if {ast.unparse(node.test)}`" if from_memory(test) else ""
        with self._guarded(guard):
            picked = picks(test)
            with self._assuming(node.test, True), self._testing(picked):
                left_jumps = self.block(node.body)
            left = self.evaluator.env
            self.evaluator.env = dict(before)
            with self._assuming(node.test, False), self._testing(replace(p, name=f"not {p.name}") for p in picked):
                right_jumps = self.block(node.orelse)
        if guard and any(isinstance(inner, _JUMPS) for inner in ast.walk(node)) and guard not in self.guards:
            self.guards.append(guard)  # what follows runs or not by what was loaded
        if left_jumps and not right_jumps:
            return False
        right = self.evaluator.env
        if right_jumps and not left_jumps:
            self.evaluator.env = left
            return False
        joined = dict(right)
        for name, value in left.items():
            joined[name] = merge(name, node.lineno, value, right[name], test) if name in right else value
        self.evaluator.env = joined
        return left_jumps and right_jumps

    def _for(self, node: ast.For) -> None:
        start, step = IndexExpr(), IndexExpr.constant(1)
        bounds: tuple[IndexExpr, ...]
        if isinstance(node.iter, ast.Call):
            # range, tl.range, tl.static_range and their aliases all take start, stop, step.
            bounds = tuple(as_expr(self.evaluator.value(a)) for a in node.iter.args)
            if len(bounds) >= 2:
                start = bounds[0]
            if len(bounds) >= 3:
                step = bounds[2]
        else:
            bounds = items(self.evaluator.value(node.iter))
        self.bounds[id(node)] = bounds
        name = node.target.id if isinstance(node.target, ast.Name) else "iteration"
        atom = Atom("loop", name, line=node.lineno, args=bounds)
        if isinstance(node.target, ast.Name) and node.target.id in self.tile_ids:
            self.tile_loops[node.target.id] = (node, bounds)
            self._loop(node, node.body, (node.target, start), atom)
        else:
            self._loop(node, node.body, (node.target, start + IndexExpr.of(atom) * step), atom)

    def _join(self, jumped: Iterable[Mapping[str, Value]], line: int, cause: Value) -> None:
        """What variables hold where these jumps go, as well as what comes there without one."""
        for env in jumped:
            for name, value in env.items():
                self.env[name] = merge(name, line, value, self.env.get(name, value), cause)

    def _loop(
        self, node: ast.stmt, body: list[ast.stmt], target: tuple[ast.expr, Value] | None, iteration: Atom
    ) -> None:
        entry = dict(self.env)
        mark = len(self.accesses)
        carried = sorted(name for s in body for name in writes(s) if name in entry and name not in self.tile_ids)
        if target is not None:
            carried = [name for name in carried if name not in writes(target[0])]
        count = IndexExpr.of(iteration)
        start = {name: entry[name] for name in carried}
        steps: dict[str, Value] = {}
        for attempt in range(2 * len(carried) + 4):
            del self.accesses[mark:]
            self.evaluator.env = {**entry, **start}
            if target is not None:
                self._bind(target[0], target[1], ast.copy_location(ast.Constant(0), node))
            self.left.append([])
            self.broken.append([])
            with self._guarded(_bounds(node, iteration)):
                self.block(body)
            self._join(self.left.pop(), node.lineno, count)
            broken, after = self.broken.pop(), self.env
            settled = True
            for name in carried:
                wanted = steps.get(name)
                step = _difference(after.get(name, start[name]), start[name])
                if attempt == 0:
                    if step is not None and _is_step(step):
                        steps[name] = step
                        start[name] = _advanced(entry[name], step, count)
                        settled = settled and start[name] == entry[name]
                        continue
                elif wanted is not None and step == wanted:
                    continue
                elif wanted is None and leaves(after.get(name, start[name])) <= leaves(start[name]):
                    continue
                steps.pop(name, None)
                start[name] = opaque(name, node.lineno, start[name], after.get(name, start[name]), count)
                settled = False
            if settled:
                break
        self._join(broken, node.lineno, count)
        # Behind the loop a carried variable has gone through any number of iterations, none included.
        for name, value in self.env.items():
            if name in entry and value != entry[name] and name not in self.tile_ids:
                self.env[name] = merge(name, node.lineno, entry[name], value, count)


def _bounds(node: ast.stmt, iteration: Atom) -> str:
    """The head of a loop whose number of iterations is read from memory, else nothing."""
    if not any(from_memory(bound) for bound in iteration.args):
        return ""
    if isinstance(node, ast.For):
        return f"`for {ast.unparse(node.target)} in {ast.unparse(node.iter)}`"
    return f"`while {ast.unparse(node.test)}`" if isinstance(node, ast.While) else ""


def _difference(after: Value, before: Value) -> Value | None:
    if isinstance(after, IndexExpr) and isinstance(before, IndexExpr):
        return after - before
    if isinstance(after, BlockPointer) and isinstance(before, BlockPointer):
        same = (after.base, after.shape, after.block) == (before.base, before.shape, before.block)
        if same and len(after.offsets) == len(before.offsets):
            return Sequence(tuple(a - b for a, b in zip(after.offsets, before.offsets, strict=True)))
    return IndexExpr() if after == before else None


def _is_step(step: Value) -> bool:
    if isinstance(step, Sequence):
        return all(_is_step(item) for item in step.items)
    return isinstance(step, IndexExpr) and step.is_invariant


def _advanced(entry: Value, step: Value, count: IndexExpr) -> Value:
    if isinstance(entry, BlockPointer) and isinstance(step, Sequence):
        moved = tuple(o + as_expr(s) * count for o, s in zip(entry.offsets, step.items, strict=True))
        return BlockPointer(entry.base, entry.shape, moved, entry.block, entry.strides)
    if isinstance(entry, IndexExpr) and isinstance(step, IndexExpr):
        return entry + step * count
    return entry
