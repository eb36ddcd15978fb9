"""Who carries out each operation of a launch: the backend that it names, or else the call's.

    lanes    copies on streams beside the kernel                       any number of operations
    moves    programs of the kernel's own launch, of what it reads     one backend a launch: one branch, one table
    stores   the tiles of the kernel itself, of what it makes          one backend a launch: one way to store a tile

Each carrier raises the flags of its own operations, and waits for flags and never for another carrier: a move polls them,
a lane has a wait kernel do so. So operations of one plan combine freely, also where one depends on another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from overlap.chunkplan.named import named_backends
from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, Collective, CommOp, CommPlan, OpId
from overlap.errors import UnsupportedError, UsageError

from .base import Backend
from .capabilities import COLLECTIVE, Need, check_named, names, require
from .registry import backend, backends

Form = Literal["lanes", "moves", "stores"]


def form_of(found: Backend, produced: bool) -> Form:
    """How a backend carries out operations on what a kernel makes (``produced``), or reads."""
    if produced:
        return "stores" if found.inline else "lanes"
    return "moves" if found.reserved or found.inline else "lanes"


@dataclass(frozen=True)
class Carriers:
    """Who carries out the operations of one kernel's launches.

    ``chosen``: the call's backend. ``moving``, ``storing``: the backends whose moves and stores the kernel has, None: it has
    none. Without either everything goes by lanes.
    """

    chosen: str
    moving: str | None = None
    storing: str | None = None

    @classmethod
    def of(cls, chosen: str, plans: Iterable[tuple[str, bool]], strided: str = "") -> Carriers:
        """The carriers of a kernel.

        Args:
            chosen: the call's backend; ``strided``: that of small strided chunks, if there is another.
            plans: the text of each communicated tensor's plan, and whether the kernel makes the tensor.

        Raises:
            UsageError: an operation names a backend that there is not.
            UnsupportedError: operations name several backends of one form, of which a kernel has one.
            PlanError: a text that is no plan.
        """
        found: dict[Form, str] = {}
        everyone: set[str] = set()
        for text, produced in plans:
            named = named_backends(text)
            names_here = {chosen if n is None else n for n in named}
            if strided and None in named and moves_strided(chosen, strided, produced):
                names_here.add(strided)
            everyone |= names_here
            for name in sorted(names_here):
                form = form_of(backend(name) if name == chosen else _named(name), produced)
                other = found.setdefault(form, name)
                if form != "lanes" and other != name:
                    what = "stores its tiles" if form == "stores" else "moves what it reads"
                    raise UnsupportedError(
                        f"operations ask for {other} and for {name}, and a kernel {what} in one way",
                        help=f"name one of the two, or copy_engine for the others: {other} beside copy_engine",
                    )
        result = cls(chosen, found.get("moves"), found.get("stores"))
        if result.words and len(everyone) > 1:
            others = " and ".join(sorted(everyone - {result.storing}))
            raise UnsupportedError(
                f"operations ask for {result.storing} and for {others}: words of the kernel's own launch wait for nothing else",
                help=f"{result.storing} for all of them, or ldst_inline beside copy_engine",
            )
        return result

    @property
    def words(self) -> bool:
        """Whether kernels send what they make in words that carry their own flag, and add up what comes."""
        return self.storing is not None and backend(self.storing).words

    def backend_of(self, op: CommOp) -> Backend:
        """Who carries an operation out."""
        return backend(op.backend or self.chosen)

    def moved(self, plan: CommPlan, produced: Collection[str]) -> frozenset[OpId]:
        """The operations of all ranks that programs of kernels' launches move."""
        return self._carried("moves", plan, produced) if self.moving else frozenset()

    def stored(self, plan: CommPlan, produced: Collection[str]) -> frozenset[OpId]:
        """The operations of all ranks whose tiles kernels store where they go, as far as tiles make what they send."""
        return self._carried("stores", plan, produced) if self.storing else frozenset()

    def _carried(self, form: Form, plan: CommPlan, produced: Collection[str]) -> frozenset[OpId]:
        return frozenset(
            op_id for op_id, op in plan.items() if form_of(self.backend_of(op), op.src.tensor in produced) == form
        )

    def ordered(self, plan: CommPlan) -> bool:
        """Whether a flag of a channel stands for those before it: each of its backends raises them in order."""
        return all(self.backend_of(op).ordered for _, op in plan.items())

    def check(self, plan: CommPlan, what: str, produced: Collection[str]) -> None:
        """Refuses operations that name a backend which cannot carry them out.

        Args:
            what: names the communicated tensor in messages (``c[M]``).
            produced: tensors that the kernel makes.

        Raises:
            UsageError, UnsupportedError: with the operation's place in its file.
        """
        for op_id, op in plan.items():
            if op.backend is None or (isinstance(op, Collective) and op.backend == COLLECTIVE):
                continue
            where, made = plan.where(op_id), op.src.tensor in produced
            if isinstance(op, Collective):
                raise UnsupportedError(
                    f"plan {plan.name}, {name_op(plan, op_id)} names {op.backend}, and a library carries collectives out",
                    where=where,
                    help="leave `backend:` out, or write it as copies of chunks",
                )
            try:
                found = _named(op.backend)
            except UsageError as error:
                raise (error.at(where) if where else error) from None
            way = (op.direction,) if isinstance(op, P2P) and op.direction != "local" else ()
            require(found, Need(what, op.src.tensor, "result" if made else "input", way), where=where)
            carried = {"lanes": found.name, "moves": self.moving, "stores": self.storing}[form_of(found, made)]
            if carried != found.name:
                raise UnsupportedError(
                    f"plan {plan.name}, {name_op(plan, op_id)} asks for {found.name}, which its kernel was not compiled for",
                    where=where,
                    help=f'write the key as it is (`backend: {found.name}`), or backend="{found.name}" in the call',
                )

    def __str__(self) -> str:
        return "+".join(dict.fromkeys(name for name in (self.chosen, self.moving, self.storing) if name))


def moves_strided(chosen: str, strided: str, produced: bool) -> bool:
    """Whether small strided chunks of a tensor go by ``strided`` instead of the call's backend.

    Raises:
        UsageError: there is no such backend.
    """
    found = _named(strided)
    return form_of(backend(chosen), produced) == "lanes" and ("result" if produced else "input") in found.moves


def _named(name: str) -> Backend:
    check_named(name, names(), Need("an operation"))
    if name not in backends:
        raise UsageError(
            f"{name} carries out whole calls, not single operations",
            help=f"backend={name!r} of the call; operations may name {', '.join(backends)}; a library carries out "
            "`collective: all_gather` and such",
        )
    return backends[name]


def check_copied(plan: CommPlan, chosen: str) -> None:
    """Refuses operations that name another backend than ``chosen``, where that carries out all of them: without a kernel.

    Raises:
        UsageError: an operation names a backend that there is not, or another one.
    """
    for op_id, op in plan.items():
        if not isinstance(op, P2P) or op.backend is None or op.backend == chosen:
            continue
        where = plan.where(op_id)
        try:
            _named(op.backend)
        except UsageError as error:
            raise (error.at(where) if where else error) from None
        raise UsageError(
            f"plan {plan.name}: an operation asks for {op.backend}, and without a kernel all go by {chosen}",
            where=where,
            help=f"leave `backend:` out of the plan, or write `backend: {chosen}`",
        )
