"""What of a launch waits for what: the graph that the event model (`events`) runs through.

    node      operations of the plan, rank by rank, then runs of tiles, then sums, numbered through
    pending   how many things each node waits for: the one before it in its channel or the launch, what it depends on, the
              runs that make what it sends, the sum that it sends on
    followers whom the end of each node lets go on, besides the next in its channel (`next`)

One step for each operation, dependency and run. A dependency list that repeats the one before it in the channel adds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from overlap.chunkplan.order import collective_groups, name_op
from overlap.chunkplan.plan import Chunk, Collective, CommPlan, OpId
from overlap.errors import PlanError, ScheduleError

from .early import rounds_of
from .work import Work


class Wiring:
    """The graph of one launch.

    Args:
        stored: operations that sums carry out.

    Raises:
        PlanError: an operation depends on one that there is not.
        ScheduleError: work for another number of ranks.
    """

    def __init__(self, plan: CommPlan, work: Sequence[Work], stored: Collection[OpId] = ()) -> None:
        if work and len(work) != plan.world:
            raise ScheduleError(f"work of {len(work)} ranks for a plan of {plan.world}")
        self.plan, self.work, self.stored = plan, work, stored
        self._number_ops()
        self.made = {plan.op(op_id).src.tensor for each in work for run in each.runs for op_id in run.feeds}
        """Tensors that tiles make."""
        self._number_runs()
        self._number_sums()

    def _number_ops(self) -> None:
        plan = self.plan
        self.base = [0]
        for ops in plan.ops:
            self.base.append(self.base[-1] + len(ops))
        count = self.base[-1]
        self.ids: list[OpId] = [op_id for op_id, _ in plan.items()]
        self.ops = [op for ops in plan.ops for op in ops]
        self.pending = [0] * count
        self.next = [-1] * count
        self.followers: dict[int, list[int]] = defaultdict(list)
        self.first: list[int] = []
        for rank, ops in enumerate(plan.ops):
            last: dict[int, int] = {}
            for node, op in enumerate(ops, self.base[rank]):
                before = last.get(op.channel, -1)
                last[op.channel] = node
                if before < 0:
                    self.first.append(node)
                    self.pending[node] += 1
                else:
                    self.next[before] = node
                    self.pending[node] += 1
                    if not op.depends or op.depends == self.ops[before].depends:
                        continue
                for dep in set(op.depends):
                    if dep[0] == rank and dep[1] < node - self.base[rank] and ops[dep[1]].channel == op.channel:
                        continue
                    self.followers[self._node(dep, node)].append(node)
                    self.pending[node] += 1
        self.group: dict[int, list[int]] = {}
        if any(isinstance(op, Collective) for op in self.ops):
            for members in collective_groups(plan):
                nodes = [self._node(member, 0) for member in members]
                self.group.update(dict.fromkeys(nodes, nodes))

    def _node(self, op_id: OpId, asked: int) -> int:
        rank, index = op_id
        if not 0 <= rank < self.plan.world or not 0 <= index < len(self.plan.ops[rank]):
            raise PlanError(
                f"plan {self.plan.name}: {name_op(self.plan, self.ids[asked])} depends on operation {index} of rank {rank}, "
                "which there is not",
                where=self.plan.where(self.ids[asked]),
            )
        return self.base[rank] + index

    def _number_runs(self) -> None:
        self.run_base = len(self.ops)
        self.run_of: list[tuple[int, int]] = []
        self.rank_runs: list[int] = []
        for rank, work in enumerate(self.work):
            self.rank_runs.append(self.run_base + len(self.run_of))
            for i, run in enumerate(work.runs):
                node = self.run_base + len(self.run_of)
                self.run_of.append((rank, i))
                self.pending.append(1 + len(run.waits))
                for dep in run.waits:
                    self.followers[self._node(dep, 0)].append(node)
                for fed in run.feeds:
                    self.followers[node].append(self._node(fed, 0))
                    self.pending[self._node(fed, 0)] += 1

    def _number_sums(self) -> None:
        """Of reducing operations: what they bring is added before it is sent on, and at the end.

        Where a run of tiles `keeps` what a sum adds, the sum waits for that run, else for all tiles of its rank. Of ranks whose
        tiles add (`Work.finished`) there is none.
        """
        self.keeper: dict[tuple[int, Chunk], int] = {
            (rank, chunk): self.rank_runs[rank] + i
            for rank, work in enumerate(self.work)
            for i, run in enumerate(work.runs)
            for chunk in run.keeps
        }
        self.meanwhile: set[int] = set()
        """Sums that are made while tiles run."""
        self.sum_base = self.run_base + len(self.run_of)
        self.sums: list[tuple[int, Chunk, int]] = []
        self.rank_sums: list[list[int]] = [[] for _ in range(self.plan.world)]
        adding: list[dict[int, None]] = [{} for _ in range(self.plan.world)]
        for node, op in enumerate(self.ops):
            if not isinstance(op, Collective) and op.reduce and not (self.work and self.work[op.dst_rank].finished):
                adding[op.dst_rank][node] = None
        if any(adding):
            self._number_added(adding)
        self.placing: dict[int, int] = {}
        """Copies to results, and the elements of the largest part of each: parts are copied as they come, the last behind it."""
        self._number_placed()

    def _number_added(self, adding: Sequence[dict[int, None]]) -> None:
        sent: dict[tuple[int, Chunk], int] = {}
        used: set[int] = set()
        for node, op in enumerate(self.ops):
            if isinstance(op, Collective) or not adding[op.src_rank]:
                continue
            key = (op.src_rank, op.src)
            if key not in sent:
                here = [n for n in map(self._of, op.depends) if n in adding[op.src_rank]]
                if not here:
                    continue
                sent[key] = self._sum(op.src_rank, op.src, here, op.src.box.size * (len(here) + 2))
                used.update(here)
            elif not op.depends:
                continue
            self.followers[sent[key]].append(node)
            self.pending[node] += 1
        for rank, landed in enumerate(adding):
            early: dict[Chunk, list[int]] = defaultdict(list)
            for node in landed:
                if node not in used and (rank, self.ops[node].dst) in self.keeper:
                    early[self.ops[node].dst].append(node)
            for chunk, parts in early.items():
                self._sum(rank, chunk, parts, chunk.box.size * (len(parts) + 2))
                used.update(parts)
            left = [node for node in landed if node not in used]
            if left:
                chunks = {self.ops[node].dst for node in left}
                size = sum(self.ops[node].dst.box.size for node in left) + 2 * sum(c.box.size for c in chunks)
                self._sum(rank, self.ops[left[0]].dst, left, size)

    def _number_placed(self) -> None:
        """Of what tiles make, what is brought and not added is copied from where it lands to the result, and the rank's own part
        of an exchange too, where tiles do not store it there: by one launch behind all sums and tiles, or, in rounds, of an
        exchange and of what sums store, by one beside the tiles for each round but the last."""
        made = self.made
        if not made:
            return
        ends = [{chunk for chunk in chunks if chunk.tensor in made} for chunks in self.plan.after]
        brought: list[list[int]] = [[] for _ in ends]
        for node, op in enumerate(self.ops):
            if not isinstance(op, Collective) and op.dst.tensor in made and not op.reduce and not op.dst.box.empty:
                chunks = ends[op.dst_rank]
                if op.dst in chunks or len(chunks) == 1 and next(iter(chunks)).box.contains(op.dst.box):
                    brought[op.dst_rank].append(node)
        rounds = rounds_of(self.plan) if any(work.free for work in self.work) else {}
        for rank, parts in enumerate(brought):
            ahead = [self.sum_base + number for number, (owner, *_) in enumerate(self.sums) if owner == rank]
            several: dict[int, list[int]] = defaultdict(list)
            for node in parts:
                apart = self.work[rank].free and (not ahead or self.ids[node] in self.stored)
                several[rounds[self.ids[node]] if apart else 0].append(node)
            own = 0 if ahead or self.work[rank].in_place else self._own_part(rank, ends[rank])
            for number, group in sorted(several.items()):
                beside = number < max(several)
                self._place(rank, group, own, () if beside else ahead, beside=beside)

    def _own_part(self, rank: int, ends: Iterable[Chunk]) -> int:
        """Elements of what the rank made that are in its result."""
        return sum(
            end.box.intersect(held.box).size
            for end in ends
            for held in self.plan.before[rank]
            if held.tensor == end.tensor and held.box.overlaps(end.box)
        )

    def _place(self, rank: int, parts: Sequence[int], own: int, ahead: Sequence[int], *, beside: bool) -> None:
        """One launch that copies what ``parts`` bring and ``own`` elements besides, behind the sums ``ahead``."""
        sizes = [self.ops[node].dst.box.size for node in parts]
        node = self.sum_base + len(self.sums)
        self.sums.append((rank, self.ops[parts[-1]].dst, 2 * (sum(sizes) + (0 if beside else own))))
        self.pending.append(len(parts) + len(ahead) + (not beside))
        for before in (*parts, *ahead):
            self.followers[before].append(node)
        if beside:
            self.meanwhile.add(node)
        else:
            self.rank_sums[rank].append(node)
            self.placing[node] = 2 * max(sizes)

    def _of(self, op_id: OpId) -> int:
        return self.base[op_id[0]] + op_id[1]

    def _sum(self, rank: int, chunk: Chunk, parts: Sequence[int], elements: int) -> int:
        node = self.sum_base + len(self.sums)
        self.sums.append((rank, chunk, elements))
        keeper = self.keeper.get((rank, chunk))
        if keeper is None:
            self.rank_sums[rank].append(node)
        else:
            self.meanwhile.add(node)
            self.followers[keeper].append(node)
        self.pending.append(1 + len(parts))
        for part in parts:
            self.followers[part].append(node)
        return node
