"""Kernels compiled ahead of the ranks that launch them, on all cores: rehearsals of tests (`rehearsal`), a process a core.

    ranks     test 1: compile, launch | test 2: found, launch | test 3: found, ...
    workers   test 2 | test 5 | ...
              test 3 | test 6 | ...
              test 4 | test 7 | ...

A test file lists its rehearsals, in the order of its tests, by a function ``ahead``; one without is left to the ranks. No worker
touches a GPU. Imports neither torch nor Triton, which workers do.

    python -m tests.support.ahead --ranks 2 --seconds 60 realizations:launches

compiles alone, while GPUs do something else. `tests.multigpu.each --ahead` does it beside the ranks.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

from .compilations import keep_records, records

MODULES = "OVERLAP_TEST_MODULES"
"""A variable: the folder of modules that ranks share, with each other and with who compiles ahead of them."""
NICE = 10
"""Of workers: ranks go first."""
FAILURES = 5
"""Of which is told."""


class Ahead:
    """The workers, in a ``with`` statement; they begin at once.

    Args:
        ranks: of the tests.
        target: what kernels are compiled for, as in ``sm_90``.
        names: of tests, ``FILE[:EXPRESSION]``, in their order.
        modules: the folder of modules.
    """

    def __init__(self, ranks: int, target: str, names: Sequence[str], modules: str) -> None:
        self._workers = len(os.sched_getaffinity(0))
        self._folder = tempfile.TemporaryDirectory()
        context, given = multiprocessing.get_context("spawn"), (ranks, target, self._folder.name, modules)
        self._pool = ProcessPoolExecutor(self._workers, context, _start, given)
        self._futures: dict[str, list[Future[str]]] = {name: [] for name in names}
        self._submitted = threading.Event()
        self._pool.submit(_counts, list(self._futures)).add_done_callback(self._submit)

    def _submit(self, counted: Future[dict[str, list[int]]]) -> None:
        with suppress(Exception):  # `end` tells that nothing was done
            for name, counts in counted.result().items():
                jobs = [(number, part) for number, parts in enumerate(counts) for part in range(parts)]
                self._futures[name] += [self._pool.submit(_play, name, *job) for job in jobs]
        self._submitted.set()

    def wait(self, seconds: float) -> None:
        """Until all is compiled, or so long."""
        begun = time.monotonic()
        self._submitted.wait(seconds)
        wait([future for futures in self._futures.values() for future in futures], seconds - time.monotonic() + begun)

    def end(self, name: str) -> Iterator[str]:
        """Lets go of what is not done. Lines: how far the rehearsals came, and what went wrong."""
        futures = self._futures[name]
        for future in futures:
            future.cancel()
        failed = [text for future in futures if (text := _failure(future))]
        done = sum(future.done() and not future.cancelled() for future in futures)
        yield f"ahead: {done} of {len(futures)} parts of rehearsals by {self._workers} processes, {len(failed)} failed"
        yield from (f"  {text}" for text in failed[:FAILURES])

    @property
    def records(self) -> list[dict[str, Any]]:
        """Of what was compiled, or found, so far."""
        return records(Path(self._folder.name).iterdir())

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        # Not waited for: Triton puts finished files alone into its cache.
        workers = list(self._pool._processes.values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        self._folder.cleanup()


def _failure(future: Future[str]) -> str:
    if future.cancelled() or not future.done():
        return ""
    return repr(error) if (error := future.exception()) else future.result()


_IN = ExitStack()
"""What a worker is in as long as it lives."""


def _start(ranks: int, target: str, folder: str, modules: str) -> None:
    os.environ.update(CUDA_VISIBLE_DEVICES="", WORLD_SIZE=str(ranks), OVERLAP_CACHE_DIR=modules)
    os.nice(NICE)
    from .rehearsal import planned

    keep_records(Path(folder) / f"worker_{os.getpid()}.jsonl")
    _IN.enter_context(planned(target))


@cache
def rehearsals(name: str) -> list[Any]:
    """Those of ``FILE[:EXPRESSION]``, each once: of tests whose names pytest's ``-k EXPRESSION`` picks."""
    from _pytest.mark.expression import Expression

    file, _, expression = name.partition(":")
    picks = Expression.compile(expression or "test")
    listed = getattr(importlib.import_module(f"tests.multigpu.test_{file}"), "ahead", list)()
    found: dict[Any, Any] = {}
    for one in listed:
        called = f"test_{file}.py {one.test}".lower()
        if picks.evaluate(lambda word, called=called, **_: word.lower() in called):
            found.setdefault(one[1:], one)
    return list(found.values())


def _counts(names: Sequence[str]) -> dict[str, list[int]]:
    """In how many parts each rehearsal is played."""
    return {name: [one.parts for one in rehearsals(name)] for name in names}


def _play(name: str, number: int, part: int) -> str:
    """What went wrong, if anything did; the ranks then compile for themselves."""
    from .rehearsal import rehearse

    one = rehearsals(name)[number]
    try:
        rehearse(one, int(os.environ["WORLD_SIZE"]), part)
    except Exception as error:
        return f"{one.test}: {error!r}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME[:EXPRESSION]", help="of files of tests/multigpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit")
    parser.add_argument("--target", default="sm_90", help="for which is compiled (sm_90)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as modules,
        Ahead(options.ranks, options.target, options.names, modules) as ahead,
    ):
        ahead.wait(options.seconds)
        for name in options.names:
            print(f"{name}: " + "\n".join(ahead.end(name)))


if __name__ == "__main__":
    main()
