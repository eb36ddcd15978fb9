"""The rules of the memory model, read off what Triton really emitted.

What must hold stands in `overlap.backends.memory_rules`; here it is looked for. Order that the compiler could break
is read off TTIR (what depends on what) and PTX (what stands before what), so a Triton upgrade that changes one
shows here and not as a race on a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from overlap.backends.memory_rules import PROXY_FENCE, READERS, SCOPE, SEM, WRITERS
from overlap.schedule import table
from overlap.schedule.moves import BETWEEN_BYTES, SHARED_BYTES

from . import ptx, ttir
from .artifact import Artifact
from .callees import borrowed_memory
from .compare import compare
from .dataflow import backward_slice, bases, constant, constant_offset, ops_of, parameter_of
from .flattened import early_tails
from .rules import Finding
from .static_memory import static_memory
from .words import check_words

LOCAL_WORDS = table.S_READY * table.SLOT_WORDS
"""Words of the state tensor below this are this rank's own: epoch, counter, spin limit, fault."""

_ATOMIC = re.compile(r"\b(relaxed|acquire|release|acq_rel), (gpu|cta|sys)\b")
_STORES = ("tt.store", "tt.atomic_rmw", "tt.descriptor_store", "tt.descriptor_reduce", "tt.descriptor_scatter")
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
_BULK_LOAD = "cp.async.bulk.shared::cluster.global"
"""What inline assembly holds that loads by TMA itself."""


def check(
    artifact: Artifact,
    *,
    guarded: Iterable[str],
    produced: Iterable[str] = (),
    sent: Iterable[str] = (),
    original: Artifact | None = None,
    flags: str = "ol_state",
    moves: str = "",
    writer: str = "load/store",
    reserved: bool = True,
    nested: int = 0,
) -> list[Finding]:
    """Everything that breaks a rule in a compiled kernel, errors first.

    Args:
        artifact: the kernel, compiled.
        guarded: parameters whose data arrives by communication and is waited for.
        produced: parameters whose data leaves by communication, once it is counted.
        sent: parameters whose data leaves in words that carry their own flag.
        original: the kernel it was made from, compiled for the same target with the same arguments.
        flags: parameter that holds this rank's state words.
        moves: parameter that holds the table of what programs of the launch move, if they do; ``writer``: how; ``reserved``:
            programs of their own, which may take shared memory for it.
        nested: loops that were put around the original's inner loop (1 where it is cut into parts).
    """
    kernel = _Kernel(ttir.parse(artifact.stages["ttir"]), frozenset(guarded), frozenset(produced), flags, moves)
    found = [
        *_waits_feed_loads(kernel, artifact),
        *_signals(kernel),
        *_counted(kernel),
        *_clusters(kernel, artifact),
        *early_tails(kernel.function),
    ]
    if artifact.target.nvidia:
        program = ptx.parse(artifact.assembly)
        found += _machine_code(kernel, program)
        found += borrowed_memory(artifact.assembly)
        found += static_memory(artifact)
        for name in sorted(sent):
            stored = {op.line for op in kernel.function.ops(*_STORES) if name in kernel.tensors(op)} - {0}
            found += check_words(name, stored, program)
    if original is not None:
        found += compare(artifact, original, nested, **_shared(moves, writer, reserved))
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(dict.fromkeys(found), key=lambda f: (order[f.severity], f.line, f.rule))


def _shared(moves: str, writer: str, reserved: bool) -> dict[str, int]:
    """What moving may take of shared memory: programs of their own in the place of what tiles have, others beside it."""
    if not moves:
        return {}
    return {"taken": SHARED_BYTES[writer]} if reserved else {"beside": BETWEEN_BYTES * (writer == "tma store")}


class _Kernel:
    """A kernel's TTIR with its guarded loads, its stores of what leaves, and its reads and raises of flags found."""

    def __init__(
        self, function: ttir.Function, guarded: frozenset[str], produced: frozenset[str], flags: str, moves: str
    ) -> None:
        self.function = function
        self.guarded = guarded
        self.produced = produced
        self.flags = flags
        self.loads = [op for op in function.ops(*_LOADS) if self.tensors(op) & guarded]
        self.moved = [op for op in function.ops(*_LOADS) if moves and self.is_addressed_by(op, moves)]
        self.moved += [op for op in function.ops() if moves and _BULK_LOAD in op.text]
        self.atomics = [op for op in function.ops() if op.name.startswith("tt.atomic") and self.is_flag(op)]
        self.polls = [op for op in self.atomics if _reads_only(op)]
        self.stores = [op for op in function.ops(*_STORES) if self.tensors(op) & produced]
        self.raises = [op for op in self.atomics if op not in self.polls]
        self.waits = [op for op in self.polls if _strong("poll", _semantics(op)[0])]

    def tensors(self, op: ttir.Op) -> set[str]:
        """Parameters whose memory an access touches."""
        names = {parameter_of(self.function, base) for base in bases(op.operands[0])}
        return {name for name in names if name is not None}

    def is_flag(self, op: ttir.Op) -> bool:
        """Whether an access touches a word that ranks share: a state word that is not local, or a peer's address."""
        for base in bases(op.operands[0]):
            if base.op is not None and base.op.name == "tt.int_to_ptr":
                return True
            if parameter_of(self.function, base) == self.flags:
                offset = constant_offset(op.operands[0], base)
                if offset is None or offset >= LOCAL_WORDS:
                    return True
        return False

    def is_addressed_by(self, op: ttir.Op, table: str) -> bool:
        """Whether an access is to an address that was loaded from the memory of a parameter."""
        for base in bases(op.operands[0]):
            made = base.op.operands[0].op if base.op is not None and base.op.name == "tt.int_to_ptr" else None
            if made is not None and made.name == "tt.load" and table in self.tensors(made):
                return True
        return False

    def slice(self, load: ttir.Op) -> set[ttir.Op]:
        """Operations that a load's address is computed from in the same iteration of the loops around it."""
        around = frozenset(op for op in load.ancestors() if op.name in ("scf.for", "scf.while"))
        return ops_of(backward_slice(load.operands, around))


def _semantics(op: ttir.Op) -> tuple[str, str]:
    found = _ATOMIC.search(op.text)
    return (found[1], found[2]) if found else ("relaxed", "gpu")


def _strong(word: str, semantics: str) -> bool:
    """Whether an atomic is at least as strong as the rule for ``poll`` or ``flag`` asks."""
    return semantics in (SEM[word], "acq_rel")


def _reads_only(op: ttir.Op) -> bool:
    """An atomic that leaves the word as it is: an addition of 0, an atomic load or poll."""
    if op.name == "tt.atomic_rmw":
        return op.text.split()[1].rstrip(",") in ("add", "or", "xor") and constant(op.operands[1]) == 0
    return op.name in ("tt.atomic_load", "tt.atomic_poll", "tt.atomic_cas")


def _reader(load: ttir.Op) -> str:
    """The row of the memory table that a load, or assembly that loads, belongs to where descriptors become TMA."""
    return "tma load" if load.name.startswith("tt.descriptor") or _BULK_LOAD in load.text else "load"


def _waits_feed_loads(kernel: _Kernel, artifact: Artifact) -> Iterable[Finding]:
    used: set[ttir.Op] = set()
    for name in sorted(kernel.guarded):
        if not any(name in kernel.tensors(load) for load in kernel.loads):
            yield Finding("wait-feeds-load", "error", 0, f"no load of `{name}` found, so nothing was checked")
    for load in kernel.loads:
        names = ", ".join(f"`{name}`" for name in sorted(kernel.tensors(load) & kernel.guarded))
        made_of = kernel.slice(load)
        used |= made_of
        if not made_of & set(kernel.waits):
            yield Finding(
                "wait-feeds-load", "error", load.line, f"the address of this load of {names} does not depend on a wait"
            )
        elif _unfenced(kernel, load, made_of, artifact):
            yield Finding(
                "proxy-fence", "error", load.line, f"TMA load of {names} without a proxy fence behind its wait"
            )
    for load in kernel.moved:
        made_of = kernel.slice(load)
        used |= made_of
        if not made_of & set(kernel.waits):
            yield Finding(
                "wait-feeds-load", "error", load.line, "the address of what is moved does not depend on a wait"
            )
        elif _unfenced(kernel, load, made_of, artifact):
            yield Finding(
                "proxy-fence", "error", load.line, "TMA load of what is moved without a proxy fence behind its wait"
            )
    for wait in kernel.waits:
        if kernel.loads and wait not in used:
            yield Finding("wait-used", "error", wait.line, "what this wait returned is not used")


def _unfenced(kernel: _Kernel, load: ttir.Op, made_of: set[ttir.Op], artifact: Artifact) -> bool:
    """Whether a load by TMA is made of no proxy fence that is itself made of a wait."""
    if not (artifact.target.has_tma and READERS[_reader(load)].proxy_fence):
        return False
    fences = [op for op in made_of if PROXY_FENCE in op.text]
    return not any(ops_of(backward_slice(fence.operands)) & set(kernel.waits) for fence in fences)


def _signals(kernel: _Kernel) -> Iterable[Finding]:
    for op in kernel.atomics:
        semantics, scope = _semantics(op)
        poll = op in kernel.polls
        what = "read" if poll else "raised"
        if scope != SCOPE:
            yield Finding(
                "system-scope", "error", op.line, f"a flag is {what} at {scope} scope; other ranks need {SCOPE}"
            )
        word = "poll" if poll else "flag"
        if not _strong(word, semantics):
            yield Finding(
                "acquire-release", "error", op.line, f"a flag is {what} with {semantics}, not {SEM[word]} semantics"
            )
    for op in kernel.function.ops("tt.load", "tt.store"):
        if kernel.flags in kernel.tensors(op) and kernel.is_flag(op):
            how = (
                "polled by a plain load: the compiler may read it once"
                if op.name == "tt.load"
                else "raised by a plain store"
            )
            yield Finding("acquire-release", "error", op.line, f"a flag is {how}")


def _counted(kernel: _Kernel) -> Iterable[Finding]:
    """Behind every store of what leaves, in its block or in one around it, a counter is raised."""
    for name in sorted(kernel.produced):
        if not any(name in kernel.tensors(store) for store in kernel.stores):
            yield Finding("count-after-store", "error", 0, f"no store to `{name}` found, so nothing was checked")
    for store in kernel.stores:
        if not any(_behind(raised, store) for raised in kernel.raises):
            names = ", ".join(f"`{name}`" for name in sorted(kernel.tensors(store) & kernel.produced))
            yield Finding("count-after-store", "error", store.line, f"nothing is counted behind this store to {names}")


def _behind(later: ttir.Op, first: ttir.Op) -> bool:
    """Whether ``later`` stands behind ``first`` in a block that holds both, and runs whenever that block does."""
    block = next((region for region in later.parent.regions if later in region), []) if later.parent else []
    inside = next((op for op in (first, *first.ancestors()) if op in block), None)
    return inside is not None and block.index(inside) < block.index(later)


def _clusters(kernel: _Kernel, artifact: Artifact) -> Iterable[Finding]:
    if artifact.num_ctas > 1 and kernel.atomics:
        yield Finding("one-cta", "error", 0, f"num_ctas={artifact.num_ctas}: only the first CTA of a cluster polls")
    for wait in kernel.waits:
        if any("tt.warp_specialize" in op.trailer for op in wait.ancestors()):
            yield Finding("no-warp-specialised-wait", "error", wait.line, "a wait in a warp-specialised loop")


def _machine_code(kernel: _Kernel, program: ptx.Program) -> Iterable[Finding]:
    acquires = [i for i in program.instructions if SCOPE in i.words and any(_strong("poll", w) for w in i.words)]
    if kernel.polls and not acquires:
        yield Finding("wait-kept", "error", kernel.polls[0].line, "no acquire at system scope is left in the PTX")
    stored = {store.line for store in kernel.stores} - {0}

    def stores(i: ptx.Instruction) -> bool:
        return ptx.stores(i) or (i.line in stored and i.words[0] in ("atom", "red") and SCOPE not in i.words)

    for instruction in program.instructions:
        if not _releases(instruction):
            continue
        store = program.meets_before(instruction, stores, _with(ptx.synchronises, instruction, program))
        if store is not None and WRITERS["load/store"].barrier:
            yield Finding(
                "barrier-before-release",
                "error",
                instruction.line,
                f"no barrier between the store of line {store.line} and this release: one thread raises, others store",
            )
        drained = _with(ptx.drains, instruction, program)
        tma = program.meets_before(instruction, ptx.stores_by_tma, drained)
        if tma is not None and WRITERS["tma store"].completes:
            yield Finding(
                "store-drained",
                "error",
                instruction.line,
                f"the TMA store of line {tma.line} may land after this release",
            )
    for instruction in program.instructions:
        if instruction.line in stored and (stores(instruction) or ptx.stores_by_tma(instruction)):
            if program.leaves_without(instruction, _releases):
                yield Finding(
                    "count-after-store", "error", instruction.line, "this store may be the last thing that runs"
                )
    lines = {load.line for load in kernel.loads} - {0}
    for load in program.instructions:
        if acquires and load.line in lines and _loads(load):
            if not any(program.can_follow(acquire, load) for acquire in acquires):
                yield Finding("load-after-wait", "error", load.line, "a copy of this load runs before any wait")


def _with(
    kind: Callable[[ptx.Instruction], bool], release: ptx.Instruction, program: ptx.Program
) -> Callable[[ptx.Instruction], bool]:
    """Instructions of a kind that run whenever ``release`` does: under no predicate, or one that it is under, if with more."""
    mine = program.guards(release)
    return lambda i: kind(i) and (not i.predicated or not mine.isdisjoint(program.guards(i, alone=True)))


def _releases(i: ptx.Instruction) -> bool:
    return SCOPE in i.words and any(_strong("flag", word) for word in i.words)


def _loads(i: ptx.Instruction) -> bool:
    words = i.words
    if words[0] == "ld":
        return "global" in words and "acquire" not in words
    return words[:2] == ("cp", "async") and "global" in words and not ptx.stores_by_tma(i)
