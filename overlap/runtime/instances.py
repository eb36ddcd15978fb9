"""Instances of a group: found by what is called, or made by all ranks at the first call of a shape.

key of a call -> an instance | ranks meet, compare what they are about to do -> one made by each
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from overlap import settings
from overlap.errors import PlanError, RuntimeContractError
from overlap.schedule.machine import machine_for

from .group.meeting import first_difference
from .instance import Instance
from .launch.beside import asked_sums
from .memory.part import Given
from .operator import Operator
from .protocol import Runtime
from .workspace import workspace_of


def order_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions of a tensor in memory, outermost first; None where it is too small to show them."""
    if tensor.numel() == 0 or any(n <= 1 for n in tensor.shape):
        return None
    return tuple(sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d)))


def _machine_in_words(operator: Operator, world: int) -> str:
    """The machine that decides the order of chunks, or why there is none: every rank hears of a difference before any raises."""
    try:
        machine = machine_for(world, None, operator.realization.machine)
    except PlanError as error:
        return error.message
    return f"{machine.name} ({hashlib.sha256(repr(machine).encode()).hexdigest()[:8]})"


def first_call(operator: Operator) -> str:
    """The name of the meeting of a first call of a shape."""
    return f"the first call of `{operator.name}`"


def instance_for(
    operator: Operator, runtime: Runtime, given: tuple[Given, ...], offered: int | None = None
) -> Instance:
    """The instance for a call; the first call of a shape makes it, collectively.

    A tensor without an order keeps the shards' (a transposed shard gives a transposed buffer), and ranks whose shard is
    too small to show one follow the lowest rank whose shard shows one.

    Args:
        offered: multiprocessors that may be left to sums, where nobody asks; rank 0's, at the first call of the shape, counts.

    Raises:
        RuntimeContractError: ranks that call with another shape, dtype or plan; the first difference is named.
        DeadlineError: a rank does not come; or an earlier launch of the operator waited in vain.
    """
    workspace_of(operator, runtime, tuple(g.dtype for g in given)).check()
    cache = instances(runtime)
    asked = asked_sums(operator)
    store_sums = settings.get("store_sums")
    key = (id(operator), given, asked, store_sums)
    instance: Instance | None = cache.get(key)
    if instance is None:
        orders = tuple(g.order for g in given)
        plans = "\n".join(comm.plan for comm in operator.comms)
        facts = {
            "shape": tuple(g.shape for g in given) if len(given) > 1 else given[0].shape,
            "dtype": ", ".join(str(g.dtype) for g in given),
            "plan": plans,
            "plan hash": hashlib.sha256(plans.encode()).hexdigest()[:16],
            "realization": repr(operator.realization),
            "machine": _machine_in_words(operator, runtime.world),
            "strided_row_bytes": settings.get("strided_row_bytes") if operator.realization.strided else 0,
            "communicated": operator.on,
            "sum_sms": asked,
            "store_sums": store_sums,
        }
        told = runtime.agree(first_call(operator), (orders, facts, offered))
        for rank, (_, theirs, _) in enumerate(told):
            difference = first_difference(facts, theirs)
            if difference:
                raise RuntimeContractError(
                    f"rank {runtime.rank} and rank {rank} call `{operator.name}` differently: {difference}",
                    help="where shards are uneven, sizes= of a host function and gather_size= of an operator give the global size"
                    if facts["shape"] != theirs["shape"]
                    else "sizes, dtypes, plan, backend, split and settings are alike on every rank; of ag_gemm also the number "
                    "of weights, and whether the gathered tensor is returned or kept for gradients, as these decide on a plan",
                )
        settled = []
        for i, (comm, own) in enumerate(zip(operator.comms, given, strict=True)):
            # What a kernel makes has the strides that its own launch passes; peers never reach into it.
            shown = own.order if comm.produced else next((t[i] for t, *_ in told if t[i] is not None), None)
            settled.append(own._replace(order=shown))
        left = (told[0][2] or 0) if asked is None else asked
        if operator.realization.tile_sums:
            left = 0  # tiles add, nothing runs beside them
        instance = cache[key] = Instance(operator, runtime, settled, left, store_sums)
        instance.known_as = key
    else:
        called_last(instance)
        instance.refresh()
    return instance


def called_last(instance: Instance) -> None:
    """Puts an instance at the end of the runtime's, where the one called last stands."""
    runtime: Any = instance.runtime
    cache: dict[Any, Any] = runtime.overlap_instances
    if next(reversed(cache.values())) is not instance:
        cache[instance.known_as] = cache.pop(instance.known_as)
    runtime.overlap_last = instance


def instances(runtime: Runtime) -> dict[Any, Any]:
    """The runtime's instances and other bound plans, the one called last at the end."""
    found: Any = runtime
    # Whoever asks may put another one at the end.
    found.overlap_last = None
    cache: dict[Any, Any] | None = getattr(found, "overlap_instances", None)
    if cache is None:
        cache = found.overlap_instances = {}
    return cache
