"""`overlap.transfer`: carries a communication plan out on its own, without a kernel.

whole = overlap.transfer("all_gather_2d", shard, mesh=device_mesh)
k, v = overlap.transfer("kv_ring", {"k": k_shard, "v": v_shard}).values()
mine = overlap.transfer("reduce_scatter", partial, path="direct")      # handed to torch.distributed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch

from overlap.chunkplan.collectives.direct import check_direct
from overlap.chunkplan.cuts import SplitLike, split_of
from overlap.chunkplan.links import Links
from overlap.chunkplan.plan import CommPlan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import OverlapError, RuntimeContractError, UnsupportedError, UsageError
from overlap.runtime.calls.between_graphs import between_graphs
from overlap.runtime.calls.operands import check_operands, check_results
from overlap.runtime.of_group import runtime_of
from overlap.runtime.transfer.transfer import FIRST, carry_out, known_transfer, transfer_for

from .direct import carry_out_direct
from .groups import no_group, resolve_group
from .transfer_form import form_of
from .transfer_plan import Wanted, mesh_for_group, plan_of

Held = Any
"""What a rank holds of a tensor: None, a tensor, or one a chunk where its chunks do not make up a box."""

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What is only moved goes as integers of its width."""


@between_graphs("a transfer is made between graphs")
def transfer(
    plan: str | CommPlan,
    tensors: Held | Mapping[str, Held],
    *,
    group: Any = None,
    mesh: Any = None,
    dim: int = 0,
    to_dim: int | None = None,
    split: SplitLike = 1,
    path: str = "template",
    shape: Sequence[int] | None = None,
    direction: str | None = None,
    links: Links | None = None,
    counts: Mapping[str, Any] | None = None,
    out: torch.Tensor | Mapping[str, torch.Tensor] | None = None,
) -> Any:
    """Carries out ``plan`` on every rank of a group: chunks are copied by copy engine, and added up where the plan says so.

    Collective, asynchronous on the current stream, and may be captured in a CUDA graph once it was called.

    Args:
        plan: a template (``all_gather_2d``), the path of a YAML file, a collective (``all_gather``, ``reduce_scatter``,
            ``all_reduce``, ``all_to_all``), or a `CommPlan`.
        tensors: what this rank holds before; by name where the plan has several tensors. Of a tensor of which it holds
            nothing it gives an empty tensor of the dtype, or leaves it out. Strides are free.
        group: as for operators; its ranks are the plan's, in order. A program without process groups is one rank alone.
        mesh: of a plan for a mesh: a DeviceMesh, ``"2x4"``, or a `Mesh`.
        dim, to_dim: the dimension in which the tensor is cut, and the one it is cut in afterwards (all-to-all).
        split: how every transfer is cut: 4 parts, or by weight, ``1:2:1`` (docs/plans.md).
        path: how a collective becomes a plan: ``template``, ``synth`` (made for ``links``), or ``direct``, which
            hands it to torch.distributed.
        shape: global shape of the (first) tensor; needed where shards are uneven, or where this rank holds nothing.
        direction: who carries a `move` out: ``pull`` or ``push``. By default pull, and push where the plan adds.
        links: the link table (``synth``).
        counts: sizes that the plan leaves to a call, by name and on the host, the same on every rank: of ``all_to_all_v``
            ``{"sent": rows}``, where rank i sends ``rows[i][j]`` rows to rank j. Without ``shape`` the tensor is as long along
            ``dim`` as they add up to. New counts make a new plan, which the ranks meet over.
        out: where the result goes; by name where there are several.

    Returns:
        what this rank holds afterwards: a tensor, or a dict where ranks end with several. Where a rank's chunks do not make
        up a box, its result is a tuple of one tensor a chunk. No gradient flows through.

    Raises:
        PlanError: no such plan, or one that does not keep its promise or does not fit the tensor or mesh.
        UsageError: arguments that cannot be meant as written.
        RuntimeContractError: a tensor that is not what the plan says this rank holds; ranks that call differently.
        UnsupportedError: a dtype or reduction that is not carried out.
    """
    group = None if no_group(group) else resolve_group(group)
    rank, world, ranks = _place(group)
    named = dict(tensors) if isinstance(tensors, Mapping) else None
    if isinstance(plan, CommPlan):
        chosen = _as_it_is(plan, world, path, mesh, shape)
    else:
        wanted = Wanted(
            mesh_for_group(mesh, world, ranks),
            _dim("dim", dim),
            _dim("to_dim", to_dim),
            split_of(split),
            path,
            direction,
            links,
            counts,
        )
        if not isinstance(plan, str):
            raise UsageError(
                f"plan is a {type(plan).__name__}",
                help="the name of a template or of a collective, the path of a .yaml file, or a CommPlan",
            )
        local = {name: _shape(name, held) for name, held in (named or {"x": tensors}).items()}
        chosen = plan_of(plan, local, _extents(shape), world, rank, wanted)
    return _Call(chosen, rank, group).run(tensors if named is None else named, out)


def _shape(name: str, held: Held) -> tuple[int, ...] | None:
    """The shape of the one tensor that a rank holds; None where it holds none or several."""
    if held is None or isinstance(held, (tuple, list)):
        return None
    if not isinstance(held, torch.Tensor):
        raise UsageError(f"`{name}` is a {type(held).__name__}", help="give a tensor, or a dict of tensors by name")
    return tuple(held.shape)


def _dim(name: str, dim: Any) -> Any:
    if dim is not None and type(dim) is not int:
        raise UsageError(f"{name}={dim!r}", help="the number of a dimension")
    return dim


def _extents(shape: Any) -> tuple[int, ...] | None:
    try:
        return None if shape is None else tuple(map(index, shape))
    except TypeError:
        raise UsageError(f"shape={shape!r}", help="the global shape, a tuple of whole numbers") from None


def _listed(held: Held) -> list[Any]:
    if held is None:
        return []
    return list(held) if isinstance(held, (tuple, list)) else [held]


def _place(group: Any) -> tuple[int, int, Sequence[int]]:
    """This rank's number in a group, the group's size, and its global ranks in order."""
    if group is None:
        return 0, 1, range(1)
    carried = getattr(group, "overlap_runtime", None)
    if carried is not None:
        return carried.rank, carried.world, range(carried.world)
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    return dist.get_rank(group), len(ranks), ranks


def _as_it_is(plan: CommPlan, world: int, path: str, mesh: Any, shape: Any) -> CommPlan:
    if plan.world != world:
        raise RuntimeContractError(
            f"plan {plan.name} is for {plan.world} ranks, the group has {world}",
            where=plan.where(),
            help="build it for this group",
        )
    if path != "template" or mesh is not None or shape is not None:
        raise UsageError("a CommPlan has its path, mesh and shapes", help="leave path=, mesh= and shape= out")
    return plan


class _Call:
    """One call: tensors checked against the plan, carried out, results shaped for the caller."""

    def __init__(self, plan: CommPlan, rank: int, group: Any) -> None:
        self.plan = plan
        self.rank = rank
        self.group = group
        self.form = form_of(plan, rank)
        self.names = self.form.names
        self.ending = self.form.ending

    def run(self, tensors: Any, out: Any) -> Any:
        if self.group is None or self.form.direct:
            return self._run_direct(tensors, out)
        plan, runtime = self.plan, runtime_of(self.group)
        try:
            given, dtypes, device = self._given(tensors)
            if device != runtime.device:
                raise RuntimeContractError(
                    f"rank {self.rank} gives tensors on {device}, ranks of this group work on {runtime.device}",
                    help='move them there, or use a collective with path="direct"',
                )
            self._check(given)
            words = dtypes if self.form.reduced else [self._word(dtype) for dtype in dtypes]
            results = self._results(out, dtypes, device)
        except OverlapError as error:
            if not known_transfer(plan, runtime):
                runtime.agree(FIRST, error)
            raise
        instance = transfer_for(plan, runtime, words, given=dtypes)
        kind = dict(zip(self.names, words, strict=True))
        carry_out(
            instance,
            {name: [tensor.view(kind[name]) for tensor in held] for name, held in given.items()},
            {name: tensor.view(kind[name]) for name, tensor in results.items()},
        )
        return self._shown(results)

    def _run_direct(self, tensors: Any, out: Any) -> Any:
        """In ordinary memory: collectives by torch.distributed, and whatever a rank alone does."""
        plan, form = self.plan, self.form
        if hasattr(self.group, "overlap_runtime"):
            raise UnsupportedError(
                f"plan {plan.name} hands collectives to torch.distributed, which simulated ranks do not have",
                where=plan.where(),
                help="simulate a template of it",
            )
        if not form.proven:
            verify_plan(plan)
            if self.group is not None:
                check_direct(plan)
            form.proven = True
        given, dtypes, device = self._given(tensors)
        self._check(given)
        results = self._results(out, dtypes, device)
        carry_out_direct(plan, self.group, given, results, form.held)
        return self._shown(results)

    def _given(self, tensors: Any) -> tuple[dict[str, list[torch.Tensor]], list[torch.dtype], torch.device]:
        """What the rank holds, one tensor a box of `boxes_of`; the dtype of every tensor; where they are."""
        plan, rank = self.plan, self.rank
        named = self._named(tensors)
        given: dict[str, list[torch.Tensor]] = {}
        dtypes: dict[str, torch.dtype] = {}
        devices: list[torch.device] = []
        for spec in plan.tensors:
            name, full = spec.name, self.form.given[spec.name]
            held: list[Any] = _listed(named.get(name))
            for tensor in held:
                if not isinstance(tensor, torch.Tensor):
                    raise UsageError(f"`{name}` is a {type(tensor).__name__}", help="give a tensor")
                dtypes.setdefault(name, tensor.dtype)
                devices.append(tensor.device)
            if not full and all(not tensor.numel() for tensor in held):
                given[name] = held[:1]
                continue
            if [tuple(tensor.shape) for tensor in held] != [box.shape for box in full]:
                has = ", ".join(map(str, full)) or "nothing"
                said = ", ".join(str(tuple(tensor.shape)) for tensor in held) or "nothing"
                raise RuntimeContractError(
                    f"rank {rank} of {plan.world} holds {has} of {spec} before plan {plan.name}, and is given {said}",
                    where=plan.where(),
                    help="pass what the plan says this rank holds; pass shape= where shards are uneven",
                )
            given[name] = [tensor.detach().resolve_conj().resolve_neg() for tensor in held]
        if not dtypes:
            raise UsageError(
                f"rank {rank} holds nothing before plan {plan.name}, so that its dtype cannot be told",
                help="pass an empty tensor of the dtype on this device",
            )
        if len(set(devices)) > 1:
            raise UsageError(f"tensors on {devices[0]} and on {next(d for d in devices if d != devices[0])}")
        common = next(iter(dtypes.values()))
        if len(set(dtypes.values())) > 1 and len(dtypes) < len(self.names):
            missing = next(name for name in self.names if name not in dtypes)
            raise UsageError(f"`{missing}` has no dtype", help="pass an empty tensor of its dtype")
        return given, [dtypes.get(name, common) for name in self.names], devices[0]

    @staticmethod
    def _check(given: Mapping[str, Sequence[torch.Tensor]]) -> None:
        for name, tensors in given.items():
            check_operands((f"`{name}`", tensor) for tensor in tensors)

    def _named(self, tensors: Any) -> Mapping[str, Held]:
        if isinstance(tensors, Mapping):
            for name in tensors:
                if name not in self.names:
                    raise UsageError(
                        f"plan {self.plan.name} has no tensor {name!r}", help=f"it has {', '.join(self.names)}"
                    )
            return tensors
        holding = self.form.holding
        if len(holding) > 1:
            raise UsageError(
                f"plan {self.plan.name} takes several tensors, {', '.join(holding)}",
                help=f"pass a dict: {{{', '.join(f'{name!r}: ...' for name in holding)}}}",
            )
        return {(holding or self.names)[0]: tensors}

    def _results(self, out: Any, dtypes: Sequence[torch.dtype], device: torch.device) -> dict[str, torch.Tensor]:
        if isinstance(out, torch.Tensor):
            if len(self.ending) != 1:
                raise UsageError(
                    f"plan {self.plan.name} ends with {', '.join(self.ending) or 'nothing'}", help="pass out= as a dict"
                )
            out = {self.ending[0]: out}
        if not (out is None or isinstance(out, Mapping)):
            raise UsageError(f"out is a {type(out).__name__}", help="give a tensor, or a dict of tensors by name")
        given: dict[str, Any] = dict(out or {})
        for name in given:
            if name not in self.ending:
                raise UsageError(f"out names {name!r}; ranks end with {', '.join(self.ending) or 'nothing'}")
        found = {}
        for name, dtype in zip(self.names, dtypes, strict=True):
            shape, tensor = self.form.held[name].shape, given.get(name)
            if tensor is None:
                found[name] = torch.empty(shape, dtype=dtype, device=device)
                continue
            chunks = len(self.form.after[name])
            if not isinstance(tensor, torch.Tensor) or chunks > 1:
                raise UsageError(f"out for `{name}`, of which rank {self.rank} ends with {chunks} chunks")
            check_results([(f"out for `{name}`", tensor)])
            if (tuple(tensor.shape), tensor.dtype, tensor.device) != (shape, dtype, device):
                raise RuntimeContractError(
                    f"out for `{name}` is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; rank {self.rank} ends "
                    f"with {shape} {dtype} on {device}"
                )
            found[name] = tensor
        return found

    def _shown(self, results: Mapping[str, torch.Tensor]) -> Any:
        shown: dict[str, Any] = {}
        for name in self.ending:
            inside = self.form.inside[name]
            shown[name] = results[name] if len(inside) == 1 else tuple(results[name][place] for place in inside)
        return next(iter(shown.values())) if len(shown) == 1 else shown

    def _word(self, dtype: torch.dtype) -> torch.dtype:
        if dtype.itemsize not in _WORDS:
            raise UnsupportedError(
                f"{dtype} has {dtype.itemsize} bytes an element, and words of up to 8 are moved",
                help="move torch.view_as_real of it",
            )
        return _WORDS[dtype.itemsize]
