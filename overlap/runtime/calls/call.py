"""One call of an operator: sizes checked, stand-ins made, the user's body run, its launch carried out, its result given.

argument of the launch          what the kernel gets
communicated input (stand-in)   its window in symmetric memory
communicated output (made)      the partial in symmetric memory; the caller gets the rank's piece of the sum
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from overlap.errors import HostEntryError, RuntimeContractError, UsageError

from ..group.meeting import RAISED
from ..instance import Instance
from ..instances import first_call, instance_for, instances, order_of
from ..launch import launch
from ..memory.layout import dense_strides
from ..memory.part import Given, Part
from ..of_group import runtime_of
from ..operator import Comm, Operator
from ..protocol import Runtime
from ..repeat.places import over_base
from ..repeat.repeat import Repeat
from .hostcall import HostCall
from .operands import check_launch, check_operands, check_results
from .passed import check_input, check_strides
from .resolve import Bound
from .shapes import check_device, check_sizes, global_shape, overlapping, piece
from .standin import stand_in, unwrap

if TYPE_CHECKING:
    from ..repeat.known_calls import Asked


class Call(HostCall):
    """A call on a rank of a group. ``asked``: whoever keeps what the next call like it repeats."""

    def __init__(
        self,
        operator: Operator,
        arguments: dict[str, Any],
        *,
        group: Any,
        sizes: dict[str, int] | None,
        out: Any,
        asked: Asked | None = None,
    ) -> None:
        super().__init__(operator, dict(arguments))
        self.runtime: Runtime = runtime_of(group)
        self.sizes = check_sizes(operator, sizes)
        self.out = out
        self.instance: Instance | None = None
        self.came = False
        """Whether this call has come to where its instance is looked up, and on a first call made by all ranks."""
        self.inputs: dict[str, Given] = {}
        self.shards: dict[str, torch.Tensor] = {}
        """The communicated inputs as they were passed."""
        self.stands: dict[str, torch.Tensor] = {}
        """The tensors under their stand-ins."""
        self.made: dict[str, torch.Tensor] = {}
        """What the host function made for its kernel to write, of the communicated outputs."""
        self.versions: dict[str, int] = {}
        self.results: dict[str, torch.Tensor] = {}
        self.replaced: torch.Tensor | None = None
        self.asked_for: list[torch.Tensor] = []
        """The results for which the launch was asked to be made ready, in the order of the host entry's."""
        self._asked = asked

    def run(self) -> Any:
        operator, runtime = self.operator, self.runtime
        if operator.world is not None and operator.world != runtime.world:
            raise RuntimeContractError(
                f"this module was compiled for {operator.world} ranks, the group has {runtime.world}",
                help="compile without --world, or for this one",
            )
        consumed = [comm for comm in operator.comms if not comm.produced]
        self.inputs = {comm.tensor: self._given(comm) for comm in consumed}
        try:
            if len(consumed) == len(operator.comms):
                self.instance = instance_for(operator, runtime, tuple(self.inputs.values()))
                for comm in consumed:
                    self._stand_in(comm, self.instance.parts[comm.tensor].tensor)
                with self.instance.opening():
                    result = unwrap(self.run_body())
            else:
                # What the kernel makes is known when it is launched.
                with self._before_instance(consumed):
                    result = unwrap(self.run_body())
            return self._result(result)
        finally:
            # The stand-in knows this call and this call the stand-in: a ring that would keep every tensor of the
            # call alive until the garbage collector comes.
            self.arguments.clear()
            self.bound = None

    def _given(self, comm: Comm) -> Given:
        shard = self.arguments[comm.tensor]
        if not isinstance(shard, torch.Tensor):
            raise UsageError(f"`{comm.tensor}` must be a tensor, not {type(shard).__name__}")
        check_operands([(f"`{comm.tensor}`", shard)])
        shape = global_shape(comm, shard, self.sizes, self.runtime.world, self.runtime.rank)
        check_device(comm.tensor, shard, self.runtime)
        self.shards[comm.tensor] = shard
        return Given(shape, shard.dtype, order_of(shard))

    def _stand_in(self, comm: Comm, seen: torch.Tensor) -> None:
        self.stands[comm.tensor] = seen
        self.arguments[comm.tensor] = stand_in(seen, comm.tensor, self.here)

    @contextmanager
    def _before_instance(self, consumed: list[Comm]) -> Iterator[None]:
        """Stand-ins before the instance is known, over memory of the last one that was called with such inputs.

        The first call has none: there they lie in ordinary memory, for as long as the host function runs, in the order
        of dimensions that the ranks agree on. A rank that raises before it comes to its first launch tells the others.
        """
        runtime, known = self.runtime, instances(self.runtime)
        key = (id(self.operator), "inputs", tuple(self.inputs.values()))
        last = known.get(key)
        if last is not None:
            last.refresh()
        elif consumed:
            orders = {name: given.order for name, given in self.inputs.items()}
            told = runtime.agree(f"the inputs of {first_call(self.operator)}", orders)
            for name, given in self.inputs.items():
                shown = next((theirs[name] for theirs in told if theirs[name] is not None), None)
                self.inputs[name] = given._replace(order=shown or tuple(range(len(given.shape))))
        for comm in consumed:
            given = self.inputs[comm.tensor]
            if last is not None:
                part = last.parts[comm.tensor]
                self.inputs[comm.tensor] = given._replace(order=part.order)
                self._stand_in(comm, part.tensor)
                continue
            shape = piece(given.shape, comm.seen, runtime.world, runtime.rank).shape
            assert given.order is not None
            device = self.shards[comm.tensor].device
            self._stand_in(
                comm,
                torch.empty_strided(shape, dense_strides(shape, given.order), dtype=given.dtype, device=device),
            )
        try:
            yield
        except RAISED as error:
            if not self.came and last is None:
                runtime.agree(first_call(self.operator), error)
            raise
        assert self.instance is not None
        known[key] = self.instance

    def execute(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        check_launch(bound.arguments, self.here)
        for comm in self.operator.comms:
            if not comm.produced:
                seen = self.stands[comm.tensor]
                check_input(self.operator, comm, bound.arguments, seen, self.here)
                check_strides(self.operator, comm, bound.arguments, seen, self.here)
        if self.instance is not None:
            if self.out is not None:
                self._substitute_out(bound)
            launch.launch(self.operator, self.instance, self.shards, bound, grid, repeat=self._repeat(bound))
            return
        comms = self.operator.comms
        tensors = tuple(self._made(comm, bound) if comm.produced else self.inputs[comm.tensor] for comm in comms)
        self.came = True
        self.instance = instance = instance_for(self.operator, self.runtime, tensors)
        with instance.opening():
            given = dict(self.shards)
            for comm in comms:
                part = instance.parts[comm.tensor]
                if not comm.produced:
                    _rebase(bound, self.stands[comm.tensor], part.tensor)
                    continue
                made = self.made[comm.tensor]
                value = bound.arguments[comm.param]
                bound.arguments[comm.param] = part.tensor if value is made else over_base(value, part.tensor)
                self.results[comm.tensor] = self._out(part, made, bound)
                if comm.adds:
                    given[comm.tensor] = made
            launch.launch(self.operator, instance, given, bound, grid, self.results, repeat=self._repeat(bound))
        self.versions = {name: _version(made) for name, made in self.made.items()}

    def _repeat(self, bound: Bound) -> Repeat | None:
        """Asks that the launch be made ready for calls like this one, if this call is asked to."""
        if self._asked is None or any(comm.adds for comm in self.operator.comms):
            return None
        for name in self.operator.outputs:
            value = bound.arguments[self.operator.params[name]]
            found = self.results.get(name, getattr(value, "base", value))
            if not isinstance(found, torch.Tensor):
                return None
            self.asked_for.append(found)
        return self._asked.repeat(self.asked_for)

    def _made(self, comm: Comm, bound: Bound) -> Given:
        """What the launch passes for a communicated output: a dense tensor of its own, of the shape that the kernel makes."""
        value = bound.arguments[comm.param]
        made = getattr(value, "base", None) if _is_descriptor(value) else value
        if not isinstance(made, torch.Tensor):
            raise HostEntryError(
                f"`{comm.tensor}` is passed to the kernel as {type(made).__name__}",
                where=self.here(),
                help="pass the tensor that the kernel writes",
            )
        shape = global_shape(comm, made, self.sizes, self.runtime.world, self.runtime.rank, made=True)
        order = order_of(made) or tuple(range(made.dim()))
        dense = dense_strides(tuple(made.shape), order)
        if made.numel() and any(n > 1 and s != t for n, s, t in zip(made.shape, made.stride(), dense, strict=True)):
            raise HostEntryError(
                f"`{comm.tensor}` has strides {made.stride()} for shape {tuple(made.shape)}; it is made in memory of the "
                f"operator's own, which is dense",
                where=self.here(),
                help="make the result with torch.empty",
            )
        check_strides(self.operator, comm, bound.arguments, made, self.here)
        for name, other in bound.arguments.items():
            base = getattr(other, "base", other)
            if name != comm.param and isinstance(base, torch.Tensor) and _same_storage(base, made):
                raise HostEntryError(
                    f"the launch passes the memory of `{comm.tensor}` a second time, as `{name}`",
                    where=self.here(),
                    help="give the result memory of its own",
                )
        self.made[comm.tensor] = made
        return Given(shape, made.dtype, order)

    def _out(self, part: Part, made: torch.Tensor, bound: Bound) -> torch.Tensor:
        """Where this rank's piece of an output goes."""
        shape = part.held.shape
        if self.out is None:
            return torch.empty_strided(shape, dense_strides(shape, part.order), dtype=made.dtype, device=made.device)
        self._output_param()
        out = self.out
        if isinstance(out, torch.Tensor):
            check_results([("out", out)])
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != shape or out.device != made.device:
            found = f"{tuple(out.shape)} on {out.device}" if isinstance(out, torch.Tensor) else type(out).__name__
            raise RuntimeContractError(
                f"out is {found}; this rank's piece of `{part.comm.tensor}` has shape {shape} on {made.device}"
            )
        assert self.instance is not None
        if self.operator.carriers.words or self.instance.early:
            # It is written while programs still read what the kernel reads.
            _refuse_shared(out, bound, "its result is added up")
        return out

    def _output_param(self) -> str:
        if len(self.operator.outputs) != 1:
            raise UsageError("out= needs a host entry with one result")
        (name,) = self.operator.outputs
        return self.operator.params[name]

    def _substitute_out(self, bound: Bound) -> None:
        param = self._output_param()
        value = bound.arguments[param]
        target = getattr(value, "base", value)
        self.replaced = target
        out = self.out
        check_results([("out", out)])
        wanted = (target.shape, target.dtype, target.stride(), target.device)
        if (out.shape, out.dtype, out.stride(), out.device) != wanted:
            raise RuntimeContractError(
                f"out has shape {tuple(out.shape)}, strides {out.stride()}, {out.dtype} on {out.device}; the result has "
                f"{tuple(target.shape)}, {target.stride()}, {target.dtype} on {target.device}"
            )
        _refuse_shared(out, bound, "it writes its result")
        bound.arguments[param] = out if value is target else over_base(value, out)

    def _result(self, result: Any) -> Any:
        if self.made:
            return self._shards_for(result)
        if self.out is None:
            return result
        assert self.replaced is not None
        if isinstance(result, torch.Tensor) and result.data_ptr() == self.replaced.data_ptr():
            return self.out.view(result.shape) if result.shape != self.out.shape else self.out
        raise RuntimeContractError("out= needs a host function that returns the tensor its kernel writes")

    def _shards_for(self, result: Any) -> Any:
        """The host function's result with this rank's piece in the place of every communicated output."""
        operator, found = self.operator, set()
        where = operator.span(operator.source.host_line)

        def replaced(value: Any) -> Any:
            if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
                return type(value)(replaced(v) for v in value)
            if not isinstance(value, torch.Tensor):
                return value
            for name, made in self.made.items():
                if value is made or _same_view(value, made):
                    found.add(name)
                    return self.results[name]
                if _same_storage(value, made):
                    raise HostEntryError(
                        f"`{operator.name}` returns a view of `{name}` of shape {tuple(value.shape)}; the kernel makes "
                        f"{tuple(made.shape)}, of which this rank returns its piece",
                        where=where,
                        help=f"return `{name}` as it is and let the caller reshape it",
                    )
            return value

        given = replaced(result)
        for name, made in self.made.items():
            if name not in found:
                raise HostEntryError(
                    f"`{operator.name}` does not return `{name}`, the tensor that its kernel writes",
                    where=where,
                    help="return it as it is; compute with the result where the function is called",
                )
            if _version(made) != self.versions[name]:
                raise HostEntryError(
                    f"`{operator.name}` changes `{name}` behind its launch, where only a part of it will be the result",
                    where=where,
                    help="compute with the result where the function is called, or inside the kernel",
                )
        return given


def _is_descriptor(value: Any) -> bool:
    return hasattr(value, "block_shape") and hasattr(value, "base")


def _same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _refuse_shared(out: torch.Tensor, bound: Bound, when: str) -> None:
    """Raises RuntimeContractError for a result in memory of an argument, which tiles would overwrite."""
    for name, value in bound.arguments.items():
        base = getattr(value, "base", value)
        if not isinstance(base, torch.Tensor) or not base.numel() or not out.numel():
            continue
        if _same_storage(base, out) and overlapping(base, out):
            raise RuntimeContractError(
                f"out lies in the memory of `{name}`, which the kernel reads while {when}",
                help="give the result memory of its own",
            )


def _same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (
        other.data_ptr(),
        other.shape,
        other.stride(),
        other.dtype,
    )


def _version(tensor: torch.Tensor) -> int:
    """Goes up when a tensor is written in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _rebase(bound: Bound, old: torch.Tensor, new: torch.Tensor) -> None:
    """Arguments that lie in the memory of ``old`` moved to the same places of ``new``, of the same shape and strides."""
    if old.data_ptr() == new.data_ptr():
        return
    storage = old.untyped_storage().data_ptr()
    for name, value in bound.arguments.items():
        base = value.base if _is_descriptor(value) else value
        if not isinstance(base, torch.Tensor) or base.untyped_storage().data_ptr() != storage:
            continue
        start = new.storage_offset() + base.storage_offset() - old.storage_offset()
        moved = new.as_strided(base.shape, base.stride(), start)
        bound.arguments[name] = moved if value is base else over_base(value, moved)
