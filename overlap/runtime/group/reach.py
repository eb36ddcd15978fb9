"""Which ranks a rank reaches by pointer: those of its own node. The others are far, and reached through NVSHMEM alone.

nodes of 2      rank 0   rank 1 | rank 2   rank 3
rank 0 reaches    own   pointer |   PE 2     PE 3
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from overlap.backends.base import Backend
from overlap.backends.capabilities import Need, require
from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan
from overlap.errors import RuntimeContractError, UnsupportedError

if TYPE_CHECKING:
    from ..protocol import Runtime


def nodes_of(world: int, ranks: int) -> tuple[int, ...]:
    """The node of every rank, ``ranks`` to a node; the last may have fewer."""
    return tuple(rank // ranks for rank in range(world))


def nodes_by(hosts: Sequence[Hashable]) -> tuple[int, ...]:
    """The node of every rank, from what tells its host."""
    known = list(dict.fromkeys(hosts))
    return tuple(known.index(host) for host in hosts)


class OnNodes(Protocol):
    """A rank that knows its place."""

    rank: int

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of every rank."""


def far(runtime: OnNodes, rank: int) -> bool:
    """Whether no pointer of this rank's reaches the memory of ``rank``."""
    return runtime.nodes[rank] != runtime.nodes[runtime.rank]


def through_network(runtime: OnNodes, rank: int) -> bool:
    """Whether the backend for far ranks carries what goes between this rank and ``rank``: it is far, or none is."""
    return rank != runtime.rank and (far(runtime, rank) or len(set(runtime.nodes)) == 1)


def refuse(runtime: OnNodes, rank: int) -> RuntimeContractError:
    """The error of a pointer to the memory of a far rank."""
    return RuntimeContractError(
        f"rank {runtime.rank} (node {runtime.nodes[runtime.rank]}) reaches no memory of rank {rank} (node "
        f"{runtime.nodes[rank]}) by pointer",
        help='backend="nvshmem" carries what goes between nodes; OVERLAP_NODE_RANKS says how many ranks a node has',
    )


def check_reach(plan: CommPlan, runtime: Runtime, backend_of: Callable[[P2P], Backend]) -> None:
    """Refuses, on every rank alike, a plan that its backends cannot carry out on these nodes.

    Raises:
        UnsupportedError: an operation between nodes that goes by pointer, or one that waits for what lands on a node other
            than that of the rank that carries it out; or symmetric memory that is not NVSHMEM's.
    """
    nodes = runtime.nodes
    for op_id, op in plan.items():
        if not isinstance(op, P2P):
            continue
        backend, said, where = backend_of(op), f"plan {plan.name}, {name_op(plan, op_id)}", plan.where(op_id)
        if nodes[op.src_rank] != nodes[op.dst_rank]:
            require(backend, Need(said, op.src.tensor, far=True), where=where)
        for before in op.depends:
            landed = plan.op(before)
            assert isinstance(landed, P2P)
            if nodes[landed.dst_rank] != nodes[op_id[0]]:
                raise UnsupportedError(
                    f"{said} waits for what lands on rank {landed.dst_rank}, whose flags rank {op_id[0]} of another node cannot "
                    "poll",
                    where=where,
                    help="let the rank on which it lands send it on: a push in the place of the pull",
                )
        if backend.far and not runtime.pes:
            raise UnsupportedError(
                f"{said}: {backend.name} moves NVSHMEM's symmetric memory, and that of this group is torch's",
                where=where,
                help="OVERLAP_PROVIDER=nvshmem before the group's first call, or another backend: pointers reach every rank here",
            )
