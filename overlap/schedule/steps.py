"""What one rank's host enqueues for one launch, as data: the copy-engine protocol step by step.

    pull     main    Entry | Fork | Kernel .............................. | Join |
             lane 0               | [Await] Copy Raise ... | Credit*      /
    push     main    Entry | Fork | Kernel .............................. | Join | Credit*
             lane 0               | [Await] Copy Raise ...                /
    given    main    Entry | Fork | Stage | Kernel ...................... | Join | Credit*
             lane 0               | Copy Raise | Copy Raise ...           /
    in place main    Entry | Fork | Kernel (own tiles read as given) .... | Join | Credit*
             lane 0               | Copy Raise | Copy Raise ...           /
    produce  main    Entry | Fork | Kernel .......... | Sum (result) | Credit* | Join
             lane 0               | Hold Copy Raise | Hold Copy Raise ........ /
    two-shot main    Entry | Fork | Kernel .......... | Sum (own shard) | Fork | Sum (the rest) | Credit* | Join | Join
             lane 0               | Hold Copy Raise | Hold Copy Raise ...        ....................... /      /
             lane 1                                                     | Copy Raise ........................../

    reserved main    Entry | Kernel (moves and tiles) ................... | Credit*

    mixed    main    Entry | Fork | Kernel (moves and tiles) ............ | Join | Credit*
             lane 0               | Copy Raise | [Await a move] Copy Raise /

    In parts (split), every part of the own shard is a sum of its own, and lane 1 is forked again behind each.

    stored   main    Entry | Fork | Kernel .......... | Sum (own shard, stored at peers) | Sum (the rest) | Credit* | Join
             lane 0               | Hold Copy Raise | Hold Copy Raise ...                                           /
             early, lane 2 as above without Branch, and
             lane 3               | Gather Sum (part 0 of others) | Gather Sum (part 1 of others) ... / ahead of the rest

    early    main    Entry | Forks | Kernel ........................... | Join 2 | Sum (last part) | Fork 1 | Sum (rest) | ...
             lane 0                | Hold Copy Raise | Hold Copy Raise ...
             lane 2                | Whole Gather Sum (part 0) | Whole Gather Sum (part 1) ... /
             lane 1                                   | Branch | Copy Raise | Branch | Copy Raise ...

What each step orders, for launch n on rank r:

* ``Entry`` waits until every peer's `done` credit is n-1: only then may r stage its shard (a peer may still pull
  from it) and its lanes push (a peer's kernel or sum may still read what they overwrite). Pulls read a staged shard of
  this launch, so with any pull in the plan entries also exchange `ready`; a push reads the rank's own memory.
  With ``counters`` it also sets the counters of chunks that tiles make back to zero.
* ``Stage`` stands where the entry does not stage: lanes that send the rank's own chunk out of the caller's tensor (``given``)
  are forked ahead of it and wait for credits alone, the kernel's own tiles read what is staged, and so do lanes that are
  forked behind it. Their joins, ahead of all that the caller enqueues next, keep that from overwriting what they still read.
  With any pull the entry stages, since ``ready`` says that it has. A kernel whose tiles read the rank's own chunk where the
  caller has it (``Kernel.given``) needs no stage where all who send that chunk read it there; the caller's stream is behind
  the kernel by itself.
* ``Await`` holds a lane until the flag of an operation that the next copy depends on has been raised, wherever that
  landed: at r (to forward a chunk), at the peer that r pulls from (a relay), or at the peer that r pushes to. What
  the same lane did before needs none.
* ``Hold`` holds a lane until the chunk that the next copy sends is whole: the counter of its tiles is at its target.
* ``Raise`` stands behind its copy on the same lane.
* ``Whole``, ``Gather``: a lane that adds up waits until the rank's own part is whole and until all others have landed, so
  that its ``Sum`` never waits itself; ``Branch`` orders those that send the sum on behind it. Sums of the main stream come
  behind that lane: they fill the device and wait for what other ranks' lanes send.
* ``Sum`` waits on the device for the flags of what it adds. Sums stand behind the kernel, whose partial they read.
  What a lane sends on of a sum it sends behind a ``Fork`` behind that sum; a lane forked already is forked again.
  What a sum ``stores`` it sends itself, into slots that peers' entries, by credits, have said are read, and raises the flags
  behind all of it.
* A ``Kernel`` with ``moves`` carries operations out itself, by programs of its launch that compute nothing (`moves`), and
  credits follow it. Lanes carry out the others. Of one channel that has both, each awaits the one ahead of it that is
  carried out otherwise.
* ``Credit`` tells a peer that r has read all it will read in this launch. With pulls alone r's kernel reads memory that
  only r writes, so credits follow the last copy (on the lane if there is one lane, else behind the joins). With any
  push a peer writes what r's kernel, lanes and sums read, so credits follow kernel, sums and joins. What lanes send of a
  tensor that tiles make, a part or a sum, only r writes: such lanes are joined behind the credits, and the last program of
  the sum that they follow can give them.

Whatever feeds the kernel is enqueued before it and whatever it feeds behind it, though both lanes are forked before
it: the host may wait for each kernel (``CUDA_LAUNCH_BLOCKING=1``). Copies that wait for a move, of any rank, are
enqueued behind it though they feed it, so a host that waits for kernels cannot run them (`verify_steps` says so).
Operations go in stages for the same reason: those that send a sum come behind everything that such sums, on any rank,
may wait for.

Dropping any step is a race the simulator must find (tests/sim); `verify_steps` finds it without running.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from overlap.chunkplan.order import happens_before, name_op
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId
from overlap.errors import PlanError, ScheduleError, UnsupportedError

from .givens import ahead_of_staging, needs_no_stage
from .moves import moves_of
from .pieces import Piece, check_produced
from .producing import Producing, carry_out, stages
from .step import (
    Await,
    Branch,
    Copy,
    Credit,
    Entry,
    Fork,
    Gather,
    Hold,
    Join,
    Kernel,
    Library,
    Raise,
    Stage,
    Step,
    Sum,
    Whole,
)

__all__ = [
    "Await",
    "Branch",
    "Copy",
    "Credit",
    "Entry",
    "Fork",
    "Gather",
    "Hold",
    "Join",
    "Kernel",
    "Library",
    "Raise",
    "Stage",
    "Step",
    "Sum",
    "Whole",
    "carry_out",
    "directions",
    "launch_steps",
    "stages",
    "with_library",
]


def launch_steps(
    plan: CommPlan,
    rank: int,
    *,
    produced: Collection[str] = (),
    stores: bool | Collection[OpId] = False,
    moves: bool | Collection[OpId] = False,
    kernel_first: bool = False,
    early: bool = False,
    given: Collection[OpId] = (),
    sums_store: Collection[OpId] = (),
    in_place: bool = False,
    finished: Collection[Piece] = (),
) -> tuple[Step, ...]:
    """The steps of ``rank`` for one launch of ``plan``, by copy engine where nothing else is said.

    Args:
        produced: tensors of the plan that the kernel writes.
        stores: of these operations (True: of all) the kernel sends itself what it makes, by stores; what is summed first
            goes by copy engine still.
        moves: programs of kernels' launches carry out these operations of all ranks (True: all).
        kernel_first: enqueues the kernel before the copies that feed it, faster where the host is slow, wrong under
            ``CUDA_LAUNCH_BLOCKING=1``.
        early: sums are made while the kernel runs, as far as they can (`early.can_be_early`).
        given: operations of the rank that may be copied out of the caller's tensor (`givens.sent_as_given`).
        sums_store: operations, of any rank, that the sums which they send carry out (`stored_sums.stored_sums`).
        in_place: tiles store what stays of a result (`staying`) in the result itself, so that no sum copies it; of a plan that
            feeds the kernel alone they read what the rank holds where its caller has it, and nothing is staged.
        finished: pieces of results that tiles add up themselves (`tile_sums.finished`).

    Raises:
        UnsupportedError: the plan has an operation that a copy engine cannot do, or one that both feeds the kernel and
            waits for it; or one that sends what the kernel makes, with ``moves``.
        ScheduleError: with ``in_place``, an operation that reads what is then not staged (`givens.needs_no_stage`).
        PlanError: an operation stands in the list of a rank that does not carry it out; with ``produced`` also as
            `pieces`.
    """
    _check_copies_only(plan, produced)
    own = plan.ops[rank]
    pulls, pushes = directions(plan)
    peers = [(rank + step) % plan.world for step in range(1, plan.world)]
    moved = frozenset(op_id for op_id, _ in plan.items()) if moves is True else frozenset(moves or ())
    _check_fed(plan, moved, produced)
    feeding = [i for i, op in enumerate(own) if op.src.tensor not in produced and (rank, i) not in moved]
    lanes = sorted({own[i].channel for i in feeding})
    sending: list[int] = []
    behind: dict[int, set[OpId]] = {lane: set() for lane in lanes}
    made = None
    if produced:
        made = Producing(
            plan, rank, produced, stores, early=early, sums_store=sums_store, in_place=in_place, finished=finished
        )
    moving = moves_of(plan, rank, moved=moved) if moved else ()
    held = _held(plan, rank, feeding, given) if in_place and made is None else ()
    kernel = Kernel((), moving, given=held)
    if made is not None:
        kernel = Kernel(made.stored, moving, made.placed, finished=made.finished)

    ahead = ahead_of_staging(plan, rank, feeding, given)
    sent: list[Step] = []
    copies: list[Step] = []
    late: list[Step] = []
    after_moves = _after_moves(plan, moved) if feeding else set()
    for index in feeding:
        enqueued = sent if own[index].channel in ahead else copies
        if kernel_first or (rank, index) in after_moves:
            enqueued = late
        from_caller = own[index].channel in ahead and (rank, index) in given
        enqueued += carry_out(plan, (rank, index), behind, moved=moved, given=from_caller)
    counts = bool(kernel.moves) or (made is not None and (bool(made.partial) or bool(made.kept)))
    steps: list[Step] = [Entry(plan.world > 1, pulls, counts)]
    if ahead:
        steps += [*(Fork(lane) for lane in lanes if lane in ahead), *sent, *(() if held else (Stage(),))]
    steps += [Fork(lane) for lane in lanes if lane not in ahead]
    if made is not None:
        steps += made.forks()
    steps += [*copies, kernel, *late]
    if made is not None:
        steps += made.steps()
        sending = sorted(made.behind.keys() - made.joined)
    on_lane = len(lanes) == 1 and not pushes and not kernel.moves
    if on_lane:
        steps += [Credit(peer, lanes[0]) for peer in peers]
    steps += [Join(lane) for lane in lanes]
    if not on_lane:
        steps += [Credit(peer, None) for peer in peers]
    return (*steps, *(Join(lane) for lane in sending))


def _held(plan: CommPlan, rank: int, copied: Sequence[int], given: Collection[OpId]) -> tuple[Chunk, ...]:
    """What the rank's caller holds, for tiles to read it there.

    Raises:
        ScheduleError: an operation reads it in symmetric memory.
    """
    if not needs_no_stage(plan, rank, copied, given):
        raise ScheduleError(
            f"plan {plan.name}: rank {rank} stages nothing, and some operation reads what it holds staged"
        )
    return tuple(chunk for chunk in plan.before[rank] if not chunk.box.empty)


def with_library(steps: Sequence[Step], tensors: Collection[str], produced: Collection[str]) -> tuple[Step, ...]:
    """The steps of a launch with collectives of ``tensors`` by a library.

    Those are kernels, which would starve behind a grid that fills the device and waits for them. So they stand where nothing
    of the launch waits beside them: behind the entry, ahead of all else, and behind the kernel and the sums.
    """
    read = [Library(name) for name in tensors if name not in produced]
    made = [Library(name) for name in tensors if name in produced]
    last = max(i for i, step in enumerate(steps) if isinstance(step, Entry | Kernel | Sum))
    first = next(i for i, step in enumerate(steps) if isinstance(step, Entry))
    return (*steps[: first + 1], *read, *steps[first + 1 : last + 1], *made, *steps[last + 1 :])


def _after_moves(plan: CommPlan, moved: frozenset[OpId]) -> set[OpId]:
    """The operations, of all ranks, that some move happens before."""
    found: set[OpId] = set()
    order = happens_before(plan) if moved else None
    for op_id in order.order if order is not None else ():
        assert order is not None
        if any(ahead in moved or ahead in found for ahead, _ in order.predecessors[op_id]):
            found.add(op_id)
    return found


def _check_fed(plan: CommPlan, moved: Collection[OpId], produced: Collection[str]) -> None:
    for op_id in sorted(moved):
        if plan.op(op_id).src.tensor in produced:
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)} sends what the kernel makes, and its own programs move only what "
                "it reads",
                where=plan.where(op_id),
                help="copy_engine or ldst_inline carries this plan out",
            )


def directions(plan: CommPlan) -> tuple[bool, bool]:
    """Whether any rank of the plan pulls, and whether any pushes."""
    found = {op.direction for ops in plan.ops for op in ops if isinstance(op, P2P)}
    return "pull" in found, "push" in found


def _check_copies_only(plan: CommPlan, produced: Collection[str]) -> None:
    check_produced(plan, produced)
    lanes: dict[tuple[int, int], OpId] = {}
    for op_id, op in plan.items():
        said, where = f"plan {plan.name}, {name_op(plan, op_id)}", plan.where(op_id)
        if not isinstance(op, P2P):
            raise UnsupportedError(
                f"{said}: a copy engine cannot do a collective ({op.kind})",
                where=where,
                help="write it as pushes or pulls of chunks",
            )
        if op.reduce and op.src.tensor not in produced:
            raise UnsupportedError(
                f"{said}: a copy engine moves data, it cannot reduce ({op.reduce})",
                where=where,
                help="what is reduced is a tensor that the kernel writes",
            )
        if op.src_rank == op.dst_rank:
            raise UnsupportedError(
                f"{said}: a copy inside a rank runs as a kernel, which starves behind a grid that waits for it",
                where=where,
                help="let the kernel read that chunk where it is",
            )
        if op_id[0] != op.owner:
            raise PlanError(
                f"{said} stands in the list of rank {op_id[0]}, not of rank {op.owner}",
                where=where,
                help="a pull stands in the list of its destination, a push in that of its source",
            )
        fed = op.src.tensor in produced
        other = lanes.setdefault((op_id[0], op.channel), op_id)
        if (plan.op(other).src.tensor in produced) != fed:
            raise UnsupportedError(
                f"{said} runs in channel {op.channel} behind {name_op(plan, other)}: one of the two feeds the kernel, "
                "the other waits for it",
                where=where,
                help="give operations on tensors that the kernel writes channels of their own",
            )
        for dep in op.depends:
            if not fed and plan.op(dep).src.tensor in produced:
                raise UnsupportedError(
                    f"{said} feeds the kernel and depends on {name_op(plan, dep)}, which the kernel feeds",
                    where=where,
                    help="one launch cannot do both: use two plans, one behind the other",
                )
