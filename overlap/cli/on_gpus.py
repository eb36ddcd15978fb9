"""What commands share that run on all GPUs of a machine, a process each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from overlap.doctor.children import NO_MULTICAST
from overlap.errors import MissingDependencyError, UsageError


def gpus(what: str, instead: str) -> int:
    """How many GPUs are here.

    Args:
        what: there is no GPU to do, for the message.
        instead: what else the user can do.

    Raises:
        MissingDependencyError: torch cannot be imported.
        UsageError: there is none.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"nothing can be measured: {error}", help="pip install torch triton") from error
    if not torch.cuda.is_available():
        raise UsageError(f"there is no GPU here to {what}", help=instead)
    return torch.cuda.device_count()


def in_job() -> bool:
    """Whether this process is a rank already."""
    return "RANK" in os.environ


def check_ranks(ranks: int | None) -> None:
    """Raises UsageError where ``--ranks`` is not what the job has."""
    if ranks is not None and ranks != int(os.environ["WORLD_SIZE"]):
        raise UsageError(
            f"--ranks {ranks} in a job of {os.environ['WORLD_SIZE']}", help="leave --ranks out under torchrun"
        )


def start(count: int, ranks: int | None, words: Sequence[str]) -> int:
    """Runs ``overlap WORDS`` in a process a GPU; its exit status.

    Args:
        count: of GPUs; ``ranks``: wanted, None: all.

    Raises:
        UsageError: fewer than two, or more than there are.
    """
    wanted = ranks or count
    if wanted < 2 or wanted > count:
        raise UsageError(
            f"{wanted} ranks on {count} GPU{'s' * (count != 1)}", help="links join two GPUs or more of one host"
        )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(wanted)]
    environment = {**NO_MULTICAST, "OMP_NUM_THREADS": "1", **os.environ}
    # Behind `--`, or torchrun takes our options for beginnings of its own.
    return subprocess.run([*command, "-m", "--", "overlap", *words], env=environment, check=False).returncode


def join(backend: str) -> None:
    """Makes this process a rank on its GPU."""
    import torch
    import torch.distributed as dist

    os.environ.update({key: os.environ.get(key, value) for key, value in NO_MULTICAST.items()})
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    torch.cuda.set_device(device)
    if backend == "nccl":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group(backend)
