"""All probes in order, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

from overlap.errors import UsageError
from overlap.runtime.cuda.runtime import runtime_for_group
from overlap.schedule.machine import PROGRAMS

from .probes import COPIES, DTYPES, GATHERS, Probes, program_counts
from .samples import Calibration, Sample

Say = Callable[[str], None]


def calibrate(group: Any = None, *, say: Say = lambda text: None) -> Calibration:
    """Measures the GPUs of a group; collective, and the same numbers on every rank. Takes about half a minute.

    Args:
        say: told what is measured next.

    Raises:
        UsageError: a group of one rank, which no link leaves.
        RuntimeContractError: no process group, no GPU, or GPUs that do not reach each other.
    """
    runtime = runtime_for_group(group)
    if runtime.world < 2:
        raise UsageError("one rank has no links to measure", help="start as many ranks as there are GPUs: 2 or more")
    probes = Probes(runtime)

    def each(what: str, sizes: tuple[int, ...], probe: Callable[[int], Sample]) -> Iterator[Sample]:
        for size in sizes:
            say(f"{what}, {size >> 20} MiB")
            yield probe(size)

    pull = tuple(each("pull by copy engine", COPIES, lambda size: probes.copy("pull", size)))
    push = tuple(each("push by copy engine", COPIES, lambda size: probes.copy("push", size)))
    programs: dict[str, dict[int, Sample]] = {}
    for way in probes.ways():
        say(PROGRAMS[way])
        programs[way] = dict(probes.programs(way, program_counts(runtime.sm_count)))
    library = tuple(each("all-gather by the library", GATHERS, probes.library))
    flops = {}
    for dtype in DTYPES:
        say(f"products, {dtype}")
        flops[dtype] = probes.flops(dtype)
    say("launches")
    flag = probes.flag()
    found = Calibration(
        device=torch.cuda.get_device_name(runtime.device),
        ranks=runtime.world,
        units=runtime.sm_count,
        versions=f"torch {torch.__version__}, triton {triton.__version__}, NCCL {_nccl()}",
        pull=pull,
        push=push,
        library=library,
        flops=flops,
        memory=probes.memory_rate(),
        kernel=probes.kernel(),
        entry=probes.entry(flag),
        flag=flag,
        contention=probes.contention(),
        programs=programs,
    )
    runtime.synchronize()
    return found


def _nccl() -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
