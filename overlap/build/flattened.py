"""Variables that a flattened tile loop carries, and where Triton hands them on too early.

Triton fuses a flattened loop with its inner one: each step of the fused loop is one of the inner loop, with the head of a tile in
its first and the tail in its last. What a tile makes in its tail is handed on with the tail; anything else, such as a value that
the head has loaded, is handed on in *every* step (3.6 to 3.9)::

    for tile in tl.range(..., flatten=True):     step of the fused loop     last, as the source has it     as Triton has it
        run = find(tile)                         first of tile 1            run of tile 0                  run of tile 0
        for k in range(n): ...                   second of tile 1           run of tile 0                  run of tile 1
        count(last)                              last of tile 1: count      run of tile 0                  run of tile 1
        last = run

So a variable that gets its next value outside the tail may be read in the head alone. Where the inner loop makes one step,
nothing is wrong, so small tests may pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import ttir
from .rules import Finding

_PURE = ("arith.", "math.", "tt.addptr", "tt.bitcast", "tt.broadcast", "tt.expand_dims", "tt.int_to_ptr", "tt.make_range",
         "tt.ptr_to_int", "tt.reshape", "tt.splat", "tt.trans")  # fmt: skip
_REGIONS = ("scf.if", "scf.yield")


def early_tails(function: ttir.Function) -> Iterator[Finding]:
    """A finding for each carried variable that a flattened loop reads behind its head, and hands on before its tail."""
    for loop in function.ops("scf.for"):
        inner = _inner(loop)
        if inner is not None:
            yield from _Nest(function, loop, inner).findings()


def _inner(loop: ttir.Op) -> ttir.Op | None:
    """The loop that a flattened one is fused with; None where it is not flattened, or over several."""
    if "tt.flatten" not in loop.trailer:
        return None
    found = [op for op in loop.walk() if op.name == "scf.for" and op is not loop]
    return found[0] if len(found) == 1 and found[0].parent is loop else None


class _Nest:
    """A flattened loop and its inner one. ``tail``: operations of its body behind the inner loop, those included that Triton
    moves there: without effects, and used behind the inner loop alone."""

    def __init__(self, function: ttir.Function, loop: ttir.Op, inner: ttir.Op) -> None:
        self.loop, self.inner = loop, inner
        body = loop.regions[0]
        at = body.index(inner)
        self.users: dict[ttir.Value, list[ttir.Op]] = {}
        for op in function.ops():
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
        self.tail = set(body[at + 1 :])
        for op in reversed(body[:at]):
            used = [self._in_body(user) for result in op.results for user in self.users.get(result, ())]
            if used and _pure(op) and all(user in self.tail for user in used):
                self.tail.add(op)

    def findings(self) -> Iterator[Finding]:
        carried = [argument for argument in self.loop.arguments if argument.role == "carried"]
        if not carried:
            return  # then no yield is printed either
        handed = dict(zip(carried, self.loop.regions[0][-1].operands, strict=True))
        early = {
            a for a, value in handed.items() if value is not a and not (value.op is not None and self._tails(value))
        }
        for argument in (a for a in carried if a in early):
            # What is handed on from another that is handed on early is a tile ahead in the head, too.
            read = self._readers(argument, everywhere=handed[argument] in early)
            if read:
                yield Finding(
                    "tail-reads-carried",
                    "error",
                    read[0].line,
                    f"what is carried here as %{argument.name} is read behind the head of a flattened loop, where it has its "
                    "next value already: compute that behind the inner loop, or take flatten=True from the loop",
                )

    def _tails(self, value: ttir.Value) -> bool:
        assert value.op is not None
        return self._in_body(value.op) in self.tail

    def _in_body(self, op: ttir.Op) -> ttir.Op:
        """The operation of the loop's body that is, or holds, another; that one itself where it stands elsewhere."""
        return next((each for each in (op, *op.ancestors()) if each.parent is self.loop), op)

    def _readers(self, argument: ttir.Value, everywhere: bool) -> list[ttir.Op]:
        """Operations that read a carried value: those in the inner loop and in the tail, or all."""
        last = self.loop.regions[0][-1]
        found = [op for op in self.users.get(argument, ()) if op is not last]
        return [op for op in found if everywhere or self._late(op)]

    def _late(self, op: ttir.Op) -> bool:
        # What enters the inner loop is read in its first step.
        return op is not self.inner and (self._in_body(op) in self.tail or self._in_body(op) is self.inner)


def _pure(op: ttir.Op) -> bool:
    if op.name == "tt.elementwise_inline_asm":
        return "pure = true" in op.text
    if op.regions:
        return op.name in _REGIONS and all(_pure(inside) for region in op.regions for inside in region)
    return op.name in _REGIONS or op.name.startswith(_PURE)
