"""Scripts as ranks that are forked from one process which has imported torch, so that no rank pays for it.

That process is the fork server of `multiprocessing`; a pytest process starts its own with its first rank and takes it along
when it ends. A rank has what ``python SCRIPT`` under ``torch.distributed.run`` gives it: its place in the environment, the
script's folder first on ``sys.path``, standard output and error of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
# Torch reads the number of threads as it is imported; whoever has no GPU in sight never starts CUDA before the fork.
AT_IMPORT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# Checkpoints and compiled functions import the second, which takes longer than all of torch.
PRELOADED = ["torch.distributed", "torch._dynamo", "triton", "overlap.ops"]

_CONTEXT = multiprocessing.get_context("forkserver")


def run_ranks(
    world: int,
    script: str | Path,
    *arguments: str,
    cwd: str | Path,
    timeout: float = 120,
    **environment: str,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a script as ``world`` ranks, which find one another through the environment, until all have ended.

    Args:
        arguments: the same for all ranks; ``{rank}`` in one is the rank.
        cwd: where they run; a relative ``script`` lies there.
        timeout: seconds; ranks that are not done by then are killed.
        environment: beside this process' own.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    places = [{**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    words = [[word.replace("{rank}", str(rank)) for word in arguments] for rank in range(world)]
    return _run(script, words, [{**environment, **place} for place in places], cwd, timeout)


def run_alone(
    script: str | Path, *arguments: str, cwd: str | Path, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script as a process that nobody told of ranks."""
    (done,) = _run(script, [list(arguments)], [environment], cwd, timeout)
    return done


def _run(
    script: str | Path,
    words: Sequence[Sequence[str]],
    given: Sequence[Mapping[str, str]],
    cwd: str | Path,
    timeout: float,
) -> list[subprocess.CompletedProcess[str]]:
    kept = {name: value for name, value in os.environ.items() if name not in PLACES}
    _start_server(kept)
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        said = [(f"{folder}/{number}.out", f"{folder}/{number}.err") for number in range(len(words))]
        processes = [
            _CONTEXT.Process(
                target=_become, args=(str(script), [*own], {**kept, **AT_IMPORT, **more}, str(cwd), *files)
            )
            for own, more, files in zip(words, given, said, strict=True)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        return [
            subprocess.CompletedProcess([str(script), *own], process.exitcode, *(_text(path) for path in files))
            for own, process, files in zip(words, processes, said, strict=True)
        ]


def _text(path: str) -> str:
    """Nothing where a rank was killed before it had begun."""
    return Path(path).read_text() if os.path.exists(path) else ""


def _start_server(environment: Mapping[str, str]) -> None:
    """Starts it if it does not run yet; every rank takes its environment from its test, not from here."""
    _CONTEXT.set_forkserver_preload(PRELOADED)
    with mock.patch.dict(os.environ, {**environment, **AT_IMPORT}, clear=True):
        forkserver.ensure_running()


def _become(script: str, arguments: list[str], environment: dict[str, str], cwd: str, out: str, err: str) -> None:
    """What a fork does: it turns into the script."""
    for number, path in ((1, out), (2, err)):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
