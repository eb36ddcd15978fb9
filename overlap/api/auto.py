"""``backend="auto"``: the way that is predicted to take least, chosen once for a problem and by all ranks alike.

    problem -> ways that can (capabilities) -> each predicted (schedule.ways, on the setting `machine`) -> rank 0's best

Every rank works it out, and all take what rank 0 found, so that a setting or a device that differs on one rank alone never
makes ranks launch different kernels. Later calls of the same problem meet nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from overlap import settings
from overlap.backends.capabilities import SERIAL, Need, unasked
from overlap.backends.registry import backends
from overlap.backends.ways import able_ways, naming
from overlap.chunkplan.cuts import Split
from overlap.runtime.cuda.launchers import triton_here
from overlap.runtime.of_group import runtime_of
from overlap.runtime.protocol import Runtime
from overlap.schedule.carried import Way
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.op_ways import operator_candidates
from overlap.schedule.ways import Candidate, best, listed

from .fallback import Choice, impossible

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
Predict = Callable[[Machine, Sequence[Way]], Sequence[Candidate]]


@dataclass(frozen=True)
class Problem:
    """What a prebuilt operator is asked for, the same on every rank.

    Args:
        op: as `overlap.schedule.operators` has it; ``m``, ``n``, ``k`` global.
        dtype: of the operands.
        plan, split: of the call.
        programs: that the caller wants to move chunks; 0: any number.
        lacking: why a backend, by its name, cannot serve the call; nothing where it can. No part of what is compared.
        open: the caller names none of backend, plan, split and programs, so that what was tuned counts (`tuned`).
    """

    op: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    plan: str | None = None
    split: Split = 1
    programs: int = 0
    lacking: Callable[[str], str] = field(default=lambda name: "", compare=False, repr=False)
    open: bool = False

    @property
    def produced(self) -> bool:
        return self.op in ("gemm_rs", "gemm_ar", "gemm_a2a")

    def predict(self, machine: Machine, ways: Sequence[Way], world: int) -> tuple[Candidate, ...]:
        """What each way takes."""
        dtype = DTYPES.get(self.dtype, "fp32")
        sizes = {"M": self.m, "N": self.n, "K": self.k}
        return operator_candidates(
            self.op,
            ways,
            world=world,
            sizes=sizes,
            machine=machine,
            dtype=dtype,
            split=self.split,
            plan=self.plan,
            named=naming(self.produced),
        )


def choose_auto(group: Any, tensor: torch.Tensor, problem: Problem, moved_bytes: int) -> Choice:
    """The choice for a call of a prebuilt operator; the first call of a problem makes it, collectively.

    Args:
        group: as `resolve_group` returns it; None in a program without process groups.
        tensor: this rank's shard.
        moved_bytes: of the communicated tensor, global.

    Raises:
        PlanError: no such machine, or nothing can be predicted on it.
    """
    need = Need(problem.op, "", "result" if problem.produced else "input")

    def predict(machine: Machine, ways: Sequence[Way]) -> Sequence[Candidate]:
        return problem.predict(machine, ways, machine_world(group))

    return decide(
        group, tensor, problem, need, predict, moved_bytes, programs=problem.programs, lacking=problem.lacking
    )


def machine_world(group: Any) -> int:
    """Ranks of a group."""
    carried = getattr(group, "overlap_runtime", None)
    return int(carried.world if carried is not None else group.size())


def decide(
    group: Any,
    tensor: torch.Tensor,
    key: Any,
    need: Need,
    predict: Predict,
    moved_bytes: int,
    *,
    programs: int = 0,
    lacking: Callable[[str], str] = lambda name: "",
) -> Choice:
    """The fastest of the ways that can serve ``need``, remembered under ``key``.

    Below the measured line ``serial_below_bytes`` it is serial, unless the setting ``machine`` names one: the shipped ones take
    launches for cheaper than they are.

    Args:
        predict: candidates of ways on a machine, their times the same on every rank.
        moved_bytes: of the communicated tensors, global.
    """
    if group is None:
        return Choice(SERIAL, "no process group, so one rank")
    simulated = hasattr(group, "overlap_runtime")
    if not simulated:
        why = impossible(group, tensor)
        if why or machine_world(group) == 1:
            return Choice(SERIAL, why or "one rank has nothing to communicate", forced=bool(why))
        limit = settings.get("serial_below_bytes")
        if moved_bytes < limit and settings.get("machine") is None:
            return Choice(SERIAL, f"{moved_bytes} bytes are below serial_below_bytes={limit}, and no machine is named")
    runtime = runtime_of(group)
    known = choices(runtime)
    if key not in known:
        need = replace(need, triton=triton_here(), capability=None if simulated else torch.cuda.get_device_capability())
        known[key] = _agreed(runtime, key, need, predict, programs, lacking, serial=not simulated)
    return known[key]


def choices(runtime: Runtime) -> dict[Any, Choice]:
    """What was chosen on a runtime, by problem."""
    found = getattr(runtime, "overlap_choices", None)
    if found is None:
        found = runtime.overlap_choices = {}  # type: ignore[attr-defined]
    return found


def _agreed(
    runtime: Runtime,
    key: Any,
    need: Need,
    predict: Predict,
    programs: int,
    lacking: Callable[[str], str],
    *,
    serial: bool,
) -> Choice:
    what = f"the way of {key}"
    try:
        # Its rates are taken as they are; the multiprocessors are those that are there.
        machine = replace(machine_for(runtime.world), units=runtime.sm_count)
        ways, refused = able_ways(
            need, programs=programs, serial=serial, lacking=lambda name: unasked(backends[name]) or lacking(name)
        )
        candidates = [*predict(machine, ways), *refused]
        mine = choice_of(best(candidates), candidates, machine.name)
    except Exception as error:
        runtime.agree(what, error)
        raise
    told: list[Choice] = runtime.agree(what, mine)
    return told[0]


def choice_of(chosen: Candidate, candidates: Sequence[Candidate], machine: str) -> Choice:
    """The choice of a candidate: what it is predicted to take, what the others are, and why some are none."""
    shown = listed(candidates)
    why = ""
    if chosen.way.name == SERIAL:
        other = next((c for c in shown if c.seconds is not None and c.way.name != SERIAL), None)
        assert chosen.seconds is not None
        why = f"predicted {1e3 * chosen.seconds:.3f} ms on {machine}"
        why += f", {other}" if other else ", and nothing else is possible"
    return Choice(
        chosen.way.name,
        why,
        programs=chosen.way.programs,
        considered=tuple(map(str, shown)),
    )
